// Opens a node's memory: ordinary pages, huge pages, or files that outlive the process.
//
//   MC_TRY(auto segments, Segments::open(engine, {"4GiB", "8GiB@hugepages@numa=1",
//                                                 "4GiB@file:/dev/shm/mc"}));
//   segments->take_recovered();         // what a file held, after a look at its checksums
//   segments->record(r), forget(r), dead(hash, before); segments->flush();
//
// A file's content counts only where its index (store/node/segment_index.h) and the value's
// checksum agree. Peers of the previous process may still map the file, and a stopped peer may
// write to it when it wakes. Valid objects are therefore copied to a new file of the same name,
// which those peers do not map.
//
// Errors: open() fails as SegmentIndex does; kNoSpace names what would help.
// Thread: one owner; bytes_at() any.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "store/node/keep_clock.h"
#include "store/node/segment_index.h"
#include "xfer/engine.h"

namespace mc::store {

struct SegmentSpec {  // "SIZE[@hugepages|@file:PATH][@numa=N][@index=PATH][@fallback]"
  uint64_t bytes = 0;
  bool huge_pages = false;
  bool fallback = false;  // use ordinary pages if there are not enough huge ones
  std::string file, index;
  int numa = -1;
  static Result<SegmentSpec> parse(const std::string& text);  // kInvalid
};

class Segments {
 public:
  // `now`: by which times to live in files are counted.
  static Result<std::unique_ptr<Segments>> open(xfer::Engine& engine,
                                                const std::vector<std::string>& specs,
                                                const ClockMark& now);
  // One segment in memory of the application, which outlives it. What is before the first page is
  // not used. kInvalid: less than two pages.
  static Result<std::unique_ptr<Segments>> open_in(xfer::Engine& engine,
                                                   std::span<std::byte> memory);

  const Layout& layout() const { return layout_; }
  std::byte* bytes_at(uint64_t offset) const;  // of the process's transfer segment
  bool lasting() const;                        // whether some of it outlives this process

  struct Recovered {
    std::vector<ObjectRecord> records;
    std::vector<std::pair<uint64_t, uint64_t>> dead;  // hash of a name, before which generation
    uint64_t given_up = 0;                            // objects whose bytes fail their checksum
  };
  Recovered take_recovered() { return std::move(recovered_); }

  // Recorded for the next process, at the next flush().
  void record(const ObjectRecord& record) { note(IndexEntry::kRecord, record); }
  void forget(const ObjectRecord& record) { note(IndexEntry::kForget, record); }
  void dead(uint64_t hash, uint64_t before);
  // `directory`: the live content, to rewrite an index that has grown too long.
  Result<> flush(const Directory& directory);

 private:
  struct Part {  // one segment
    SegmentSpec spec;
    xfer::Memory memory;
    Region region;
    SegmentIndex::Segment file;
    std::unique_ptr<SegmentIndex> index;  // of a file
    uint64_t begun = 0;                   // bytes of the index after its last rewrite
  };
  explicit Segments(xfer::Engine& engine) : engine_(engine) {}
  Result<> add(const SegmentSpec& spec, const ClockMark& now);
  Result<> add_file(Part& part, const ClockMark& now);
  Result<> take_over(Part& part, io::Fd old, const std::vector<ObjectRecord>& listed);
  void lay_out();
  Result<> map(Part& part, xfer::MemorySource source);
  void keep(Part& part, ObjectRecord record);
  Inventory dead_of(const Part& part);  // recovered from its index
  bool right(const Part& part, const ObjectRecord& record) const;
  void raise(const Part& part, const ObjectRecord& record) const;
  std::vector<IndexEntry> entries_of(const Part& part, const std::vector<ObjectRecord>& records,
                                     const Inventory& dead) const;
  void note(IndexEntry::Kind kind, const ObjectRecord& record);
  Part* index_of(const ObjectRecord& record);

  xfer::Engine& engine_;
  std::vector<Part> parts_;
  Layout layout_;
  Recovered recovered_;
};

}  // namespace mc::store
