// A node's memory: what a named file keeps for the next process, and which of it counts.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "io/file.h"
#include "store/metadata/allocator.h"
#include "store/metadata/tombstones.h"
#include "store/node/segments.h"
#include "tests/slow.h"

namespace mc::store {
namespace {

struct Folder {
  Folder() {
    std::filesystem::remove_all(path);
    std::filesystem::create_directory(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path =
      (std::filesystem::temp_directory_path() / ("mc-segments-" + std::to_string(::getpid())))
          .string();
  std::string file() const { return path + "/s"; }
};

struct Life {  // of a process that offers memory
  explicit Life(const std::vector<std::string>& specs, const std::string& boot = "one",
                const ClockMark& now = {}) {
    auto e = xfer::Engine::open(clock, {}, metrics);
    REQUIRE(e);
    engine = std::move(*e);
    auto s = Segments::open(*engine, specs, {now.own_s, {now.host.wall_s, now.host.boot_s, boot}});
    if (!s) {
      error = s.error();
      return;
    }
    segments = std::move(*s);
    found = segments->take_recovered();
  }
  // Bytes at `page` of segment `of`, recorded.
  ObjectRecord put(const std::string& key, uint64_t page, size_t bytes, size_t of = 0) {
    const Layout& l = segments->layout();
    ObjectRecord r;
    r.key = key;
    r.offset = (of == 0 ? l.data : l.more[of - 1].data) + page * kPage;
    r.bytes = bytes;
    r.generation = Generation{page + 7};
    std::byte* at = segments->bytes_at(r.offset);
    for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(i * 7 + page);
    r.checksum = xxh3(at, bytes);
    segments->record(r);
    REQUIRE(segments->flush(Directory(l)));
    return r;
  }
  bool has(const std::string& key) const {
    for (const ObjectRecord& r : found.records) {
      if (r.key != key) continue;
      const uint64_t guard = segments->layout().guard_of(r.offset);
      uint64_t word = 0;
      std::memcpy(&word, segments->bytes_at(guard), sizeof word);
      CHECK(word == r.generation.n);
      return xxh3(segments->bytes_at(r.offset), r.bytes) == r.checksum;
    }
    return false;
  }
  SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<Segments> segments;
  Segments::Recovered found;
  Error error{};
};

TEST_CASE("what a file held is there for the next process, but for what was forgotten") {
  Folder folder;
  const std::vector<std::string> specs{"64KiB", "1MiB@file:" + folder.file(), "128KiB"};
  {
    Life a(specs);
    REQUIRE(a.segments);
    CHECK(a.segments->layout().total() == (64 + 1024 + 128) * kKiB);
    a.put("in memory", 0, 100, 0);
    a.put("kept", 3, 5000, 1);
    const ObjectRecord gone = a.put("forgotten", 9, 5000, 1);
    a.put("empty", 20, 0, 1);
    ObjectRecord across = a.put("in pieces", 30, kPage, 1);
    across.first_bytes = 100;
    across.bytes = 200;
    across.more = {{a.segments->layout().data, 100, 0}};
    a.segments->record(across);  // partly in memory that does not last
    a.segments->forget(gone);
    a.segments->dead(4711, 5);
    REQUIRE(a.segments->flush(Directory(a.segments->layout())));
  }
  for (int life = 0; life < 2; ++life) {
    CAPTURE(life);
    Life b(specs);
    REQUIRE(b.segments);
    CHECK(b.has("kept"));
    CHECK(b.has("empty"));
    CHECK(!b.has("forgotten"));
    CHECK(!b.has("in memory"));
    CHECK(b.found.dead == std::vector<std::pair<uint64_t, uint64_t>>{{4711, 5}});
    CHECK(b.found.given_up == 0);
  }
}

TEST_CASE("objects whose bytes fail their checksum are dropped, one at a time") {
  Folder folder;
  const std::vector<std::string> specs{"1MiB@file:" + folder.file()};
  uint64_t at = 0;
  {
    Life a(specs);
    a.put("good", 1, 9000);
    const ObjectRecord bad = a.put("bad", 10, 9000);
    at = bad.offset - a.segments->layout().guards + 8999;
  }
  {
    std::fstream f(folder.file(), std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(static_cast<std::streamoff>(at));
    f.put('\x5a');
  }
  Life b(specs);
  REQUIRE(b.segments);
  CHECK(b.has("good"));
  CHECK(!b.has("bad"));
  CHECK(b.found.given_up == 1);
}

TEST_CASE(
    "an index cut anywhere keeps its earlier entries, and a flipped bit yields nothing wrong") {
  Folder folder;
  const std::string index = folder.file() + ".index";
  const std::vector<std::string> specs{"1MiB@file:" + folder.file()};
  {
    Life a(specs);
    for (uint64_t i = 0; i < 5; ++i) a.put("k" + std::to_string(i), i, 3000);
  }
  const std::string whole = *io::read_file(index);
  for (size_t n = 64; n < whole.size(); n += 13) {
    CAPTURE(n);
    REQUIRE(io::write_file_atomically(index, whole.substr(0, n)));
    Life b(specs);
    REQUIRE(b.segments);
    for (size_t i = 0; i < b.found.records.size(); ++i) CHECK(b.has("k" + std::to_string(i)));
    CHECK(b.found.given_up == 0);
  }
  for (size_t n = 0; n < whole.size(); n += 11) {
    CAPTURE(n);
    std::string flipped = whole;
    flipped[n] = static_cast<char>(flipped[n] ^ 0x10);
    REQUIRE(io::write_file_atomically(index, flipped));
    Life b(specs);
    if (n < 64)
      CHECK(b.error.what.find(n < 8 ? "another path" : "remove") != std::string::npos);
    else
      for (const ObjectRecord& r : b.found.records) CHECK(b.has(r.key));
  }
}

// F106: a full disk, or a kill, left the begin of a list that took the place of the whole one.
TEST_CASE("an unfinished replacement of the index does not count") {
  const Folder folder;
  const std::vector<std::string> specs{"1MiB@file:" + folder.file()};
  const std::string index = folder.file() + ".index", next = index + ".next";
  {
    Life first(specs);
    first.put("a", 1, 5000);
    std::filesystem::copy_file(index, next);  // from then on the other one is written
    first.put("b", 5, 5000);
  }
  {
    Life second(specs);
    CHECK(second.has("a"));
    CHECK(second.has("b"));
    CHECK_FALSE(std::filesystem::exists(next));
    std::filesystem::copy_file(index, next);
    std::filesystem::resize_file(index, 0);  // it was given up
  }
  Life third(specs);
  CHECK_FALSE(third.has("a"));
}

TEST_CASE("content from before the machine's boot is ignored") {
  Folder folder;
  const std::vector<std::string> specs{"1MiB@file:" + folder.file()};
  Life(specs, "one").put("k", 1, 100);
  Life b(specs, "two");
  REQUIRE(b.segments);
  CHECK(b.found.records.empty());
}

TEST_CASE("a file that peers still map is left to them, and its objects are copied") {
  Folder folder;
  const std::vector<std::string> specs{"1MiB@file:" + folder.file()};
  void* p = MAP_FAILED;
  uint64_t at = 0;
  {
    Life a(specs);
    at = a.put("k", 1, 9000).offset - a.segments->layout().guards;
    // As a client does: by the node's own descriptor.
    const auto segment = a.engine->describe();
    REQUIRE(!segment.buffers.empty());
    io::Fd fd;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      if (std::filesystem::read_symlink(entry.path()) == folder.file())
        fd.reset(::dup(std::stoi(entry.path().filename())));
    REQUIRE(fd);
    p = ::mmap(nullptr, 1 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    REQUIRE(p != MAP_FAILED);
  }
  Life b(specs);
  REQUIRE(b.segments);
  CHECK(b.has("k"));
  std::memset(static_cast<std::byte*>(p) + at, 0x77, 9000);  // it wakes, and writes
  CHECK(b.has("k"));
  ::munmap(p, 1 * kMiB);
  b.put("later", 5, 100);
  b.segments.reset();
  b.engine.reset();
  Life c(specs);
  CHECK(c.has("k"));
  CHECK(c.has("later"));
}

TEST_CASE("a file that is not this segment is refused, with a remedy, and left as it is") {
  Folder folder;
  const auto refused = [&](const std::string& spec, Code code, const char* words) {
    CAPTURE(spec);
    Life life({spec});
    CHECK(!life.segments);
    CHECK(life.error.code == code);
    CHECK_MESSAGE(life.error.what.find(words) != std::string::npos, life.error.what);
  };
  const std::string file = "1MiB@file:" + folder.file();
  REQUIRE(io::write_file_atomically(folder.file(), "precious"));
  refused(file, Code::kInvalid, "give another path");
  CHECK(*io::read_file(folder.file()) == "precious");
  std::filesystem::remove(folder.file());
  {
    Life a({file});
    a.put("k", 1, 100);
    refused(file, Code::kBusy, "in use by another process");
  }
  refused("2MiB@file:" + folder.file(), Code::kInvalid, "made for 1MiB, not 2MiB");
  std::string index = *io::read_file(folder.file() + ".index");
  const std::string good = index;
  index[8] = 2;
  REQUIRE(io::write_file_atomically(folder.file() + ".index", index));
  refused(file, Code::kUnsupported, "newer version");
  REQUIRE(io::write_file_atomically(folder.file() + ".index",
                                    "something else, and long enough to "
                                    "be the first page of an index"));
  refused(file, Code::kInvalid, "no index of a segment");
  REQUIRE(io::write_file_atomically(folder.file() + ".index", good));
  std::filesystem::copy_file(folder.file(), folder.path + "/copy");
  std::filesystem::rename(folder.path + "/copy", folder.file());
  refused(file, Code::kInvalid, "is not the file");
  refused("1MiB@file:" + folder.path, Code::kInternal, "");
  refused("16TiB@hugepages", Code::kNoSpace, "vm.nr_hugepages=");
  refused("1MiB@numa=1000", Code::kInvalid, "NUMA node 1000");
  for (const char* bad :
       {"", "0B", "1MiB@", "1MiB@huge", "1MiB@@", "1MiB@numa=", "1MiB@numa=-1", "1MiB@fallback",
        "1MiB@index=x", "1MiB@hugepages@file:x", "1MiB@file:", "x@hugepages"})
    refused(bad, Code::kInvalid, "want SIZE");
}

uint64_t peak_kib() {  // of this process, since it was last cleared
  const std::string status = io::read_file("/proc/self/status").value_or("");
  const size_t at = status.find("VmHWM:");
  return at == std::string::npos ? 0 : std::strtoull(status.c_str() + at + 6, nullptr, 10);
}

TEST_CASE("a time to live goes on in the next process of one boot, whatever its seconds begin at") {
  Folder folder;
  const std::vector<std::string> specs{"1MiB@file:" + folder.file()};
  {
    Life before(specs, "one", {1'700'000'000, {0, 500, ""}});
    REQUIRE(before.segments);
    ObjectRecord r = before.put("kept", 1, 1000);
    r.keep_until_s = 1'700'000'000 + 3600;
    before.segments->record(r);
    (void)before.put("plain", 3, 1000);
    REQUIRE(before.segments->flush(Directory(before.segments->layout())));
  }
  // 300 s later; its seconds begin an hour late, then two hours early.
  for (const uint64_t own_s : {1'700'003'900ULL, 1'699'993'100ULL}) {
    Life after(specs, "one", {own_s, {0, 800, ""}});
    REQUIRE(after.found.records.size() == 2);
    for (const ObjectRecord& r : after.found.records)
      CHECK(r.keep_until_s == (r.key == "kept" ? own_s + 3300 : 0));
  }
}

// F62: the whole list was read into memory first.
TEST_CASE("F62: a long list of objects that were removed is read in parts") {
  Folder folder;
  SegmentIndex::Segment segment{1, 2, 1 * kMiB, 0, folder.file(), "boot", 0};
  const std::string path = folder.file() + ".index";
  constexpr uint64_t kPairs = 40'000, kPages = 1 * kMiB / kPage;
  uint64_t bytes = 0;
  {
    auto index = SegmentIndex::open(path, segment);
    REQUIRE(index);
    REQUIRE((*index)->begin(segment, {}));
    IndexEntry entry;
    for (uint64_t i = 0; i < kPairs; ++i) {
      entry.record.key = std::to_string(i) + std::string(1000, 'k');
      entry.record.offset = i % (kPages - 1) * kPage;
      entry.record.bytes = 100;
      entry.record.generation = Generation{i + 1};
      entry.kind = IndexEntry::kRecord;
      (*index)->add(entry);
      entry.kind = IndexEntry::kForget;
      (*index)->add(entry);
      if (i % 1000 == 0) REQUIRE((*index)->flush());
    }
    entry.kind = IndexEntry::kRecord;
    entry.record.key = "kept";
    entry.record.offset = (kPages - 1) * kPage;
    (*index)->add(entry);
    REQUIRE((*index)->flush());
    bytes = (*index)->bytes();
  }
  CHECK(bytes > 64 * kMiB);
  std::ofstream("/proc/self/clear_refs") << "5";
  const uint64_t before = peak_kib();
  auto index = SegmentIndex::open(path, segment);
  REQUIRE(index);
  CHECK((*index)->doubt() == "");
  REQUIRE((*index)->records().size() == 1);
  CHECK((*index)->records()[0].key == "kept");
  if (kSlow == 1) CHECK(peak_kib() - before < 16 * 1024);  // sanitizers keep what was freed
}

TEST_CASE("values never cross from one segment into the next") {
  Allocator space(100 * kPage, kPage);
  REQUIRE(space.wall(40 * kPage, 20 * kPage));
  CHECK(space.capacity() == 80 * kPage);
  CHECK(space.used() == 0);
  CHECK(space.allocate(41 * kPage, 1) == kNoId);
  const Id a = space.allocate(40 * kPage, 1), b = space.allocate(40 * kPage, 2);
  REQUIRE(a != kNoId);
  REQUIRE(b != kNoId);
  CHECK(space.offset(a) + space.offset(b) == 60 * kPage);
  CHECK(space.allocate(1, 3) == kNoId);
  space.free(a);
  space.free(b);
  CHECK(space.used() == 0);
  CHECK(space.allocate(41 * kPage, 1) == kNoId);
  const Id both = space.allocate(80 * kPage, 1, 16);
  REQUIRE(both != kNoId);
  CHECK(space.next(both) != kNoId);
}

}  // namespace
}  // namespace mc::store
