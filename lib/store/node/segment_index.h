// The log of a file-backed segment: which objects its file holds. It lists what was recorded,
// forgotten and removed, for a restarted process, not for a rebooted machine: no write is synced,
// and a log of another boot is ignored (docs/formats.md).
//
// Each entry has a checksum. An unfinished last entry was never acknowledged and is dropped. Damage
// before it voids the whole log: neither what follows nor what comes before can be trusted. It is
// read in parts: memory is taken for what the segment holds, not for the log's length.
//
// Errors name the path and the remedy.
// Thread: one owner.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/fd.h"
#include "store/node/directory.h"

namespace mc::store {

class PartReader;

struct IndexEntry {
  static constexpr const char* kName = "index-entry";
  enum Kind : uint8_t { kRecord = 1, kForget = 2, kDead = 3 };
  uint8_t kind = 0;
  ObjectRecord record{};          // of the first two; offsets count from the segment's first byte
  uint64_t hash = 0, before = 0;  // of kDead, as in Inventory
  static void fields(auto& a, auto& m) { a(m.kind, m.record, m.hash, m.before); }
};

class SegmentIndex {
 public:
  struct Segment {  // the segment it describes
    uint64_t device = 0, inode = 0;
    uint64_t capacity = 0;
    uint64_t bytes = 0;  // the file's size now
    std::string path;
    std::string boot;  // id of the machine's boot
    // What its process's KeepClock counts is this much more than the seconds since that boot; 0:
    // not known.
    int64_t ahead_s = 0;
  };
  // Opens the index, or creates it. Errors: kBusy (another process has it); kInvalid (the segment's
  // file has content without an index, or another size, or the index is of another file);
  // kUnsupported (a newer version); kCorrupt (its first page is damaged).
  static Result<std::unique_ptr<SegmentIndex>> open(const std::string& path, const Segment& of);

  // Content when it was opened: records by offset, and removals.
  // Their times to live are of the clock of `of`.
  std::vector<ObjectRecord> records() const;
  void tell_dead(Inventory& m) const { held_.tell_dead(m); }
  const std::string& doubt() const { return doubt_; }  // why its content does not count, or empty

  // Replaces its content with `entries` for the segment `of`. `swap` runs after the new index is
  // written and before it takes effect; it may replace the segment's file.
  Result<> begin(const Segment& of, const std::vector<IndexEntry>& entries,
                 const std::function<Result<>()>& swap = {});
  void add(const IndexEntry& entry);  // buffered until flush()
  // Errors: kNoSpace and others. The index is then void and stays empty.
  Result<> flush();
  uint64_t bytes() const { return bytes_; }

 private:
  SegmentIndex(std::string path, uint64_t capacity);
  Result<> lock();
  Result<> read(const Segment& of);
  Result<> check_header(const Segment& of, std::string_view page);
  Result<> replay(PartReader& file);

  const std::string path_;
  io::Fd file_;
  Directory held_;
  std::string doubt_, gathered_;
  uint64_t bytes_ = 0;
  int64_t later_s_ = 0;  // by which the ends of times to live in it are moved
  bool given_up_ = false;
};

}  // namespace mc::store
