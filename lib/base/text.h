// Joins words for messages and reports.
//
// Thread: any.
#pragma once
#include <string>
#include <vector>

namespace mc {

inline std::string join(const std::vector<std::string>& words, const char* separator = ", ") {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) out += (i > 0 ? separator : "") + words[i];
  return out;
}

}  // namespace mc
