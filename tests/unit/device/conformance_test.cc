// What every device does alike.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>

#include "device/handle.h"
#include "tests/unit/device/kinds.h"

using namespace mc;
using namespace mc::device;

namespace conformance_test {
namespace {

// Of another process, which lives until the test ends.
struct Sleeper {
  int pipe_fds[2];
  pid_t pid;
  Sleeper() {
    REQUIRE(::pipe(pipe_fds) == 0);
    pid = ::fork();
    if (pid == 0) {
      char c;
      ::close(pipe_fds[1]);
      (void)!::read(pipe_fds[0], &c, 1);
      ::_exit(0);
    }
  }
  void end() {
    if (pid <= 0) return;
    ::close(pipe_fds[0]);
    ::close(pipe_fds[1]);
    ::waitpid(pid, nullptr, 0);
    pid = 0;
  }
  ~Sleeper() { end(); }
  // The handle as if that process had made it.
  std::string take_over(const std::string& handle) const {
    Handle h;
    std::memcpy(&h, handle.data(), sizeof h);
    h.pid = pid;
    FILE* const f = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
    REQUIRE(f != nullptr);
    char text[1024] = {};
    REQUIRE(std::fread(text, 1, sizeof text - 1, f) > 0);
    std::fclose(f);
    unsigned long long started = 0;
    const char* at = std::strrchr(text, ')') + 1;
    for (int field = 2; field < 21; ++field) at = std::strchr(at + 1, ' ');
    REQUIRE(std::sscanf(at, " %llu", &started) == 1);
    h.started = started;
    return encode(h);
  }
};

}  // namespace

TEST_SUITE("device") {
  TEST_CASE("a kernel works on device memory; an unknown kernel is unsupported") {
    for (const std::string& kind : kinds()) {
      CAPTURE(kind);
      const DevicePtr device = open_kind(kind);
      const auto stream = must(device->open_stream());
      std::vector<float> values(5000);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f;
      const size_t bytes = values.size() * sizeof(float);
      const Memory from = must(device->allocate(bytes)), to = must(device->allocate(bytes / 2));
      put(*stream, from.data(), std::as_bytes(std::span(values)));
      const std::array<Argument, 3> arguments{from.data(), to.data(), uint64_t{values.size()}};
      const auto groups =
          static_cast<uint32_t>((values.size() + MC_ROUND_PART - 1) / MC_ROUND_PART);
      must(stream->launch({MC_ROUND "_bf16", groups, 1, 1, arguments}));
      const auto got = get(*stream, to.data(), bytes / 2);
      for (const size_t i : {0u, 1u, 128u, 4097u, 4998u}) {
        uint16_t high = 0;
        std::memcpy(&high, &got[2 * i], 2);
        CHECK(std::bit_cast<float>(uint32_t{high} << 16) ==
              doctest::Approx(values[i]).epsilon(0.004));
      }
      const auto unknown = stream->launch({"mc_no_such_kernel", 1, 1, 1, arguments});
      REQUIRE_FALSE(unknown.has_value());
      CHECK(unknown.error().code == Code::kUnsupported);
      CHECK(unknown.error().what.find("mc_no_such_kernel") != std::string::npos);
    }
  }

  TEST_CASE("captured work runs on each launch, on the current contents") {
    for (const std::string& kind : kinds()) {
      CAPTURE(kind);
      const DevicePtr device = open_kind(kind);
      const auto stream = must(device->open_stream());
      const Memory host = must(device->allocate_host(4096));
      const Memory x = must(device->allocate(4096)), y = must(device->allocate(2048));
      const std::array<Argument, 3> arguments{x.data(), y.data(), uint64_t{1024}};
      const auto fill = [&](float value) {
        for (size_t i = 0; i < 1024; ++i) std::memcpy(host.data() + 4 * i, &value, 4);
      };
      const auto finish = [&] { must(must(stream->record())->wait()); };
      fill(1);
      must(stream->begin_capture());
      must(stream->copy(x.data(), host.data(), 4096));
      must(stream->launch({MC_ROUND "_bf16", 1, 1, 1, arguments}));
      must(stream->copy(host.data(), y.data(), 2048));
      // What cannot be part of it is refused, and spoils nothing.
      CHECK(stream->record().error().code == Code::kInvalid);
      CHECK(stream->begin_capture().error().code == Code::kInvalid);
      const std::array<Block, 2> blocks{Block{x.data(), y.data(), 8},
                                        Block{x.data() + 8, y.data(), 8}};
      CHECK(stream->copy_blocks(blocks).error().code == Code::kInvalid);
      CHECK(stream->copy_rows({x.data(), y.data(), 16, 8, 8, 2}).error().code == Code::kInvalid);
      const auto graph = must(stream->end_capture());
      CHECK(stream->end_capture().error().code == Code::kInvalid);
      finish();
      float unchanged = 0;
      std::memcpy(&unchanged, host.data(), 4);
      CHECK(unchanged == 1);
      const auto other = must(device->open_stream());
      for (const float value : {2.0f, -3.5f}) {
        fill(value);
        Stream& by = value > 0 ? *stream : *other;
        must(by.launch(*graph));
        must(must(by.record())->wait());
        uint16_t high = 0;
        std::memcpy(&high, host.data() + 2 * 700, 2);
        CHECK(std::bit_cast<float>(uint32_t{high} << 16) == value);
      }
    }
  }

  TEST_CASE("bytes go to a device, within it, and come back, whatever their alignment") {
    for (const auto& kind : kinds()) {
      CAPTURE(kind);
      const DevicePtr device = open_kind(kind);
      const Memory memory = must(device->allocate(4 << 20));
      const auto stream = must(device->open_stream());
      for (const size_t bytes : {1ul, 15ul, 4096ul, 100'003ul, 1ul << 20})
        for (const size_t at : {0ul, 1ul, 4ul, 4095ul}) {
          const auto want = noise(bytes, bytes + at);
          put(*stream, memory.data() + at, want);
          must(stream->copy(memory.data() + (2 << 20) + at, memory.data() + at, bytes));
          CHECK(get(*stream, memory.data() + (2 << 20) + at, bytes) == want);
        }
    }
  }

  TEST_CASE("thousands of blocks are gathered and scattered by one launch") {
    for (const auto& kind : kinds()) {
      CAPTURE(kind);
      fake::Scene scene;
      const DevicePtr device = open_kind(kind);
      constexpr size_t kBlocks = 61 * 32, kBlock = 2048, kEvery = 5000;
      const Memory scattered = must(device->allocate(kBlocks * kEvery));
      const Memory dense = must(device->allocate(kBlocks * kBlock));
      const Memory host = must(device->allocate_host(kBlocks * kBlock));
      const auto stream = must(device->open_stream());
      const auto want = noise(kBlocks * kEvery, 1);
      put(*stream, scattered.data(), want);
      // In any order, of any size, at any address.
      std::vector<Block> gather, scatter;
      Random random(7);
      for (size_t i = 0; i < kBlocks; ++i) {
        const size_t from = (i * 997 % kBlocks) * kEvery + random.next() % 64;
        gather.push_back({dense.data() + i * kBlock, scattered.data() + from, kBlock - i % 3});
        scatter.push_back({scattered.data() + from, dense.data() + i * kBlock, kBlock - i % 3});
      }
      must(stream->copy_blocks(gather));
      must(stream->copy(host.data(), dense.data(), dense.size()));
      must(must(stream->record())->wait());
      for (size_t i = 0; i < kBlocks; ++i)
        REQUIRE(std::memcmp(host.data() + i * kBlock,
                            want.data() + (gather[i].from - scattered.data()),
                            gather[i].bytes) == 0);
      if (kind == "fake-cuda") CHECK(scene.calls("launch") == 1);
      put(*stream, scattered.data(), std::vector<std::byte>(kBlocks * kEvery));
      must(stream->copy_blocks(scatter));
      const auto back = get(*stream, scattered.data(), scattered.size());
      std::vector<std::byte> expected(kBlocks * kEvery);
      for (const Block& b : gather) {
        const auto at = static_cast<size_t>(b.from - scattered.data());
        std::copy_n(want.begin() + static_cast<ptrdiff_t>(at), b.bytes,
                    expected.begin() + static_cast<ptrdiff_t>(at));
      }
      CHECK(back == expected);
    }
  }

  TEST_CASE("more blocks than a launch takes, and none, and one") {
    for (const auto& kind : kinds()) {
      CAPTURE(kind);
      const DevicePtr device = open_kind(kind);
      constexpr size_t kBlocks = 30'000;
      const Memory memory = must(device->allocate(kBlocks * 32));
      const auto stream = must(device->open_stream());
      const auto want = noise(kBlocks * 16, 3);
      put(*stream, memory.data(), want);
      std::vector<Block> blocks;
      for (size_t i = 0; i < kBlocks; ++i)
        blocks.push_back({memory.data() + (2 * kBlocks - 1 - i) * 16, memory.data() + i * 16, 16});
      must(stream->copy_blocks({}));
      must(stream->copy_blocks(std::span(blocks).first(1)));
      must(stream->copy_blocks(blocks));
      const auto back = get(*stream, memory.data() + kBlocks * 16, kBlocks * 16);
      for (size_t i = 0; i < kBlocks; ++i)
        REQUIRE(std::memcmp(&back[(kBlocks - 1 - i) * 16], &want[i * 16], 16) == 0);
    }
  }

  TEST_CASE("rows at even distances move as one") {
    for (const auto& kind : kinds()) {
      CAPTURE(kind);
      const DevicePtr device = open_kind(kind);
      const Memory memory = must(device->allocate(1 << 20));
      const auto stream = must(device->open_stream());
      const auto want = noise(100 * 3000, 5);
      put(*stream, memory.data(), want);
      std::vector<std::byte> host(100 * 1001);
      must(
          stream->copy_rows({memory.data() + (1 << 19), memory.data() + 1, 1001, 3000, 1001, 100}));
      host = get(*stream, memory.data() + (1 << 19), host.size());
      for (size_t row = 0; row < 100; ++row)
        REQUIRE(std::memcmp(&host[row * 1001], &want[row * 3000 + 1], 1001) == 0);
      must(stream->copy_rows({memory.data(), memory.data(), 0, 0, 0, 5}));
    }
  }

  TEST_CASE("a stream waits for another's event") {
    for (const auto& kind : kinds()) {
      CAPTURE(kind);
      const DevicePtr device = open_kind(kind);
      const Memory memory = must(device->allocate(8 << 20));
      const auto first = must(device->open_stream()), second = must(device->open_stream());
      const auto want = noise(4 << 20, 9);
      must(first->copy(memory.data(), want.data(), want.size()));
      const auto event = must(first->record());
      must(second->after(*event));
      must(second->copy(memory.data() + want.size(), memory.data(), want.size()));
      CHECK(get(*second, memory.data() + want.size(), want.size()) == want);
      CHECK(must(event->done()));
    }
  }

  TEST_CASE("an address is known by its device until it is freed, and by no other") {
    for (const auto& kind : kinds()) {
      CAPTURE(kind);
      const DevicePtr device = open_kind(kind);
      Memory memory = must(device->allocate(10'000));
      const auto in = must(device->query(memory.data() + 9'999));
      CHECK(in.data() == memory.data());
      CHECK(in.size() >= 10'000);
      if (kind != "cuda" || find_cuda().devices.size() > 1) {
        const DevicePtr other = open_kind(kind, 1);
        const auto wrong = other->query(memory.data());
        REQUIRE_FALSE(wrong.has_value());
        CHECK(wrong.error().code == Code::kInvalid);
        CHECK(wrong.error().what.find("not of " + other->info().location()) != std::string::npos);
      }
      const std::byte* const freed = memory.data();
      memory = Memory();
      std::vector<std::byte> host(64);
      for (const std::byte* address : {freed, const_cast<const std::byte*>(host.data())}) {
        const auto gone = device->query(address);
        REQUIRE_FALSE(gone.has_value());
        CHECK(gone.error().code == Code::kInvalid);
      }
    }
  }

  TEST_CASE("memory keeps its device open") {
    for (const auto& kind : kinds()) {
      CAPTURE(kind);
      DevicePtr device = open_kind(kind);
      Memory memory = must(device->allocate(4096));
      const auto stream = must(device->open_stream());
      device.reset();
      const auto want = noise(4096, 2);
      put(*stream, memory.data(), want);
      CHECK(get(*stream, memory.data(), 4096) == want);
    }
    CHECK(fake::state().clean());
  }

  TEST_CASE("a process opens memory of another process while that one lives") {
    for (const std::string kind : {"stand-in", "fake-cuda"}) {
      CAPTURE(kind);
      Sleeper other;  // before there are threads
      const DevicePtr device = open_kind(kind);
      const Memory memory = must(device->allocate(100'000));
      const auto stream = must(device->open_stream());
      const auto want = noise(memory.size(), 4);
      put(*stream, memory.data(), want);
      const std::string own = must(device->share(memory.bytes.subspan(5'000, 90'000)));
      CHECK(own.size() <= kHandleBytesMax);
      const auto refused = device->open(own);
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().code == Code::kInvalid);
      const std::string handle = other.take_over(own);
      if (kind == "fake-cuda") {  // a stand-in's is opened by the other process in stand_in_test
        const Memory opened = must(device->open(handle)), again = must(device->open(handle));
        CHECK(opened.size() == 90'000);
        CHECK(again.data() == opened.data());
        CHECK(get(*stream, opened.data(), 90'000) ==
              std::vector(want.begin() + 5'000, want.begin() + 95'000));
      }
      other.end();
      const auto dead = device->open(handle);
      REQUIRE_FALSE(dead.has_value());
      CHECK(dead.error().code == Code::kUnavailable);
      CHECK(dead.error().what.find("gone") != std::string::npos);
    }
    CHECK(fake::state().clean());
  }

  TEST_CASE("malformed handles, handles of another kind, and ranges past an end are refused") {
    for (const auto& kind : kinds()) {
      CAPTURE(kind);
      const DevicePtr device = open_kind(kind);
      const Memory memory = must(device->allocate(4096));
      for (const std::string& bad :
           {std::string(), std::string(7, 'x'), std::string(sizeof(Handle), '\0'),
            std::string(sizeof(Handle), '\xff')})
        CHECK_FALSE(device->open(bad).has_value());
      Handle other = must(own_handle("nothing", 0));
      other.bytes = 1;
      const auto other_kind = device->open(encode(other));
      REQUIRE_FALSE(other_kind.has_value());
      CHECK(other_kind.error().what.find("'nothing'") != std::string::npos);
      const auto past = device->share({memory.data(), 1u << 30});
      REQUIRE_FALSE(past.has_value());
      CHECK(past.error().code == Code::kInvalid);
      CHECK_FALSE(device->allocate(0).has_value());
    }
  }

  TEST_CASE("an allocation larger than the device is kNoSpace, and a smaller one then succeeds") {
    for (const std::string kind : {"stand-in", "cuda"}) {
      if (kind == "cuda" && find_cuda().devices.empty()) continue;
      const DevicePtr device = open_kind(kind);
      const auto much = device->allocate(uint64_t{1} << 50);
      REQUIRE_FALSE(much.has_value());
      CHECK(much.error().code == Code::kNoSpace);
      const uint64_t before = must(device->free_bytes());
      { const Memory some = must(device->allocate(1 << 20)); }
      CHECK(must(device->free_bytes()) == before);
    }
  }
}

}  // namespace conformance_test
