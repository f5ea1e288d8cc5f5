// Memory of a device that NICs reach by its dma-buf, over stand-ins and the emulator's NICs: the
// device copies nothing, and the NICs are chosen by their tiers as seen from the device.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "device/stand_in.h"
#include "tests/conformance/control.h"
#include "tests/conformance/fabric.h"
#include "tests/conformance/pair.h"
#include "tests/unit/topo/recorded.h"
#include "xfer/memory/device_platform.h"

#ifdef MC_TEST_EMULATOR

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace rdma_device_test {
namespace {

using Gpu = device::StandIn;

constexpr const char* kGpu = "0000:02:00.0";

bool skipped() {
  if (has_emulator()) return false;
  MESSAGE("skipped: not on the emulated verbs library (ctest sets LD_LIBRARY_PATH)");
  return true;
}

// emu0 below the GPU's own switch, emu1 elsewhere on its node, emu2 on another node.
struct Recording : topo::Recorded {
  Recording() : topo::Recorded("mc-gpu-tiers") {
    file("devices/system/node/node0/cpulist", "0");
    file("devices/system/node/node1/cpulist", "1");
    const std::string near = "pci0000:00/0000:00:01.0";
    function(near, kGpu, "0", "0x030200", "0x10de");
    nic(near, "0000:01:00.0", "0", "emu0");
    nic("pci0000:00/0000:00:03.0", "0000:03:00.0", "0", "emu1");
    nic("pci0000:80", "0000:81:00.0", "1", "emu2");
  }
  void nic(const std::string& bridges, const std::string& pci, const std::string& node,
           const std::string& name) {
    function(bridges, pci, node, "0x020700");
    rdma(bridges + "/" + pci, name, "4: ACTIVE");
  }
};

struct Node {
  std::shared_ptr<Gpu> device;
  Metrics metrics;
  std::unique_ptr<Engine> engine;
  Node(const std::string& name, std::vector<std::string> nics, const std::string& sysfs,
       bool dma_bufs = true)
      : device(Gpu::make(
            kClock, {.bytes = 64 * kMiB, .shares = false, .dma_bufs = dma_bufs, .pci = kGpu})) {
    EngineOptions o;
    o.node = name;
    o.transports = {"rdma", "tcp"};
    o.peer_timeout = 20s;
    o.nics = std::move(nics);
    o.sysfs = sysfs;
    o.share_table = "";
    auto opened = Engine::open(kClock, o, metrics);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().what));
    engine = std::move(*opened);
    auto kind = std::make_shared<DevicePlatform>(std::vector<device::DevicePtr>{device});
    REQUIRE(engine->add_memory_kind("stand-in", std::move(kind)).has_value());
  }
  Memory allocate(uint64_t bytes) const {
    auto memory = engine->allocate(bytes, true, "stand-in:0");
    REQUIRE_MESSAGE(memory.has_value(), (memory ? "" : memory.error().what));
    return *memory;
  }
  std::span<std::byte> inside(const Memory& m) const {
    return {device->seen_by_device(m.data()), m.size()};
  }
  uint64_t went(const char* way) {
    return metrics.counter("mc_xfer_device_slices_total", "", {{"way", way}}).value();
  }
  uint64_t moved(const char* transport) {
    return metrics.counter("mc_xfer_bytes_total", "", {{"transport", transport}}).value();
  }
  void move(Op op, SegmentHandle segment, uint64_t offset, std::byte* local, uint64_t bytes) const {
    Request r;
    r.op = op;
    r.local = local;
    r.segment = segment;
    r.offset = offset;
    r.bytes = bytes;
    const auto done = engine->transfer_sync(r, 20s);
    REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().what));
  }
  SegmentHandle open(const Node& owner) const {
    const auto segment = engine->open_segment(owner.engine->describe());
    REQUIRE_MESSAGE(segment.has_value(), (segment ? "" : segment.error().what));
    return *segment;
  }
};

}  // namespace

