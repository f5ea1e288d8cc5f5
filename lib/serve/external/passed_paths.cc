#include "serve/external/passed_paths.h"

#include <algorithm>

#include "base/units.h"

namespace mc::serve {
namespace {

constexpr std::string_view kBelow = "/v1/";

bool is_printed(char c) { return c > ' ' && c < 0x7f; }

// A path that means what it says: an engine must not find another one in it.
bool is_plain(std::string_view path) {
  if (!std::all_of(path.begin(), path.end(), is_printed)) return false;
  if (path.find("//") != path.npos || path.find_first_of("\\?#%") != path.npos) return false;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part == "." || part == "..") return false;
    at = end + 1;
  }
  return true;
}

// Each `*` takes as little as it can, and more when what follows does not fit.
bool fits(std::string_view text, std::string_view pattern) {
  size_t at = 0, in = 0, star = pattern.npos, taken = 0;
  while (at < text.size()) {
    if (in < pattern.size() && pattern[in] == '*') {
      star = in++;
      taken = at;
    } else if (in < pattern.size() && pattern[in] == text[at]) {
      ++in;
      ++at;
    } else if (star != pattern.npos) {
      in = star + 1;
      at = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', in) == pattern.npos;
}

}  // namespace

Result<PassedPaths> PassedPaths::parse(std::vector<std::string> patterns) {
  for (const std::string& pattern : patterns)
    if (!pattern.starts_with(kBelow) || pattern.size() == kBelow.size() || !is_plain(pattern))
      return fail(Code::kInvalid, "--pass '%s': want a path below /v1/, such as /v1/audio/*",
                  escape(pattern).c_str());
  PassedPaths paths;
  paths.patterns_ = std::move(patterns);
  return paths;
}

bool PassedPaths::match(std::string_view path) const {
  return !patterns_.empty() && is_plain(path) &&
         std::any_of(patterns_.begin(), patterns_.end(),
                     [path](const std::string& pattern) { return fits(path, pattern); });
}

}  // namespace mc::serve
