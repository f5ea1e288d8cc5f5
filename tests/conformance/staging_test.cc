// Device memory travels through staging buffers, and host code never touches it.
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/conformance/child.h"
#include "tests/conformance/device.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

// A device whose memory the engine of a pair knows.
struct Device {
  std::shared_ptr<StandIn> memory;
  Memory registered;
  Device(Engine& engine, size_t bytes) : memory(std::make_shared<StandIn>(bytes)) {
    REQUIRE(engine.add_memory_kind("standin", memory).has_value());
    auto added = engine.register_memory(memory->memory(), true, "standin:0");
    REQUIRE_MESSAGE(added.has_value(), (added ? "" : added.error().what));
    registered = *added;
  }
  std::span<std::byte> bytes() const { return memory->memory(); }
  std::span<std::byte> inside() const { return memory->seen_by_device(); }
};

std::unique_ptr<Engine> drilled(const std::string& rules, Metrics& metrics) {
  const std::string script =
      (std::filesystem::temp_directory_path() / ("mc-staging-" + std::to_string(::getpid())))
          .string();
  std::ofstream(script) << rules;
  EngineOptions o;
  o.node = "user";
  o.fault = script;
  auto engine = Engine::open(kClock, o, metrics);
  std::filesystem::remove(script);
  REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
  return std::move(*engine);
}

}  // namespace

