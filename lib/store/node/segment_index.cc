#include "store/node/segment_index.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/hash.h"
#include "store/node/keep_clock.h"
#include "store/node/part_reader.h"

namespace mc::store {
namespace {

constexpr char kMagic[8] = {'m', 'c', 's', 'e', 'g', 'i', 'd', 'x'};
constexpr uint32_t kVersion = 1, kEntryMagic = 0x4553434d;  // "MCSE"
constexpr size_t kHeader = 64, kAhead = 48, kEntryHead = 8, kHash = 8;
constexpr size_t kEntryMax = 64 * kKiB;  // a record has some 2.5 KiB at most
constexpr const char* kNext = ".next";   // suffix of the file that replaces it

template <class T>
void put(std::string& to, T v) {
  to.append(reinterpret_cast<const char*>(&v), sizeof v);
}
template <class T>
T get(std::string_view from, size_t at) {
  T v;
  std::memcpy(&v, from.data() + at, sizeof v);
  return v;
}
uint64_t hash_of(std::string_view text, size_t at, size_t n) { return xxh3(text.data() + at, n); }

// magic, version, zero, device, inode, capacity, hash of the boot's name, ahead_s, hash
std::string header_of(const SegmentIndex::Segment& of) {
  std::string out(kMagic, sizeof kMagic);
  put(out, kVersion);
  put(out, uint32_t{0});
  put(out, of.device);
  put(out, of.inode);
  put(out, of.capacity);
  put(out, xxh3(of.boot.data(), of.boot.size()));
  put(out, of.ahead_s);
  put(out, hash_of(out, 0, out.size()));
  return out;
}

std::string text_of(const IndexEntry& entry) {
  const std::string body = wire::encode(entry);
  std::string out;
  put(out, kEntryMagic);
  put(out, static_cast<uint32_t>(body.size()));
  out += body;
  put(out, hash_of(out, 0, out.size()));
  return out;
}

Result<> write_whole(int fd, std::string_view text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return fail(Code::kNoSpace, "%s", n == 0 ? "nothing written" : std::strerror(errno));
    done += static_cast<size_t>(n);
  }
  return {};
}

std::string head_at(const std::string& path) {
  std::string head(kHeader, '\0');
  const io::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return fd && ::pread(fd.get(), head.data(), kHeader, 0) == static_cast<ssize_t>(kHeader) ? head
                                                                                           : "";
}

// Whether two headers are of one segment, whatever the clocks of their processes.
bool same_segment(std::string_view a, std::string_view b) {
  return a.size() >= kAhead && b.size() >= kAhead && a.substr(0, kAhead) == b.substr(0, kAhead);
}

bool same_file(int fd, const std::string& path) {
  struct stat a {
  }, b{};
  return ::fstat(fd, &a) == 0 && ::stat(path.c_str(), &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

}  // namespace

SegmentIndex::SegmentIndex(std::string path, uint64_t capacity)
    : path_(std::move(path)), held_(Layout{0, capacity, 0, {}}) {}

Result<> SegmentIndex::lock() {
  for (int tries = 0; tries < 10; ++tries) {
    file_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0600));
    if (!file_) return fail_errno("open %s", path_.c_str());
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0)
      return fail(Code::kBusy, "%s is in use by another process: end it, or take another file",
                  path_.c_str());
    if (same_file(file_.get(), path_)) return {};  // otherwise its previous owner replaced it
  }
  return fail(Code::kBusy, "%s is in use by another process", path_.c_str());
}

Result<std::unique_ptr<SegmentIndex>> SegmentIndex::open(const std::string& path,
                                                         const Segment& of) {
  struct stat there {};
  const bool fresh = ::stat(path.c_str(), &there) != 0;
  if (fresh && of.bytes > 0)
    return fail(Code::kInvalid,
                "%s holds something, and no %s tells what: give another path, or remove it",
                of.path.c_str(), path.c_str());
  auto index = std::unique_ptr<SegmentIndex>(new SegmentIndex(path, of.capacity));
  MC_TRY_(index->lock());
  // An unfinished replacement is whole if the segment's file was replaced already. Else it ends
  // anywhere, and this index is newer.
  const std::string next = path + kNext, head = head_at(path), mine = header_of(of);
  if (!same_segment(head_at(next), mine) || same_segment(head, mine) || head.empty()) {
    ::unlink(next.c_str());
  } else if (::rename(next.c_str(), path.c_str()) != 0) {
    return fail_errno("rename %s", next.c_str());
  } else {
    MC_TRY_(index->lock());
  }
  MC_TRY_(index->read(of));
  return index;
}

Result<> SegmentIndex::read(const Segment& of) {
  MC_TRY(PartReader file, PartReader::of(file_.get()));
  if (file.bytes() == 0) return {};
  auto head = file.read(0, kHeader);
  if (!head)
    return fail(head.error().code, "read %s: %s", path_.c_str(), head.error().what.c_str());
  MC_TRY_(check_header(of, *head));
  if (doubt_.empty())
    if (auto replayed = replay(file); !replayed)
      return fail(replayed.error().code, "read %s: %s", path_.c_str(),
                  replayed.error().what.c_str());
  if (!doubt_.empty()) held_ = Directory(Layout{0, of.capacity, 0, {}});
  return {};
}

