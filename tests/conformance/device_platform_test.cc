// Memory of devices in the engine, over stand-ins: within a process, between processes, and what
// goes wrong with devices.
#include "xfer/memory/device_platform.h"
#include "base/text.h"
#include "device/stand_in.h"
#include "tests/conformance/child.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace device_platform_test {
using device::StandIn;
namespace {

// An engine that knows stand-ins, and memory that it allocated on the first.
struct Machine {
  std::shared_ptr<StandIn> first, second;
  Metrics metrics;
  std::unique_ptr<Engine> engine;
  explicit Machine(std::vector<std::string> transports = {"shm", "tcp"}, bool shares = true)
      : first(StandIn::make(kClock, {.bytes = 256 * kMiB, .shares = shares})),
        second(StandIn::make(kClock, {.ordinal = 1, .shares = shares})) {
    EngineOptions o;
    o.node = "machine";
    o.transports = std::move(transports);
    o.peer_timeout = 2s * kSlow;
    auto opened = Engine::open(kClock, o, metrics);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().what));
    engine = std::move(*opened);
    REQUIRE(engine
                ->add_memory_kind("stand-in", std::make_shared<DevicePlatform>(
                                                  std::vector<device::DevicePtr>{first, second}))
                .has_value());
  }
  Memory allocate(uint64_t bytes, const std::string& where = "stand-in:0") const {
    auto memory = engine->allocate(bytes, true, where);
    REQUIRE_MESSAGE(memory.has_value(), (memory ? "" : memory.error().what));
    return *memory;
  }
  std::span<std::byte> inside(const Memory& m) const {
    return {first->seen_by_device(m.data()), m.size()};
  }
  double went(const char* way) {
    const std::string text = metrics.text();
    const std::string line = "mc_xfer_device_slices_total{way=\"" + std::string(way) + "\"} ";
    const size_t at = text.find(line);
    return at == std::string::npos ? -1 : std::stod(text.substr(at + line.size()));
  }
  Result<> move(Op op, SegmentHandle segment, uint64_t offset, std::span<std::byte> local) const {
    Request r = read_of(segment, offset, local);
    r.op = op;
    return engine->transfer_sync(r, 10s);
  }
};

void good(const Result<>& r) { REQUIRE_MESSAGE(r.has_value(), (r ? "" : r.error().what)); }
void bad(const Result<>& r, Code code, const char* text) {
  REQUIRE_FALSE(r.has_value());
  CHECK_MESSAGE(r.error().code == code, r.error().what);
  CHECK_MESSAGE(r.error().what.find(text) != std::string::npos, r.error().what);
}
template <class T>
Result<> plain(const Result<T>& r) {
  if (r) return {};
  return fail(r.error());
}

// Another process that offers memory of a stand-in, filled from seed 21.
struct Owner : Process {
  SegmentDescriptor segment;
  explicit Owner(uint64_t bytes, const char* how = "allocated", const char* over = "shm tcp") {
    const std::string text =
        start("offer device memory until killed",
              strf("%llu %s %s", static_cast<unsigned long long>(bytes), how, over));
    auto decoded = wire::decode<SegmentDescriptor>(text);
    REQUIRE(decoded.has_value());
    segment = *decoded;
  }
};

}  // namespace

