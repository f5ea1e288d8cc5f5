// Writers that stand still between their look at the guard and their bytes, while the range gets
// another owner (F1, F2): nothing of theirs lands in what the next owner wrote.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/conformance/child.h"
#include "tests/conformance/control.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

constexpr uint64_t kLateBytes = 1 * kMiB, kLateWritten = 256 * kKiB, kLateGuardAt = kLateBytes - 8;

template <class F>
bool comes_true_late(const F& f) {
  const Time until = kClock.now() + 30s * kSlow;
  while (!f()) {
    if (kClock.now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

struct LateOwner {
  std::unique_ptr<Engine> engine;
  Memory memory;
  std::unique_ptr<Control> control;
  explicit LateOwner(const std::string& transport) {
    if (transport == "rdma") heal_fabric();
    engine = make_engine("owner", {transport});
    memory = *engine->allocate(kLateBytes);
    control = std::make_unique<Control>(*engine);
    raise(1);
  }
  static void heal_fabric() {
#ifdef MC_TEST_EMULATOR
    TestFabric::get().heal();
#endif
  }
  void raise(uint64_t value) const {
    REQUIRE(engine->advance_guard(engine->self(), memory.offset() + kLateGuardAt, value, 5s)
                .has_value());
  }
  FencedRange range(uint64_t at, uint64_t bytes) const {
    return {memory.offset() + at, bytes, 0, true};
  }
  bool fenced(FencedRange& range) const { return engine->fence({&range, 1}); }
};

// Another process that writes into the owner's memory, and stops itself at that point.
class StoppedWriter : public Process {
 public:
  StoppedWriter(const LateOwner& owner, const std::string& transport) {
    start("write and stop", strf("%s %s %llu", transport.c_str(), owner.control->address().c_str(),
                                 static_cast<unsigned long long>(owner.memory.offset())));
    REQUIRE(stopped());
  }
};

}  // namespace

TEST_SUITE("xfer/late") {
  TEST_CASE("write and stop" * doctest::skip()) {  // what class StoppedWriter runs
    const std::vector<std::string> told = Process::told();
    if (told.size() < 3) return;
    const std::string script =
        std::filesystem::temp_directory_path() / ("mc-late-" + std::to_string(::getpid()));
    std::ofstream(script) << R"({"op": "write", "count": 1, "stop": true})";
    Metrics metrics;
    EngineOptions o;
    o.node = "late";
    o.transports = {told[0]};
    o.peer_timeout = 2s * kSlow;
    o.fault = script;
    auto engine = Engine::open(kClock, o, metrics);
    std::filesystem::remove(script);
    REQUIRE(engine.has_value());
    auto segment = (*engine)->open_segment(told[1], 5s);
    REQUIRE(segment.has_value());
    std::vector<std::byte> bytes(kLateWritten, std::byte{0x5a});
    Request r;
    r.op = Op::kWrite;
    r.segment = *segment;
    r.local = bytes.data();
    r.bytes = bytes.size();
    r.offset = std::stoull(told[2]);
    r.guard = {r.offset + kLateGuardAt, 1};
    Process::say("ready");
    const auto written = (*engine)->transfer_sync(r, 60s);
    // The range has another owner by now, and the writer has to know.
    ::_exit(!written && written.error().code == Code::kStale ? 0 : 3);
  }

  TEST_CASE("F2: a process that stands still in a copy keeps its range out of use, and only that") {
    LateOwner owner("shm");
    StoppedWriter late(owner, "shm");
    owner.raise(2);
    FencedRange range = owner.range(4096, 4096), other = owner.range(kLateWritten, 4096);
    for (int i = 0; i < 100; ++i) CHECK_FALSE(owner.fenced(range));
    CHECK(owner.fenced(other));
    late.resume();
    REQUIRE(comes_true_late([&] { return owner.fenced(range); }));
    std::memset(owner.memory.data(), 1, kLateWritten);
    CHECK(late.ended() == 0);
    CHECK(digest(owner.memory.bytes().first(kLateWritten)) ==
          digest(std::vector<std::byte>(kLateWritten, std::byte{1})));
  }

  TEST_CASE("F2: the range of a process that ended in a copy is free") {
    LateOwner owner("shm");
    StoppedWriter late(owner, "shm");
    owner.raise(2);
    FencedRange range = owner.range(0, kLateWritten);
    CHECK_FALSE(owner.fenced(range));
    late.kill();
    CHECK(comes_true_late([&] { return owner.fenced(range); }));
  }

  TEST_CASE("F2: guarded writes do not go through the kernel into memory of the application") {
    Child child({{"shm", "tcp"}, true});
    const uint64_t guard_at = 512 * kKiB;
    for (const bool alone : {true, false}) {
      auto engine = alone ? make_engine("alone", {"shm"}) : make_engine("both", {"shm", "tcp"});
      auto segment = engine->open_segment(child.segment);
      REQUIRE(segment.has_value());
      uint64_t guard = 0;
      std::vector<std::byte> word(8), bytes(64 * kKiB, std::byte{7}), got(bytes.size());
      REQUIRE(engine->transfer_sync(read_of(*segment, guard_at, word), 5s).has_value());
      std::memcpy(&guard, word.data(), sizeof guard);
      Request w = read_of(*segment, 0, bytes);
      w.op = Op::kWrite;
      w.guard = {guard_at, guard};
      const auto written = engine->transfer_sync(w, 5s);
      CHECK(written.has_value() == !alone);
      if (alone) CHECK(written.error().code == Code::kUnsupported);
      REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
      CHECK((digest(got) == digest(bytes)) == !alone);
    }
  }

  TEST_CASE("F2: a NIC writes nothing into a range that was abandoned and has another owner") {
    if (!has_emulator()) {
      MESSAGE("skipped: not on the emulated verbs library (ctest sets LD_LIBRARY_PATH)");
      return;
    }
    LateOwner owner("rdma");
    StoppedWriter late(owner, "rdma");
    owner.raise(2);
    FencedRange range = owner.range(0, kLateWritten);
    REQUIRE(comes_true_late([&] { return owner.fenced(range); }));  // it still stands
    std::memset(owner.memory.data(), 1, kLateWritten);
    late.resume();
    CHECK(late.ended() == 0);
    CHECK(digest(owner.memory.bytes().first(kLateWritten)) ==
          digest(std::vector<std::byte>(kLateWritten, std::byte{1})));
  }
}
