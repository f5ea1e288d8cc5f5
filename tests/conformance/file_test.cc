// File segments: files of this process, of a peer on this host that opens them itself, and of one
// that asks their owner over tcp. What a transfer promises holds for each.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "io/fd.h"
#include "tests/conformance/child.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// Gone with all it holds at the end.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "mc-file-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name) const { return (path / name).string(); }
};

std::unique_ptr<Engine> engine_of(const std::string& node, const std::vector<std::string>& allowed,
                                  bool uring = true) {
  static Metrics metrics;
  EngineOptions o;
  o.node = node;
  o.transports = allowed;
  o.file_uring = uring;
  o.peer_timeout = 10s;
  auto engine = Engine::open(kClock, o, metrics);
  REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
  return std::move(*engine);
}

// A descriptor as another process's: the same host and user, reached as such.
struct FilePair {
  Folder folder;
  std::string path = folder.file("segment");
  std::unique_ptr<Engine> owner, user;
  Memory remote;
  SegmentHandle segment = 0;
  FilePair(const std::string& way, uint64_t bytes, bool writable = true, bool uring = true) {
    owner = engine_of("owner", {way == "tcp" ? "tcp" : "file"}, uring);
    auto memory = owner->register_file(path, bytes, writable);
    REQUIRE_MESSAGE(memory.has_value(), (memory ? "" : memory.error().what));
    remote = *memory;
    connect(way, uring);
  }
  void connect(const std::string& way, bool uring) {
    if (way == "self") return;
    user = engine_of("user", {way}, uring);
    auto opened = user->open_segment(owner->describe());
    REQUIRE(opened.has_value());
    segment = *opened;
    CHECK(user->transport_of(segment) == way);
  }
  Engine& engine() { return user ? *user : *owner; }
  Request request(Op op, std::span<std::byte> local, uint64_t at = 0) const {
    Request r;
    r.op = op;
    r.local = local.data();
    r.bytes = local.size();
    r.segment = segment;
    r.offset = remote.offset() + at;
    return r;
  }
  std::vector<Request> requests(Op op, std::span<std::byte> local, size_t n) const {
    auto all = reads_of(segment, remote.offset(), local, n);
    for (Request& r : all) r.op = op;
    return all;
  }
  Result<> move(Op op, std::span<std::byte> local, uint64_t at = 0) {
    return engine().transfer_sync(request(op, local, at), 10s);
  }
  std::vector<std::byte> contents() const {
    std::vector<std::byte> all(fs::file_size(path));
    const io::Fd fd(::open(path.c_str(), O_RDONLY));
    REQUIRE(::pread(fd.get(), all.data(), all.size(), 0) == static_cast<ssize_t>(all.size()));
    return all;
  }
};

const std::vector<std::string> kWays{"self", "file", "tcp"};

#define CHECK_DONE(...)                                                 \
  do {                                                                  \
    const auto done = (__VA_ARGS__);                                    \
    REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().what)); \
  } while (false)

// Page-aligned memory, so that whole pages go past the page cache.
struct Aligned {
  std::vector<std::byte> memory;
  std::span<std::byte> bytes;
  explicit Aligned(uint64_t n) : memory(n + 4096) {
    const auto at = reinterpret_cast<uintptr_t>(memory.data());
    bytes = std::span(memory).subspan((4096 - at % 4096) % 4096, n);
  }
};

}  // namespace

