#include "load/target.h"

#include "base/json.h"

namespace mc::load {
namespace {
constexpr Duration kAskLimit = std::chrono::seconds(5);
constexpr Duration kPollPeriod = std::chrono::milliseconds(100);

std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}
std::optional<uint64_t> count_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned()) return std::nullopt;
  return it->get<uint64_t>();
}
std::string beginning(std::string_view text) {
  constexpr size_t kMost = 60;
  const std::string shown = escape(text.substr(0, kMost));
  return text.size() > kMost ? shown + "..." : shown;
}
void add(std::optional<uint64_t>& to, const std::optional<uint64_t>& n) {
  if (n) to = to.value_or(0) + *n;
}
}  // namespace

Cluster parse_cluster(std::string_view body) {
  Cluster out;
  const auto json = parse_json(body);
  if (!json || !json->is_object()) return out;
  out.policy = text_of(*json, "policy");
  out.admission = text_of(*json, "admission");
  out.block_tokens = count_of(*json, "block_size");
  out.kv_errors = count_of(*json, "kv_errors");
  const bool total = out.kv_errors.has_value();
  const auto nodes = json->find("nodes");
  if (nodes == json->end() || !nodes->is_array()) return out;
  bool same = true;
  for (const Json& node : *nodes) {
    if (!node.is_object()) continue;
    const std::string role = text_of(node, "role");
    if (role == "prefill" || role == "both") {
      add(out.prefill, 1);
      const auto blocks = count_of(node, "blocks_total");
      same = same && blocks && (!out.cache_blocks || out.cache_blocks == blocks);
      out.cache_blocks = blocks;
    }
    if (role == "decode" || role == "both") add(out.decode, 1);
    if (!total) add(out.kv_errors, count_of(node, "kv_errors"));
  }
  if (!same) out.cache_blocks.reset();
  return out;
}

Target::Target(io::Loop& loop, http::Client& client, std::string url)
    : loop_(loop), client_(client), url_(std::move(url)) {
  while (url_.ends_with('/')) url_.pop_back();
}

Result<http::ClientResponse> Target::get(const std::string& path, Duration limit) {
  std::optional<Result<http::ClientResponse>> answer;
  http::ClientRequest request;
  request.url = url_ + path;
  request.timeout = limit;
  http::ClientCallbacks calls;
  calls.on_done = [&answer](Result<http::ClientResponse> r) { answer = std::move(r); };
  const auto id = client_.send(std::move(request), std::move(calls));
  while (!answer) {
    if (auto turned = loop_.turn(limit); !turned) {
      client_.cancel(id);
      return fail(std::move(turned).error());
    }
  }
  return std::move(*answer);
}

Result<> Target::wait_ready(Duration limit, const std::function<bool()>& stopped) {
  const Time end = loop_.clock().now() + limit;
  std::string seen;
  for (;;) {
    const Duration left = end - loop_.clock().now();
    const Duration ask = std::clamp<Duration>(left, std::chrono::milliseconds(200), kAskLimit);
    auto ready = get("/ready", ask);
    if (ready && ready->status == 404) ready = get("/v1/models", ask);
    if (ready && ready->status == 200) return {};
    if (!ready && ready.error().code == Code::kInvalid) return fail(std::move(ready).error());
    seen = ready ? strf("it answers %d: %s", ready->status, escape(ready->body).c_str())
                 : ready.error().what;
    if (stopped && stopped()) return fail(Code::kUnavailable, "stopped: %s", seen.c_str());
    const Time next = loop_.clock().now() + kPollPeriod;
    if (next >= end) break;
    while (loop_.clock().now() < next) MC_TRY_(loop_.turn(next - loop_.clock().now()));
  }
  return fail(Code::kUnavailable, "%s is not ready after %s: %s", url_.c_str(),
              to_text(limit).c_str(), seen.c_str());
}

Result<Model> Target::model() {
  MC_TRY(const http::ClientResponse answer, get("/v1/models", kAskLimit));
  const std::string where = url_ + "/v1/models";
  if (answer.status != 200)
    return fail(Code::kUnavailable, "%s answers %d: name the model with --model", where.c_str(),
                answer.status);
  const auto parsed = parse_json(answer.body);
  if (!parsed)
    return fail(Code::kUnavailable,
                "%s answers what is not JSON: '%s': is it an OpenAI server? name the model with "
                "--model",
                where.c_str(), beginning(answer.body).c_str());
  const Json& json = *parsed;
  const auto data = json.find("data");
  if (!json.is_object() || data == json.end() || !data->is_array() || data->empty())
    return fail(Code::kUnavailable, "%s lists no model: name one with --model", where.c_str());
  Model model;
  auto id = get_string((*data)[0], "id");
  if (!id)
    return fail(Code::kUnavailable, "%s: %s: name the model with --model", where.c_str(),
                id.error().what.c_str());
  model.id = std::move(*id);
  for (const char* key : {"vocab", "vocab_size"})
    if (const auto n = count_of((*data)[0], key)) model.vocab = *n;
  return model;
}

Cluster Target::cluster() {
  const auto answer = get("/cluster", kAskLimit);
  return answer && answer->status == 200 ? parse_cluster(answer->body) : Cluster{};
}

}  // namespace mc::load
