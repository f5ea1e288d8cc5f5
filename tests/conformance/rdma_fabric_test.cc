// What devices, subnet managers and networks do to NICs beside failing: addresses that come late or
// change, small queues, partitions, devices of other kinds, owners with too many peers.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "io/fd.h"
#include "tests/conformance/rdma_traffic.h"
#include "tests/unit/topo/recorded.h"
#include "xfer/transports/rdma/kept_pairs.h"
#include "xfer/transports/rdma/served_pairs.h"

#ifdef MC_TEST_EMULATOR

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::rdma_tests;
using namespace std::chrono_literals;

namespace rdma_fabric_test {
namespace {

ibv_gid mapped(uint8_t last) {
  ibv_gid gid{};
  const uint8_t address[] = {0xff, 0xff, 10, 98, 0, last};
  std::memcpy(gid.raw + 10, address, sizeof address);
  return gid;
}

bool holds(const Ends& ends) { return digest(ends.remote.bytes()) == digest(ends.local.bytes()); }

}  // namespace

TEST_SUITE("rdma") {
  TEST_CASE("a completion queue that fails: its device is opened anew, and serves (F34)") {
    if (skipped()) return;
    for (const size_t count : {1u, 2u}) {
      CAPTURE(count);
      Traffic traffic(count);
      emu::fail_cqs(nics(), 0);
      traffic.wait_rounds(3);
      if (count == 1) traffic.forgive();
      traffic.wait_all_well();
      const uint64_t before = traffic.carried("emu0");
      traffic.wait_rounds(10);
      CHECK(traffic.carried("emu0") > before);
      traffic.end();
    }
  }

  TEST_CASE("a port that has no address at the start is used once it has one (F33)") {
    if (skipped()) return;
    const Healed healed;
    for (const bool ethernet : {true, false}) {
      CAPTURE(ethernet);
      for (const uint32_t nic : {0u, 1u}) {
        emu::set_link(nics(), nic, ethernet);
        emu::set_port(nics(), nic, false);
        for (uint32_t i = 0; ethernet && i < emu::kGidsMax; ++i)
          emu::set_gid(nics(), nic, i, ibv_gid{});
        if (!ethernet) emu::set_lid(nics(), nic, 0);
      }
      const Ends ends(over_rdma());
      CHECK_FALSE(ends.write(100ms).has_value());
      for (const uint32_t nic : {0u, 1u}) {
        emu::set_port(nics(), nic, true);
        if (ethernet)
          emu::set_gid(nics(), nic, 3, mapped(static_cast<uint8_t>(nic + 1)));
        else
          emu::set_lid(nics(), nic, static_cast<uint16_t>(70 + nic));
      }
      const auto written = ends.write();
      CHECK_MESSAGE(written.has_value(), (written ? "" : written.error().what));
      CHECK(holds(ends));
      each_pair([&](const emu::QpSlot& qp) {
        CHECK(qp.path.is_global == (ethernet ? 1 : 0));
        if (ethernet) CHECK(qp.path.grh.sgid_index == 3);
        if (!ethernet) CHECK(qp.path.dlid >= 70);
      });
    }
  }

  TEST_CASE("a NIC that gets another LID, GID or partition is connected again (F33)") {
    if (skipped()) return;
    const Healed healed;
    for (const uint32_t nic : {0u, 1u}) {  // the owner's, the user's
      CAPTURE(nic);
      for (int change = 0; change < 3; ++change) {
        CAPTURE(change);
        TestFabric::get().heal();
        if (change == 1)
          for (const uint32_t each : {0u, 1u}) emu::set_link(nics(), each, true);
        EngineOptions o = over_rdma();
        if (change == 2) o.rdma_pkey = 0x12;
        for (const uint32_t each : {0u, 1u})
          if (change == 2) emu::set_pkey(nics(), each, 1, 0x8012);
        const Ends ends(o);
        REQUIRE(ends.write().has_value());
        switch (change) {
          case 0: emu::set_lid(nics(), nic, 99); break;
          case 1: emu::set_gid(nics(), nic, 3, mapped(9)); break;
          default:
            emu::set_pkey(nics(), nic, 2, 0x8012);  // it moves to another place in the table
            emu::set_pkey(nics(), nic, 1, 0x8777);
        }
        // In time that a dead connection does not need to be found.
        for (int i = 0; i < 5; ++i) {
          const auto written = ends.write();
          CHECK_MESSAGE(written.has_value(), (written ? "" : written.error().what));
        }
        CHECK(holds(ends));
      }
    }
  }

  TEST_CASE("eight peers share a completion queue of 64 entries without a timeout (F36)") {
    if (skipped()) return;
    const Healed healed;
    emu::set_limits(nics(), 1, 0, 64);
    constexpr size_t kPeers = 8;
    constexpr uint64_t kRows = 200, kRow = 512;
    Ends ends(over_rdma(), kPeers * kRows * kRow * 2);
    std::vector<Request> requests;
    SegmentDescriptor d = ends.owner->describe();
    for (size_t i = 0; i < kPeers; ++i) {  // one process under eight names
      d.node = "peer-" + std::to_string(i);
      const auto segment = ends.user->open_segment(d);
      REQUIRE(segment.has_value());
      Request r = ends.request();
      r.segment = *segment;
      r.bytes = kRow;
      r.rows = kRows;
      r.local_stride = r.remote_stride = 2 * kRow;
      r.local += i * kRows * kRow * 2;
      r.offset += i * kRows * kRow * 2;
      requests.push_back(r);
    }
    emu::set_latency(nics(), 0, 200'000);
    for (int round = 0; round < 10; ++round) {
      const BatchId batch = ends.user->allocate_batch();
      REQUIRE(ends.user->submit(batch, requests).has_value());
      const auto done = ends.user->wait(batch, 20s);
      CHECK_MESSAGE(done.has_value(), (done ? "" : done.error().what));
      ends.user->free_batch(batch);
    }
    for (size_t row = 0; row < kPeers * kRows; ++row)
      REQUIRE(std::memcmp(ends.local.data() + row * 2 * kRow, ends.remote.data() + row * 2 * kRow,
                          kRow) == 0);
    CHECK(ends.of_user.counter("mc_xfer_rdma_connections_total", "").value() == kPeers);
    for (const Request& r : requests) {
      const auto paths = ends.user->paths(r.segment, r.offset, Op::kWrite, kRow);
      REQUIRE(paths.has_value());
      for (const Path& path : *paths)
        for (const RailView& rail : path.rails) CHECK(rail.errors == 0);
    }
  }

  TEST_CASE("a completion queue grows with the connections, as far as its device goes (F36)") {
    if (skipped()) return;
    const Healed healed;
    const Ends ends(over_rdma());
    SegmentDescriptor d = ends.owner->describe();
    for (size_t i = 0; i < 80; ++i) {
      d.node = "peer-" + std::to_string(i);
      const auto segment = ends.user->open_segment(d);
      REQUIRE(segment.has_value());
      Request r = ends.request();
      r.segment = *segment;
      REQUIRE(ends.user->transfer_sync(r, 20s).has_value());
    }
    uint32_t largest = 0;
    for (const emu::CqSlot& cq : nics()->cq)
      if (cq.generation.load() != 0) largest = std::max(largest, cq.capacity);
    CHECK(largest >= 80 * 256);
  }

  TEST_CASE("processes on one NIC spread over its completion vectors (F44)") {
    if (skipped()) return;
    const Healed healed;
    std::set<uint32_t> vectors;
    for (int i = 0; i < 40 && vectors.size() < 2; ++i) {  // of eight: all alike once in 8^39
      Metrics metrics;
      const auto engine = Ends::open("some", "emu0", over_rdma(), metrics);
      for (const emu::CqSlot& cq : nics()->cq)
        if (cq.generation.load() != 0) vectors.insert(cq.vector);
    }
    CHECK(vectors.size() >= 2);
  }

  TEST_CASE("memory that is too large for a device's regions goes another way (F44)") {
    if (skipped()) return;
    const Healed healed;
    for (const uint32_t nic : {0u, 1u}) emu::set_mr_limit(nics(), nic, kMiB / 2);
    EngineOptions o = over_rdma();
    o.transports = {"rdma", "tcp"};
    const Ends ends(o);
    const auto written = ends.write();
    CHECK_MESSAGE(written.has_value(), (written ? "" : written.error().what));
    CHECK(holds(ends));
    const Memory part = *ends.owner->allocate(kMiB / 2), mine = *ends.user->allocate(kMiB / 2);
    const auto segment = ends.user->open_segment(ends.owner->describe());
    REQUIRE(segment.has_value());
    CHECK(ends.user->transport_of(*segment) == "tcp");  // of its first memory
    Request r = ends.request();
    r.segment = *segment;
    r.local = mine.data();
    r.bytes = mine.size();
    r.offset = part.offset();
    const auto paths = ends.user->paths(*segment, part.offset(), Op::kWrite, r.bytes);
    REQUIRE(paths.has_value());
    const auto rdma = std::find_if(paths->begin(), paths->end(),
                                   [](const Path& p) { return p.transport == "rdma"; });
    REQUIRE(rdma != paths->end());
    CHECK(rdma->chosen);
    CHECK(ends.user->transfer_sync(r, 20s).has_value());
  }

  TEST_CASE("a device of 64 requests a queue is given no more (F42)") {
    if (skipped()) return;
    const Healed healed;
    for (const uint32_t nic : {0u, 1u}) emu::set_limits(nics(), nic, 64, 0);
    constexpr uint64_t kRows = 300, kRow = 256;
    Ends ends(over_rdma(), kRows * kRow * 2);
    emu::set_latency(nics(), 0, 100'000);
    Request r = ends.request();
    r.bytes = kRow;
    r.rows = kRows;
    r.local_stride = r.remote_stride = 2 * kRow;
    for (int i = 0; i < 5; ++i) {
      const auto written = ends.user->transfer_sync(r, 20s);
      REQUIRE_MESSAGE(written.has_value(), (written ? "" : written.error().what));
    }
    CHECK(ends.of_user.counter("mc_xfer_rdma_connections_total", "").value() == 1);
  }

  TEST_CASE("packet numbers begin anywhere (F42)") {
    if (skipped()) return;
    const Healed healed;
    std::set<uint32_t> firsts;
    for (int i = 0; i < 3; ++i) {
      const Ends ends(over_rdma());
      Request r = ends.request();
      r.bytes = 1;  // one packet
      REQUIRE(ends.user->transfer_sync(r, 20s).has_value());
      each_pair([&](const emu::QpSlot& qp) {
        firsts.insert(qp.expected_psn);
        const uint32_t after = (qp.expected_psn - (qp.peer_number & 0xffffff)) & 0xffffff;
        CHECK(after > 8);  // what was moved so far
      });
    }
    CHECK(firsts.size() == 6);
  }

  TEST_CASE("owners of queue pairs have small send queues (F35)") {
    if (skipped()) return;
    const Healed healed;
    const Ends ends(over_rdma());
    // A device that gives no queue of more than one request to the owner.
    emu::set_limits(nics(), 0, 1, 0);
    const auto written = ends.write();
    CHECK_MESSAGE(written.has_value(), (written ? "" : written.error().what));
  }

  TEST_CASE("an owner of too many queue pairs closes those of peers that are gone (F35)") {
    Metrics metrics;
    Gauge& serving = metrics.gauge("serving", "");
    rdma::ServedPairs served(serving);
    const auto lasting = std::make_shared<int>(1);
    served.add(0, 7, lasting);
    for (uint32_t client = 0; client < 10'000; ++client) {  // each crashes
      served.add(1, client, std::make_shared<int>(0));
      if (client % 1000 == 0) served.heard(0, 7);
    }
    CHECK(serving.value() == rdma::ServedPairs::kMost);
    CHECK(lasting.use_count() == 2);
    served.close(0, 7);
    CHECK(lasting.use_count() == 1);
    served.heard(0, 7);  // of one that is closed
    served.close_nic(1);
    CHECK(serving.value() == 0);
  }

  TEST_CASE("an owner hears every ten seconds which queue pairs are held (F35)") {
    ManualClock clock;
    io::Loop loop(clock);
    Metrics metrics;
    auto server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(server.has_value());
    std::vector<KeepQueuePairs> heard;
    (*server)->on<KeepQueuePairs>(
        [&](const KeepQueuePairs& m, const rpc::Call&) -> Result<QueuePairsKept> {
          heard.push_back(m);
          return QueuePairsKept{};
        });
    auto client = rpc::Client::connect(loop, (*server)->address());
    REQUIRE(client.has_value());
    rdma::KeptPairs kept(loop,
                         [&](const std::string&) -> Result<rpc::Client*> { return client->get(); });
    const auto hears = [&](size_t messages) {
      clock.advance(rdma::KeptPairs::kEvery);
      const Time until = kClock.now() + 20s;
      while (heard.size() < messages && kClock.now() < until) REQUIRE(loop.turn(10ms).has_value());
      return heard.size() == messages;
    };
    kept.add({"owner", "secret"}, 1, 5);
    kept.add({"owner", "secret"}, 0, 6);
    REQUIRE(hears(1));
    CHECK(heard[0].secret.bytes == "secret");
    CHECK(heard[0].nics == std::vector<uint32_t>{0, 1});
    CHECK(heard[0].numbers == std::vector<uint32_t>{6, 5});
    kept.remove({"owner", "secret"}, 0, 6);
    REQUIRE(hears(2));
    CHECK(heard[1].numbers == std::vector<uint32_t>{5});
    kept.remove({"owner", "secret"}, 1, 5);
    clock.advance(rdma::KeptPairs::kEvery);
    for (int i = 0; i < 3; ++i) REQUIRE(loop.turn(1ms).has_value());
    CHECK(heard.size() == 2);
  }

  TEST_CASE("devices of iWARP and EFA are left out, and paths say why (F39)") {
    if (skipped()) return;
    const Healed healed;
    emu::set_transport(nics(), 0, IBV_TRANSPORT_IWARP);
    const auto names = rdma::device_names();
    CHECK(std::find(names.begin(), names.end(), "emu0") == names.end());
    CHECK(names.size() == TestFabric::kNics - 1);
    EngineOptions o = over_rdma();
    o.transports = {"rdma", "tcp"};
    Metrics metrics;
    const auto reasons = [&](std::vector<std::string> devices) {
      o.nics = std::move(devices);
      auto engine = Engine::open(kClock, o, metrics);
      REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
      const Memory memory = *(*engine)->allocate(kMiB);
      const auto paths = (*engine)->paths((*engine)->self(), memory.offset(), Op::kRead, kMiB);
      REQUIRE(paths.has_value());
      for (const Path& path : *paths)
        if (path.transport == "rdma") return path.why;
      return std::string();
    };
    CHECK(reasons({}).find("emu0 is left out: an iWARP device") != std::string::npos);
    for (uint32_t nic = 0; nic < TestFabric::kNics; ++nic)
      emu::set_transport(nics(), nic, IBV_TRANSPORT_UNSPECIFIED);
    CHECK(reasons({}).find("emu3 is left out: not InfiniBand or RoCE") != std::string::npos);
    o.transports = {"rdma"};
    const auto none = Engine::open(kClock, o, metrics);
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().what.find("emu0") != std::string::npos);
  }

  TEST_CASE("NICs beside the GPU of one number are paired (F47)") {
    if (skipped()) return;
    const Healed healed;
    // Two machines whose NICs have other names, and no node; the second one's lie crosswise.
    const auto place = [](topo::Recorded& machine, const std::string& first,
                          const std::string& second) {
      machine.file("devices/system/node/node0/cpulist", "0");
      machine.file("devices/system/node/node1/cpulist", "1");
      for (const char* gpu : {"1", "2"}) {
        const std::string bridge = std::string("pci0000:00/0000:00:0") + gpu + ".0";
        const std::string pci = std::string("0000:0") + gpu + ":0";
        machine.function(bridge, pci + "0.0", "-1", "0x030200", "0x10de");
        machine.function(bridge, pci + "1.0", "-1", "0x020700");
        machine.rdma(bridge + "/" + pci + "1.0", gpu[0] == '1' ? first : second, "4: ACTIVE");
      }
    };
    topo::Recorded here("mc-pairs-here"), there("mc-pairs-there");
    place(here, "emu0", "emu1");
    place(there, "emu3", "emu2");
    Metrics metrics;
    EngineOptions o = over_rdma();
    o.node = "owner";
    o.nics = {"emu2", "emu3"};
    o.sysfs = there.path();
    const auto owner = Engine::open(kClock, o, metrics);
    REQUIRE(owner.has_value());
    const Memory remote = *(*owner)->allocate(kMiB);
    o.node = "user";
    o.nics = {"emu0", "emu1"};
    o.sysfs = here.path();
    const auto user = Engine::open(kClock, o, metrics);
    REQUIRE(user.has_value());
    const auto segment = (*user)->open_segment((*owner)->describe());
    REQUIRE(segment.has_value());
    const auto paths = (*user)->paths(*segment, remote.offset(), Op::kRead, kMiB);
    REQUIRE(paths.has_value());
    std::set<std::string> mapped;
    std::string rails;
    for (const Path& path : *paths)
      for (const RailView& rail : path.rails)
        if (rail.info.mapped) mapped.insert(rail.info.local + "-" + rail.info.remote);
    for (const std::string& rail : mapped) rails += rail + " ";
    CAPTURE(rails);
    CHECK(mapped == std::set<std::string>{"emu0-emu3", "emu1-emu2"});
  }

  TEST_CASE("NICs register memory side by side, and completions do not wait for it (F40)") {
    if (skipped()) return;
    const Healed healed;
    Metrics metrics;
    const EngineOptions o = over_rdma();
    const auto engine = Engine::open(kClock, o, metrics);
    REQUIRE(engine.has_value());
    for (uint32_t nic = 0; nic < TestFabric::kNics; ++nic)
      emu::set_register_time(nics(), nic, 24'000'000'000);  // 64 MiB take 1.5 s
    const Time before = kClock.now();
    REQUIRE((*engine)->allocate(64 * kMiB).has_value());
    CHECK(kClock.now() - before < 4s);  // one after the other: 6 s
    TestFabric::get().heal();

    const Ends ends(o);
    REQUIRE(ends.write().has_value());
    emu::set_latency(nics(), 0, 300'000'000);
    const BatchId batch = ends.user->allocate_batch();
    const Request known = ends.request();
    REQUIRE(ends.user->submit(batch, {&known, 1}).has_value());
    emu::set_latency(nics(), 0, 0);
    emu::set_register_time(nics(), 1, 4'096'000'000'000);  // 1 MiB takes 4 s
    std::vector<std::byte> unknown(kMiB);
    std::thread slow([&] {
      Request r = ends.request();
      r.local = unknown.data();
      CHECK(ends.user->transfer_sync(r, 30s).has_value());
    });
    const auto done = ends.user->wait(batch, 2500ms);
    CHECK_MESSAGE(done.has_value(), (done ? "" : done.error().what));
    slow.join();
    ends.user->free_batch(batch);
  }

  TEST_CASE("peers ask for connections at the address of the option (F43)") {
    if (skipped()) return;
    const Healed healed;
    Metrics metrics;
    EngineOptions o = over_rdma();
    std::string address;
    {
      const auto some = Ends::open("some", "emu0", o, metrics);
      address = some->describe().rdma_control;  // free again now
    }
    o.rdma_control = address;
    const auto engine = Ends::open("owner", "emu0", o, metrics);
    CHECK(engine->describe().rdma_control == address);
    o.rdma_control = "nowhere";
    CHECK_FALSE(Engine::open(kClock, o, metrics).has_value());
  }

  TEST_CASE("partition, service level and flow label are those of the options (F44)") {
    if (skipped()) return;
    const Healed healed;
    for (const bool ethernet : {false, true}) {
      CAPTURE(ethernet);
      TestFabric::get().heal();
      for (const uint32_t nic : {0u, 1u}) {
        emu::set_link(nics(), nic, ethernet);
        emu::set_pkey(nics(), nic, 2 + nic, 0x8034);
      }
      EngineOptions o = over_rdma();
      o.rdma_pkey = 0x8034;
      o.rdma_service_level = 5;
      o.rdma_flow_label = 0x4321;
      const Ends ends(o);
      REQUIRE(ends.write().has_value());
      size_t pairs = 0;
      each_pair([&](const emu::QpSlot& qp) {
        ++pairs;
        CHECK(qp.pkey_index == 2 + qp.nic);
        CHECK(qp.path.sl == 5);
        if (ethernet) CHECK(qp.path.grh.flow_label == 0x4321);
      });
      CHECK(pairs == 2);
      // Who is in another partition is not reached.
      EngineOptions other = over_rdma();
      other.transports = {"rdma"};
      Metrics metrics;
      const auto outsider = Ends::open("outsider", "emu1", other, metrics);
      const auto segment = outsider->open_segment(ends.owner->describe());
      REQUIRE(segment.has_value());
      Request r = ends.request(Op::kRead);
      std::vector<std::byte> into(4096);
      r.local = into.data();
      r.bytes = into.size();
      r.segment = *segment;
      CHECK_FALSE(outsider->transfer_sync(r, 1s).has_value());
    }
    EngineOptions o = over_rdma();
    o.nics = {"emu0"};
    o.rdma_pkey = 0x55;
    Metrics metrics;
    const auto none = Engine::open(kClock, o, metrics);
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().what.find("no partition key 0x55") != std::string::npos);
    o.rdma_pkey = 0x10000;
    CHECK_FALSE(Engine::open(kClock, o, metrics).has_value());
  }

  TEST_CASE("memory that NICs may not write to is read by peers, and filled all the same (F29)") {
    if (skipped()) return;
    const Healed healed;
    const Ends ends(over_rdma());
    // Mapped read-only, as a published file is.
    char name[] = "/var/tmp/mc-rdma.XXXXXX";
    const io::Fd file(::mkstemp(name));
    REQUIRE(file.get() >= 0);
    ::unlink(name);
    std::vector<std::byte> text(kMiB);
    fill(text, 12);
    REQUIRE(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    const auto map = [&](int rights) {
      void* const at = ::mmap(nullptr, kMiB, rights, MAP_SHARED, file.get(), 0);
      REQUIRE(at != MAP_FAILED);
      return std::span(static_cast<std::byte*>(at), kMiB);
    };
    const auto published = map(PROT_READ), pulled = map(PROT_READ | PROT_WRITE);
    {
      const Memory offered = *ends.owner->register_memory(published, false);
      const auto segment = ends.user->open_segment(ends.owner->describe());
      REQUIRE(segment.has_value());
      Request r = ends.request(Op::kRead);
      r.segment = *segment;
      r.offset = offered.offset();
      const auto read = ends.user->transfer_sync(r, 20s);
      REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
      CHECK(digest(ends.local.bytes()) == digest(text));
    }
    // A shared mapping of a file, as a pull has: whole, and by rows.
    {
      const Memory kept = *ends.user->register_memory(pulled, false);
      fill(ends.remote.bytes(), 13);
      Request r = ends.request(Op::kRead);
      r.local = pulled.data();
      const auto read = ends.user->transfer_sync(r, 20s);
      REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
      CHECK(digest(pulled) == digest(ends.remote.bytes()));
      std::memset(pulled.data(), 0, pulled.size());
      r.bytes = 1000;
      r.rows = 500;
      r.local_stride = 2000;
      r.remote_stride = 1500;
      REQUIRE(ends.user->transfer_sync(r, 20s).has_value());
      for (size_t row = 0; row < r.rows; ++row) {
        REQUIRE(std::memcmp(pulled.data() + row * 2000, ends.remote.data() + row * 1500, 1000) ==
                0);
        REQUIRE(pulled[row * 2000 + 1000] == std::byte{0});
      }
    }
    ::munmap(published.data(), kMiB);
    ::munmap(pulled.data(), kMiB);
  }
}

}  // namespace rdma_fabric_test

#endif
