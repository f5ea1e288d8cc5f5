#include "xfer/core/planner.h"

#include <doctest/doctest.h>

#include <set>

#include "base/random.h"

using namespace mc;
using namespace mc::xfer;

namespace planner_test {

namespace {

std::byte kSomewhere;

Request request(uint64_t bytes, uint64_t rows = 1, uint64_t local = 0, uint64_t remote = 0) {
  Request r;
  r.local = &kSomewhere;
  r.offset = 4096;
  r.bytes = bytes;
  r.rows = rows;
  r.local_stride = local;
  r.remote_stride = remote;
  return r;
}

// Where each byte of the request goes, run by run: (local, remote, length), sorted.
using Run = std::tuple<uint64_t, uint64_t, uint64_t>;
std::set<Run> runs_of(const std::vector<Piece>& pieces) {
  std::set<Run> out;
  for (const Piece& p : pieces)
    for (uint64_t row = 0; row < p.rows; ++row)
      out.emplace(p.local + row * p.local_stride, p.remote + row * p.remote_stride, p.bytes);
  return out;
}

// Runs that touch on both sides, joined.
std::set<Run> joined(const std::set<Run>& runs) {
  std::set<Run> out;
  Run last{0, 0, 0};
  for (const Run& r : runs) {
    const auto [local, remote, bytes] = last;
    if (bytes > 0 && std::get<0>(r) == local + bytes && std::get<1>(r) == remote + bytes) {
      std::get<2>(last) += std::get<2>(r);
      continue;
    }
    if (bytes > 0) out.insert(last);
    last = r;
  }
  out.insert(last);
  return out;
}

}  // namespace

TEST_SUITE("xfer/planner") {
  TEST_CASE("pieces cover each byte of the request once, whatever its shape") {
    Random random(7);
    for (int i = 0; i < 2000; ++i) {
      const uint64_t bytes = 1 + random.below(random.chance(0.5) ? 5000 : 3 * kMiB);
      const uint64_t rows = 1 + random.below(random.chance(0.5) ? 3 : 200);
      const Request r =
          request(bytes, rows, bytes + random.below(3) * 100, bytes + random.below(3) * 64);
      REQUIRE(check(r).has_value());
      const auto pieces = plan(r, 64 * kKiB << random.below(6));
      std::set<Run> want;
      for (uint64_t row = 0; row < rows; ++row)
        want.emplace(row * r.local_stride, r.offset + row * r.remote_stride, bytes);
      REQUIRE(joined(runs_of(pieces)) == joined(want));
      uint64_t total = 0;
      for (const Piece& p : pieces) total += p.total();
      REQUIRE(total == bytes * rows);
    }
  }

  TEST_CASE("no slice has more than 64 Ki rows, and rows of no bytes have no span") {  // (F19)
    const Request r = request(1, 3 * kRowsMax + 5, 2, 2);
    REQUIRE(check(r).has_value());
    Piece whole;
    CHECK_FALSE(in_one_piece(r, kMiB, &whole));
    uint64_t rows = 0;
    for (const Piece& p : plan(r, kMiB)) {
      CHECK(p.rows <= kRowsMax);
      rows += p.rows;
    }
    CHECK(rows == r.rows);
    CHECK(span_of(0, 1, 1) == 0);
    CHECK(span_of(0, uint64_t{1} << 29, 1) == 0);
  }

  TEST_CASE("a request is cut into at most 64 slices of at least 64 KiB, on cache lines") {
    for (const uint64_t bytes : {64 * kKiB, 100 * kMiB + 1, 7 * kGiB}) {
      CAPTURE(bytes);
      const auto pieces = plan(request(bytes), 64 * kKiB);
      CHECK(pieces.size() <= kSlicesMax);
      for (size_t i = 0; i + 1 < pieces.size(); ++i) {
        CHECK(pieces[i].bytes >= kSliceBytesMin);
        CHECK(pieces[i].bytes % 64 == 0);
      }
    }
    CHECK(plan(request(64 * kKiB), 1).size() == 1);  // a slice that is too small is raised
  }

  TEST_CASE("rows that touch on both sides are one run") {
    const auto pieces = plan(request(1000, 50, 1000, 1000), 64 * kKiB);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0].rows == 1);
    CHECK(pieces[0].bytes == 50'000);
  }

  TEST_CASE("thousands of short rows stay few descriptors") {
    const auto pieces = plan(request(256, 10'000, 512, 1024), 1 * kMiB);
    CHECK(pieces.size() <= 4);
  }

  TEST_CASE("a piece is cut into parts that fit, and they cover it once") {
    for (const Piece& whole :
         {Piece{0, 4096, 1'000'000, 1, 0, 0}, Piece{0, 0, 3000, 70, 5000, 4000},
          Piece{0, 64, 100'000, 7, 200'000, 100'001}}) {
      const auto parts = cut(whole, 64 * kKiB);
      uint64_t total = 0;
      for (const Piece& p : parts) {
        CHECK(p.total() <= 64 * kKiB);
        total += p.total();
      }
      CHECK(total == whole.total());
      CHECK(joined(runs_of(parts)) == joined(runs_of({whole})));
    }
  }

  TEST_CASE("lengths that overflow, nothing at all and rows that overlap are refused") {
    CHECK_FALSE(check(request(0)).has_value());
    CHECK_FALSE(check(request(1, 0)).has_value());
    CHECK_FALSE(check(request(UINT64_MAX, 2, UINT64_MAX, UINT64_MAX)).has_value());
    CHECK_FALSE(check(request(1 << 20, UINT64_MAX / 2, 1 << 20, 1 << 20)).has_value());
    CHECK_FALSE(check(request(UINT64_MAX - 4095)).has_value());  // offset + bytes wraps
    CHECK_FALSE(check(request(100, 2, 99, 100)).has_value());    // a read lands on itself
    CHECK_FALSE(check(request(100, 2, 100, 99)).has_value());    // or reads a byte twice
    Request r = request(8);
    r.local = nullptr;
    CHECK_FALSE(check(r).has_value());
    r = request(8);
    r.guard = {12, 1};
    CHECK_FALSE(check(r).has_value());
  }
}

}  // namespace planner_test
