#include "xfer/memory/copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "base/random.h"
#include "xfer/transports/shm/parallel_copy.h"

using namespace mc;
using namespace mc::xfer;

namespace {

std::vector<std::byte> noise(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> out(n);
  for (auto& b : out) b = static_cast<std::byte>(random.next());
  return out;
}

// What a copy of `rows` leaves in a destination of zeros, byte by byte.
std::vector<std::byte> expected(const Rows& rows, const std::byte* to, size_t size) {
  std::vector<std::byte> want(size);
  for (uint64_t row = 0; row < rows.rows; ++row)
    for (uint64_t i = 0; i < rows.bytes; ++i)
      want[static_cast<size_t>(rows.to - to) + row * rows.to_stride + i] =
          rows.from[row * rows.from_stride + i];
  return want;
}

}  // namespace

TEST_SUITE("xfer/copy") {
  TEST_CASE("a copy writes its rows and nothing else, at any alignment, streaming or not") {
    const auto from = noise(80 * 1024, 1);
    Random random(2);
    for (int i = 0; i < 400; ++i) {
      Rows rows;
      rows.bytes = 1 + random.next() % (i % 2 == 0 ? 300 : 9000);
      rows.rows = 1 + random.next() % 6;
      rows.to_stride = rows.bytes + random.next() % 100;
      rows.from_stride = rows.bytes + random.next() % 100;
      std::vector<std::byte> to(64 * 1024);
      rows.to = to.data() + random.next() % 200;
      rows.from = from.data() + random.next() % 200;
      CAPTURE(rows.bytes);
      CAPTURE(rows.rows);
      const auto want = expected(rows, to.data(), to.size());
      copy_rows(rows, i % 3 != 0);
      REQUIRE(to == want);
    }
  }

  TEST_CASE("long rows arrive whole wherever they begin and end") {
    const auto from = noise(700 * 1024, 5);
    Random random(6);
    for (const uint64_t around : {2048u, 64u << 10, 512u << 10, 600u << 10})
      for (int i = 0; i < 12; ++i) {
        Rows rows;
        rows.bytes = around - 6 + static_cast<uint64_t>(i);
        std::vector<std::byte> to(700 * 1024);
        rows.to = to.data() + random.next() % 200;
        rows.from = from.data() + random.next() % 200;
        CAPTURE(rows.bytes);
        copy_rows(rows, false);
        const auto before = std::span(to).first(static_cast<size_t>(rows.to - to.data()));
        const auto after = std::span(to).subspan(before.size() + rows.bytes);
        REQUIRE(std::memcmp(rows.to, rows.from, rows.bytes) == 0);
        const auto blank = [](std::byte b) { return b == std::byte{}; };
        CHECK(std::all_of(before.begin(), before.end(), blank));
        CHECK(std::all_of(after.begin(), after.end(), blank));
      }
  }

  TEST_CASE("pieces cover every byte of their rows once") {
    Random random(3);
    for (int i = 0; i < 200; ++i) {
      Rows rows;
      rows.bytes = 1 + random.next() % 5000;
      rows.rows = 1 + random.next() % 8;
      rows.to_stride = rows.bytes + (i % 4 == 0 ? 0 : random.next() % 64);
      rows.from_stride = rows.bytes + (i % 4 == 0 ? 0 : random.next() % 64);
      const auto from = noise(8 * 5100, 4);
      std::vector<std::byte> to(from.size()), times(from.size());
      rows.to = to.data();
      rows.from = from.data();
      const auto want = expected(rows, to.data(), to.size());
      const Pieces pieces(rows, 1 + random.next() % 9000);
      uint64_t total = 0;
      for (uint64_t p = 0; p < pieces.count(); ++p) {
        total += pieces.at(p).total();
        copy_rows(pieces.at(p), false);
      }
      CHECK(total == rows.total());
      REQUIRE(to == want);
    }
  }

  TEST_CASE("pieces of one long run are equal, and rows that touch are one run") {
    std::vector<std::byte> memory(1 << 20);
    const Rows touching{memory.data(), memory.data(), 1000, 1000, 1000, 1000};
    const Pieces pieces(touching, 64 * 1024);
    CHECK(pieces.count() == 16);
    for (uint64_t p = 0; p + 1 < pieces.count(); ++p) CHECK(pieces.at(p).bytes == 64 * 1024);
  }

  TEST_CASE("a copy is done once, with any helpers, however late") {
    const auto from = noise(3 << 20, 5);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::byte> to(from.size());
      CopyRule rule{.copies = MachineCopies({}, {}, default_copies)};
      const auto job =
          std::make_shared<ParallelCopy>(Rows{to.data(), from.data(), from.size()}, 4096, rule);
      std::vector<std::thread> helpers;
      for (int i = 0; i < 3; ++i) helpers.emplace_back([job] { job->work([] { return true; }); });
      job->work([] { return true; });
      CHECK(job->finish());
      CHECK(to == from);
      for (auto& t : helpers) t.join();
    }
  }

  TEST_CASE("a job that is given up says so, and nothing is written after finish") {
    const auto from = noise(1 << 20, 6);
    std::vector<std::byte> to(from.size());
    CopyRule rule{.copies = MachineCopies({}, {}, default_copies)};
    ParallelCopy job({to.data(), from.data(), from.size()}, 64 * 1024, rule);
    int left = 3;
    job.work([&] { return left-- > 0; });
    CHECK_FALSE(job.finish());
    const auto then = to;
    job.work([] { return true; });
    CHECK(to == then);
    CHECK(to[0] == from[0]);
  }

  TEST_CASE("a place is hot when it was written less than a window ago") {
    constexpr uint64_t kWindow = 8 << 20;
    std::vector<std::byte> memory(1 << 20);
    std::byte* const a = memory.data();
    std::byte* const b = a + (512 << 10);
    CacheResidency residency(kWindow);
    CHECK_FALSE(residency.hot(a, 64 << 10));  // never seen
    CHECK(residency.hot(a, 64 << 10));
    CHECK_FALSE(residency.hot(b, 6 << 20));
    CHECK(residency.hot(a, 2 << 20));        // six and a bit since
    CHECK_FALSE(residency.hot(b, 6 << 20));  // eight since
    CHECK_FALSE(residency.hot(a, kWindow));  // what is longer than the window never is
    CHECK_FALSE(residency.hot(a, kWindow));
  }
}
