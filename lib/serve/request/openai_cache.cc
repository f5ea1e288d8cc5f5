// Parses `cache_control` of requests and of the messages of a chat.
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "serve/request/openai_members.h"

namespace mc::serve {
namespace {

constexpr const char* kName = "cache_control";
constexpr Duration kTtl = std::chrono::minutes(5);
constexpr Duration kTtlMin = std::chrono::seconds(1), kTtlMax = std::chrono::hours(24);

struct CacheHint {
  bool ephemeral = false;  // and no ttl was given
  Duration ttl = kTtl;
};

tl::expected<CacheHint, ApiError> read_hint(const Json& j) {
  if (!j.is_object()) return wrong_type(kName, j, "an object");
  const Members m(j);
  std::string type;
  if (Parsed read = m.read("type", type, 64); !read) return bad(kName, read.error().message);
  if (type != "context" && type != "ephemeral")
    return bad(kName,
               "'type' of cache_control is '" + escape(type) + "', want context or ephemeral");
  CacheHint hint;
  const Json* ttl = m.find("ttl");
  hint.ephemeral = type == "ephemeral" && ttl == nullptr;
  if (ttl == nullptr) return hint;
  const auto wrong = [] {
    return bad(kName, "'ttl' of cache_control: want 1 to 86400 s, as \"5m\"");
  };
  if (ttl->is_number()) {
    const double s = ttl->get<double>();
    if (!(s >= to_seconds(kTtlMin) && s <= to_seconds(kTtlMax))) return wrong();
    hint.ttl = from_seconds(s);
  } else {
    const auto given = ttl->is_string() ? parse_duration(ttl->get<std::string>())
                                        : Result<Duration>(fail(Code::kInvalid, "no text"));
    if (!given || *given < kTtlMin || *given > kTtlMax) return wrong();
    hint.ttl = *given;
  }
  return hint;
}

// The hint of a message: its own, or that of the last of its parts that has one.
const Json* hint_of(const Json& message) {
  const Json* found = Members(message).find(kName);
  const Json* content = Members(message).find("content");
  if (found != nullptr || content == nullptr || !content->is_array()) return found;
  for (const Json& part : *content)
    if (const Json* its = Members(part).find(kName)) found = its;
  return found;
}

}  // namespace

Parsed read_cache_control(const Json& body, const ApiLimits& limits, CompletionRequest& r) {
  const Members m(body);
  if (const Json* whole = m.find(kName)) {
    const auto hint = read_hint(*whole);
    if (!hint) return tl::unexpected(hint.error());
    r.cache.ephemeral = hint->ephemeral;
    if (!hint->ephemeral) {
      r.cache.context_tokens = r.prompt.size();
      r.cache.ttl = hint->ttl;
    }
  }
  const Json* messages = r.chat ? m.find("messages") : nullptr;
  if (messages == nullptr) return {};
  size_t marked = 0;  // messages up to the last one with a hint
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json* its = hint_of((*messages)[i]);
    if (its == nullptr) continue;
    const auto hint = read_hint(*its);
    if (!hint) return tl::unexpected(hint.error());
    marked = i + 1;
    r.cache.ttl = std::max(r.cache.ttl, hint->ttl);
  }
  if (marked == 0) return {};
  Json upto = Json::array();
  for (size_t i = 0; i < marked; ++i) upto.push_back((*messages)[i]);
  // What the prompt has in common with one that ended there.
  const auto prefix = read_messages(upto, body, limits);
  if (!prefix) return tl::unexpected(prefix.error());
  const auto [end, other] =
      std::mismatch(r.prompt.begin(), r.prompt.end(), prefix->tokens.begin(), prefix->tokens.end());
  r.cache.context_tokens =
      std::max(r.cache.context_tokens, static_cast<uint64_t>(end - r.prompt.begin()));
  return {};
}

}  // namespace mc::serve
