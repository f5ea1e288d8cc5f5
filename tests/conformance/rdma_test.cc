// What goes wrong with RDMA NICs, on those of the emulator: no request is lost, and the rail is
// back afterwards.
#include <algorithm>
#include <cstring>
#include <future>

#include "tests/conformance/rdma_traffic.h"
#include "tests/unit/topo/recorded.h"

#ifdef MC_TEST_EMULATOR

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::rdma_tests;
using namespace std::chrono_literals;

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
    Traffic traffic(1, 10s * kSlow);
    emu::Fabric& fabric = *Traffic::fabric().fabric();
    emu::set_port(fabric, 0, false);
    CHECK(traffic.seen_down("emu0"));  // by its event: nothing has timed out yet
    emu::set_port(fabric, 0, true);
    traffic.wait_rounds(3);
    traffic.wait_all_well();
    traffic.end();
  }

  TEST_CASE("requests wait for the only NIC, whose port is down for longer than a rail rests") {
    if (skipped()) return;
    const std::vector<std::vector<std::string>> owners = {{"emu0"}, {"emu0", "emu2"}};
    for (const std::vector<std::string>& nics : owners) {
      CAPTURE(nics.size());
      const Healed healed;
      Metrics of_owner, of_user;
      auto owner = rdma_engine("owner", of_owner, nics, 256, 60s);
      auto user = rdma_engine("user", of_user, {"emu1"}, 256, 60s);
      const Memory remote = *owner->allocate(kBytes), local = *user->allocate(kBytes);
      const auto segment = user->open_segment(owner->describe());
      REQUIRE_MESSAGE(segment, segment.error().what);
      Request r;
      r.local = local.data();
      r.segment = *segment;
      r.offset = remote.offset();
      r.bytes = kBytes;
      fill(remote.bytes(), 8);
      auto& made = of_user.counter("mc_xfer_rdma_connections_total", "");
      for (int i = 0; i < 1000 && made.value() < nics.size(); ++i)
        REQUIRE(user->transfer_sync(r, 20s * kSlow).has_value());
      REQUIRE(made.value() == nics.size());
      std::memset(local.data(), 0, kBytes);
      emu::set_port(*Traffic::fabric().fabric(), 1, false);
      const auto seen_down = [&] {
        const auto paths = user->paths(*segment, r.offset, r.op, r.bytes);
        REQUIRE(paths.has_value());
        for (const Path& p : *paths)
          for (const RailView& v : p.rails)
            if (v.state >= RailState::kResting) return true;
        return false;
      };
      while (!seen_down()) std::this_thread::yield();
      const BatchId batch = user->allocate_batch();
      REQUIRE(user->submit(batch, {{r}}).has_value());
      const auto early = user->wait(batch, 600ms);  // a rail rests for 250 ms, then it is probed
      CHECK_MESSAGE((!early && early.error().code == Code::kTimeout),
                    (early ? "it was carried" : early.error().what));
      emu::set_port(*Traffic::fabric().fabric(), 1, true);
      const auto moved = user->wait(batch, 30s * kSlow);
      CHECK_MESSAGE(moved, moved.error().what);
      CHECK(std::memcmp(local.data(), remote.data(), kBytes) == 0);
      CHECK(made.value() == nics.size());  // none was forgotten and made again
      user->free_batch(batch);
    }
  }

  TEST_CASE("on the only rail, an owner that stands still for a while costs no request") {
    if (skipped()) return;
    const Healed healed;
    Served owner("rdma:emu0");
    Metrics metrics;
    auto user = rdma_engine("user", metrics, {"emu1"}, 256, 60s);
    const auto segment = user->open_segment(owner.control(), 30s);
    REQUIRE_MESSAGE(segment, segment.error().what);
    std::vector<std::byte> want(Served::kBytes);
    describe_served(want);
    const Memory local = *user->allocate(Served::kBytes);
    owner.stop();  // before it was asked for a connection
    std::promise<void> moved;
    std::thread resumes([&] {
      moved.get_future().wait_for(1200ms);  // one rail of several waits a second
      owner.resume();
    });
    Request r;
    r.op = Op::kRead;
    r.local = local.data();
    r.segment = *segment;
    r.offset = 0;
    r.bytes = local.size();
    const auto outcome = user->transfer_sync(r, 60s);
    moved.set_value();
    resumes.join();
    CHECK_MESSAGE(outcome, outcome.error().what);
    CHECK(std::equal(want.begin(), want.end(), local.data()));
  }

  TEST_CASE("while a port is down the other NIC carries all, without a timeout") {
    if (skipped()) return;
    Traffic traffic(2, 20s * kSlow);
    emu::Fabric& fabric = *Traffic::fabric().fabric();
    emu::set_retry_percent(fabric, 0);  // the NIC itself gives nothing up
    const Time before = kClock.now();
    emu::set_port(fabric, 0, false);
    CHECK(traffic.seen_down("emu0"));
    traffic.wait_rounds(1);  // what was on the way
    const uint64_t carried = traffic.carried("emu0"), others = traffic.carried("emu1");
    traffic.wait_rounds(3);
    CHECK(traffic.carried("emu0") == carried);
    // Of the first of these rounds all but the last bytes may have been there before.
    CHECK(traffic.carried("emu1") >= others + 2 * 2 * kBytes);
    CHECK(kClock.now() - before < 10s * kSlow);
    emu::set_port(fabric, 0, true);
    traffic.wait_all_well();
    traffic.end();
  }

  TEST_CASE("a NIC that slows down gets less, and heals") {
    if (skipped()) return;
    Traffic traffic(2);
    emu::Fabric& fabric = *Traffic::fabric().fabric();
    emu::set_rate(fabric, 0, 50'000'000);
    traffic.wait_rounds(2);  // it is learned
    uint64_t slow = traffic.carried("emu0"), fast = traffic.carried("emu1");
    traffic.wait_rounds(8);
    slow = traffic.carried("emu0") - slow;
    fast = traffic.carried("emu1") - fast;
    CAPTURE(slow);
    CAPTURE(fast);
    CHECK(4 * slow < fast);
    emu::set_rate(fabric, 0, 0);
    traffic.wait_all_well();
    // Its share comes back.
    const Time deadline = kClock.now() + 30s;
    uint64_t healed = 0, all = 1;
    while (8 * healed < all && kClock.now() < deadline) {
      const uint64_t one = traffic.carried("emu0"), both = one + traffic.carried("emu1");
      traffic.wait_rounds(5);
      healed = traffic.carried("emu0") - one;
      all = traffic.carried("emu0") + traffic.carried("emu1") - both;
    }
    CHECK(8 * healed >= all);
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
          const uint32_t rule = Traffic::fabric().rule(action, static_cast<uint64_t>(status), 3);
          traffic.wait_rounds(4);
          CHECK(Traffic::fabric().hits(rule) == 1);
        }
        traffic.wait_all_well();
        traffic.end();
      }
  }

  TEST_CASE("a queue pair that breaks is made again") {
    if (skipped()) return;
    Traffic traffic(1);
    const uint64_t made = traffic.connections();
    const uint32_t rule = Traffic::fabric().rule(emu::Action::kQpFatal, 0, 3, 2);
    traffic.wait_rounds(6);
    CHECK(Traffic::fabric().hits(rule) == 2);
    CHECK(traffic.connections() > made);
    traffic.wait_all_well();
    traffic.end();
  }

  TEST_CASE("a completion that never comes is not waited for longer than the peer timeout") {
    if (skipped()) return;
    for (const size_t nics : {1u, 2u}) {
      CAPTURE(nics);
      Traffic traffic(nics);
      const Time before = kClock.now();
      const uint32_t rule = Traffic::fabric().rule(emu::Action::kLose, 0, 3, 1);
      traffic.wait_rounds(6);
      CHECK(Traffic::fabric().hits(rule) == 1);
      CHECK(kClock.now() - before < 8s * kSlow);  // four times the peer timeout
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
      const uint32_t rule = Traffic::fabric().rule(action, 12, 5);  // 12: retries exceeded
      for (int i = 0; i < 30; ++i) round(n++);
      CHECK(Traffic::fabric().hits(rule) == 1);
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
