// Reads and writes whole small files: configuration, announcements, keys. Bulk data goes through
// lib/xfer.
//
// Errors: name the path.
// Thread: any.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/fd.h"

namespace mc::io {

Result<std::string> read_file(const std::string& path, size_t bytes_max = 64u << 20);
// One that its owner alone may read, as the open file says before it is read. Errors: kDenied.
Result<std::string> read_secret_file(const std::string& path, size_t bytes_max);
// For one that was read already, and turned out to have a secret.
Result<> check_secret_file(const std::string& path);
// Writes to a temporary name beside it, then renames: readers see the old file or the whole new. It
// replaces whatever has that name.
Result<> write_file_atomically(const std::string& path, std::string_view content,
                               unsigned mode = 0644);
// The same for a file that a user names, as OutputFile says.
Result<> write_output(const std::string& path, std::string_view content);

// A file that a user names, written in parts: it becomes what was written when it is finished, and
// stays as it was until then, and without that. It keeps its mode. Of a link the file is written
// that it leads to; what is there and no file (/dev/null, a pipe) is written to as it is, and so is
// the file that stdout or stderr was sent to (/dev/stdout), behind what is in it.
class OutputFile {
 public:
  // Errors: kUnavailable for a pipe that nobody reads.
  static Result<OutputFile> open(const std::string& path);
  OutputFile(OutputFile&& other) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();
  Result<> write(std::string_view bytes);
  Result<> finish();

 private:
  friend Result<> write_file_atomically(const std::string&, std::string_view, unsigned);
  OutputFile(Fd fd, std::string written, std::string path)
      : fd_(std::move(fd)), written_(std::move(written)), path_(std::move(path)) {}
  static Result<OutputFile> beside(const std::string& path, unsigned mode);
  Fd fd_;
  std::string written_;  // what has the bytes until finish()
  std::string path_;     // and afterwards; empty: the same
};

}  // namespace mc::io
