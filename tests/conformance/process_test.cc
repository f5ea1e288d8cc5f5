// Peers that are other processes: memory of the application, peers that die or are not who they
// say.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "io/file.h"
#include "tests/conformance/child.h"
#include "tests/conformance/control.h"
#include "xfer/transports/tcp/stream.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

TEST_SUITE("xfer/processes") {
  TEST_CASE("offer until killed" * doctest::skip()) {  // what class Child runs
    const std::vector<std::string> told = Process::told();
    if (told.size() < 4) return;
    const bool mine = told[0] == "1";
    const uint64_t bytes = std::stoull(told[1]);
    const auto uid = static_cast<uid_t>(std::stoul(told[2]));
    REQUIRE((uid == 0 || ::setuid(uid) == 0));
    auto engine = make_engine("child", {told.begin() + 3, told.end()});
    std::vector<std::byte> application(mine ? bytes : 0);
    auto memory = mine ? engine->register_memory(application) : engine->allocate(bytes);
    REQUIRE_MESSAGE(memory.has_value(), (memory ? "" : memory.error().what));
    fill(memory->bytes(), 11);
    Process::answer(wire::encode(engine->describe()));
  }

  TEST_CASE("another process's memory is read and written, allocated by engine or application") {
    for (const std::string& transport : kBetween) {
      for (const bool own : {false, true}) {
        CAPTURE(transport);
        CAPTURE(own);
        Child child({{transport}, own, 3 * kMiB});
        auto engine = make_engine("parent", {transport});
        auto segment = engine->open_segment(child.segment);
        REQUIRE(segment.has_value());
        std::vector<std::byte> want(3 * kMiB), got(3 * kMiB);
        fill(want, 11);
        auto read = engine->transfer_sync(read_of(*segment, 0, got), 5s);
        REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
        CHECK(digest(got) == digest(want));
        fill(want, 12);
        Request w = read_of(*segment, 0, want);
        w.op = Op::kWrite;
        REQUIRE(engine->transfer_sync(w, 5s).has_value());
        REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
        CHECK(digest(got) == digest(want));
      }
    }
  }

  TEST_CASE("memory of a process that ended is mapped no more once another one comes") {
    const auto mapped = [] {  // shared memory, by its address
      std::set<std::string> all;
      std::istringstream lines(io::read_file("/proc/self/maps").value_or(""));
      for (std::string line; std::getline(lines, line);)
        if (line.find("memfd:") != std::string::npos) all.insert(line);
      return all;
    };
    auto engine = make_engine("parent", {"shm"});
    std::vector<std::byte> got(3 * kMiB);
    const std::set<std::string> before = mapped();
    std::set<std::string> ended;
    {
      Child child({.transports = {"shm"}, .bytes = 3 * kMiB});
      auto segment = engine->open_segment(child.segment);
      REQUIRE(segment);
      REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s));
      for (const std::string& line : mapped())
        if (!before.contains(line)) ended.insert(line);
      REQUIRE(!ended.empty());
      child.kill();
    }
    Child other({.transports = {"shm"}, .bytes = 3 * kMiB});
    other.segment.node = "other";
    auto segment = engine->open_segment(other.segment);
    REQUIRE(segment);
    REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s));
    const auto left = [&] {
      const std::set<std::string> now = mapped();
      return std::ranges::any_of(ended, [&](const auto& line) { return now.contains(line); });
    };
    const SteadyClock clock;
    for (const Time end = clock.now() + 60s; left() && clock.now() < end;)
      std::this_thread::yield();
    CHECK(!left());
  }

  TEST_CASE("other processes of the user may attach only to those that allow shm") {  // (F125)
    const std::string scope = io::read_file("/proc/sys/kernel/yama/ptrace_scope").value_or("none");
    if (scope[0] != '1' || ::geteuid() == 0) {
      MESSAGE("nobody looked: want Yama's ptrace_scope 1 (it is " << scope << ") and no root");
      return;
    }
    for (const std::string& transport : {std::string("shm"), std::string("tcp")}) {
      CAPTURE(transport);
      Child child({.transports = {transport}, .application_memory = true});
      const pid_t sibling = ::fork();
      if (sibling == 0) {
        char byte = 0;
        const iovec to{&byte, 1};
        const iovec from{reinterpret_cast<void*>(child.segment.buffers.at(0).remote_addr), 1};
        const auto pid = static_cast<pid_t>(child.segment.pid);
        ::_exit(::process_vm_readv(pid, &to, 1, &from, 1, 0) == 1 ? 0 : errno);
      }
      int status = 0;
      REQUIRE(::waitpid(sibling, &status, 0) == sibling);
      CHECK(WEXITSTATUS(status) == (transport == "shm" ? 0 : EPERM));
    }
  }

  TEST_CASE("a peer that was killed is unavailable, within the peer timeout") {
    for (const std::string& transport : kBetween) {
      CAPTURE(transport);
      Child child({.transports = {transport}});
      auto engine = make_engine("parent", {transport});
      auto segment = engine->open_segment(child.segment);
      REQUIRE(segment.has_value());
      std::vector<std::byte> got(kMiB);
      REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
      child.kill();
      const Time before = kClock.now();
      Result<> gone;  // by shm, a transfer in the same millisecond may still succeed
      while (gone && kClock.now() - before < 5s * kSlow)
        gone = engine->transfer_sync(read_of(*segment, 0, got), 10s);
      REQUIRE_FALSE(gone.has_value());
      CHECK(gone.error().code == Code::kUnavailable);
      CHECK(kClock.now() - before < 5s * kSlow);
    }
  }

  TEST_CASE("the death of a peer is noticed by small transfers too, a moment later") {
    for (const bool own : {true, false}) {
      CAPTURE(own);
      Child child({{"shm"}, own, kMiB});
      auto engine = make_engine("parent", {"shm"});
      auto segment = engine->open_segment(child.segment);
      REQUIRE(segment.has_value());
      std::vector<std::byte> got(4096);
      REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
      child.kill();
      const Time end = kClock.now() + 5s * kSlow;
      Result<> outcome;
      while (outcome && kClock.now() < end)
        outcome = engine->transfer_sync(read_of(*segment, 0, got), 5s);
      REQUIRE_FALSE(outcome.has_value());
      CHECK(outcome.error().code == Code::kUnavailable);
    }
  }

  TEST_CASE("a copy of memory whose file was truncated is an error, and no signal") {  // (F27)
    constexpr uint64_t kBytes = 8 * kMiB;
    io::Fd file(::memfd_create("named", MFD_CLOEXEC));  // without a seal, as a file of a disk
    const io::Fd same(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
    auto owner = make_engine("owner", {"shm"});
    MemorySource source;
    source.file = std::move(file);
    auto memory = owner->allocate_from(std::move(source), kBytes);
    REQUIRE(memory.has_value());
    fill(memory->bytes(), 5);
    const uint64_t whole = digest(memory->bytes());
    struct stat before {};
    REQUIRE(::fstat(same.get(), &before) == 0);
    auto user = make_engine("user", {"shm"});
    auto segment = user->open_segment(owner->describe());
    REQUIRE(segment.has_value());
    std::vector<std::byte> got(kBytes);
    Request all = read_of(*segment, memory->offset(), got);
    Request last = read_of(*segment, memory->offset() + kBytes - 64, std::span(got).first(64));
    for (const Request& r : {last, last, all})
      REQUIRE(user->transfer_sync(r, 10s * kSlow).has_value());
    CHECK(digest(got) == whole);

    REQUIRE(::ftruncate(same.get(), kBytes / 2 + 100) == 0);
    all.op = last.op = Op::kWrite;
    Request in_file = read_of(*segment, memory->offset(), std::span(got).first(64));
    for (Request r : {all, last, in_file}) {
      CHECK(user->transfer_sync(r, 10s * kSlow).error().code == Code::kCorrupt);
      r.op = Op::kRead;
      CHECK(user->transfer_sync(r, 10s * kSlow).error().code == Code::kCorrupt);
    }
    REQUIRE(::ftruncate(same.get(), before.st_size) == 0);  // what it holds now is no content
    CHECK(user->transfer_sync(in_file, 10s * kSlow).error().code == Code::kCorrupt);
  }

  TEST_CASE("memory of a segment that was closed is mapped no longer, however small its use") {
    const auto mappings = [] {
      const std::string maps = io::read_file("/proc/self/maps").value_or("");
      size_t n = 0;
      for (size_t at = 0; (at = maps.find("memfd:", at)) != std::string::npos; ++at) ++n;
      return n;
    };
    Child child({{"shm"}, false, kMiB});
    auto engine = make_engine("parent", {"shm"});
    const size_t before = mappings();
    auto segment = engine->open_segment(child.segment);
    REQUIRE(segment.has_value());
    std::vector<std::byte> got(4096);
    for (int i = 0; i < 3; ++i)
      REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
    CHECK(mappings() == before + 1);
    engine->close_segment(*segment);
    const Time end = kClock.now() + 5s * kSlow;
    while (mappings() != before && kClock.now() < end) std::this_thread::yield();
    CHECK(mappings() == before);
    CHECK_FALSE(engine->transfer_sync(read_of(*segment, 0, got), 1s).has_value());
  }

  TEST_CASE(
      "rows of another process's memory are read and written, allocated by engine or application") {
    for (const bool own : {true, false}) {
      CAPTURE(own);
      Child child({{"shm"}, own, 8 * kMiB});
      auto engine = make_engine("parent", {"shm"});
      auto segment = engine->open_segment(child.segment);
      REQUIRE(segment.has_value());
      // 700 rows of 5000 bytes, apart by 11000 there and by 6000 here.
      std::vector<std::byte> there(8 * kMiB), rows(700 * 6000), back(700 * 6000);
      fill(rows, 21);
      Request r = read_of(*segment, 0, rows);
      r.bytes = 5000;
      r.rows = 700;
      r.local_stride = 6000;
      r.remote_stride = 11000;
      r.op = Op::kWrite;
      REQUIRE(engine->transfer_sync(r, 5s).has_value());
      REQUIRE(engine->transfer_sync(read_of(*segment, 0, there), 5s).has_value());
      r.op = Op::kRead;
      r.local = back.data();
      REQUIRE(engine->transfer_sync(r, 5s).has_value());
      for (uint64_t row = 0; row < r.rows; ++row) {
        const auto want = std::span(rows).subspan(row * 6000, 5000);
        REQUIRE(digest(want) == digest(std::span(there).subspan(row * 11000, 5000)));
        REQUIRE(digest(want) == digest(std::span(back).subspan(row * 6000, 5000)));
      }
    }
  }

  // F117: a descriptor may name any process.
  TEST_CASE("a process that did not offer its memory is not attached to") {
    auto owner = make_engine("both", {"shm", "tcp"});
    std::vector<std::byte> application(64 * kKiB), got(64 * kKiB);
    fill(application, 31);
    auto memory = owner->register_memory(application);
    REQUIRE(memory.has_value());
    Child other({.transports = {"shm"}});  // of the same user, and it listens too
    const SegmentDescriptor truth = owner->describe();
    SegmentDescriptor lies[2] = {truth, truth};
    for (SegmentDescriptor& lie : lies) lie.pid = other.segment.pid;
    lies[1].shm_socket.clear();
    const auto way = [&](const SegmentDescriptor& told) {
      auto engine = make_engine("user", {"shm", "tcp"});
      auto segment = engine->open_segment(told);
      REQUIRE(segment.has_value());
      CHECK(engine->transfer_sync(read_of(*segment, memory->offset(), got), 5s).has_value());
      CHECK(digest(got) == digest(application));
      return engine->transport_of(*segment);
    };
    CHECK(way(truth) == "shm");
    for (const SegmentDescriptor& lie : lies) CHECK(way(lie) == "tcp");
  }

  TEST_CASE("shared memory that does not work falls to tcp") {
    Child child({.transports = {"tcp"}});  // offers no shared memory
    auto engine = make_engine("parent", {"shm", "tcp"});
    child.segment.shm_socket = "mc-xfer-no-such-socket";
    auto segment = engine->open_segment(child.segment);
    REQUIRE(segment.has_value());
    std::vector<std::byte> want(kMiB), got(kMiB);
    fill(want, 11);
    auto read = engine->transfer_sync(read_of(*segment, 0, got), 5s);
    REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
    CHECK(digest(got) == digest(want));
  }

  TEST_CASE("a wrong secret is denied, and the owner goes on serving") {
    Pair pair("tcp", kMiB);
    SegmentDescriptor forged = pair.owner->describe();
    forged.node = "forged";
    forged.secret.bytes.assign(32, 'x');
    auto liar = make_engine("liar", {"tcp"});
    auto segment = liar->open_segment(forged);
    REQUIRE(segment.has_value());
    std::vector<std::byte> local(1024);
    auto denied = liar->transfer_sync(read_of(*segment, 0, local), 1s);
    REQUIRE_FALSE(denied.has_value());
    CHECK(denied.error().code == Code::kDenied);
    CHECK(pair.engine().transfer_sync(pair.request(Op::kRead, local), 1s).has_value());
  }

  TEST_CASE("garbage on the data port costs its sender the connection, nobody else anything") {
    Pair pair("tcp", kMiB);
    const auto never = []() -> Result<> { return {}; };
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      auto stream = tcp::Stream::connect(pair.owner->data_addresses().front(), kClock, 1s, never);
      REQUIRE(stream.has_value());
      std::vector<std::byte> junk(200 + seed * 50);
      fill(junk, seed);
      CHECK(stream->send(junk.data(), junk.size(), never).has_value());
      std::vector<std::byte> reply(4096);
      // The nonce may be read first; then the owner closes.
      auto closed = stream->receive(reply.data(), reply.size(), never);
      CHECK_FALSE(closed.has_value());
    }
    std::vector<std::byte> local(1024);
    CHECK(pair.engine().transfer_sync(pair.request(Op::kRead, local), 1s).has_value());
  }

  TEST_CASE("a segment's older generation is refused once the newer is known") {
    Pair pair("tcp", kMiB);
    SegmentDescriptor old = pair.owner->describe();
    auto more = pair.owner->allocate(kMiB);
    REQUIRE(more.has_value());
    *more = Memory();  // moves the generation on
    auto engine = make_engine("third", {"tcp"});
    REQUIRE(engine->open_segment(pair.owner->describe()).has_value());
    auto refused = engine->open_segment(old);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Code::kStale);
  }

  // F97: generations begin at the wall clock, which may go back before a process is restarted.
  TEST_CASE("a process that was restarted with a smaller generation is reached at its address") {
    Pair restarted("tcp", kMiB);
    auto before = make_engine(restarted.owner->describe().node.c_str(), {"tcp"});
    const SegmentDescriptor last = before->describe(), now = restarted.owner->describe();
    REQUIRE(now.node == last.node);
    REQUIRE(now.generation < last.generation);
    auto engine = make_engine("third", {"tcp"});
    std::string address;
    {
      Control control(*before);
      address = control.address();
      REQUIRE(engine->open_segment(address, 10s).has_value());
    }
    // What others say of it may be of a process that is over.
    auto hearsay = engine->open_segment(now);
    REQUIRE_FALSE(hearsay.has_value());
    CHECK(hearsay.error().code == Code::kStale);
    Control control(*restarted.owner);
    auto segment = engine->open_segment(control.address(), 10s);
    REQUIRE(segment.has_value());
    std::vector<std::byte> local(1024);
    Request r = restarted.request(Op::kRead, local);
    r.segment = *segment;
    CHECK(engine->transfer_sync(r, 1s).has_value());
    // A late word of the one before it is undone by the next look at the address.
    REQUIRE(engine->open_segment(last).has_value());
    CHECK(engine->transfer_sync(r, 10s).has_value());
  }
}