TEST_SUITE("xfer/file") {
  TEST_CASE("bytes written to a file segment are in the file and are read back") {
    for (const auto& way : kWays) {
      for (const bool uring : {true, false}) {
        CAPTURE(way);
        CAPTURE(uring);
        FilePair pair(way, 9 * kMiB, true, uring);
        for (const uint64_t bytes :
             {1ul, 7ul, 4096ul, 4097ul, 100'001ul, 1'048'576ul, 1'048'577ul, 8'388'608ul}) {
          for (const uint64_t at : {0ul, 1ul, 512ul, 4096ul, 5000ul}) {
            if (kThreadSanitizer && bytes > 2 * kMiB && at != 512) continue;  // to check
            CAPTURE(bytes);
            CAPTURE(at);
            Aligned out(bytes), in(bytes);
            fill(out.bytes, bytes + at);
            CHECK_DONE(pair.move(Op::kWrite, out.bytes, at));
            CHECK_DONE(pair.move(Op::kRead, in.bytes, at));
            CHECK(digest(in.bytes) == digest(out.bytes));
          }
        }
        Aligned all(9 * kMiB);
        CHECK_DONE(pair.move(Op::kRead, all.bytes));
        CHECK(digest(all.bytes) == digest(pair.contents()));
      }
    }
  }

  TEST_CASE("odd addresses and offsets touch their bytes and no others") {
    for (const auto& way : kWays) {
      CAPTURE(way);
      FilePair pair(way, 256 * kKiB);
      std::vector<std::byte> want(256 * kKiB);
      CHECK_DONE(pair.move(Op::kWrite, want));
      Random random(5);
      std::vector<std::byte> local(70'000), got(70'000);
      for (int i = 0; i < 60; ++i) {
        const uint64_t at = random.next() % (256 * kKiB - 65'000),
                       bytes = 1 + random.next() % 65'000, from = random.next() % 5000;
        const auto piece = std::span(local).subspan(from, bytes);
        fill(piece, static_cast<uint64_t>(i));
        CHECK_DONE(pair.move(Op::kWrite, piece, at));
        std::memcpy(want.data() + at, piece.data(), bytes);
        const auto back = std::span(got).subspan(random.next() % 5000, bytes);
        CHECK_DONE(pair.move(Op::kRead, back, at));
        CHECK(std::memcmp(back.data(), piece.data(), bytes) == 0);
      }
      CHECK(digest(pair.contents()) == digest(want));
    }
  }

  TEST_CASE("a strided request moves its rows of a file and nothing between them") {
    for (const auto& way : kWays) {
      for (const uint64_t bytes : {1000ul, 4096ul, 40'960ul}) {
        CAPTURE(way);
        CAPTURE(bytes);
        const uint64_t rows = 80, stride = bytes + 4096;
        FilePair pair(way, rows * stride);
        std::vector<std::byte> before(rows * stride, std::byte{0x55}), local(rows * bytes),
            back(rows * bytes);
        CHECK_DONE(pair.move(Op::kWrite, before));
        fill(local, 7);
        Request r = pair.request(Op::kWrite, local);
        r.bytes = bytes;
        r.rows = rows;
        r.local_stride = bytes;
        r.remote_stride = stride;
        CHECK_DONE(pair.engine().transfer_sync(r, 10s));
        const auto now = pair.contents();
        for (uint64_t row = 0; row < rows; ++row) {
          CHECK(std::memcmp(now.data() + row * stride, local.data() + row * bytes, bytes) == 0);
          CHECK(now[row * stride + bytes] == std::byte{0x55});
        }
        r.op = Op::kRead;
        r.local = back.data();
        CHECK_DONE(pair.engine().transfer_sync(r, 10s));
        CHECK(digest(back) == digest(local));
      }
    }
  }

  TEST_CASE("many requests at once all land") {
    for (const auto& way : kWays) {
      CAPTURE(way);
      FilePair pair(way, 8 * kMiB);
      Aligned out(8 * kMiB), in(8 * kMiB);
      fill(out.bytes, 3);
      std::vector<Request> writes, reads;
      for (uint64_t i = 0; i < 512; ++i) {
        const uint64_t at = (i * 211 % 512) * 16 * kKiB;  // neighbours are not submitted together
        writes.push_back(pair.request(Op::kWrite, out.bytes.subspan(at, 16 * kKiB), at));
        reads.push_back(pair.request(Op::kRead, in.bytes.subspan(at, 16 * kKiB), at));
      }
      const BatchId batch = pair.engine().allocate_batch();
      CHECK_DONE(pair.engine().submit(batch, writes));
      CHECK_DONE(pair.engine().wait(batch, 20s));
      CHECK_DONE(pair.engine().submit(batch, reads));
      CHECK_DONE(pair.engine().wait(batch, 20s));
      pair.engine().free_batch(batch);
      CHECK(digest(in.bytes) == digest(out.bytes));
    }
  }

  TEST_CASE("a hole reads as zeros") {
    for (const auto& way : kWays) {
      CAPTURE(way);
      Folder folder;
      const std::string path = folder.file("sparse");
      const io::Fd fd(::open(path.c_str(), O_RDWR | O_CREAT, 0600));
      REQUIRE(::ftruncate(fd.get(), 4 * kMiB) == 0);
      REQUIRE(::pwrite(fd.get(), "x", 1, 2 * kMiB) == 1);
      auto owner = engine_of("owner", {"file", "tcp"});
      auto memory = owner->register_file(path, 4 * kMiB, false);
      REQUIRE(memory.has_value());
      auto user = engine_of("user", {way == "self" ? "file" : way});
      const auto segment = user->open_segment(owner->describe());
      REQUIRE(segment.has_value());
      Engine& engine = way == "self" ? *owner : *user;
      Aligned got(4 * kMiB);
      fill(got.bytes, 1);
      Request r = read_of(way == "self" ? 0 : *segment, memory->offset(), got.bytes);
      CHECK_DONE(engine.transfer_sync(r, 5s));
      std::vector<std::byte> want(4 * kMiB);
      want[2 * kMiB] = std::byte{'x'};
      CHECK(digest(got.bytes) == digest(want));
    }
  }

  TEST_CASE("a file cut short under us is an error that names it, and no hang") {
    for (const auto& way : kWays) {
      for (const bool uring : {true, false}) {
        CAPTURE(way);
        CAPTURE(uring);
        FilePair pair(way, 4 * kMiB, true, uring);
        REQUIRE(::truncate(pair.path.c_str(), 2 * kMiB + 100) == 0);
        Aligned got(4 * kMiB);
        const auto moved = pair.move(Op::kRead, got.bytes);
        REQUIRE_FALSE(moved.has_value());
        CHECK(moved.error().code == (way == "file" ? Code::kUnavailable : Code::kCorrupt));
        if (way != "tcp") CHECK(moved.error().what.find(pair.path) != std::string::npos);
        // What is left is still served (a peer does not open what is shorter than promised).
        if (way != "file") CHECK_DONE(pair.move(Op::kRead, got.bytes.first(kMiB)));
      }
    }
  }

  TEST_CASE("a file offered for reading is not written, and its owner needs no right to write") {
    for (const auto& way : kWays) {
      CAPTURE(way);
      Folder folder;
      const std::string path = folder.file("fixed");
      {
        const io::Fd fd(::open(path.c_str(), O_RDWR | O_CREAT, 0400));
        REQUIRE(::ftruncate(fd.get(), kMiB) == 0);
      }
      auto owner = engine_of("owner", {"file", "tcp"});
      auto memory = owner->register_file(path, kMiB, false);
      REQUIRE(memory.has_value());
      auto user = engine_of("user", {way == "self" ? "file" : way});
      const auto segment = user->open_segment(owner->describe());
      REQUIRE(segment.has_value());
      Engine& engine = way == "self" ? *owner : *user;
      std::vector<std::byte> local(5000);
      Request r = read_of(way == "self" ? 0 : *segment, memory->offset(), local);
      CHECK_DONE(engine.transfer_sync(r, 5s));
      r.op = Op::kWrite;
      const auto wrote = engine.transfer_sync(r, 5s);
      REQUIRE_FALSE(wrote.has_value());
      CHECK(wrote.error().code == Code::kDenied);
    }
  }

  TEST_CASE("files have no guard words") {
    for (const auto& way : kWays) {
      CAPTURE(way);
      FilePair pair(way, kMiB);
      std::vector<std::byte> local(1024);
      for (const Op op : {Op::kRead, Op::kWrite}) {
        Request r = pair.request(op, local, 64);
        r.guard = {pair.remote.offset(), 5};
        const auto refused = pair.engine().transfer_sync(r, 1s);
        REQUIRE_FALSE(refused.has_value());
        CHECK(refused.error().code == Code::kInvalid);
      }
      const auto raised = pair.engine().advance_guard(pair.segment, pair.remote.offset(), 5, 1s);
      REQUIRE_FALSE(raised.has_value());
      CHECK(raised.error().code == Code::kInvalid);
      CHECK_DONE(pair.move(Op::kRead, local));
    }
  }

  TEST_CASE("a file that was withdrawn is stale, not served; the file stays") {
    for (const std::string way : {"file", "tcp"}) {
      CAPTURE(way);
      FilePair pair(way, kMiB);
      std::vector<std::byte> local(1024);
      CHECK_DONE(pair.move(Op::kRead, local));
      const Request r = pair.request(Op::kRead, local);
      pair.remote = Memory();
      const auto stale = pair.engine().transfer_sync(r, 1s);
      REQUIRE_FALSE(stale.has_value());
      CHECK(stale.error().code == Code::kStale);
      CHECK(fs::file_size(pair.path) == kMiB);
    }
  }

  TEST_CASE("ranges outside the file are refused before anything moves") {
    for (const auto& way : kWays) {
      CAPTURE(way);
      FilePair pair(way, 64 * kKiB + 100);
      std::vector<std::byte> local(4096);
      for (const uint64_t at :
           {uint64_t{61'541}, uint64_t{65'637}, uint64_t{1} << 40, UINT64_MAX - 100}) {
        Request r = pair.request(Op::kWrite, local, 0);
        r.offset += at;
        const auto moved = pair.engine().transfer_sync(r, 1s);
        REQUIRE_FALSE(moved.has_value());
        CHECK(moved.error().code == Code::kInvalid);
      }
      CHECK(fs::file_size(pair.path) == 64 * kKiB + 100);
    }
  }

  TEST_CASE("a request past its deadline moves nothing; after cancel the memory is free") {
    for (const auto& way : kWays) {
      CAPTURE(way);
      FilePair pair(way, 32 * kMiB);
      {
        std::vector<std::byte> local(1024, std::byte{1});
        Request r = pair.request(Op::kWrite, local);
        r.deadline = kClock.now() - 1ms;
        const auto late = pair.engine().transfer_sync(r, 1s);
        REQUIRE_FALSE(late.has_value());
        CHECK(late.error().code == Code::kTimeout);
        CHECK(pair.contents()[0] == std::byte{0});
      }
      for (const Op op : {Op::kRead, Op::kWrite}) {
        const BatchId batch = pair.engine().allocate_batch();
        {
          Aligned local(128 * kMiB);
          const auto many = pair.requests(op, local.bytes, 8);
          CHECK_DONE(pair.engine().submit(batch, many));
          pair.engine().cancel(batch);
          for (size_t i = 0; i < many.size(); ++i)
            CHECK(finished(pair.engine().status(batch, i).state));
        }
        pair.engine().free_batch(batch);
      }
    }
  }

  TEST_CASE("a file withdrawn in the middle ends what is under way on it") {
    for (const auto& way : kWays) {
      CAPTURE(way);
      FilePair pair(way, 32 * kMiB);
      Aligned local(128 * kMiB);
      const auto many = pair.requests(Op::kRead, local.bytes, 8);
      const BatchId batch = pair.engine().allocate_batch();
      CHECK_DONE(pair.engine().submit(batch, many));
      pair.remote = Memory();
      const auto ended = pair.engine().wait(batch, 10s);
      if (!ended) CHECK(ended.error().code != Code::kTimeout);  // it may just have been done
      pair.engine().free_batch(batch);
    }
  }

  TEST_CASE("a peer's path that is another file here is not opened: its owner serves it") {
    FilePair pair("tcp", kMiB);
    std::vector<std::byte> out(kMiB), in(kMiB);
    fill(out, 9);
    CHECK_DONE(pair.move(Op::kWrite, out));
    const std::string other = pair.folder.file("other");
    {
      const io::Fd fd(::open(other.c_str(), O_RDWR | O_CREAT, 0600));
      REQUIRE(::ftruncate(fd.get(), kMiB) == 0);
    }
    struct stat there {};
    REQUIRE(::stat(other.c_str(), &there) == 0);
    for (const bool forge_ino : {false, true}) {
      CAPTURE(forge_ino);
      auto user = engine_of("liar-reader", {"file", "tcp"});
      SegmentDescriptor d = pair.owner->describe();
      d.buffers[0].path = other;
      if (forge_ino) d.buffers[0].ino = there.st_ino;
      const auto segment = user->open_segment(d);
      REQUIRE(segment.has_value());
      CHECK_DONE(user->transfer_sync(read_of(*segment, pair.remote.offset(), in), 5s));
      CHECK(digest(in) == digest(out));
      std::vector<std::byte> still(kMiB);
      const io::Fd fd(::open(other.c_str(), O_RDONLY));
      REQUIRE(::pread(fd.get(), still.data(), still.size(), 0) == static_cast<ssize_t>(kMiB));
      CHECK(digest(still) == digest(std::vector<std::byte>(kMiB)));
    }
  }

  TEST_CASE("a peer on this host reads the file itself and leaves writes to its owner") {
    FilePair pair("tcp", kMiB);
    auto user = engine_of("neighbour", {"file", "tcp"});
    const auto segment = user->open_segment(pair.owner->describe());
    REQUIRE(segment.has_value());
    CHECK(user->transport_of(*segment) == "file");
    std::vector<std::byte> out(300'000), in(300'000);
    fill(out, 2);
    Request r = read_of(*segment, pair.remote.offset() + 77, out);
    r.op = Op::kWrite;
    CHECK_DONE(user->transfer_sync(r, 5s));
    r.op = Op::kRead;
    r.local = in.data();
    CHECK_DONE(user->transfer_sync(r, 5s));
    CHECK(digest(in) == digest(out));
  }

  TEST_CASE("memory and files are in one batch") {
    FilePair pair("self", kMiB);
    auto memory = pair.owner->allocate(kMiB);
    REQUIRE(memory.has_value());
    std::vector<std::byte> out(kMiB), a(kMiB), b(kMiB);
    fill(out, 4);
    Request to_file = pair.request(Op::kWrite, out), to_memory = to_file;
    to_memory.offset = memory->offset();
    CHECK_DONE(pair.owner->transfer_sync(to_file, 5s));
    CHECK_DONE(pair.owner->transfer_sync(to_memory, 5s));
    std::vector<Request> both{pair.request(Op::kRead, a), to_memory};
    both[1].op = Op::kRead;
    both[1].local = b.data();
    const BatchId batch = pair.owner->allocate_batch();
    CHECK_DONE(pair.owner->submit(batch, both));
    CHECK_DONE(pair.owner->wait(batch, 5s));
    pair.owner->free_batch(batch);
    CHECK(digest(a) == digest(out));
    CHECK(digest(b) == digest(out));
  }

  TEST_CASE("what cannot be offered is refused with a reason") {
    Folder folder;
    auto engine = engine_of("owner", {"file"});
    auto refused = [&](const std::string& path, uint64_t bytes, bool writable) {
      const auto r = engine->register_file(path, bytes, writable);
      REQUIRE_FALSE(r.has_value());
      CHECK(r.error().what.find(path) != std::string::npos);
      return r.error().code;
    };
    CHECK(refused(folder.file("none"), 4096, false) == Code::kNotFound);
    CHECK(refused(folder.file("none"), 0, true) == Code::kNotFound);
    CHECK_FALSE(fs::exists(folder.file("none")));
    CHECK(refused(folder.path.string(), 4096, false) == Code::kInvalid);
    REQUIRE(::mkfifo(folder.file("fifo").c_str(), 0600) == 0);
    CHECK(refused(folder.file("fifo"), 4096, false) == Code::kInvalid);
    {
      const io::Fd fd(::open(folder.file("short").c_str(), O_RDWR | O_CREAT, 0600));
      REQUIRE(::ftruncate(fd.get(), 100) == 0);
    }
    CHECK(refused(folder.file("short"), 4096, false) == Code::kInvalid);
    const auto whole = engine->register_file(folder.file("short"), 0, false);
    REQUIRE(whole.has_value());
    CHECK(whole->size() == 100);
    CHECK(io::Fd(::open(folder.file("empty").c_str(), O_RDWR | O_CREAT, 0600)));
    CHECK(refused(folder.file("empty"), 0, true) == Code::kInvalid);
    CHECK(engine->register_file(folder.file("short"), 4096, true).has_value());
    CHECK(fs::file_size(folder.file("short")) == 4096);
  }

  TEST_CASE("a full disk is kNoSpace, at registration and at a write into a hole") {
    Folder folder;
    if (::mount("mc", folder.path.c_str(), "tmpfs", 0, "size=2m") != 0) {
      MESSAGE("skipped: no right to mount a small tmpfs: " << std::strerror(errno));
      return;
    }
    {
      auto engine = engine_of("owner", {"file"});
      const auto large = engine->register_file(folder.file("large"), 8 * kMiB);
      REQUIRE_FALSE(large.has_value());
      CHECK(large.error().code == Code::kNoSpace);
      CHECK_FALSE(fs::exists(folder.file("large")));
      {
        const io::Fd fd(::open(folder.file("sparse").c_str(), O_RDWR | O_CREAT, 0600));
        REQUIRE(::ftruncate(fd.get(), 8 * kMiB) == 0);
      }
      auto memory = engine->register_file(folder.file("sparse"), 8 * kMiB);
      REQUIRE(memory.has_value());
      std::vector<std::byte> local(4 * kMiB);
      Request w = read_of(0, memory->offset(), local);
      w.op = Op::kWrite;
      const auto full = engine->transfer_sync(w, 5s);
      REQUIRE_FALSE(full.has_value());
      CHECK(full.error().code == Code::kNoSpace);
      CHECK(full.error().what.find("sparse at ") != std::string::npos);
    }
    REQUIRE(::umount(folder.path.c_str()) == 0);
  }
}