Result<> SegmentIndex::check_header(const Segment& of, std::string_view text) {
  const char *index = path_.c_str(), *file = of.path.c_str();
  if (text.size() < kHeader || std::memcmp(text.data(), kMagic, sizeof kMagic) != 0)
    return fail(Code::kInvalid, "%s is no index of a segment: give another path", index);
  if (get<uint32_t>(text, 8) > kVersion)
    return fail(Code::kUnsupported,
                "%s was written by a newer version (%u, this one reads %u): use that, or remove it "
                "and %s, whose objects are lost then",
                index, get<uint32_t>(text, 8), kVersion, file);
  if (hash_of(text, 0, kHeader - kHash) != get<uint64_t>(text, kHeader - kHash))
    return fail(Code::kCorrupt,
                "%s is damaged: remove it and %s, whose objects are lost then, to start empty",
                index, file);
  if (get<uint64_t>(text, 32) != of.capacity)
    return fail(Code::kInvalid, "%s was made for %s, not %s: ask for as much, or remove it and %s",
                file, bytes_text(get<uint64_t>(text, 32)).c_str(), bytes_text(of.capacity).c_str(),
                index);
  if (get<uint64_t>(text, 40) != xxh3(of.boot.data(), of.boot.size()))
    doubt_ = "it is from before the machine's boot: the order of its writes is unknown";
  else if (get<uint64_t>(text, 16) != of.device || get<uint64_t>(text, 24) != of.inode)
    return fail(Code::kInvalid,
                "%s is not the file that %s was written for: bring that back, or remove both", file,
                index);
  const auto ahead_s = get<int64_t>(text, kAhead);
  if (ahead_s != 0 && of.ahead_s != 0) later_s_ = of.ahead_s - ahead_s;
  return {};
}

std::vector<ObjectRecord> SegmentIndex::records() const {
  std::vector<ObjectRecord> out = held_.page(0, true, SIZE_MAX);
  for (ObjectRecord& r : out) r.keep_until_s = KeepClock::moved(r.keep_until_s, later_s_);
  return out;
}

// Keeps what the list says at its end: at most one record a page of the segment (Layout::holds()).
Result<> SegmentIndex::replay(PartReader& file) {
  uint64_t at = kHeader;
  const auto damaged = [&]() -> Result<> {
    doubt_ = strf("it is damaged at byte %llu: its content is ignored",
                  static_cast<unsigned long long>(at));
    return {};
  };
  while (at < file.bytes()) {
    const uint64_t left = file.bytes() - at;
    if (left < kEntryHead) break;  // an unfinished last entry
    MC_TRY(const std::string_view head, file.read(at, kEntryHead));
    const uint64_t body = get<uint32_t>(head, 4), whole = kEntryHead + body + kHash;
    if (get<uint32_t>(head, 0) != kEntryMagic) return damaged();
    if (whole > left) {
      // Unfinished; or, if complete entries follow, its length is damaged.
      std::string mark;
      put(mark, kEntryMagic);
      MC_TRY(const bool more, file.has(mark, at + 4));
      if (more) return damaged();
      break;
    }
    if (whole > kEntryMax) return damaged();
    MC_TRY(const std::string_view text, file.read(at, whole));
    if (hash_of(text, 0, kEntryHead + body) != get<uint64_t>(text, kEntryHead + body))
      return damaged();
    auto entry = wire::decode<IndexEntry>(text.substr(kEntryHead, body));
    if (!entry) return damaged();
    if (entry->kind == IndexEntry::kDead) {
      held_.learn_dead(entry->hash, entry->before);
    } else {
      Order order;
      order.kind = static_cast<uint8_t>(entry->kind == IndexEntry::kRecord ? OrderKind::kRecord
                                                                           : OrderKind::kForget);
      order.record = std::move(entry->record);
      order.fence = order.record.generation;
      if (!held_.carry_out(order)) return damaged();
    }
    at += whole;
  }
  return {};
}

Result<> SegmentIndex::begin(const Segment& of, const std::vector<IndexEntry>& entries,
                             const std::function<Result<>()>& swap) {
  const std::string next = path_ + kNext;
  io::Fd fresh(::open(next.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600));
  if (!fresh || ::flock(fresh.get(), LOCK_EX | LOCK_NB) != 0)
    return fail_errno("open %s", next.c_str());
  std::string text = header_of(of);
  uint64_t bytes = 0;
  for (size_t i = 0; i <= entries.size(); ++i) {
    if (i < entries.size()) text += text_of(entries[i]);
    if (i < entries.size() && text.size() < PartReader::kPartBytes) continue;
    if (auto written = write_whole(fresh.get(), text); !written) {
      ::unlink(next.c_str());
      return fail(written.error().code, "write %s: %s", next.c_str(), written.error().what.c_str());
    }
    bytes += text.size();
    text.clear();
  }
  if (swap) MC_TRY_(swap());
  if (::rename(next.c_str(), path_.c_str()) != 0) return fail_errno("rename %s", next.c_str());
  file_ = std::move(fresh);
  bytes_ = bytes;
  gathered_.clear();
  return {};
}

void SegmentIndex::add(const IndexEntry& entry) {
  if (!given_up_) gathered_ += text_of(entry);
}

Result<> SegmentIndex::flush() {
  if (given_up_ || gathered_.empty()) return {};
  const auto written = write_whole(file_.get(), gathered_);
  bytes_ += gathered_.size();
  gathered_.clear();
  if (written) return {};
  given_up_ = true;
  if (::ftruncate(file_.get(), 0) != 0) (void)::unlink(path_.c_str());
  return fail(written.error().code,
              "write %s: %s: the index is dropped, its segment will not outlive this process",
              path_.c_str(), written.error().what.c_str());
}

}  // namespace mc::store
