#include "store/node/segments.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/hash.h"
#include "base/log.h"
#include "io/file.h"
#include "xfer/memory/copy.h"

namespace mc::store {
namespace {

constexpr uint64_t kIndexSlack = 16 * kMiB;  // beyond twice the live size, before it is rewritten

uint64_t guard_bytes(uint64_t capacity) {
  return (capacity / kPage * 8 + kPage - 1) / kPage * kPage;
}

// The record with its offsets moved to another segment start.
ObjectRecord moved(ObjectRecord record, uint64_t by) {
  record.offset += by;
  for (Extent& piece : record.more) {
    piece.offset += by;
    piece.guard += by;
  }
  return record;
}

template <class F>
void each_piece(const ObjectRecord& r, const F& f) {
  f(r.offset, r.more.empty() ? r.bytes : r.first_bytes);
  for (const Extent& piece : r.more) f(piece.offset, piece.bytes);
}

Result<> hand(std::string_view word, SegmentSpec& out) {
  if (word == "fallback") {
    out.fallback = true;
  } else if (word == "hugepages") {
    out.huge_pages = true;
  } else if (word.starts_with("file:") && word.size() > 5) {
    out.file = word.substr(5);
  } else if (word.starts_with("numa=")) {
    const auto n = parse_uint(std::string(word.substr(5)));
    if (!n || *n > 1023) return fail(Code::kInvalid, "want a node's number after numa=");
    out.numa = static_cast<int>(*n);
  } else if (word.starts_with("index=") && word.size() > 6) {
    out.index = word.substr(6);
  } else {
    return fail(Code::kInvalid, "what is '@%s'?", escape(std::string(word)).c_str());
  }
  return {};
}

Result<SegmentSpec> read_spec(const std::string& text) {
  SegmentSpec out;
  size_t at = std::min(text.find('@'), text.size());
  MC_TRY(out.bytes, parse_bytes(text.substr(0, at)));
  while (at < text.size()) {
    const size_t end = std::min(text.find('@', at + 1), text.size());
    MC_TRY_(hand(std::string_view(text).substr(at + 1, end - at - 1), out));
    at = end;
  }
  if (out.huge_pages && !out.file.empty())
    return fail(Code::kInvalid, "it is of huge pages, or a file");
  if (out.fallback && !out.huge_pages) return fail(Code::kInvalid, "fallback is for @hugepages");
  if (!out.index.empty() && out.file.empty()) return fail(Code::kInvalid, "index= is for @file:");
  if (out.index.empty() && !out.file.empty()) out.index = out.file + ".index";
  out.bytes = out.bytes / kPage * kPage;
  if (out.bytes == 0) return fail(Code::kInvalid, "at least one page of 4KiB is needed");
  return out;
}

}  // namespace

Result<SegmentSpec> SegmentSpec::parse(const std::string& text) {
  auto out = read_spec(text);
  if (out) return out;
  return fail(Code::kInvalid,
              "segment '%s': %s: want SIZE[@hugepages|@file:PATH][@numa=N][@index=PATH][@fallback]",
              escape(text).c_str(), out.error().what.c_str());
}

Result<std::unique_ptr<Segments>> Segments::open(xfer::Engine& engine,
                                                 const std::vector<std::string>& specs,
                                                 const ClockMark& now) {
  if (specs.empty() || specs.size() > kSegmentsMax)
    return fail(Code::kInvalid, "%zu segments: want 1 to %zu", specs.size(), kSegmentsMax);
  auto out = std::unique_ptr<Segments>(new Segments(engine));
  for (const std::string& text : specs) {
    MC_TRY(const SegmentSpec spec, SegmentSpec::parse(text));
    MC_TRY_(out->add(spec, now));
  }
  out->lay_out();
  return out;
}

Result<std::unique_ptr<Segments>> Segments::open_in(xfer::Engine& engine,
                                                    std::span<std::byte> memory) {
  void* first = memory.data();
  size_t left = memory.size();
  if (std::align(kPage, 2 * kPage, first, left) == nullptr)
    return fail(Code::kInvalid, "%zu bytes at %p: want at least two whole pages of %s",
                memory.size(), static_cast<void*>(memory.data()), bytes_text(kPage).c_str());
  Part part;
  part.spec.bytes = (left - kPage) / kPage * kPage;  // at least a page is of guard words
  while (guard_bytes(part.spec.bytes) + part.spec.bytes > left) part.spec.bytes -= kPage;
  const uint64_t guards = guard_bytes(part.spec.bytes);
  auto out = std::unique_ptr<Segments>(new Segments(engine));
  MC_TRY(part.memory,
         engine.register_memory({static_cast<std::byte*>(first), guards + part.spec.bytes}));
  std::memset(first, 0, guards);
  part.region = {part.memory.offset() + guards, part.spec.bytes, part.memory.offset()};
  out->parts_.push_back(std::move(part));
  out->lay_out();
  return out;
}

void Segments::lay_out() {
  for (const Part& part : parts_) {
    if (layout_.capacity > 0)
      layout_.more.push_back(part.region);
    else
      layout_ = {part.region.data, part.region.capacity, part.region.guards, {}};
  }
}

Result<> Segments::add(const SegmentSpec& spec, const ClockMark& now) {
  Part part;
  part.spec = spec;
  if (!spec.file.empty()) {
    MC_TRY_(add_file(part, now));
  } else {
    auto mapped = map(part, {spec.huge_pages, spec.numa, {}});
    if (!mapped && mapped.error().code == Code::kNoSpace && spec.huge_pages && !spec.fallback)
      return fail(Code::kNoSpace, "%s; or add '@fallback' to the segment, for ordinary pages",
                  mapped.error().what.c_str());
    if (!mapped && mapped.error().code == Code::kNoSpace && spec.huge_pages) {
      log_warn("store", "%s; ordinary pages are taken", mapped.error().what.c_str());
      mapped = map(part, {false, spec.numa, {}});
    }
    MC_TRY_(mapped);
  }
  parts_.push_back(std::move(part));
  return {};
}

Result<> Segments::map(Part& part, xfer::MemorySource source) {
  const uint64_t guards = guard_bytes(part.spec.bytes);
  MC_TRY(part.memory, engine_.allocate_from(std::move(source), guards + part.spec.bytes));
  part.region = {part.memory.offset() + guards, part.spec.bytes, part.memory.offset()};
  return {};
}

Result<> Segments::add_file(Part& part, const ClockMark& now) {
  const std::string& path = part.spec.file;
  io::Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return fail_errno("open %s", path.c_str());
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return fail(Code::kInvalid, "%s is no file: give another path", path.c_str());
  if (part.spec.index.starts_with(path) && xfer::map_unit(fd.get()) > kPage)
    return fail(Code::kInvalid,
                "%s is on hugetlbfs, where files cannot be written to: say '@index=PATH' with one "
                "elsewhere",
                path.c_str());
  part.file = {info.st_dev,
               info.st_ino,
               part.spec.bytes,
               static_cast<uint64_t>(info.st_size),
               path,
               now.host.boot.empty() ? "unknown" : now.host.boot,
               static_cast<int64_t>(now.own_s) - static_cast<int64_t>(now.host.boot_s)};
  MC_TRY(part.index, SegmentIndex::open(part.spec.index, part.file));
  if (const std::string& why = part.index->doubt(); !why.empty())
    log_warn("store", "%s: starts empty: %s: %s", path.c_str(), part.spec.index.c_str(),
             why.c_str());
  const std::vector<ObjectRecord> listed = part.index->records();
  // Peers that mapped the file of the previous process share its lock.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return take_over(part, std::move(fd), listed);
  MC_TRY_(map(part, {false, part.spec.numa, std::move(fd)}));
  std::memset(part.memory.data(), 0, guard_bytes(part.spec.bytes));
  for (const ObjectRecord& r : listed) keep(part, moved(r, part.region.data));
  return part.index->begin(part.file, entries_of(part, recovered_.records, dead_of(part)));
}

// Copies valid objects into a new file that takes the old one's name. Peers of the old file keep
// reading it; their writes do no harm.
Result<> Segments::take_over(Part& part, io::Fd old, const std::vector<ObjectRecord>& listed) {
  const std::string next = part.spec.file + ".next";
  (void)::unlink(next.c_str());
  io::Fd fd(::open(next.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return fail_errno("make %s", next.c_str());
  log_info("store", "%s is mapped by others still: its %zu objects are copied to a new file",
           part.spec.file.c_str(), listed.size());
  if (auto mapped = map(part, {false, part.spec.numa, std::move(fd)}); !mapped) {
    (void)::unlink(next.c_str());
    return fail(mapped.error().code,
                "%s is mapped by clients of the last process, and there is no room for a copy: %s: "
                "end them, or remove the file",
                part.spec.file.c_str(), mapped.error().what.c_str());
  }
  const uint64_t guards = guard_bytes(part.spec.bytes), size = guards + part.spec.bytes;
  void* p = part.file.bytes < size ? MAP_FAILED
                                   : ::mmap(nullptr, size, PROT_READ, MAP_SHARED, old.get(), 0);
  if (p == MAP_FAILED) {
    recovered_.given_up += listed.size();
  } else {
    const auto* from = static_cast<const std::byte*>(p) + guards;
    for (const ObjectRecord& r : listed) {
      each_piece(r, [&](uint64_t offset, uint64_t bytes) {
        std::memcpy(part.memory.data() + guards + offset, from + offset, bytes);
      });
      keep(part, moved(r, part.region.data));
    }
    ::munmap(p, size);
  }
  part.file.device = info.st_dev;
  part.file.inode = info.st_ino;
  const auto entries = entries_of(part, recovered_.records, dead_of(part));
  return part.index->begin(part.file, entries, [&]() -> Result<> {
    if (::rename(next.c_str(), part.spec.file.c_str()) == 0) return {};
    return fail_errno("rename %s", next.c_str());
  });
}

bool Segments::right(const Part& part, const ObjectRecord& record) const {
  Xxh3Stream hash;
  each_piece(record, [&](uint64_t offset, uint64_t bytes) {
    hash.update(part.memory.data() + (offset - part.memory.offset()), bytes);
  });
  return hash.digest() == record.checksum;
}

void Segments::raise(const Part& part, const ObjectRecord& record) const {
  each_piece(record, [&](uint64_t offset, uint64_t) {
    const uint64_t word = part.region.guards + (offset - part.region.data) / kPage * 8;
    (void)xfer::raise_guard_word(part.memory.data() + (word - part.memory.offset()),
                                 record.generation.n);
  });
}

void Segments::keep(Part& part, ObjectRecord record) {
  if (!right(part, record)) {
    ++recovered_.given_up;
    log_warn("store", "%s: '%s' has other bytes than were put: given up", part.spec.file.c_str(),
             escape(record.key).c_str());
    return;
  }
  raise(part, record);
  recovered_.records.push_back(std::move(record));
}

Inventory Segments::dead_of(const Part& part) {
  Inventory dead;
  part.index->tell_dead(dead);
  for (size_t i = 0; i < dead.dead.size(); ++i)
    recovered_.dead.emplace_back(dead.dead[i], dead.before[i]);
  return dead;
}

std::vector<IndexEntry> Segments::entries_of(const Part& part,
                                             const std::vector<ObjectRecord>& records,
                                             const Inventory& dead) const {
  std::vector<IndexEntry> out;
  for (size_t i = 0; i < dead.dead.size(); ++i)
    out.push_back({IndexEntry::kDead, {}, dead.dead[i], dead.before[i]});
  const uint64_t from = part.region.data, end = from + part.region.capacity;
  for (const ObjectRecord& r : records)
    if (r.offset >= from && r.offset < end)
      out.push_back({IndexEntry::kRecord, moved(r, uint64_t{0} - from), 0, 0});
  return out;
}

std::byte* Segments::bytes_at(uint64_t offset) const {
  for (const Part& part : parts_)
    if (offset >= part.memory.offset() && offset - part.memory.offset() < part.memory.size())
      return part.memory.data() + (offset - part.memory.offset());
  return nullptr;
}

bool Segments::lasting() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.index != nullptr; });
}

