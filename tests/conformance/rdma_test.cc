// What goes wrong with RDMA NICs, on those of the emulator: no request is lost, and the rail is
// back afterwards.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/conformance/control.h"
#include "tests/conformance/fabric.h"
#include "tests/conformance/pair.h"
#include "tests/unit/topo/recorded.h"

#ifdef MC_TEST_EMULATOR

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

constexpr uint64_t kBytes = 8 * kMiB;

bool skipped() {
  if (has_emulator()) return false;
  MESSAGE("skipped: not on the emulated verbs library (ctest sets LD_LIBRARY_PATH)");
  return true;
}

std::unique_ptr<Engine> rdma_engine(const std::string& node, Metrics& metrics,
                                    std::vector<std::string> nics, uint32_t endpoints = 256,
                                    Duration peer_timeout = 2s * kSlow) {
  EngineOptions o;
  o.node = node;
  o.transports = {"rdma"};
  o.nics = std::move(nics);
  o.endpoints = endpoints;
  o.peer_timeout = peer_timeout;
  o.share_table = "";
  auto engine = Engine::open(kClock, o, metrics);
  REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
  return std::move(*engine);
}

// An owner and a user on the first NICs; a thread of the user that reads and writes all the time
// and checks what it has.
class Traffic {
 public:
  explicit Traffic(size_t nics) {
    fabric().heal();
    std::vector<std::string> names;
    for (size_t i = 0; i < nics; ++i) names.push_back("emu" + std::to_string(i));
    owner_ = rdma_engine("owner", metrics_, names);
    user_ = rdma_engine("user", metrics_, names);
    remote_ = *owner_->allocate(2 * kBytes);
    local_ = *user_->allocate(2 * kBytes);
    control_ = std::make_unique<Control>(*owner_);
    auto opened = user_->open_segment(control_->address(), 5s);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().what));
    segment_ = *opened;
    fill(local_.bytes(), 21);
    round();  // connected
    thread_ = std::thread([this] {
      while (!stop_.load()) round();
    });
  }
  ~Traffic() {
    end();
    fabric().heal();
  }
  static TestFabric& fabric() { return TestFabric::get(); }
  uint64_t rounds() const { return rounds_.load(); }
  // That many more.
  void wait_rounds(uint64_t n) {
    const uint64_t until = rounds() + n;
    const Time deadline = kClock.now() + 30s;
    while (rounds() < until && kClock.now() < deadline) std::this_thread::yield();
    CHECK(rounds() >= until);
  }
  // What failed so far had to: there was no NIC for a while, and for how long is the machine's
  // choice.
  void forgive() { failed_.store(0); }
  void end() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
    CHECK_MESSAGE(failed_.load() == 0, first_);
    CHECK(wrong_.load() == 0);
  }
  std::vector<RailView> rails() const {
    auto paths = user_->paths(segment_, remote_.offset(), Op::kRead, kMiB);
    REQUIRE(paths.has_value());
    for (const Path& p : *paths)
      if (p.transport == "rdma") return p.rails;
    return {};
  }
  // Every rail of the map healthy (or slow), with traffic on it.
  bool all_well() const {
    for (const RailView& v : rails())
      if (v.info.mapped && v.state >= RailState::kResting) return false;
    return true;
  }
  void wait_all_well() {
    const Time deadline = kClock.now() + 30s;
    while (!all_well() && kClock.now() < deadline) std::this_thread::yield();
    std::string states;
    for (const RailView& v : rails())
      states += v.info.local + "-" + v.info.remote + " " + name(v.state) + " ";
    CHECK_MESSAGE(all_well(), states);
  }
  Metrics& metrics() { return metrics_; }

 private:
  Request request(Op op, std::byte* at, uint64_t offset, uint64_t bytes) const {
    Request r;
    r.op = op;
    r.local = at;
    r.segment = segment_;
    r.offset = remote_.offset() + offset;
    r.bytes = bytes;
    return r;
  }
  void round() {
    std::byte* const out = local_.data();
    std::byte* const in = out + kBytes;
    const uint64_t n = rounds_.load();
    std::memcpy(out + n % 1000 * 8, &n, sizeof n);
    std::memset(in, 0, kBytes);
    for (const Op op : {Op::kWrite, Op::kRead}) {
      auto moved = user_->transfer_sync(request(op, op == Op::kWrite ? out : in, 0, kBytes), 20s);
      if (moved) continue;
      if (failed_.fetch_add(1) == 0) first_ = moved.error().what;
      return;
    }
    if (std::memcmp(in, out, kBytes) != 0) wrong_.fetch_add(1);
    rounds_.fetch_add(1);
  }
  Metrics metrics_;
  std::unique_ptr<Engine> owner_, user_;
  Memory remote_, local_;
  std::unique_ptr<Control> control_;
  SegmentHandle segment_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> rounds_{0}, failed_{0}, wrong_{0};
  std::string first_;
  std::thread thread_;
};

}  // namespace