TEST_SUITE("rdma") {
  TEST_CASE("NICs move bytes of a device by themselves, where its own copies are slower") {
    if (skipped()) return;
    TestFabric::get().heal();
    Node owner("owner", {"emu0"}, "/sys"), user("user", {"emu1"}, "/sys");
    const Memory remote = owner.allocate(8 * kMiB), local = user.allocate(8 * kMiB);
    const SegmentHandle segment = user.open(owner);
    // Between the host here and the device there: no copy of a device has a part in it.
    const Memory host = *user.engine->allocate(8 * kMiB);
    fill(host.bytes(), 31);
    user.move(Op::kWrite, segment, remote.offset(), host.data(), host.size());
    CHECK(digest(owner.inside(remote)) == digest(host.bytes()));
    CHECK(owner.device->counts().copies + owner.device->counts().launches == 0);
    CHECK(user.went("nic") == 0);
    // Between devices, whole and in pieces of all sizes; inline data would be read by the host.
    user.device->inject({.latency = 100ms});  // copies of its own are the slower way, by far
    fill(user.inside(local), 32);
    for (int i = 0; i < 20; ++i)
      user.move(Op::kWrite, segment, remote.offset(), local.data(), local.size());
    CHECK(digest(owner.inside(remote)) == digest(user.inside(local)));
    for (const uint64_t bytes : {1u, 64u, 220u, 221u, 4096u, 65536u}) {
      fill(user.inside(local).first(bytes), bytes);
      user.move(Op::kWrite, segment, remote.offset() + 100, local.data(), bytes);
      CHECK(std::memcmp(owner.inside(remote).data() + 100, user.inside(local).data(), bytes) == 0);
      user.move(Op::kRead, segment, remote.offset() + 100, local.data() + kMiB, bytes);
      CHECK(std::memcmp(user.inside(local).data() + kMiB, user.inside(local).data(), bytes) == 0);
    }
    CHECK(user.went("nic") > 15);
    // What a NIC brought is seen by the device before the request is done (F50).
    CHECK(user.device->counts().nic_writes >= 1);
    CHECK(owner.device->counts().nic_writes == 0);
    CHECK(user.moved("tcp") == 0);
    CHECK(owner.device->counts().copies + owner.device->counts().launches == 0);
  }

  TEST_CASE("who hears of bytes in a device's memory finds them, however late they are (F50)") {
    if (skipped()) return;
    TestFabric::get().heal();
    Node owner("owner", {"emu0"}, "/sys"), user("user", {"emu1"}, "/sys");
    emu::set_late(*TestFabric::get().fabric(), TestFabric::get().nic("emu0"), true);
    const Memory remote = owner.allocate(8 * kMiB), from = *user.engine->allocate(8 * kMiB);
    Control control(*owner.engine);
    const auto segment = user.engine->open_segment(control.address(), 5s);
    REQUIRE_MESSAGE(segment.has_value(), (segment ? "" : segment.error().what));
    std::atomic<uint64_t> told{0}, wrong{0}, filled{0};
    owner.engine->on_notification([&](const Notification& n) {
      const uint64_t bytes = std::stoull(n.payload);
      if (filled.load() != bytes) ++wrong;  // also shows a sanitizer who was first
      if (std::memcmp(owner.inside(remote).data(), from.data(), bytes) != 0) ++wrong;
      ++told;
    });
    uint64_t messages = 0;
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{200}, uint64_t{4096}, 8 * kMiB}) {
      CAPTURE(bytes);
      fill(from.bytes(), bytes);
      filled.store(bytes);
      Request r;
      r.op = Op::kWrite;
      r.local = from.data();
      r.segment = *segment;
      r.offset = remote.offset();
      r.bytes = bytes;
      const BatchId batch = user.engine->allocate_batch();
      const Notification after{"block", std::to_string(bytes), ""};
      REQUIRE(user.engine->submit(batch, {&r, 1}, after).has_value());
      const auto done = user.engine->wait(batch, 20s);
      REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().what));
      user.engine->free_batch(batch);
      CHECK(told.load() == ++messages);
      // The same without a notification: the application tells its peer itself. By rows, too.
      r.rows = bytes < kMiB ? 3 : 1;
      r.remote_stride = 2 * bytes;
      r.local_stride = bytes;
      fill(from.bytes(), bytes + 1);
      const auto written = user.engine->transfer_sync(r, 20s);
      REQUIRE_MESSAGE(written.has_value(), (written ? "" : written.error().what));
      for (uint64_t row = 0; row < r.rows; ++row)
        CHECK(std::memcmp(owner.inside(remote).data() + row * r.remote_stride,
                          from.data() + row * bytes, bytes) == 0);
    }
    CHECK(wrong.load() == 0);
    CHECK(user.moved("tcp") == 0);
    owner.engine->on_notification([](const Notification&) {});
    TestFabric::get().heal();
  }

  TEST_CASE("of a write to a device's memory that is cancelled no byte lands afterwards (F50)") {
    if (skipped()) return;
    TestFabric::get().heal();
    Node owner("owner", {"emu0"}, "/sys"), user("user", {"emu1"}, "/sys");
    const uint32_t nic = TestFabric::get().nic("emu0");
    emu::set_late(*TestFabric::get().fabric(), nic, true);
    const Memory remote = owner.allocate(8 * kMiB), from = *user.engine->allocate(8 * kMiB);
    const SegmentHandle segment = user.open(owner);
    user.move(Op::kWrite, segment, remote.offset(), from.data(), kMiB);
    emu::set_rate(*TestFabric::get().fabric(), nic, 1'000'000);  // 64 us a row
    Request r;
    r.op = Op::kWrite;
    r.local = from.data();
    r.segment = segment;
    r.offset = remote.offset();
    r.bytes = 64;
    r.rows = 4096;  // more than a queue pair takes at once
    r.local_stride = r.remote_stride = 128;
    // Where this thread stands still after the submission, the write is over before its cancel.
    bool cut = false;
    for (uint64_t attempt = 0; attempt < 10 && !cut; ++attempt) {
      fill(from.bytes(), 35 + attempt);
      const BatchId batch = user.engine->allocate_batch();
      REQUIRE(user.engine->submit(batch, {&r, 1}).has_value());
      user.engine->cancel(batch);
      cut = user.engine->status(batch, 0).state == TransferState::kCancelled;
      user.engine->free_batch(batch);
    }
    CHECK(cut);
    const auto rows = owner.inside(remote).first(r.rows * r.remote_stride);
    const std::vector<std::byte> ended(rows.begin(), rows.end());
    // Elsewhere: it pushes along what was left.
    user.move(Op::kWrite, segment, remote.offset() + 4 * kMiB, from.data(), 64);
    CHECK(std::equal(rows.begin(), rows.end(), ended.begin()));
    CHECK(user.moved("tcp") == 0);
    TestFabric::get().heal();
  }

  TEST_CASE("without a dma-buf, memory of a device is staged") {
    if (skipped()) return;
    TestFabric::get().heal();
    Node owner("owner", {"emu0"}, "/sys", false), user("user", {"emu1"}, "/sys", false);
    const Memory remote = owner.allocate(kMiB), local = user.allocate(kMiB);
    fill(user.inside(local), 33);
    user.move(Op::kWrite, user.open(owner), remote.offset(), local.data(), local.size());
    CHECK(digest(owner.inside(remote)) == digest(user.inside(local)));
    CHECK(user.went("nic") == 0);
    CHECK(user.went("owner") > 0);
  }

  TEST_CASE(
      "without a dma-buf, memory of a device is registered by its address where it can (F48)") {
    if (skipped()) return;
    TestFabric::get().heal();
    Node owner("owner", {"emu0"}, "/sys", false), user("user", {"emu1"}, "/sys", false);
    const device::Memory plain = *owner.device->allocate(kMiB);
    std::byte* const seen = owner.device->seen_by_device(plain.data());
    emu::add_peer_memory(*TestFabric::get().fabric(), plain.data(), seen, kMiB);
    const auto remote = owner.engine->register_memory(plain.bytes, true, "stand-in:0");
    REQUIRE_MESSAGE(remote.has_value(), (remote ? "" : remote.error().what));
    const Memory host = *user.engine->allocate(kMiB);
    fill(host.bytes(), 34);
    user.move(Op::kWrite, user.open(owner), remote->offset(), host.data(), kMiB);
    CHECK(std::memcmp(seen, host.data(), kMiB) == 0);
    CHECK(user.moved("tcp") == 0);
    CHECK(owner.device->counts().copies + owner.device->counts().launches == 0);
    TestFabric::get().heal();
  }

  TEST_CASE("a NIC that fails amid a transfer of a device's memory leaves it to the others") {
    if (skipped()) return;
    TestFabric::get().heal();
    Node owner("owner", {"emu0", "emu3"}, "/sys"), user("user", {"emu1", "emu2"}, "/sys");
    const Memory remote = owner.allocate(4 * kMiB), local = user.allocate(4 * kMiB);
    const SegmentHandle segment = user.open(owner);
    for (const emu::Action action :
         {emu::Action::kError, emu::Action::kPartial, emu::Action::kQpFatal}) {
      CAPTURE(static_cast<int>(action));
      const uint32_t rule = TestFabric::get().rule(action, 12, 2, 2);
      for (int i = 0; i < 6; ++i) {
        fill(user.inside(local), static_cast<uint64_t>(i));
        user.move(Op::kWrite, segment, remote.offset(), local.data(), local.size());
        REQUIRE(digest(owner.inside(remote)) == digest(user.inside(local)));
      }
      CHECK(TestFabric::get().hits(rule) == 2);
    }
    CHECK(user.went("nic") > 0);
    TestFabric::get().heal();
  }

  TEST_CASE("of the bytes of a GPU, of the NICs of its end, that of its own switch carries most") {
    if (skipped()) return;
    TestFabric::get().heal();
    const Recording machine;
    for (const char* nic : {"emu0", "emu1", "emu2"})
      emu::set_rate(*TestFabric::get().fabric(), TestFabric::get().nic(nic), 400'000'000);
    Node owner("owner", {"emu3"}, "/sys");
    const Memory remote = *owner.engine->allocate(kMiB);
    const auto carries_most = [&] {
      Node user("user", {"emu0", "emu1", "emu2"}, machine.path());
      const Memory local = user.allocate(kMiB);
      const SegmentHandle segment = user.open(owner);
      user.device->inject({.latency = 200ms});  // a moment without CPU costs the NICs less
      for (int i = 0; i < 100; ++i)
        user.move(Op::kWrite, segment, remote.offset(), local.data(), local.size());
      const auto paths =
          user.engine->paths(segment, remote.offset(), Op::kWrite, kMiB, local.data());
      REQUIRE(paths.has_value());
      const auto rdma = std::find_if(paths->begin(), paths->end(),
                                     [](const Path& p) { return p.transport == "rdma"; });
      REQUIRE(rdma != paths->end());
      CHECK(rdma->memory.here == MemoryLocation{0, 0});
      uint64_t bytes[3] = {};
      for (const RailView& rail : rdma->rails) {
        CHECK(rail.tier == (rail.info.local == "emu0" ? 1 : rail.info.local == "emu1" ? 2 : 3));
        bytes[rail.tier - 1] += rail.bytes;
      }
      CHECK(user.went("nic") > 90);
      return bytes[0] > 2 * bytes[1] && bytes[0] > 2 * bytes[2];
    };
    // A moment without CPU in its first transfer makes that NIC a slow one for all the others.
    CHECK((carries_most() || carries_most() || carries_most()));
    TestFabric::get().heal();
  }

  TEST_CASE("what is staged goes by the NICs of the node that its staging memory lies on") {
    if (skipped()) return;
    TestFabric::get().heal();
    const Recording machine;  // this machine's memory is on node 0
    for (const char* nic : {"emu0", "emu1", "emu2"})
      emu::set_rate(*TestFabric::get().fabric(), TestFabric::get().nic(nic), 400'000'000);
    Node owner("owner", {"emu3"}, "/sys");
    Node user("user", {"emu0", "emu1", "emu2"}, machine.path(), false);
    const Memory remote = *owner.engine->allocate(kMiB);
    const Memory local = user.allocate(kMiB);
    const SegmentHandle segment = user.open(owner);
    for (int i = 0; i < 100; ++i)
      user.move(Op::kWrite, segment, remote.offset(), local.data(), local.size());
    const auto paths = user.engine->paths(segment, remote.offset(), Op::kWrite, kMiB, local.data());
    REQUIRE(paths.has_value());
    std::map<std::string, uint64_t> bytes;
    for (const Path& path : *paths)
      for (const RailView& rail : path.rails) bytes[rail.info.local] += rail.bytes;
    CAPTURE(bytes["emu0"]);
    CAPTURE(bytes["emu1"]);
    CAPTURE(bytes["emu2"]);
    // How the two of that node share them depends on when their threads run.
    CHECK(bytes["emu0"] + bytes["emu1"] > 4 * bytes["emu2"]);
    CHECK(user.went("nic") == 0);
    CHECK(user.went("staged") + user.went("owner") > 90);
    TestFabric::get().heal();
  }
}

}  // namespace rdma_device_test

#endif
