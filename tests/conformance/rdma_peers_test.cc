// Many peers, few queue pairs: which of them give way, on the NICs of the emulator.
#include <algorithm>
#include <cstring>

#include "tests/conformance/fabric.h"
#include "tests/conformance/pair.h"

#ifdef MC_TEST_EMULATOR

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace rdma_peers_test {
namespace {

constexpr size_t kPeers = 1000;
constexpr uint32_t kQueuePairs = 64;
constexpr size_t kTransfers = 10'000;
constexpr uint64_t kStep = 512;

std::unique_ptr<Engine> engine(const std::string& node, Metrics& metrics, const char* nic,
                               Eviction eviction) {
  EngineOptions o;
  o.node = node;
  o.transports = {"rdma"};
  o.nics = {nic};
  o.endpoints = kQueuePairs;
  o.eviction = eviction;
  o.share_table = "";
  auto opened = Engine::open(kClock, o, metrics);
  REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().what));
  return std::move(*opened);
}

// Writes to a thousand peers, the k-th asked 1/k as often as the first, each to its own place;
// every queue pair is a real one of the fabric. How many had to be made.
uint64_t queue_pairs_made(Eviction eviction) {
  TestFabric::get().heal();
  Metrics of_owner, of_user;
  const auto owner = engine("owner", of_owner, "emu0", Eviction::kSieve);
  const auto user = engine("user", of_user, "emu1", eviction);
  const Memory remote = *owner->allocate(kPeers * kStep);
  const Memory local = *user->allocate(kPeers * kStep);
  fill(local.bytes(), 17);
  std::vector<SegmentHandle> segments;  // one process under a thousand names
  SegmentDescriptor descriptor = owner->describe();
  std::vector<double> until;
  double sum = 0;
  for (size_t k = 0; k < kPeers; ++k) {
    descriptor.node = "peer-" + std::to_string(k);
    const auto opened = user->open_segment(descriptor);
    REQUIRE(opened.has_value());
    segments.push_back(*opened);
    until.push_back(sum += 1. / static_cast<double>(k + 1));
  }
  Random random(4);
  std::vector<bool> written(kPeers);
  for (size_t i = 0; i < kTransfers; ++i) {
    const auto at = std::lower_bound(until.begin(), until.end(), random.uniform() * sum);
    const auto peer = static_cast<size_t>(at - until.begin());
    Request r;
    r.op = Op::kWrite;
    r.local = local.data() + peer * kStep;
    r.segment = segments[peer];
    r.offset = remote.offset() + peer * kStep;
    r.bytes = kStep;
    const auto moved = user->transfer_sync(r, 20s);
    REQUIRE_MESSAGE(moved.has_value(), (moved ? "" : moved.error().what));
    written[peer] = true;
    CHECK(of_user.gauge("mc_xfer_rdma_endpoints", "").value() <= kQueuePairs);
  }
  for (size_t k = 0; k < kPeers; ++k)
    if (written[k])
      CHECK(std::memcmp(remote.data() + k * kStep, local.data() + k * kStep, kStep) == 0);
  CHECK(of_owner.gauge("mc_xfer_rdma_served_queue_pairs", "").value() <= kQueuePairs + 1);
  return of_user.counter("mc_xfer_rdma_connections_total", "").value();
}

}  // namespace

TEST_SUITE("rdma") {
  TEST_CASE("of 1000 skewed peers, SIEVE makes fewer queue pairs anew than first in, first out") {
    if (!has_emulator()) {
      MESSAGE("skipped: not on the emulated verbs library (ctest sets LD_LIBRARY_PATH)");
      return;
    }
    const uint64_t sieve = queue_pairs_made(Eviction::kSieve);
    const uint64_t fifo = queue_pairs_made(Eviction::kFifo);
    CAPTURE(sieve);
    CAPTURE(fifo);
    MESSAGE("queue pairs made: ", sieve, " in SIEVE order, ", fifo, " first in, first out");
    CHECK(sieve > kQueuePairs);
    CHECK(static_cast<double>(sieve) < .93 * static_cast<double>(fifo));
  }
}

}  // namespace rdma_peers_test

#endif
