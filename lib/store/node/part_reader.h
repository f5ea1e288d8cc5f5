// Reads a file in parts, so that its size does not count in memory.
//
// Errors: kUnavailable (the file cannot be read, or became shorter).
// Thread: one owner.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"

namespace mc::store {

class PartReader {
 public:
  static constexpr size_t kPartBytes = 1 * kMiB;  // read at a time

  static Result<PartReader> of(int fd);      // of an open file, which outlives it
  uint64_t bytes() const { return bytes_; }  // of the file
  // `want` bytes from `at` on, or fewer at the file's end; valid until the next call. Requires:
  // want <= kPartBytes.
  Result<std::string_view> read(uint64_t at, size_t want);
  // Whether `mark` is somewhere from `at` on.
  Result<bool> has(std::string_view mark, uint64_t at);

 private:
  PartReader(int fd, uint64_t bytes) : fd_(fd), bytes_(bytes) {}
  Result<> fill(uint64_t at);
  int fd_;
  uint64_t bytes_;
  uint64_t first_ = 0;  // the position of part_
  std::string part_;
};

}  // namespace mc::store
