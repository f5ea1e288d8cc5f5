#include "cmd/mc-replay/outputs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "io/file.h"

namespace mc::replay {
namespace {

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool is_standard_stream(const struct stat& file) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat stream {};
    if (::fstat(fd, &stream) == 0 && same_file(stream, file)) return true;
  }
  return false;
}

// What tells two paths of one file: links resolved, also of a file that is not there yet.
std::string place_of(const std::string& path) {
  constexpr int kLinksMax = 40;  // as the kernel has it
  std::error_code error;
  auto place = std::filesystem::absolute(path, error);
  for (int i = 0; i < kLinksMax && std::filesystem::is_symlink(place, error); ++i)
    place = place.parent_path() / std::filesystem::read_symlink(place, error);
  return std::filesystem::weakly_canonical(place, error).string();
}

bool is_one_file(const std::string& a, const std::string& b) {
  struct stat first {
  }, second{};
  const bool is_there = ::stat(a.c_str(), &first) == 0;
  if (is_there != (::stat(b.c_str(), &second) == 0)) return false;
  return is_there ? same_file(first, second) : place_of(a) == place_of(b);
}

}  // namespace

Result<> check_outputs(const std::vector<Output>& outputs, const std::string& trace) {
  std::vector<const Output*> files;
  for (const Output& o : outputs) {
    if (o.path.empty()) continue;
    const char* const path = o.path.c_str();
    struct stat info {};
    const bool is_there = ::stat(path, &info) == 0;
    if (is_there && S_ISDIR(info.st_mode))
      return fail(Code::kInvalid, "%s %s is a folder: want a file", o.flag, path);
    if (is_there && (!S_ISREG(info.st_mode) || is_standard_stream(info))) continue;
    if (is_there && !trace.empty() && is_one_file(o.path, trace))
      return fail(Code::kInvalid, "%s %s is the trace: it would be lost", o.flag, path);
    for (const Output* earlier : files)
      if (is_one_file(o.path, earlier->path))
        return fail(Code::kInvalid, "%s %s is the file of %s too: want two files", o.flag, path,
                    earlier->flag);
    if (const auto probe = io::OutputFile::open(o.path); !probe)
      return fail(Code::kInvalid, "%s %s: %s", o.flag, path, probe.error().what.c_str());
    files.push_back(&o);
  }
  return {};
}

}  // namespace mc::replay
