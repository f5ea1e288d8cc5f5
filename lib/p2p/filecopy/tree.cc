#include "p2p/filecopy/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/hash.h"

namespace mc::p2p::filecopy {
namespace {

constexpr uint32_t kModeMask = 0777;

std::string shown(const std::string& path) { return path.empty() ? "the folder itself" : path; }

Result<> check_path(const std::string& path) {
  if (path.empty() || p2p::safe_path(path)) return {};
  return fail(Code::kDenied, "'%.200s' leaves the folder, or is no plain relative path",
              path.c_str());
}

TreeEntry entry_of(const std::string& path, const struct stat& s) {
  const auto ns = s.st_mtim.tv_sec * 1'000'000'000L + s.st_mtim.tv_nsec;
  return {path, S_ISDIR(s.st_mode), S_ISDIR(s.st_mode) ? 0 : static_cast<uint64_t>(s.st_size),
          s.st_mode & kModeMask, static_cast<uint64_t>(ns)};
}

// Why `name` in `folder` could not be opened without following a link.
Failure explain(int folder, const std::string& name, const std::string& path) {
  const int saved = errno;
  struct stat s {};
  if (::fstatat(folder, name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(s.st_mode))
    return fail(Code::kDenied, "'%s' is a symbolic link, which a copy does not follow",
                path.c_str());
  if (saved == ENOTDIR)
    return fail(Code::kInvalid, "'%s' is a file, and nothing can be below it", path.c_str());
  errno = saved;
  return fail_errno("open %s", shown(path).c_str());
}

std::pair<std::string, std::string> split(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {"", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

// Walks below `root`; an empty path is `root` itself.
Result<io::Fd> walk(int root, const std::string& path, int flags) {
  MC_TRY_(check_path(path));
  io::Fd at(::openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!at) return fail_errno("open the folder");
  for (size_t from = 0; from < path.size();) {
    const size_t slash = std::min(path.find('/', from), path.size());
    const std::string name = path.substr(from, slash - from);
    io::Fd next(::openat(at.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next) return explain(at.get(), name, path.substr(0, slash));
    at = std::move(next);
    from = slash + 1;
  }
  if ((flags & O_PATH) != 0) return at;
  io::Fd open(::openat(at.get(), ".", flags | O_DIRECTORY | O_CLOEXEC));
  if (!open) return fail_errno("open %s", shown(path).c_str());
  return open;
}

Result<> read_at(int fd, uint64_t offset, std::span<std::byte> into, const std::string& path) {
  while (!into.empty()) {
    const ssize_t n = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("read %s", path.c_str());
    if (n == 0) return fail(Code::kStale, "%s was cut short while it was copied", path.c_str());
    into = into.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Result<std::vector<uint64_t>> sums_of(int fd, uint64_t bytes, uint64_t first, uint32_t count,
                                      const std::string& path) {
  if (count > kSumsMax || first > pieces_of(bytes) || count > pieces_of(bytes) - first)
    return fail(Code::kInvalid, "%s has %llu pieces, not %llu+%u", path.c_str(),
                static_cast<unsigned long long>(pieces_of(bytes)),
                static_cast<unsigned long long>(first), count);
  std::vector<std::byte> buffer(std::min(bytes, kPieceBytes));
  std::vector<uint64_t> out;
  for (uint64_t i = first; i < first + count; ++i) {
    const std::span part = std::span(buffer).first(piece_bytes(bytes, i));
    MC_TRY_(read_at(fd, i * kPieceBytes, part, path));
    out.push_back(xxh3(part.data(), part.size()));
  }
  return out;
}

class TreePart : public PartialFile {
 public:
  TreePart(io::Fd folder, io::Fd fd, const TreeEntry& file, std::string name)
      : folder_(std::move(folder)),
        fd_(std::move(fd)),
        file_(file),
        name_(std::move(name)),
        present_(pieces_of(file.bytes)) {}

  const p2p::ShardSet& present() const override { return present_; }
  Result<std::vector<uint64_t>> sums(uint64_t first, uint32_t count) override {
    return sums_of(fd_.get(), file_.bytes, first, count, file_.path);
  }

  // Pieces in holes were never written. A file system without holes shows all pieces as present.
  Result<> prepare() {
    if (::ftruncate(fd_.get(), static_cast<off_t>(file_.bytes)) != 0)
      return fail_errno("make %s %s long", file_.path.c_str(),
                        rounded_bytes_text(file_.bytes).c_str());
    for (off_t at = 0; static_cast<uint64_t>(at) < file_.bytes;) {
      const off_t data = ::lseek(fd_.get(), at, SEEK_DATA);
      if (data < 0) break;
      const off_t hole = ::lseek(fd_.get(), data, SEEK_HOLE);
      at = hole > data ? hole : static_cast<off_t>(file_.bytes);
      const auto last = std::min(pieces_of(static_cast<uint64_t>(at)), present_.size());
      for (uint64_t i = static_cast<uint64_t>(data) / kPieceBytes; i < last; ++i) present_.add(i);
    }
    return {};
  }

  Result<> store(uint64_t piece, std::span<std::byte> from, uint64_t sum) override {
    const uint64_t n = piece_bytes(file_.bytes, piece);
    if (piece >= present_.size() || from.size() < n)
      return fail(Code::kInvalid, "%s has no piece %llu", file_.path.c_str(),
                  static_cast<unsigned long long>(piece));
    std::span<const std::byte> bytes = from.first(n);
    if (xxh3(bytes.data(), n) != sum)
      return fail(Code::kCorrupt, "piece %llu of %s arrived with a wrong checksum",
                  static_cast<unsigned long long>(piece), file_.path.c_str());
    for (uint64_t at = piece * kPieceBytes; !bytes.empty();) {
      const ssize_t put = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return fail_errno("write %s", file_.path.c_str());
      bytes = bytes.subspan(static_cast<size_t>(put));
      at += static_cast<uint64_t>(put);
    }
    return {};
  }

  Result<> finish(uint32_t mode) override {
    if (::fchmod(fd_.get(), mode & kModeMask) != 0)
      return fail_errno("set the mode of %s", file_.path.c_str());
    if (::renameat(folder_.get(), part_path(name_).c_str(), folder_.get(), name_.c_str()) != 0)
      return fail_errno("rename %s", file_.path.c_str());
    return {};
  }

 private:
  io::Fd folder_, fd_;
  TreeEntry file_;
  std::string name_;
  p2p::ShardSet present_;
};

}  // namespace

Result<std::unique_ptr<Tree>> Tree::open(const std::string& folder) {
  io::Fd fd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return fail_errno("open the folder %s", folder.c_str());
  return std::unique_ptr<Tree>(new Tree(std::move(fd)));
}

Result<io::Fd> Tree::folder_of(const std::string& path) const {
  MC_TRY_(check_path(path));
  return walk(root_.get(), split(path).first, O_PATH);
}

Result<io::Fd> Tree::open_folder(const std::string& path) const {
  return walk(root_.get(), path, O_RDONLY);
}

Result<io::Fd> Tree::open_file(const TreeEntry& file) const {
  MC_TRY(const io::Fd folder, folder_of(file.path));
  const std::string name = split(file.path).second;
  // Non-blocking: a pipe in the file's place must not block this thread.
  io::Fd fd(::openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return explain(folder.get(), name, file.path);
  struct stat s {};
  if (::fstat(fd.get(), &s) != 0) return fail_errno("open %s", file.path.c_str());
  if (!S_ISREG(s.st_mode)) return fail(Code::kDenied, "'%s' is no file", file.path.c_str());
  const TreeEntry now = entry_of(file.path, s);
  if (now.bytes != file.bytes || now.modified_ns != file.modified_ns)
    return fail(Code::kStale, "%s changed while it was copied: copy it again", file.path.c_str());
  return fd;
}

Result<TreeEntry> Tree::look(const std::string& path) {
  struct stat s {};
  if (path.empty()) {
    if (::fstat(root_.get(), &s) != 0) return fail_errno("open the folder");
    return entry_of(path, s);
  }
  MC_TRY(const io::Fd folder, folder_of(path));
  const std::string name = split(path).second;
  if (::fstatat(folder.get(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0)
    return fail_errno("open %s", path.c_str());
  if (!S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode))
    return fail(Code::kDenied, "'%s' is %s", path.c_str(),
                S_ISLNK(s.st_mode) ? "a symbolic link, which a copy does not follow"
                                   : "neither a file nor a folder");
  return entry_of(path, s);
}

Result<Page> Tree::list(const std::string& path, const std::string& after) {
  MC_TRY(io::Fd fd, open_folder(path));
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(fd.get()), ::closedir);
  if (dir == nullptr) return fail_errno("list %s", shown(path).c_str());
  const int at = fd.release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* e = ::readdir(dir.get())) {
    const std::string name = e->d_name;
    if (name != "." && name != ".." && name > after) names.push_back(name);
    errno = 0;
  }
  if (errno != 0) return fail_errno("list %s", shown(path).c_str());
  const size_t shown_names = std::min(names.size(), kPageMax);
  std::partial_sort(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown_names),
                    names.end());
  Page page;
  page.more = names.size() > shown_names;
  for (size_t i = 0; i < shown_names; ++i) {
    struct stat s {};
    page.last = names[i];
    if (::fstatat(at, names[i].c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) continue;  // just removed
    if ((S_ISREG(s.st_mode) && !is_part(names[i])) || S_ISDIR(s.st_mode))
      page.entries.push_back(entry_of(names[i], s));
    else
      ++page.skipped;
  }
  return page;
}

Result<std::vector<uint64_t>> Tree::sums(const TreeEntry& file, uint64_t first, uint32_t count) {
  MC_TRY(const io::Fd fd, open_file(file));
  return sums_of(fd.get(), file.bytes, first, count, file.path);
}

Result<uint64_t> Tree::load(const TreeEntry& file, uint64_t piece, std::span<std::byte> into) {
  MC_TRY(const io::Fd fd, open_file(file));
  const uint64_t n = piece_bytes(file.bytes, piece);
  if (n == 0 || n > into.size())
    return fail(Code::kInvalid, "%s has no piece %llu", file.path.c_str(),
                static_cast<unsigned long long>(piece));
  MC_TRY_(read_at(fd.get(), piece * kPieceBytes, into.first(n), file.path));
  return xxh3(into.data(), n);
}

Result<bool> Tree::make_folder(const std::string& path, uint32_t mode) {
  MC_TRY_(check_path(path));
  if (path.empty()) return false;
  io::Fd at;
  {
    auto above = folder_of(path);
    if (!above && above.error().code == Code::kNotFound) {
      MC_TRY_(make_folder(split(path).first, 0755));
      above = folder_of(path);
    }
    MC_TRY(at, std::move(above));
  }
  const std::string name = split(path).second;
  const bool made = ::mkdirat(at.get(), name.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return fail_errno("make the folder %s", path.c_str());
  MC_TRY(const io::Fd fd, open_folder(path));
  struct stat s {};
  if (::fstat(fd.get(), &s) != 0) return fail_errno("open %s", path.c_str());
  const uint32_t want = (made ? mode & kModeMask : s.st_mode & kModeMask) | 0700;
  if ((s.st_mode & kModeMask) != want && ::fchmod(fd.get(), want) != 0)
    return fail_errno("set the mode of %s", path.c_str());
  return made;
}

Result<> Tree::set_mode(const std::string& path, uint32_t mode) {
  MC_TRY(const TreeEntry found, look(path));
  if (found.mode == (mode & kModeMask)) return {};
  MC_TRY(const io::Fd fd, found.folder ? open_folder(path) : open_file(found));
  if (::fchmod(fd.get(), mode & kModeMask) != 0)
    return fail_errno("set the mode of %s", path.c_str());
  return {};
}

Result<std::unique_ptr<PartialFile>> Tree::begin(const TreeEntry& file) {
  MC_TRY(io::Fd folder, folder_of(file.path));
  const std::string name = split(file.path).second, temporary = part_path(name);
  if (name.empty() || name.size() > kFileNameMax || is_part(name))
    return fail(Code::kInvalid, "'%s': the name is reserved, or longer than %zu bytes",
                file.path.c_str(), kFileNameMax);
  if (file.bytes > kFileBytesMax)
    return fail(Code::kInvalid, "%s is larger than %s", file.path.c_str(),
                rounded_bytes_text(kFileBytesMax).c_str());
  io::Fd fd(
      ::openat(folder.get(), temporary.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return explain(folder.get(), temporary, file.path);
  struct stat mine {
  }, there{};
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(Code::kBusy, "another copy is writing %s", file.path.c_str());
  if (::fstat(fd.get(), &mine) != 0 || !S_ISREG(mine.st_mode) ||
      ::fstatat(folder.get(), temporary.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0 ||
      there.st_ino != mine.st_ino)  // renamed between our open and our lock
    return fail(Code::kBusy, "another copy has just written %s", file.path.c_str());
  auto part = std::make_unique<TreePart>(std::move(folder), std::move(fd), file, name);
  MC_TRY_(part->prepare());
  return std::unique_ptr<PartialFile>(std::move(part));
}

}  // namespace mc::p2p::filecopy
