#include "device/named.h"

#include <algorithm>

#include "base/units.h"
#include "device/cuda.h"
#include "device/stand_in.h"

namespace mc::device {
namespace {
constexpr uint64_t kNamedStandInBytes = 2 * kGiB;
}  // namespace

Result<DevicePtr> open_named(const std::string& word, const Clock& clock) {
  const std::string name = word.substr(0, word.find(':'));
  if (name != "cuda" && name != "stand-in")
    return fail(Code::kInvalid, "'%s' is no device: give cuda:0, or stand-in", word.c_str());
  uint64_t ordinal = 0;
  if (word.size() > name.size()) {
    MC_TRY(ordinal, parse_uint(word.substr(name.size() + 1)));
  }
  const auto n = static_cast<int>(std::min<uint64_t>(ordinal, INT32_MAX));
  if (name == "cuda") return open_cuda(n);
  return StandIn::make(clock, {.ordinal = n, .bytes = kNamedStandInBytes});
}

}  // namespace mc::device