TEST_SUITE("xfer/device") {
  TEST_CASE("offer device memory until killed" * doctest::skip()) {  // what class Owner runs
    const std::vector<std::string> told = Process::told();
    if (told.size() < 3) return;
    Machine m({told.begin() + 2, told.end()});
    const uint64_t bytes = std::stoull(told[0]);
    auto raw = m.first->allocate(bytes);
    REQUIRE(raw.has_value());
    auto memory = told[1] == "allocated" ? m.engine->allocate(bytes, true, "stand-in:0")
                                         : m.engine->register_memory(raw->bytes);
    REQUIRE(memory.has_value());
    fill(m.inside(*memory), 21);
    Process::answer(wire::encode(m.engine->describe()));
  }

  TEST_CASE(
      "host memory that an engine with devices allocates is pinned, an application's is not") {
    Machine m;
    const uint64_t before = m.first->counts().held;
    std::vector<std::byte> own(kMiB);
    {
      auto allocated = m.engine->allocate(kMiB);
      auto registered = m.engine->register_memory(own);
      REQUIRE((allocated.has_value() && registered.has_value()));
      CHECK(m.first->counts().held == before + 1);
      const Memory there = m.allocate(kMiB);
      fill(m.inside(there), 5);
      for (const auto& host : {allocated->bytes(), registered->bytes()}) {
        good(m.move(Op::kRead, m.engine->self(), there.offset(), host));
        CHECK(digest(host) == digest(m.inside(there)));
      }
      bad(plain(m.engine->register_memory({there.data() + kMiB / 2, kMiB})), Code::kInvalid,
          "pass the end");
    }
    CHECK(m.first->counts().held == before);
  }

  // Pinned memory was copied the way that was quickest for other memory.
  TEST_CASE("the ways of pinned host memory are tried apart from those of other memory") {
    Machine m;
    const Memory there = m.allocate(kMiB);
    std::vector<std::byte> plain(kMiB);
    const auto pinned = m.engine->allocate(kMiB);
    REQUIRE(pinned.has_value());
    for (const std::span<std::byte> host : {std::span(plain), pinned->bytes()})
      for (int i = 0; i < 2; ++i)  // a way each
        good(m.move(Op::kRead, m.engine->self(), there.offset(), host));
    CHECK(m.went("direct") == 2);
    CHECK(m.went("staged") == 2);
  }

  TEST_CASE("device memory is written and read over every transport, whole and in rows") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 8 * kMiB);
      const auto device = StandIn::make(kClock, {});
      const auto kind = std::make_shared<DevicePlatform>(std::vector<device::DevicePtr>{device});
      REQUIRE(pair.engine().add_memory_kind("stand-in", kind).has_value());
      auto memory = pair.engine().allocate(8 * kMiB, true, "stand-in:0");
      REQUIRE(memory.has_value());
      const std::span<std::byte> inside{device->seen_by_device(memory->data()), 8 * kMiB};
      for (uint64_t bytes : {1ul, 4097ul, 1'048'577ul, 8'388'608ul}) {
        CAPTURE(bytes);
        fill(inside, bytes);
        const uint64_t want = digest(inside.first(bytes));
        good(pair.engine().transfer_sync(pair.request(Op::kWrite, memory->bytes().first(bytes)),
                                         10s));
        CHECK(digest(pair.remote.bytes().first(bytes)) == want);
        std::memset(inside.data(), 0, bytes);
        good(pair.engine().transfer_sync(pair.request(Op::kRead, memory->bytes().first(bytes)),
                                         10s));
        CHECK(digest(inside.first(bytes)) == want);
      }
      const uint64_t pinned = device->counts().pinned;
      for (int i = 0; i < 8; ++i)
        good(pair.engine().transfer_sync(pair.request(Op::kWrite, memory->bytes()), 10s));
      CHECK(device->counts().pinned <= pinned + 8);  // staging memory is kept: 64 slices went
      Request rows = pair.request(Op::kWrite, memory->bytes().first(1000), 100);
      rows.rows = 700;
      rows.local_stride = 3000;
      rows.remote_stride = 5000;
      std::memset(pair.remote.data(), 0x55, pair.remote.size());
      fill(inside, 7);
      const uint64_t launches = device->counts().launches, copies = device->counts().copies;
      good(pair.engine().transfer_sync(rows, 10s));
      for (uint64_t row = 0; row < rows.rows; ++row) {
        const std::byte* at = pair.remote.data() + 100 + row * 5000;
        REQUIRE(std::memcmp(at, inside.data() + row * 3000, 1000) == 0);
        REQUIRE(at[1000] == std::byte{0x55});
      }
      if (transport != "self") {  // there the host's end is not pinned
        if (transport != "rdma") CHECK(device->counts().launches >= launches + 1);  // by NICs
        CHECK(device->counts().copies == copies);
      }
    }
  }

  TEST_CASE("within a process devices copy straight, and so do peers") {
    Machine m;
    const Memory a = m.allocate(3 * kMiB), b = m.allocate(3 * kMiB),
                 c = m.allocate(3 * kMiB, "stand-in:1");
    fill(m.inside(a), 1);
    for (int i = 0; i < 3; ++i) good(m.move(Op::kWrite, m.engine->self(), b.offset(), a.bytes()));
    CHECK(digest(m.inside(b)) == digest(m.inside(a)));
    CHECK(m.went("direct") >= 1);
    good(m.move(Op::kWrite, m.engine->self(), c.offset(), b.bytes()));
    std::vector<std::byte> host(3 * kMiB);
    good(m.move(Op::kRead, m.engine->self(), c.offset(), host));
    CHECK(digest(host) == digest(m.inside(a)));
    // Both ways were tried, and both are right.
    fill(host, 2);
    for (int i = 0; i < 4; ++i) {
      good(m.move(Op::kWrite, m.engine->self(), a.offset(), host));
      CHECK(digest(m.inside(a)) == digest(host));
      std::memset(m.inside(a).data(), i, 3 * kMiB);
    }
    CHECK(m.went("staged") >= 1);
    CHECK(m.went("owner") == 0);
  }

  TEST_CASE("a transfer of several slices lands where it should, by either way") {
    Machine m;
    const uint64_t bytes = 65 * kMiB + 4097;  // more than a device's slice
    const Memory a = m.allocate(bytes);
    std::vector<std::byte> host(bytes), back(bytes);
    fill(host, 41);
    for (int i = 0; i < 3; ++i) {
      std::memset(m.inside(a).data(), i, bytes);
      good(m.move(Op::kWrite, m.engine->self(), a.offset(), host));
      REQUIRE(digest(m.inside(a)) == digest(host));
      std::fill(back.begin(), back.end(), std::byte{0});
      good(m.move(Op::kRead, m.engine->self(), a.offset(), back));
      REQUIRE(digest(back) == digest(host));
    }
    CHECK(m.went("direct") >= 2);
    CHECK(m.went("staged") >= 2);
  }

  TEST_CASE("a process opens what another of the host shares, and both ends see the same bytes") {
    for (const char* over : {"shm tcp", "shm"}) {
      CAPTURE(over);
      Owner owner(3 * kMiB, "allocated", over);
      Machine m({"shm", "tcp"});
      auto segment = m.engine->open_segment(owner.segment);
      REQUIRE(segment.has_value());
      std::vector<std::byte> want(3 * kMiB), got(3 * kMiB);
      fill(want, 21);
      const Memory local = m.allocate(3 * kMiB);
      for (int i = 0; i < 4; ++i) {
        std::memset(got.data(), 0, got.size());
        good(m.move(Op::kRead, *segment, 0, got));
        CHECK(digest(got) == digest(want));
        std::memset(m.inside(local).data(), 0, local.size());
        good(m.move(Op::kRead, *segment, 0, local.bytes()));
        CHECK(digest(m.inside(local)) == digest(want));
      }
      CHECK(m.went("direct") >= 2);
      if (std::string(over) == "shm") CHECK(m.went("owner") == 0);
      if (std::string(over) == "shm tcp") CHECK(m.went("owner") >= 1);
      for (const uint64_t seed : {31U, 32U, 33U}) {
        fill(m.inside(local), seed);
        good(m.move(Op::kWrite, *segment, 0, local.bytes()));
        good(m.move(Op::kRead, *segment, 0, got));
        CHECK(digest(got) == digest(m.inside(local)));
      }
      // And a process without devices goes by the owner.
      if (std::string(over) == "shm tcp") {
        auto plain_engine = make_engine("plain", {"shm", "tcp"});
        auto same = plain_engine->open_segment(owner.segment);
        REQUIRE(same.has_value());
        good(plain_engine->transfer_sync(read_of(*same, 0, got), 10s));
        CHECK(digest(got) == digest(m.inside(local)));
      }
    }
  }

  TEST_CASE("memory the application brought is read by its handle, and written by its owner") {
    Owner owner(kMiB, "registered");
    Machine m;
    auto segment = m.engine->open_segment(owner.segment);
    REQUIRE(segment.has_value());
    std::vector<std::byte> want(kMiB), got(kMiB);
    fill(want, 21);
    good(m.move(Op::kRead, *segment, 0, got));
    CHECK(digest(got) == digest(want));
    CHECK(m.went("direct") == 1);
    fill(want, 22);
    good(m.move(Op::kWrite, *segment, 0, want));
    CHECK(m.went("direct") == 1);
    good(m.move(Op::kRead, *segment, 0, got));
    CHECK(digest(got) == digest(want));
  }

  TEST_CASE("an owner that was killed is unavailable, and no reader dies of it") {
    Owner owner(kMiB, "allocated", "shm");
    Machine m;
    auto segment = m.engine->open_segment(owner.segment);
    REQUIRE(segment.has_value());
    std::vector<std::byte> got(kMiB);
    good(m.move(Op::kRead, *segment, 0, got));
    owner.kill();
    const auto dead = m.move(Op::kRead, *segment, 0, got);
    REQUIRE_FALSE(dead.has_value());
    CHECK_MESSAGE(dead.error().code == Code::kUnavailable, dead.error().what);
    // A handle that nobody opened before its owner died.
    Machine late;
    auto opened = late.engine->open_segment(owner.segment);
    if (opened) CHECK_FALSE(late.move(Op::kRead, *opened, 0, got).has_value());
  }

  TEST_CASE("without handles the owner stages") {
    Machine owner({"shm", "tcp"}, false), user;
    const Memory there = owner.allocate(4 * kMiB), here = user.allocate(4 * kMiB);
    auto segment = user.engine->open_segment(owner.engine->describe());
    REQUIRE(segment.has_value());
    fill(user.inside(here), 5);
    good(user.move(Op::kWrite, *segment, there.offset(), here.bytes()));
    CHECK(digest(owner.inside(there)) == digest(user.inside(here)));
    CHECK(user.went("direct") == 0);
    Request rows = read_of(*segment, there.offset(), here.bytes().first(100));
    rows.rows = 1000;
    rows.local_stride = 200;
    rows.remote_stride = 4000;
    good(user.engine->transfer_sync(rows, 10s));
    for (uint64_t row = 0; row < 1000; ++row)
      REQUIRE(std::memcmp(user.inside(here).data() + row * 200,
                          owner.inside(there).data() + row * 4000, 100) == 0);
  }

  TEST_CASE("memory is registered where it is, or refused") {
    Machine m;
    auto raw = m.first->allocate(kMiB);
    REQUIRE(raw.has_value());
    {
      auto found = m.engine->register_memory(raw->bytes);
      REQUIRE(found.has_value());
      const auto described = m.engine->describe();
      REQUIRE(described.buffers.size() == 1);
      CHECK(described.buffers[0].location == "stand-in:0");
      CHECK_FALSE(described.buffers[0].device_writes);
    }
    bad(plain(m.engine->register_memory(raw->bytes, true, "stand-in:1")), Code::kInvalid,
        "memory of stand-in:0 cannot be registered as stand-in:1");
    bad(plain(m.engine->register_memory({raw->data(), 2 * kMiB}, true, "stand-in:0")),
        Code::kInvalid, "pass the end");
    std::vector<std::byte> host(4096);
    bad(plain(m.engine->register_memory(host, true, "stand-in:0")), Code::kInvalid,
        "no memory of a device");
    CHECK(m.engine->register_memory(host).has_value());  // the host's
    const std::span<std::byte> freed = raw->bytes;
    *raw = device::Memory();
    bad(plain(m.engine->register_memory(freed, true, "stand-in:0")), Code::kInvalid, "freed");
    bad(plain(m.engine->allocate(1 * kGiB, true, "stand-in:0")), Code::kNoSpace, "is free");
    bad(plain(m.engine->allocate(kMiB, true, "stand-in:7")), Code::kNotFound, "stand-in:7");
  }

  TEST_CASE("memory that is freed while it is registered fails its requests, and no others") {
    Machine m;
    auto raw = m.first->allocate(kMiB);
    REQUIRE(raw.has_value());
    auto registered = m.engine->register_memory(raw->bytes);
    REQUIRE(registered.has_value());
    const Memory other = m.allocate(kMiB);
    const std::span<std::byte> freed = raw->bytes;
    *raw = device::Memory();
    std::vector<std::byte> host(kMiB);
    bad(m.move(Op::kWrite, m.engine->self(), registered->offset(), host), Code::kInvalid, "freed");
    bad(m.move(Op::kWrite, m.engine->self(), other.offset(), freed), Code::kInvalid, "freed");
    good(m.move(Op::kWrite, m.engine->self(), other.offset(), host));
  }

  TEST_CASE("a device that is lost, busy or faulty fails its requests, and host memory goes on") {
    Machine m;
    auto peer = make_engine("peer", {"shm", "tcp"});
    auto memory = peer->allocate(4 * kMiB);
    REQUIRE(memory.has_value());
    auto segment = m.engine->open_segment(peer->describe());
    REQUIRE(segment.has_value());
    const Memory mine = m.allocate(4 * kMiB);
    m.first->inject({.fails_from = 2});
    const auto faulty = m.move(Op::kWrite, *segment, memory->offset(), mine.bytes());
    bad(faulty, Code::kInternal, "stand-in:0 failed a copy");
    m.first->inject({.latency = 1h});
    Request r = read_of(*segment, memory->offset(), mine.bytes());
    const BatchId batch = m.engine->allocate_batch();
    REQUIRE(m.engine->submit(batch, {&r, 1}).has_value());
    m.first->inject({.lost = true});
    bad(m.engine->wait(batch, 10s), Code::kUnavailable, "stand-in:0 was lost");
    m.engine->free_batch(batch);
    bad(m.move(Op::kWrite, *segment, memory->offset(), mine.bytes()), Code::kUnavailable, "lost");
    std::vector<std::byte> host(kMiB);
    good(m.move(Op::kWrite, *segment, memory->offset(), host));
  }
}

}  // namespace device_platform_test
