// Memory of devices and files through the C interface, over the stand-in.
#include <doctest/doctest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "capi/common.h"
#include "capi/mc/transfer.h"
#include "device/stand_in.h"
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

constexpr size_t kDeviceBytes = 3 << 20;

struct Node {
  explicit Node(const char* name, const char* devices = "stand-in") {
    mc_options* options = nullptr;
    REQUIRE(mc_options_new(&options) == MC_OK);
    REQUIRE(mc_options_set(options, "devices", devices) == MC_OK);
    REQUIRE(mc_engine_open(name, options, &engine) == MC_OK);
    mc_options_free(options);
  }
  ~Node() { mc_engine_close(engine); }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  mc_code transfer(uint32_t op, void* local, mc_segment segment, uint64_t offset, size_t bytes) {
    mc_request r{};
    r.op = op;
    r.local = local;
    r.segment = segment;
    r.offset = offset;
    r.bytes = bytes;
    return mc_transfer(engine, &r, 60'000);
  }
  mc_engine* engine = nullptr;
};

std::vector<char> pattern(int seed) {
  std::vector<char> bytes(kDeviceBytes);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(i * 31 + static_cast<size_t>(seed));
  return bytes;
}

std::string location_of(const Node& node, const void* address) {
  char location[32] = "x";
  REQUIRE(mc_memory_kind(node.engine, address, location) == MC_OK);
  return location;
}

// F28: it moves both ways.
TEST_CASE("bytes go from the host to memory of a device of another engine, and back") {
  Node owner("owner"), user("user");
  mc_memory* there = nullptr;
  REQUIRE(mc_memory_allocate_at(owner.engine, kDeviceBytes, "stand-in:0", MC_WRITABLE, &there) ==
          MC_OK);
  CHECK(location_of(owner, mc_memory_data(there)) == "stand-in:0");
  mc_segment segment = 0;
  REQUIRE(mc_segment_open(user.engine, mc_engine_address(owner.engine), 60'000, &segment) == MC_OK);
  std::vector<char> out = pattern(1), back(kDeviceBytes);
  CHECK(location_of(user, out.data()) == "cpu");
  REQUIRE(user.transfer(MC_WRITE, out.data(), segment, mc_memory_offset(there), kDeviceBytes) ==
          MC_OK);
  REQUIRE(user.transfer(MC_READ, back.data(), segment, mc_memory_offset(there), kDeviceBytes) ==
          MC_OK);
  CHECK(back == out);
  mc_memory_free(there);
}

TEST_CASE("a program registers its own memory of a device, by its address or by name") {
  Node a("a"), b("b");
  mc_memory* own = nullptr;  // stands for what another library allocated
  REQUIRE(mc_memory_allocate_at(a.engine, 2 * kDeviceBytes, "stand-in:0", 0, &own) == MC_OK);
  char* const first = static_cast<char*>(mc_memory_data(own));
  for (const char* location : {static_cast<const char*>(nullptr), "*", "stand-in:0"}) {
    mc_memory* here = nullptr;
    REQUIRE(mc_memory_register(a.engine, first + kDeviceBytes, kDeviceBytes, location, MC_WRITABLE,
                               &here) == MC_OK);
    CHECK(mc_memory_data(here) == first + kDeviceBytes);
    std::vector<char> out = pattern(2), back(kDeviceBytes);
    mc_segment segment = 0;
    REQUIRE(mc_segment_open(b.engine, mc_engine_address(a.engine), 60'000, &segment) == MC_OK);
    REQUIRE(b.transfer(MC_WRITE, out.data(), segment, mc_memory_offset(here), kDeviceBytes) ==
            MC_OK);
    // Its own engine takes the address on the device as the local end.
    mc_memory* host = nullptr;
    REQUIRE(mc_memory_allocate(b.engine, kDeviceBytes, MC_WRITABLE, &host) == MC_OK);
    REQUIRE(mc_segment_open(a.engine, mc_engine_address(b.engine), 60'000, &segment) == MC_OK);
    REQUIRE(a.transfer(MC_WRITE, first + kDeviceBytes, segment, mc_memory_offset(host),
                       kDeviceBytes) == MC_OK);
    CHECK(std::equal(out.begin(), out.end(), static_cast<const char*>(mc_memory_data(host))));
    mc_memory_free(host);
    mc_memory_free(here);
  }
  mc_memory* wrong = nullptr;
  std::vector<char> host(4096);
  CHECK(mc_memory_register(a.engine, first, kDeviceBytes, "stand-in:1", 0, &wrong) == MC_INVALID);
  CHECK(mc_memory_register(a.engine, host.data(), 4096, "stand-in:0", 0, &wrong) == MC_INVALID);
  CHECK(wrong == nullptr);
  mc_memory_free(own);
}

TEST_CASE("an engine names its devices, and one without them says so") {
  Node with("with"), without("without", "none"), on_demand("on-demand", "auto");
  mc_device found[2] = {};
  CHECK(mc_devices(with.engine, nullptr, 0) == 1);
  CHECK(mc_devices(with.engine, found, 2) == 0);
  CHECK(error_text().find("mc_device.size") != std::string::npos);
  found[0].size = sizeof found[0];
  REQUIRE(mc_devices(with.engine, found, 2) == 1);
  CHECK(std::string(found[0].location) == "stand-in:0");
  CHECK(found[0].bytes > 0);
  CHECK(mc_devices(without.engine, nullptr, 0) == 0);
  CHECK(location_of(without, found) == "cpu");
  std::vector<char> memory(4096);
  mc_memory* out = nullptr;
  const auto refused = [&](const Node& node, const char* location) {
    return mc_memory_register(node.engine, memory.data(), 4096, location, 0, &out) ==
               MC_UNSUPPORTED &&
           mc_memory_allocate_at(node.engine, 4096, location, 0, &out) == MC_UNSUPPORTED &&
           error_text().find(location) != std::string::npos && out == nullptr;
  };
  CHECK(refused(without, "cuda:0"));
  CHECK(refused(without, "stand-in:0"));
  CHECK(refused(on_demand, "stand-in:0"));
  CHECK(refused(on_demand, "tape:0"));
  CHECK(refused(with, "cuda:0"));
  CHECK(mc_memory_allocate_at(with.engine, 1ull << 50, "stand-in:0", 0, &out) == MC_NO_SPACE);
  CHECK(mc_memory_allocate_at(with.engine, 4096, "stand-in:1", 0, &out) == MC_NOT_FOUND);
  CHECK(mc_memory_allocate_at(with.engine, 1ull << 45, "cpu", 0, &out) == MC_NO_SPACE);
  CHECK(out == nullptr);
}

TEST_CASE("memory of a device that was lost is somewhere that nobody can tell") {
  const SteadyClock clock;
  const auto stand_in = device::StandIn::make(clock, {});
  Node node("node", "auto");
  xfer::Engine& engine = *node.engine->engine;
  REQUIRE(node.engine->devices.use(
      engine, std::make_shared<xfer::DevicePlatform>(std::vector<device::DevicePtr>{stand_in})));
  const auto memory = engine.allocate(4096, true, "stand-in:0");
  REQUIRE(memory);
  CHECK(location_of(node, memory->data()) == "stand-in:0");
  stand_in->inject({.lost = true});
  char location[32];
  CHECK(mc_memory_kind(node.engine, memory->data(), location) == MC_UNAVAILABLE);
}

TEST_CASE("the engine of a store has memory of the host only") {
  Pool pool;
  mc_engine* const engine = mc_store_engine(pool.store());
  std::vector<char> memory(4096);
  mc_memory* out = nullptr;
  CHECK(mc_memory_register(engine, memory.data(), 4096, "cuda:0", 0, &out) == MC_UNSUPPORTED);
  CHECK(error_text().find("host (cpu:N) only") != std::string::npos);
  CHECK(mc_devices(engine, nullptr, 0) == 0);
}

TEST_CASE("a file is memory that peers read and write") {
  Node owner("owner", "none"), user("user", "none");
  const std::string path = "capi-devices-" + std::to_string(getpid()) + ".bin";
  std::vector<char> bytes = pattern(3), back(kDeviceBytes);
  std::ofstream(path, std::ios::binary).write(bytes.data(), kDeviceBytes);
  mc_memory* file = nullptr;
  REQUIRE(mc_memory_register_file(owner.engine, path.c_str(), 0, MC_WRITABLE, &file) == MC_OK);
  CHECK(mc_memory_data(file) == nullptr);
  CHECK(mc_memory_bytes(file) == kDeviceBytes);
  mc_segment segment = 0;
  REQUIRE(mc_segment_open(user.engine, mc_engine_address(owner.engine), 60'000, &segment) == MC_OK);
  REQUIRE(user.transfer(MC_READ, back.data(), segment, mc_memory_offset(file), kDeviceBytes) ==
          MC_OK);
  CHECK(back == bytes);
  bytes = pattern(4);
  REQUIRE(user.transfer(MC_WRITE, bytes.data(), segment, mc_memory_offset(file), kDeviceBytes) ==
          MC_OK);
  mc_memory_free(file);
  std::ifstream(path, std::ios::binary).read(back.data(), kDeviceBytes);
  CHECK(back == bytes);
  std::remove(path.c_str());
  CHECK(mc_memory_register_file(owner.engine, path.c_str(), 0, 0, &file) == MC_NOT_FOUND);
  CHECK(mc_memory_register_file(owner.engine, nullptr, 0, 0, &file) == MC_INVALID);
  CHECK(mc_memory_register_file(owner.engine, path.c_str(), 0, 0, nullptr) == MC_INVALID);
}

TEST_CASE("a file that is too short, forbidden, or larger than its disk is refused") {
  Node owner("owner", "none");
  const std::string path = "/dev/shm/mc-capi-" + std::to_string(getpid());
  std::ofstream(path, std::ios::binary) << "four";
  mc_memory* file = nullptr;
  const auto code_of = [&](uint64_t bytes, unsigned flags) {
    return mc_memory_register_file(owner.engine, path.c_str(), bytes, flags, &file);
  };
  CHECK(code_of(5, 0) == MC_INVALID);
  CHECK(code_of(uint64_t{1} << 43, MC_WRITABLE) == MC_NO_SPACE);
  REQUIRE(::chmod(path.c_str(), 0) == 0);
  // Of this thread: root may do all.
  const int user = ::setfsuid(65534);
  CHECK(code_of(4, 0) == MC_DENIED);
  ::setfsuid(static_cast<uid_t>(user));
  CHECK(file == nullptr);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace mc::capi
