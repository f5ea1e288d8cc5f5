// Reads and writes whole small files: configuration, announcements, keys. Bulk data goes through
// lib/xfer.
//
// Errors: name the path.
// Thread: any.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

namespace mc::io {

Result<std::string> read_file(const std::string& path, size_t bytes_max = 64u << 20);
// One that its owner alone may read, as the open file says before it is read. Errors: kDenied.
Result<std::string> read_secret_file(const std::string& path, size_t bytes_max);
// Writes to a temporary name beside it, then renames: readers see the old file or the whole new. It
// replaces whatever has that name.
Result<> write_file_atomically(const std::string& path, std::string_view content,
                               unsigned mode = 0644);
// The same for a file that a user names. Of a link the file is written that it leads to; what is
// there and no file (/dev/null, a pipe) is written to as it is. Errors: kUnavailable for a pipe
// that nobody reads.
Result<> write_output(const std::string& path, std::string_view content);

}  // namespace mc::io
