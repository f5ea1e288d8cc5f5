#include "xfer/merge.h"

#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include "base/random.h"

using namespace mc;
using namespace mc::xfer;

namespace {

constexpr uint64_t kNoLimit = uint64_t{1} << 40;

Request piece(std::byte* local, uint64_t offset, uint64_t bytes) {
  Request r;
  r.local = local;
  r.offset = offset;
  r.bytes = bytes;
  return r;
}

std::vector<Run> merge_all(const std::vector<Request>& requests, uint64_t bytes_max = kNoLimit) {
  return merge(requests, std::vector<Home>(requests.size(), Home{0, 0}), bytes_max);
}

// (local, remote) of each byte that the requests move, in order.
std::vector<std::pair<uint64_t, uint64_t>> moves(const Request& r, const std::byte* base) {
  std::vector<std::pair<uint64_t, uint64_t>> out;
  for (uint64_t row = 0; row < r.rows; ++row)
    for (uint64_t i = 0; i < r.bytes; ++i)
      out.emplace_back(static_cast<uint64_t>(r.local - base) + row * r.local_stride + i,
                       r.offset + row * r.remote_stride + i);
  return out;
}

}  // namespace

TEST_SUITE("xfer/merge") {
  std::vector<std::byte> memory(1 << 20);

  TEST_CASE("requests that touch on both sides become one run") {
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 100; ++i)
      requests.push_back(piece(memory.data() + i * 64, 5000 + i * 64, 64));
    const auto runs = merge_all(requests);
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].request.bytes == 6400);
    CHECK(runs[0].request.rows == 1);
    CHECK(runs[0].count == 100);
  }

  TEST_CASE("runs of equal length at equal distances become one strided request") {
    std::vector<Request> requests;
    for (uint64_t layer = 0; layer < 8; ++layer)
      for (uint64_t block = 0; block < 4; ++block)  // four blocks of a layer touch
        requests.push_back(
            piece(memory.data() + layer * 1000 + block * 100, layer * 5000 + block * 100, 100));
    const auto runs = merge_all(requests);
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].request.bytes == 400);
    CHECK(runs[0].request.rows == 8);
    CHECK(runs[0].request.local_stride == 1000);
    CHECK(runs[0].request.remote_stride == 5000);
    CHECK(runs[0].count == 32);
  }

  TEST_CASE("what differs in more than its place is left apart") {
    const Request first = piece(memory.data(), 0, 64), next = piece(memory.data() + 64, 64, 64);
    CHECK(merge_all({first, next}).size() == 1);
    auto differs = [&](auto change) {
      Request other = next;
      change(other);
      return merge_all({first, other}).size() == 2;
    };
    CHECK(differs([](Request& r) { r.op = Op::kWrite; }));
    CHECK(differs([](Request& r) { r.segment = 1; }));
    CHECK(differs([](Request& r) { r.priority = Priority::kHigh; }));
    CHECK(differs([](Request& r) { r.deadline = Time::max() - std::chrono::seconds(1); }));
    CHECK(differs([](Request& r) { r.guard.offset = 8; }));
    CHECK(merge(std::vector{first, next}, std::vector<Home>{{0, 0}, {4096, 0}}, kNoLimit).size() ==
          2);
    CHECK(merge(std::vector{first, next}, std::vector<Home>{{0, 0}, {0, 1}}, kNoLimit).size() == 2);
    CHECK(merge(std::vector{first, next}, std::vector<Home>(2), kNoLimit).size() == 2);
  }

  TEST_CASE("rows that would overlap, or run backwards, are left apart") {
    CHECK(merge_all({piece(memory.data(), 0, 64), piece(memory.data() + 32, 64, 64)}).size() == 2);
    CHECK(merge_all({piece(memory.data(), 64, 64), piece(memory.data() + 64, 0, 64)}).size() == 2);
    CHECK(merge_all({piece(memory.data(), 0, 64), piece(memory.data(), 0, 64)}).size() == 2);
  }

  TEST_CASE("a run ends where it would pass the limit, and a request's own rows stay its own") {
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 10; ++i) requests.push_back(piece(memory.data() + i * 64, i * 64, 64));
    const auto runs = merge_all(requests, 256);
    REQUIRE(runs.size() == 3);
    CHECK(runs[0].count == 4);
    CHECK(runs[2].count == 2);
    Request rows = piece(memory.data(), 0, 64);
    rows.rows = 3;
    rows.local_stride = rows.remote_stride = 100;
    CHECK(merge_all({rows, piece(memory.data() + 300, 300, 64)}).size() == 2);
  }

  TEST_CASE("merged or not, the same bytes move, in the order of their requests") {
    Random random(11);
    for (int round = 0; round < 300; ++round) {
      std::vector<Request> requests;
      uint64_t local = 0, remote = 0;
      for (size_t i = 1 + random.next() % 12; i > 0; --i) {
        const uint64_t bytes = 1 + random.next() % 3;
        local += random.next() % 3;
        remote += random.next() % 3;
        requests.push_back(piece(memory.data() + local, remote, bytes));
        local += bytes;
        remote += bytes;
      }
      const auto runs = merge_all(requests, 1 + random.next() % 20);
      size_t at = 0;
      for (const Run& run : runs) {
        CHECK(run.first == at);
        std::vector<std::pair<uint64_t, uint64_t>> apart;
        for (size_t i = at; i < at + run.count; ++i) {
          const auto one = moves(requests[i], memory.data());
          apart.insert(apart.end(), one.begin(), one.end());
        }
        CHECK(moves(run.request, memory.data()) == apart);
        at += run.count;
      }
      CHECK(at == requests.size());
    }
  }
}
