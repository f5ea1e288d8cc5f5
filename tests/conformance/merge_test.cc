// Requests that are moved as one are still requests: each lands, and each has its own status.
#include <cstring>
#include <numeric>

#include "base/hash.h"
#include "tests/conformance/child.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

TEST_SUITE("xfer/merge") {
  TEST_CASE("neighbours and equal strides in one submit land, and each reports its own bytes") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 8 * kMiB);
      std::vector<std::byte> out(4 * kMiB);
      fill(out, 3);
      std::vector<Request> writes;
      for (uint64_t layer = 0; layer < 16; ++layer)  // every other 256 KiB of the peer
        for (uint64_t block = 0; block < 32; ++block)
          writes.push_back(pair.request(
              Op::kWrite, std::span(out).subspan(layer * 256 * kKiB + block * 8 * kKiB, 8 * kKiB),
              layer * 512 * kKiB + block * 8 * kKiB));
      writes.push_back(pair.request(Op::kWrite, std::span(out).first(100), 300 * kKiB));
      const BatchId batch = pair.engine().allocate_batch();
      REQUIRE(pair.engine().submit(batch, writes).has_value());
      REQUIRE(pair.engine().wait(batch, 10s).has_value());
      for (size_t i = 0; i < writes.size(); ++i) {
        const Status s = pair.engine().status(batch, i);
        CHECK(s.state == TransferState::kCompleted);
        CHECK(s.bytes_done == writes[i].bytes);
      }
      pair.engine().free_batch(batch);
      for (uint64_t layer = 0; layer < 16; ++layer) {
        const std::byte* at = pair.remote.data() + layer * 512 * kKiB;
        CHECK(std::memcmp(at, out.data() + layer * 256 * kKiB, 256 * kKiB) == 0);
        CHECK(at[256 * kKiB] == std::byte{0});
      }
      CHECK(std::memcmp(pair.remote.data() + 300 * kKiB, out.data(), 100) == 0);
    }
  }

  TEST_CASE("a reported digest is that of the request's own bytes; tcp reports some") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 8 * kMiB);
      fill(pair.remote.bytes(), 5);
      std::vector<std::byte> in(6 * kMiB);
      std::vector<Request> reads;
      uint64_t at = 0;  // neighbours: without digests they would be one movement
      for (const uint64_t bytes :
           {1ul, 100ul, 64 * kKiB, 256 * kKiB, 256 * kKiB + 1, 700'000ul, kMiB})
        for (const bool wanted : {true, false}) {
          reads.push_back(pair.request(Op::kRead, std::span(in).subspan(at, bytes), at));
          reads.back().digest = wanted;
          at += bytes;
        }
      const BatchId batch = pair.engine().allocate_batch();
      REQUIRE(pair.engine().submit(batch, reads).has_value());
      REQUIRE(pair.engine().wait(batch, 10s).has_value());
      size_t told = 0;
      for (size_t i = 0; i < reads.size(); ++i) {
        CAPTURE(i);
        const Status s = pair.engine().status(batch, i);
        CHECK(s.state == TransferState::kCompleted);
        if (!reads[i].digest) CHECK_FALSE(s.digest);
        if (!s.digest) continue;
        ++told;
        CHECK(*s.digest == xxh3(pair.remote.data() + reads[i].offset, reads[i].bytes));
      }
      CHECK((transport == "tcp" ? told > 0 : told == 0));
      pair.engine().free_batch(batch);
      CHECK(std::memcmp(pair.remote.data(), in.data(), at) == 0);
    }
  }

  TEST_CASE("blocks submitted in any order land, and each reports its own outcome") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 8 * kMiB);
      std::vector<std::byte> out(4 * kMiB);
      fill(out, 9);
      std::vector<uint64_t> order(128);
      std::iota(order.begin(), order.end(), 0U);
      Random random(4);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
      // Every second block is of another length; the second submit of the batch is plain.
      const auto bytes_of = [](uint64_t block) { return (block % 2 == 0 ? 16 : 12) * kKiB; };
      std::vector<Request> writes;
      for (const uint64_t block : order)
        writes.push_back(pair.request(Op::kWrite,
                                      std::span(out).subspan(block * 16 * kKiB, bytes_of(block)),
                                      block * 20 * kKiB));
      const std::vector<Request> more{pair.request(Op::kWrite, std::span(out).last(100), 4 * kMiB)};
      const BatchId batch = pair.engine().allocate_batch();
      REQUIRE(pair.engine().submit(batch, more).has_value());
      REQUIRE(pair.engine().submit(batch, writes).has_value());
      REQUIRE(pair.engine().submit(batch, more).has_value());
      REQUIRE(pair.engine().wait(batch, 10s).has_value());
      CHECK(pair.engine().status(batch, 0).bytes_done == 100);
      for (size_t i = 0; i < writes.size(); ++i) {
        const Status s = pair.engine().status(batch, 1 + i);
        CHECK(s.state == TransferState::kCompleted);
        CHECK(s.bytes_done == writes[i].bytes);
      }
      CHECK(pair.engine().status(batch, 1 + writes.size()).bytes_done == 100);
      CHECK(pair.engine().status(batch, 2 + writes.size()).state == TransferState::kFailed);
      pair.engine().free_batch(batch);
      for (uint64_t block = 0; block < order.size(); ++block) {
        const std::byte* at = pair.remote.data() + block * 20 * kKiB;
        CHECK(std::memcmp(at, out.data() + block * 16 * kKiB, bytes_of(block)) == 0);
        CHECK(at[bytes_of(block)] == std::byte{0});
      }
    }
  }

  TEST_CASE("a crowd of scattered blocks lands; what is cancelled of it ends all the same") {
    constexpr uint64_t kBlock = 16 * kKiB, kBlocks = 1024;
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, kBlock * kBlocks);
      std::vector<std::byte> out(kBlock * kBlocks);
      fill(out, 4);
      std::vector<Request> writes;
      for (uint64_t i = 0; i < kBlocks; ++i) {
        const uint64_t at = i * 389 % kBlocks * kBlock;
        writes.push_back(pair.request(Op::kWrite, std::span(out).subspan(at, kBlock), at));
      }
      const BatchId batch = pair.engine().allocate_batch();
      REQUIRE(pair.engine().submit(batch, writes).has_value());
      REQUIRE(pair.engine().wait(batch, 10s).has_value());
      pair.engine().free_batch(batch);
      CHECK(digest(pair.remote.bytes()) == digest(out));
      const BatchId cut = pair.engine().allocate_batch();
      REQUIRE(pair.engine().submit(cut, writes).has_value());
      pair.engine().cancel(cut);
      for (size_t i = 0; i < writes.size(); ++i)
        CHECK(finished(pair.engine().status(cut, i).state));
      pair.engine().free_batch(cut);
    }
  }

  TEST_CASE("equal strides across two buffers of the peer are not taken for one request") {
    for (const std::string transport : {"shm", "tcp"}) {
      CAPTURE(transport);
      auto owner = make_engine("owner", {transport}), user = make_engine("user", {transport});
      auto first = owner->allocate(4096), second = owner->allocate(4096);
      REQUIRE((first.has_value() && second.has_value()));
      fill(first->bytes(), 1);
      fill(second->bytes(), 2);
      auto segment = user->open_segment(owner->describe());
      REQUIRE(segment.has_value());
      std::vector<std::byte> got(8192);
      const std::vector<Request> reads{
          read_of(*segment, first->offset(), std::span(got).first(4096)),
          read_of(*segment, second->offset(), std::span(got).last(4096))};
      const BatchId batch = user->allocate_batch();
      REQUIRE(user->submit(batch, reads).has_value());
      REQUIRE(user->wait(batch, 10s).has_value());
      user->free_batch(batch);
      CHECK(std::memcmp(got.data(), first->data(), 4096) == 0);
      CHECK(std::memcmp(got.data() + 4096, second->data(), 4096) == 0);
    }
  }

  TEST_CASE("when a merged movement fails, each of its requests has failed") {
    Child child({.transports = {"tcp"}});
    auto engine = make_engine("parent", {"tcp"});
    auto segment = engine->open_segment(child.segment);
    REQUIRE(segment.has_value());
    child.kill();
    std::vector<std::byte> got(64 * kKiB);
    std::vector<Request> reads;
    for (uint64_t at = 0; at < got.size(); at += kKiB)
      reads.push_back(read_of(*segment, at, std::span(got).subspan(at, kKiB)));
    const BatchId batch = engine->allocate_batch();
    REQUIRE(engine->submit(batch, reads).has_value());
    CHECK_FALSE(engine->wait(batch, 10s).has_value());
    for (size_t i = 0; i < reads.size(); ++i) {
      CHECK(engine->status(batch, i).state == TransferState::kFailed);
      CHECK(engine->status(batch, i).error.code == Code::kUnavailable);
    }
    engine->free_batch(batch);
  }
}
