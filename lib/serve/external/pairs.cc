#include "serve/external/pairs.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/units.h"

namespace mc::serve {
namespace {

constexpr size_t kEngineMax = 256;  // characters of its name
constexpr std::pair<PairKind, const char*> kKinds[] = {{PairKind::kSequential, "sequential"},
                                                       {PairKind::kConcurrent, "concurrent"},
                                                       {PairKind::kSglang, "sglang"}};

}  // namespace

const char* name(PairKind kind) {
  for (const auto& [k, text] : kKinds)
    if (k == kind) return text;
  return "?";
}

Result<PairKind> parse_pair_kind(const std::string& text) {
  for (const auto& [kind, named] : kKinds)
    if (text == named) return kind;
  return fail(Code::kInvalid, "pair '%s': want sequential, concurrent or sglang",
              escape(text).c_str());
}

PairMeeting fresh_meeting(Random& random, size_t prompts) {
  PairMeeting m;
  m.transfer = strf("xfer-%016llx%016llx", static_cast<unsigned long long>(random.next()),
                    static_cast<unsigned long long>(random.next()));
  for (size_t i = 0; i < std::max<size_t>(prompts, 1); ++i) m.rooms.push_back(random.next() >> 1);
  return m;
}

Result<std::string> engine_at_bootstrap(const std::string& answer, uint64_t rank) {
  const auto json = parse_json(answer);
  const Json* const entry = json ? member(*json, std::to_string(rank).c_str()) : nullptr;
  const auto id = entry != nullptr ? get_string(*entry, "engine_id") : Result<std::string>("");
  if (!id || id->empty() || id->size() > kEngineMax)
    return fail(Code::kCorrupt,
                "its bootstrap server does not name the engine of rank %llu: want "
                "{\"%llu\": {\"engine_id\": ..}}",
                static_cast<unsigned long long>(rank), static_cast<unsigned long long>(rank));
  return *id;
}

}  // namespace mc::serve