TEST_SUITE("rdma") {
  TEST_CASE("bytes are right over one, two and four NICs") {
    if (skipped()) return;
    for (const size_t nics : {1u, 2u, 4u}) {
      CAPTURE(nics);
      Traffic traffic(nics);
      traffic.wait_rounds(5);
      traffic.end();
    }
  }

  TEST_CASE("a port that goes down and comes up loses no request") {
    if (skipped()) return;
    for (const size_t nics : {1u, 2u}) {
      CAPTURE(nics);
      Traffic traffic(nics);
      emu::Fabric& fabric = *Traffic::fabric().fabric();
      emu::set_port(fabric, 0, false);
      if (nics > 1) traffic.wait_rounds(3);
      emu::set_port(fabric, 0, true);
      traffic.wait_rounds(3);
      traffic.wait_all_well();
      traffic.end();
    }
  }

  TEST_CASE("a NIC that slows down gets less, and heals") {
    if (skipped()) return;
    Traffic traffic(2);
    emu::Fabric& fabric = *Traffic::fabric().fabric();
    emu::set_rate(fabric, 0, 50'000'000);
    traffic.wait_rounds(5);
    emu::set_rate(fabric, 0, 0);
    traffic.wait_rounds(5);
    traffic.wait_all_well();
    traffic.end();
  }

  TEST_CASE("a request that completes with an error is carried out again") {
    if (skipped()) return;
    for (const size_t nics : {1u, 2u})
      for (const int status : {12 /* retry exceeded */, 10 /* remote access */, 21 /* general */}) {
        CAPTURE(nics);
        CAPTURE(status);
        Traffic traffic(nics);
        for (const emu::Action action : {emu::Action::kError, emu::Action::kPartial}) {
          Traffic::fabric().rule(action, static_cast<uint64_t>(status), 3);
          traffic.wait_rounds(4);
        }
        traffic.wait_all_well();
        traffic.end();
      }
  }

  TEST_CASE("a queue pair that breaks is made again") {
    if (skipped()) return;
    Traffic traffic(1);
    Traffic::fabric().rule(emu::Action::kQpFatal, 0, 3, 2);
    traffic.wait_rounds(6);
    traffic.wait_all_well();
    traffic.end();
  }

  TEST_CASE("a completion that never comes is not waited for longer than the peer timeout") {
    if (skipped()) return;
    for (const size_t nics : {1u, 2u}) {
      CAPTURE(nics);
      Traffic traffic(nics);
      Traffic::fabric().rule(emu::Action::kLose, 0, 3, 1);
      traffic.wait_rounds(6);
      traffic.wait_all_well();
      traffic.end();
    }
  }

  TEST_CASE("a NIC that is taken out and put back serves again") {
    if (skipped()) return;
    for (const size_t nics : {1u, 2u}) {
      CAPTURE(nics);
      Traffic traffic(nics);
      emu::Fabric& fabric = *Traffic::fabric().fabric();
      emu::set_present(fabric, 0, false);
      if (nics > 1) traffic.wait_rounds(3);
      emu::set_present(fabric, 0, true);
      traffic.wait_rounds(3);
      if (nics == 1) traffic.forgive();
      traffic.wait_all_well();
      traffic.end();
    }
  }

  TEST_CASE("a few bytes at a time are right, whatever happens to completions and NICs") {
    if (skipped()) return;
    Traffic::fabric().heal();
    emu::Fabric& fabric = *Traffic::fabric().fabric();
    Metrics metrics;
    auto owner = rdma_engine("owner", metrics, {"emu0"}),
         user = rdma_engine("user", metrics, {"emu1"});
    const Memory remote = *owner->allocate(64 * kKiB), local = *user->allocate(64 * kKiB);
    const auto segment = user->open_segment(owner->describe());
    REQUIRE(segment.has_value());
    Request r;
    r.segment = *segment;
    const auto round = [&](uint64_t i) {
      r.bytes = 1 + i * 7919 % 4500;  // inline, not inline, and too long for the short way
      const uint64_t at = i * 64 % (48 * kKiB);
      fill(std::span(local.data(), r.bytes), i);
      for (const Op op : {Op::kWrite, Op::kRead}) {
        r.op = op;
        r.local = local.data() + (op == Op::kWrite ? 0 : 8192);
        r.offset = remote.offset() + at;
        const auto moved = user->transfer_sync(r, 20s);
        REQUIRE_MESSAGE(moved.has_value(), (moved ? "" : moved.error().what));
      }
      REQUIRE(std::memcmp(local.data(), remote.data() + at, r.bytes) == 0);
      REQUIRE(std::memcmp(local.data(), local.data() + 8192, r.bytes) == 0);
    };
    uint64_t n = 0;
    for (; n < 200; ++n) round(n);
    using emu::Action;
    for (const Action action :
         {Action::kError, Action::kPartial, Action::kQpFatal, Action::kLose}) {
      CAPTURE(static_cast<int>(action));
      Traffic::fabric().rule(action, 12, 5);  // 12: retries exceeded
      for (int i = 0; i < 30; ++i) round(n++);
    }
    emu::set_latency(fabric, 0, 300'000);  // longer than a caller polls
    for (int i = 0; i < 20; ++i) round(n++);
    emu::set_latency(fabric, 0, 0);
    for (int i = 0; i < 3; ++i) {
      emu::set_port(fabric, 0, false);
      emu::set_port(fabric, 0, true);
      for (int k = 0; k < 10; ++k) round(n++);
    }
    Traffic::fabric().heal();
  }

  TEST_CASE("NICs of the memory's own node carry most of its bytes") {
    if (skipped()) return;
    Traffic::fabric().heal();
    // Memory is on node 0 here, as a machine with one node has no other.
    topo::Recorded machine("mc-near");
    machine.file("devices/system/node/node0/cpulist", "0");
    machine.file("devices/system/node/node1/cpulist", "1");
    for (const char* nic : {"0", "1"}) {
      const std::string pci = std::string("0000:0") + nic + ":00.0";
      machine.function("pci0000:00", pci, nic, "0x020700");
      machine.rdma("pci0000:00/" + pci, std::string("emu") + nic, "4: ACTIVE");
      emu::set_rate(*Traffic::fabric().fabric(), Traffic::fabric().nic(std::string("emu") + nic),
                    400'000'000);
    }
    Metrics metrics;
    EngineOptions o;
    o.node = "user";
    o.transports = {"rdma"};
    o.nics = {"emu0", "emu1"};
    o.sysfs = machine.path();
    o.share_table = "";
    auto user = Engine::open(kClock, o, metrics);
    REQUIRE_MESSAGE(user.has_value(), (user ? "" : user.error().what));
    auto owner = rdma_engine("owner", metrics, {"emu2", "emu3"});
    const Memory remote = *owner->allocate(8 * kMiB), local = *(*user)->allocate(8 * kMiB);
    const auto segment = (*user)->open_segment(owner->describe());
    REQUIRE(segment.has_value());
    fill(local.bytes(), 5);
    Request r;
    r.op = Op::kWrite;
    r.local = local.data();
    r.segment = *segment;
    r.offset = remote.offset();
    r.bytes = kMiB;
    for (int i = 0; i < 100; ++i) REQUIRE((*user)->transfer_sync(r, 20s).has_value());
    const auto paths = (*user)->paths(*segment, remote.offset(), Op::kWrite, kMiB, local.data());
    REQUIRE(paths.has_value());
    uint64_t near = 0, far = 0;
    const auto rdma = std::find_if(paths->begin(), paths->end(),
                                   [](const Path& p) { return p.transport == "rdma"; });
    REQUIRE(rdma != paths->end());
    for (const RailView& rail : rdma->rails) {
      CHECK(rail.tier == (rail.info.local == "emu0" ? 1 : 3));
      (rail.tier == 1 ? near : far) += rail.bytes;
    }
    CHECK(near > 2 * far);
    Traffic::fabric().heal();
  }

  TEST_CASE("memory that was registered anew is not reached with the old key") {
    if (skipped()) return;
    Traffic::fabric().heal();
    Metrics metrics;
    auto owner = rdma_engine("owner", metrics, {"emu0"}),
         user = rdma_engine("user", metrics, {"emu1"});
    std::vector<std::byte> memory(64 * kKiB), got(4096);
    fill(memory, 1);
    Memory offered = *owner->register_memory(memory);
    const auto segment = user->open_segment(owner->describe());
    REQUIRE(segment.has_value());
    Request r;
    r.local = got.data();
    r.bytes = got.size();
    r.segment = *segment;
    r.offset = offered.offset();
    REQUIRE(user->transfer_sync(r, 5s).has_value());
    CHECK(std::memcmp(got.data(), memory.data(), got.size()) == 0);
    // The same bytes again, under another key: who has the old descriptor reads nothing.
    offered = Memory();
    offered = *owner->register_memory(memory);
    std::memset(got.data(), 0x77, got.size());
    for (const Op op : {Op::kRead, Op::kWrite}) {
      r.op = op;
      auto stale = user->transfer_sync(r, 5s);
      REQUIRE_FALSE(stale.has_value());
      CHECK(stale.error().code == Code::kStale);
    }
    CHECK(got == std::vector<std::byte>(got.size(), std::byte{0x77}));
    CHECK(memory[0] != std::byte{0x77});
    // With the new one, it does.
    REQUIRE(user->open_segment(owner->describe()).has_value());
    r.op = Op::kRead;
    r.offset = offered.offset();
    CHECK(user->transfer_sync(r, 5s).has_value());
    CHECK(std::memcmp(got.data(), memory.data(), got.size()) == 0);
  }

  TEST_CASE("local memory that was not registered is, for as long as it is used") {
    if (skipped()) return;
    Traffic::fabric().heal();
    Metrics metrics;
    auto owner = rdma_engine("owner", metrics, {"emu0"}),
         user = rdma_engine("user", metrics, {"emu1"});
    const Memory remote = *owner->allocate(kMiB);
    const Memory local = *user->allocate(kMiB);
    const auto segment = user->open_segment(owner->describe());
    REQUIRE(segment.has_value());
    auto& made = metrics.counter("mc_xfer_rdma_registrations_total", "");
    auto& hits = metrics.counter("mc_xfer_rdma_registration_hits_total", "");
    const uint64_t before = made.value();
    CHECK(before == 2);  // one buffer each, on one NIC each
    Request r;
    r.op = Op::kWrite;
    r.local = local.data();
    r.bytes = kMiB;
    r.segment = *segment;
    r.offset = remote.offset();
    for (int i = 0; i < 10; ++i) REQUIRE(user->transfer_sync(r, 5s).has_value());
    CHECK(made.value() == before);
    CHECK(hits.value() >= 10);
    std::vector<std::byte> unregistered(kMiB);
    fill(unregistered, 4);
    r.local = unregistered.data();
    for (int i = 0; i < 3; ++i) REQUIRE(user->transfer_sync(r, 5s).has_value());
    CHECK(made.value() >= before + 3);
    CHECK(digest(remote.bytes()) == digest(unregistered));
  }

  TEST_CASE("a thousand peers share 64 queue pairs") {
    if (skipped()) return;
    Traffic::fabric().heal();
    Metrics metrics;
    auto owner = rdma_engine("owner", metrics, {"emu0"});
    auto user = rdma_engine("user", metrics, {"emu1"}, 64);
    const Memory remote = *owner->allocate(kMiB);
    const Memory local = *user->allocate(kMiB);
    fill(remote.bytes(), 8);
    std::vector<SegmentHandle> segments;  // one process under a thousand names
    SegmentDescriptor descriptor = owner->describe();
    for (int i = 0; i < 1000; ++i) {
      descriptor.node = "peer-" + std::to_string(i);
      auto opened = user->open_segment(descriptor);
      REQUIRE(opened.has_value());
      segments.push_back(*opened);
    }
    for (int round = 0; round < 2; ++round) {
      std::vector<Request> requests(segments.size());
      for (size_t i = 0; i < segments.size(); ++i) {
        requests[i].local = local.data() + i * 1024;
        requests[i].bytes = 1024;
        requests[i].segment = segments[i];
        requests[i].offset = remote.offset() + i * 1024;
      }
      std::memset(local.data(), 0, local.size());
      const BatchId batch = user->allocate_batch();
      REQUIRE(user->submit(batch, requests).has_value());
      auto waited = user->wait(batch, 60s);
      CHECK_MESSAGE(waited.has_value(), (waited ? "" : waited.error().what));
      user->free_batch(batch);
      CHECK(std::memcmp(local.data(), remote.data(), segments.size() * 1024) == 0);
    }
    CHECK(metrics.gauge("mc_xfer_rdma_endpoints", "").value() <= 64);
    CHECK(metrics.gauge("mc_xfer_rdma_evicted_endpoints", "").value() >= 900);
  }

  TEST_CASE("a machine without the NIC that was named says which there are") {
    if (skipped()) return;
    Metrics metrics;
    EngineOptions o;
    o.transports = {"rdma"};
    o.nics = {"mlx5_7"};
    o.share_table = "";
    const auto engine = Engine::open(kClock, o, metrics);
    REQUIRE_FALSE(engine.has_value());
    CHECK(engine.error().code == Code::kNotFound);
    CHECK(engine.error().what.find("emu0") != std::string::npos);
  }
}

#endif