TEST_SUITE("xfer/staging") {
  TEST_CASE("the stand-in's memory is nothing that host code can read") {
    StandIn device(4096);
    int fds[2];
    REQUIRE(::pipe(fds) == 0);
    CHECK(::write(fds[1], device.memory().data(), 1) == -1);
    CHECK(errno == EFAULT);
    CHECK(::write(fds[1], device.seen_by_device().data(), 1) == 1);
    ::close(fds[0]);
    ::close(fds[1]);
  }

  TEST_CASE("device memory is written and read over every transport, whole and in rows") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 8 * kMiB);
      Device device(pair.engine(), 8 * kMiB);
      for (uint64_t bytes : {1ul, 4097ul, 524'288ul, 1'048'577ul, 8'388'608ul}) {
        CAPTURE(bytes);
        fill(device.inside(), bytes);
        const uint64_t want = digest(device.inside().first(bytes));
        auto wrote =
            pair.engine().transfer_sync(pair.request(Op::kWrite, device.bytes().first(bytes)), 10s);
        REQUIRE_MESSAGE(wrote.has_value(), (wrote ? "" : wrote.error().what));
        CHECK(digest(pair.remote.bytes().first(bytes)) == want);
        std::memset(device.inside().data(), 0, bytes);
        auto read =
            pair.engine().transfer_sync(pair.request(Op::kRead, device.bytes().first(bytes)), 10s);
        REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
        CHECK(digest(device.inside().first(bytes)) == want);
      }
      Request rows = pair.request(Op::kWrite, device.bytes().first(1000), 100);
      rows.rows = 700;
      rows.local_stride = 3000;
      rows.remote_stride = 5000;
      std::memset(pair.remote.data(), 0x55, pair.remote.size());
      fill(device.inside(), 7);
      REQUIRE(pair.engine().transfer_sync(rows, 10s).has_value());
      for (uint64_t row = 0; row < rows.rows; ++row) {
        const std::byte* at = pair.remote.data() + 100 + row * 5000;
        REQUIRE(std::memcmp(at, device.inside().data() + row * 3000, 1000) == 0);
        REQUIRE(at[1000] == std::byte{0x55});
      }
    }
  }

  TEST_CASE("one process moves bytes between host, device and device") {
    auto engine = make_engine("alone", {"shm"});
    Device device(*engine, 2 * kMiB);
    std::vector<std::byte> host(kMiB), back(kMiB);
    fill(host, 3);
    Request r = read_of(engine->self(), device.registered.offset(), host);
    r.op = Op::kWrite;
    auto wrote = engine->transfer_sync(r, 5s);
    REQUIRE_MESSAGE(wrote.has_value(), (wrote ? "" : wrote.error().what));
    CHECK(digest(device.inside().first(kMiB)) == digest(host));
    r.local = device.bytes().data();  // its first half to its second
    r.offset += kMiB;
    REQUIRE(engine->transfer_sync(r, 5s).has_value());
    CHECK(digest(device.inside().subspan(kMiB)) == digest(host));
    r.op = Op::kRead;
    r.local = back.data();
    REQUIRE(engine->transfer_sync(r, 5s).has_value());
    CHECK(digest(back) == digest(host));
  }

  TEST_CASE("a peer's device memory is its owner's to stage, from host and from device") {
    auto owner = make_engine("owner", {"shm", "tcp"}), user = make_engine("user", {"shm", "tcp"});
    Device there(*owner, 4 * kMiB), here(*user, 4 * kMiB);
    auto segment = user->open_segment(owner->describe());
    REQUIRE(segment.has_value());
    std::vector<std::byte> host(4 * kMiB);
    fill(host, 8);
    Request r = read_of(*segment, there.registered.offset(), host);
    r.op = Op::kWrite;
    auto wrote = user->transfer_sync(r, 10s);
    REQUIRE_MESSAGE(wrote.has_value(), (wrote ? "" : wrote.error().what));
    CHECK(digest(there.inside()) == digest(host));
    r.op = Op::kRead;
    r.local = here.bytes().data();
    auto read = user->transfer_sync(r, 10s);
    REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
    CHECK(digest(here.inside()) == digest(host));
    there.memory->fail_from(0);
    auto failed = user->transfer_sync(r, 10s);
    REQUIRE_FALSE(failed.has_value());
  }

  TEST_CASE("copies of several chunks are under way at once") {
    Pair pair("shm", 4 * kMiB);
    Device device(pair.engine(), 4 * kMiB);
    device.memory->gather(2);
    REQUIRE(pair.engine().transfer_sync(pair.request(Op::kWrite, device.bytes()), 20s).has_value());
    CHECK(device.memory->most_at_once() >= 2);
  }

  TEST_CASE("copying goes on while chunks are on their way, as far as staging reaches") {
    Metrics metrics;
    auto user = drilled(R"({"drop": true})", metrics);
    Device device(*user, 8 * kMiB);
    auto owner = make_engine("owner", {"shm", "tcp"});
    auto memory = owner->allocate(8 * kMiB);
    REQUIRE(memory.has_value());
    auto segment = user->open_segment(owner->describe());
    REQUIRE(segment.has_value());
    Request r = read_of(*segment, memory->offset(), device.bytes());
    r.op = Op::kWrite;
    const BatchId batch = user->allocate_batch();
    REQUIRE(user->submit(batch, {&r, 1}).has_value());
    const Time limit = kClock.now() + 20s * kSlow;  // none comes back: all eight buffers fill
    while (device.memory->copies() < 8 && kClock.now() < limit) std::this_thread::yield();
    CHECK(device.memory->copies() == 8);
    user->cancel(batch);  // and then its memory is free
    CHECK(user->status(batch, 0).state == TransferState::kCancelled);
    CHECK(device.memory->copies() == 8);
    user->free_batch(batch);
    device.registered = Memory();
  }

  TEST_CASE("a copy that fails ends its request with the device's reason, and no other") {
    for (const Op op : {Op::kRead, Op::kWrite}) {
      Pair pair("tcp", 4 * kMiB);
      Device device(pair.engine(), 4 * kMiB);
      device.memory->fail_from(3);
      auto failed = pair.engine().transfer_sync(pair.request(op, device.bytes()), 10s);
      REQUIRE_FALSE(failed.has_value());
      CHECK(failed.error().code == Code::kInternal);
      CHECK(failed.error().what.find("the device lost a copy") != std::string::npos);
      device.memory->fail_from(SIZE_MAX);
      fill(device.inside(), 9);
      fill(pair.remote.bytes(), 9);
      REQUIRE(pair.engine().transfer_sync(pair.request(op, device.bytes()), 10s).has_value());
      CHECK(digest(device.inside()) == digest(pair.remote.bytes()));
    }
  }

  TEST_CASE("a deadline ends a slow device's request between chunks, and then nothing is copied") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      for (const Op op : {Op::kRead, Op::kWrite}) {
        Pair pair(transport, 8 * kMiB);
        Device device(pair.engine(), 8 * kMiB);
        device.memory->take(20ms);  // 16 chunks: 160 ms on two threads
        auto late = pair.engine().transfer_sync(pair.request(op, device.bytes()), 50ms);
        REQUIRE_FALSE(late.has_value());
        CHECK(late.error().code == Code::kTimeout);
        const size_t copies = device.memory->copies();
        CHECK(copies < 16);
        device.memory->take(0ms);
        std::vector<std::byte> after(64 * kKiB);  // something later of the same engine
        REQUIRE(pair.engine().transfer_sync(pair.request(Op::kRead, after), 5s).has_value());
        CHECK(device.memory->copies() == copies);
        device.registered = Memory();
      }
    }
  }

  TEST_CASE("a chunk that a transport fails goes on with the next transport") {
    Metrics metrics;
    auto user = drilled(R"({"transport": "shm", "error": "completion", "share": 0.5})", metrics);
    Device device(*user, 4 * kMiB);
    auto owner = make_engine("owner", {"shm", "tcp"});
    auto memory = owner->allocate(4 * kMiB);
    REQUIRE(memory.has_value());
    fill(memory->bytes(), 5);
    auto segment = user->open_segment(owner->describe());
    REQUIRE(segment.has_value());
    const Request r = read_of(*segment, memory->offset(), device.bytes());
    auto read = user->transfer_sync(r, 10s);
    REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
    CHECK(digest(device.inside()) == digest(memory->bytes()));
    CHECK(metrics.text().find("mc_xfer_failovers_total{from=\"shm\",to=\"tcp\"}") !=
          std::string::npos);
  }

  TEST_CASE("ranges past the end of device memory, and names of host memory, are refused") {
    Pair pair("shm", 4 * kMiB);
    Device device(pair.engine(), kMiB);
    Request r = pair.request(Op::kWrite, device.bytes());
    r.bytes += 1;
    auto past = pair.engine().transfer_sync(r, 5s);
    REQUIRE_FALSE(past.has_value());
    CHECK(past.error().code == Code::kInvalid);
    for (const char* name : {"", "*", "cpu", "cuda:0", "standin"})
      CHECK_FALSE(pair.engine().add_memory_kind(name, device.memory).has_value());
  }
}
