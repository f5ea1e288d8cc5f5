#include "xfer/core/merge.h"

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

std::vector<MergedRequest> merge_all(const std::vector<Request>& requests,
                                     uint64_t bytes_max = kNoLimit) {
  return merge(requests, std::vector<BufferBase>(requests.size(), BufferBase{0, 0}), bytes_max);
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

  TEST_CASE("requests that touch on both sides become one request") {
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

  TEST_CASE("requests that differ in more than their addresses are not merged") {
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
    CHECK(differs([](Request& r) { r.digest = true; }));  // of its own bytes
    CHECK(merge(std::vector{first, next}, std::vector<BufferBase>{{0, 0}, {4096, 0}}, kNoLimit)
              .size() == 2);
    CHECK(
        merge(std::vector{first, next}, std::vector<BufferBase>{{0, 0}, {0, 1}}, kNoLimit).size() ==
        2);
    CHECK(merge(std::vector{first, next}, std::vector<BufferBase>(2), kNoLimit).size() == 2);
  }

  TEST_CASE("rows that would overlap, or run backwards, are not merged") {
    CHECK(merge_all({piece(memory.data(), 0, 64), piece(memory.data() + 32, 64, 64)}).size() == 2);
    CHECK(merge_all({piece(memory.data(), 64, 64), piece(memory.data() + 64, 0, 64)}).size() == 2);
    CHECK(merge_all({piece(memory.data(), 0, 64), piece(memory.data(), 0, 64)}).size() == 2);
  }

  TEST_CASE("a merged request stays within the limit, and a strided request is not extended") {
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
      for (const MergedRequest& run : runs) {
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

  TEST_CASE("blocks in any order are merged in the order of their addresses") {
    Random random(5);
    std::vector<Request> requests;
    for (uint64_t layer = 0; layer < 4; ++layer)
      for (const uint64_t bytes : {64UL, 32UL})
        for (uint64_t block = 0; block < 8; ++block) {
          const uint64_t at = layer * 2000 + (bytes == 64 ? 0 : 1000) + block * (bytes + 8);
          requests.push_back(piece(memory.data() + at, 50000 + at, bytes));
        }
    for (size_t i = requests.size(); i > 1; --i)
      std::swap(requests[i - 1], requests[random.next() % i]);
    const std::vector<BufferBase> bases(requests.size(), BufferBase{0, 0});
    const MergeResult result = merge_by_address(requests, bases, kNoLimit);
    CHECK(result.runs.size() == 8);
    REQUIRE(result.order.size() == requests.size());
    for (const MergedRequest& run : result.runs)
      for (size_t n = 0; n < run.count; ++n) {
        const Request& r = requests[result.order[run.first + n]];
        CHECK(r.local == run.request.local + n * run.request.local_stride);
        CHECK(r.offset == run.request.offset + n * run.request.remote_stride);
        CHECK(r.bytes == run.request.bytes);
      }
  }

  TEST_CASE("an order that merges more than that of addresses stays, and so do mixed requests") {
    std::vector<Request> kinds;  // the keys of all blocks, then their values, which lie between
    for (const uint64_t from : {0UL, 600UL})
      for (uint64_t block = 0; block < 8; ++block)
        kinds.push_back(piece(memory.data() + from + block * 1000, 50000 + from + block * 1000,
                              from == 0 ? 500 : 100));
    const std::vector<BufferBase> bases(kinds.size(), BufferBase{0, 0});
    const MergeResult result = merge_by_address(kinds, bases, kNoLimit);
    CHECK(result.runs.size() == 2);
    CHECK(result.order.empty());
    std::vector<Request> mixed;
    for (uint64_t i = 8; i > 0; --i) mixed.push_back(piece(memory.data() + i * 100, i * 100, 100));
    mixed[3].priority = Priority::kHigh;
    CHECK(merge_by_address(mixed, std::vector<BufferBase>(mixed.size(), BufferBase{0, 0}), kNoLimit)
              .order.empty());
  }
}
