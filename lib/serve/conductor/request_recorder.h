// Adds a line to a request trace for each request that was answered.
//
// mc-replay reads such a trace (lib/trace/records/records.h). A hash id is the tag of a block of
// the conductor's size, so it tells which prompts begin alike, and nothing of what they say. The
// prompt's partial last block has the hash of its tokens. Times are milliseconds since 1970, so a
// conductor that starts again adds to the same file.
//
// Lines are in the order of arrival. Where kHeldMax requests have ended behind one that has not,
// they are written before it. What is left out: requests without a token of an answer, and those
// whose tokens the conductor does not know.
//
// Thread: one owner. A write goes to the page cache. When it fails, a warning says so, and the
// recording ends.
#pragma once
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::serve {

class RequestRecorder {
 public:
  static constexpr size_t kHeldMax = 4096;  // requests that ended, behind one that has not

  // `block_tokens`: of the tags. Errors: those of the file, which name it.
  static Result<std::unique_ptr<RequestRecorder>> open(const std::string& path,
                                                       uint64_t block_tokens);
  ~RequestRecorder();  // writes what has ended
  RequestRecorder(const RequestRecorder&) = delete;
  RequestRecorder& operator=(const RequestRecorder&) = delete;

  // `request`: larger than any before. `tags`: of the full blocks of the prompt.
  void arrived(uint64_t request, int64_t wall_ms, std::span<const int32_t> prompt,
               std::string_view salt, std::span<const uint64_t> tags);
  void ended(uint64_t request, uint32_t output_tokens);  // may be unknown

 private:
  struct Recorded {
    uint64_t wall_ms = 0, input = 0;
    std::vector<uint64_t> ids;
    std::optional<uint32_t> output;  // once it has ended
  };
  RequestRecorder(std::string path, std::ofstream file, uint64_t block_tokens)
      : path_(std::move(path)), file_(std::move(file)), block_tokens_(block_tokens) {}
  void write(const Recorded& request);
  void write_ended();

  const std::string path_;
  std::ofstream file_;
  const uint64_t block_tokens_;
  std::map<uint64_t, Recorded> requests_;  // in the order of arrival
  size_t ended_ = 0;                       // of them
};

}  // namespace mc::serve
