#include "wire/release.h"

#include <algorithm>

#include "base/units.h"

namespace mc::wire {

Release this_release() { return {MC_VERSION, kProtocolMin, kProtocolMax}; }

std::string release_text(const Release& release) {
  constexpr size_t kBuildMax = 256;
  const std::string build =
      release.build.empty() ? "an older release" : "mc " + release.build.substr(0, kBuildMax);
  if (release.protocol_min == release.protocol_max)
    return strf("%s (protocol %u)", escape(build).c_str(), release.protocol_min);
  return strf("%s (protocols %u to %u)", escape(build).c_str(), release.protocol_min,
              release.protocol_max);
}

Result<> check_release(const std::string& who, const Release& theirs, const std::string& me) {
  const uint32_t first = std::max(theirs.protocol_min, kProtocolMin);
  if (first <= std::min(theirs.protocol_max, kProtocolMax)) return {};
  return fail(Code::kUnsupported,
              "%s is %s and %s is %s: they have no protocol in common; run releases that do",
              who.c_str(), release_text(theirs).c_str(), me.c_str(),
              release_text(this_release()).c_str());
}

}  // namespace mc::wire
