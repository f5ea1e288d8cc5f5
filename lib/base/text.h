// Makes texts for messages and reports, and reads files of text.
//
// Thread: any.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace mc {

// What a peer said, for people and clients: one line of UTF-8 without control characters. What is
// longer than `most` bytes ends at a character, and says how much is left out.
std::string one_line(std::string_view text, size_t most);
std::string rounded_text(Duration d);  // "1.25s": for people, three digits

// The text of a file of any kind. It waits for no pipe that nobody writes to: one without a writer
// is empty, and one whose writer brings nothing for five seconds is kTimeout. Errors name the path:
// those of open(2) and read(2); kInvalid for a directory, and for more than `bytes_max`.
Result<std::string> read_whole(const std::string& path, size_t bytes_max);
Result<std::string> read_whole(int fd, const std::string& path, size_t bytes_max);  // O_NONBLOCK

inline std::string join(const std::vector<std::string>& words, const char* separator = ", ") {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) out += (i > 0 ? separator : "") + words[i];
  return out;
}

}  // namespace mc