// The segment that contains the whole record, if it has an index.
Segments::Part* Segments::index_of(const ObjectRecord& record) {
  for (Part& part : parts_) {
    if (part.index == nullptr) continue;
    bool all = true;
    each_piece(record, [&](uint64_t offset, uint64_t) {
      all = all && offset >= part.region.data && offset - part.region.data < part.region.capacity;
    });
    if (all) return &part;
  }
  return nullptr;
}

void Segments::note(IndexEntry::Kind kind, const ObjectRecord& record) {
  if (Part* part = index_of(record))
    part->index->add({kind, moved(record, uint64_t{0} - part->region.data), 0, 0});
}

void Segments::dead(uint64_t hash, uint64_t before) {
  for (Part& part : parts_)
    if (part.index != nullptr) return part.index->add({IndexEntry::kDead, {}, hash, before});
}

Result<> Segments::flush(const Directory& directory) {
  Result<> out;
  for (Part& part : parts_) {
    if (part.index == nullptr) continue;
    if (auto flushed = part.index->flush(); !flushed) out = flushed;
    if (part.begun == 0) part.begun = part.index->bytes();
    if (out && part.index->bytes() > 2 * part.begun + kIndexSlack) {
      std::vector<ObjectRecord> here = directory.page(0, true, SIZE_MAX);
      std::erase_if(here, [&](const ObjectRecord& r) { return index_of(r) != &part; });
      Inventory dead;
      directory.tell_dead(dead);
      out = part.index->begin(part.file, entries_of(part, here, dead));
      part.begun = part.index->bytes();
    }
  }
  return out;
}

}  // namespace mc::store
