#include "serve/connector/kv_transfer.h"

#include <doctest/doctest.h>

#include <map>

#include "base/random.h"

namespace mc::serve {
namespace {

struct Layout {
  std::vector<std::byte> memory;
  std::vector<std::byte*> local;
  KvPeer target;
  Layout(uint64_t block, const std::vector<size_t>& here, const std::vector<uint64_t>& there)
      : memory(64 * block) {
    for (const size_t i : here) local.push_back(memory.data() + i * block);
    for (const uint64_t i : there) target.offsets.push_back(1000 + i * block);
    target.segment = 3;
    target.guard = {8, 42};
  }
};

TEST_CASE("whole blocks side by side on both sides travel as one contiguous request") {
  const Layout l(100, {4, 5, 6, 9}, {10, 11, 12, 13});
  const auto requests = plan_transfer(xfer::Op::kWrite, l.local, l.target, {0, 4, 0, 100});
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].bytes == 300);
  CHECK(requests[0].rows == 1);
  CHECK(requests[0].local == l.local[0]);
  CHECK(requests[0].offset == 2000);
  CHECK(requests[1].bytes == 100);
  CHECK(requests[1].guard.offset == 8);
  CHECK(requests[1].guard.expected == 42);
}

TEST_CASE("a layer of blocks at equal distances travels as one strided request") {
  const Layout l(100, {1, 3, 5, 7}, {2, 5, 8, 20});
  const auto requests = plan_transfer(xfer::Op::kWrite, l.local, l.target, {0, 4, 40, 20});
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].rows == 3);
  CHECK(requests[0].bytes == 20);
  CHECK(requests[0].local_stride == 200);
  CHECK(requests[0].remote_stride == 300);
  CHECK(requests[0].local == l.local[0] + 40);
  CHECK(requests[0].offset == 1240);
  CHECK(requests[1].rows == 1);
}

TEST_CASE("a process that takes a worker's name is known at once, though its clock is behind") {
  SteadyClock clock;
  Metrics metrics;
  io::Loop loop(clock);
  const auto engine = [&](const char* node) {
    xfer::EngineOptions options;
    options.node = node;
    auto opened = xfer::Engine::open(clock, options, metrics);
    REQUIRE(opened);
    return std::move(*opened);
  };
  auto reader = engine("p0");
  KvTransfer transfer(loop, *reader, metrics);
  const auto restarted = engine("d0"), first = engine("d0");
  auto a = first->allocate(4096), b = restarted->allocate(4096);
  REQUIRE(a);
  REQUIRE(b);
  const xfer::SegmentDescriptor before = first->describe(), now = restarted->describe();
  REQUIRE(now.generation < before.generation);
  const auto handle = transfer.segment(before);
  REQUIRE(handle);
  CHECK(transfer.segment(now).value() == *handle);
  xfer::SegmentDescriptor named;
  named.node = "d0";
  named.generation = now.generation;
  CHECK(transfer.segment(named).value() == *handle);
  named.generation = before.generation;
  CHECK(transfer.segment(named).error().code == Code::kStale);
  // An older word of the same process is no other process.
  b = restarted->allocate(8192);
  REQUIRE(transfer.segment(restarted->describe()));
  CHECK(transfer.segment(now).error().code == Code::kStale);
}

TEST_CASE("each byte of the range goes to its place once, for every layout of blocks") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const size_t n = 1 + random.below(20);
    const auto draw = [&](uint64_t most) {  // distinct numbers, mostly in runs
      std::vector<uint64_t> all;
      while (all.size() < n) {
        uint64_t at = random.below(most);
        const uint64_t step = 1 + random.below(3);
        for (size_t i = 0; i < 5 && all.size() < n && at < most; ++i, at += step)
          if (std::find(all.begin(), all.end(), at) == all.end()) all.push_back(at);
      }
      return all;
    };
    const auto here64 = draw(64), there = draw(1000);
    const Layout l(64, {here64.begin(), here64.end()}, there);
    KvRange range;
    range.first = random.below(n);
    range.last = range.first + 1 + random.below(n - range.first);
    range.bytes = random.chance(0.5) ? 64 : 16;
    range.at = range.bytes == 64 ? 0 : 16 * random.below(4);
    std::map<uint64_t, const std::byte*> went;
    for (const xfer::Request& r : plan_transfer(xfer::Op::kWrite, l.local, l.target, range))
      for (uint64_t row = 0; row < r.rows; ++row)
        for (uint64_t b = 0; b < r.bytes; ++b)
          CHECK(
              went.emplace(r.offset + row * r.remote_stride + b, r.local + row * r.local_stride + b)
                  .second);
    CHECK(went.size() == (range.last - range.first) * range.bytes);
    for (size_t i = range.first; i < range.last; ++i)
      for (uint64_t b = 0; b < range.bytes; ++b)
        CHECK(went[l.target.offsets[i] + range.at + b] == l.local[i] + range.at + b);
  }
}

}  // namespace
}  // namespace mc::serve
