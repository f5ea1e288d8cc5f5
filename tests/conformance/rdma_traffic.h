// Engines on the NICs of the emulator, and traffic between two of them that checks what it moves.
#pragma once
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/control.h"
#include "tests/conformance/fabric.h"
#include "tests/conformance/pair.h"

#ifdef MC_TEST_EMULATOR

namespace mc::xfer::rdma_tests {

using namespace std::chrono_literals;

constexpr uint64_t kBytes = 8 * kMiB;

inline bool skipped() {
  if (has_emulator()) return false;
  MESSAGE("skipped: not on the emulated verbs library (ctest sets LD_LIBRARY_PATH)");
  return true;
}

inline std::unique_ptr<Engine> rdma_engine(const std::string& node, Metrics& metrics,
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

inline emu::Fabric& nics() { return *TestFabric::get().fabric(); }

// Of queue pairs that are connected.
template <class Visit>
inline void each_pair(const Visit& visit) {
  for (const emu::QpSlot& qp : nics()->qp)
    if (qp.number.load() != 0 && qp.state.load() == IBV_QPS_RTS) visit(qp);
}

// An owner on the first NIC and a user on the second.
struct Ends {
  Metrics of_owner, of_user;
  std::unique_ptr<Engine> owner, user;
  Memory remote, local;
  SegmentHandle segment = 0;
  explicit Ends(const EngineOptions& options, uint64_t bytes = kMiB) {
    owner = open("owner", "emu0", options, of_owner);
    user = open("user", "emu1", options, of_user);
    remote = *owner->allocate(bytes);
    local = *user->allocate(bytes);
    fill(local.bytes(), 3);
    const auto opened = user->open_segment(owner->describe());
    REQUIRE(opened.has_value());
    segment = *opened;
  }
  static std::unique_ptr<Engine> open(const std::string& node, const std::string& nic,
                                      EngineOptions o, Metrics& metrics) {
    o.node = node;
    o.nics = {nic};
    auto engine = Engine::open(kClock, std::move(o), metrics);
    REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
    return std::move(*engine);
  }
  Request request(Op op = Op::kWrite) const {
    Request r;
    r.op = op;
    r.local = local.data();
    r.segment = segment;
    r.offset = remote.offset();
    r.bytes = local.size();
    return r;
  }
  Result<> write(Duration budget = 20s) const { return user->transfer_sync(request(), budget); }
};

inline EngineOptions over_rdma() {
  EngineOptions o;
  o.transports = {"rdma"};
  o.peer_timeout = 2s * kSlow;
  o.share_table = "";
  return o;
}

struct Healed {  // before and after
  Healed() { TestFabric::get().heal(); }
  ~Healed() { TestFabric::get().heal(); }
};

// An owner and a user on the first NICs; a thread of the user that reads and writes all the time
// and checks what it has.
class Traffic {
 public:
  explicit Traffic(size_t nics, Duration peer_timeout = 2s * kSlow) {
    fabric().heal();
    std::vector<std::string> names;
    for (size_t i = 0; i < nics; ++i) names.push_back("emu" + std::to_string(i));
    owner_ = rdma_engine("owner", of_owner_, names, 256, peer_timeout);
    user_ = rdma_engine("user", metrics_, names, 256, peer_timeout);
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
    const Time deadline = kClock.now() + 30s * kSlow;
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
  // Bytes that a NIC of the user carried so far.
  uint64_t carried(const std::string& nic) const {
    uint64_t bytes = 0;
    for (const RailView& v : rails())
      if (v.info.local == nic) bytes += v.bytes;
    return bytes;
  }
  // Whether the user takes that NIC to be down, soon.
  bool seen_down(const std::string& nic) const {
    const Time deadline = kClock.now() + 30s * kSlow;
    for (;;) {
      for (const RailView& v : rails())
        if (v.info.local == nic && v.state >= RailState::kResting) return true;
      if (kClock.now() > deadline) return false;
      std::this_thread::yield();
    }
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
    const Time deadline = kClock.now() + 30s * kSlow;
    while (!all_well() && kClock.now() < deadline) std::this_thread::yield();
    std::string states;
    for (const RailView& v : rails())
      states += v.info.local + "-" + v.info.remote + " " + name(v.state) + " ";
    CHECK_MESSAGE(all_well(), states);
  }
  uint64_t connections() { return metrics_.counter("mc_xfer_rdma_connections_total", "").value(); }

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
      auto moved =
          user_->transfer_sync(request(op, op == Op::kWrite ? out : in, 0, kBytes), 20s * kSlow);
      if (moved) continue;
      if (failed_.fetch_add(1) == 0) first_ = moved.error().what;
      return;
    }
    if (std::memcmp(in, out, kBytes) != 0) wrong_.fetch_add(1);
    rounds_.fetch_add(1);
  }
  Metrics metrics_, of_owner_;  // of the user, and of the owner
  std::unique_ptr<Engine> owner_, user_;
  Memory remote_, local_;
  std::unique_ptr<Control> control_;
  SegmentHandle segment_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> rounds_{0}, failed_{0}, wrong_{0};
  std::string first_;
  std::thread thread_;
};

}  // namespace mc::xfer::rdma_tests

#endif
