// Transfers that are prepared once move what is there at each run, and never more than a new submit
// would.
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/conformance/child.h"
#include "tests/conformance/device.h"
#include "xfer/prepared.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

constexpr uint64_t kPreparedBlock = 4 * kKiB, kPreparedBlocks = 64;

// Blocks in another order on the peer's side; every fourth follows the one before on both sides.
uint64_t place_at_peer(uint64_t i) { return (i / 4 * 37 % 16 * 5 + i % 4) * kPreparedBlock; }

std::vector<Request> blocks_of(const Pair& pair, Op op, std::span<std::byte> local) {
  std::vector<Request> out;
  for (uint64_t i = 0; i < kPreparedBlocks; ++i)
    out.push_back(
        pair.request(op, local.subspan(i * kPreparedBlock, kPreparedBlock), place_at_peer(i)));
  return out;
}

std::unique_ptr<PreparedTransfers> prepared(Engine& engine, std::vector<Request> requests) {
  auto made = PreparedTransfers::make(engine, std::move(requests));
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().what));
  return std::move(*made);
}

bool same_blocks(std::span<const std::byte> local, std::span<const std::byte> remote) {
  for (uint64_t i = 0; i < kPreparedBlocks; ++i)
    if (std::memcmp(local.data() + i * kPreparedBlock, remote.data() + place_at_peer(i),
                    kPreparedBlock) != 0)
      return false;
  return true;
}

}  // namespace

TEST_SUITE("xfer/prepared") {
  TEST_CASE("each run moves the bytes of its time, both ways, over every transport") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 1 * kMiB);
      std::vector<std::byte> in(kPreparedBlock * kPreparedBlocks), out(in.size());
      const auto reads = prepared(pair.engine(), blocks_of(pair, Op::kRead, in));
      const auto writes = prepared(pair.engine(), blocks_of(pair, Op::kWrite, out));
      CHECK(reads->count() == kPreparedBlocks);
      for (uint64_t run = 1; run <= 3; ++run) {
        fill(pair.remote.bytes(), run);
        auto ran = reads->run(10s * kSlow);
        REQUIRE_MESSAGE(ran.has_value(), (ran ? "" : ran.error().what));
        CHECK(same_blocks(in, pair.remote.bytes()));
        fill(out, 100 + run);
        REQUIRE(writes->run(10s * kSlow).has_value());
        CHECK(same_blocks(out, pair.remote.bytes()));
        CHECK(pair.remote.data()[4 * kPreparedBlock] != std::byte{0});  // between blocks: untouched
      }
      CHECK(reads->run(0s).error().code == Code::kTimeout);
    }
  }

  TEST_CASE("in a batch each request has its own status, and the batch its callback") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 1 * kMiB);
      fill(pair.remote.bytes(), 7);
      std::vector<std::byte> in(kPreparedBlock * kPreparedBlocks);
      const auto reads = prepared(pair.engine(), blocks_of(pair, Op::kRead, in));
      for (int run = 0; run < 2; ++run) {
        std::memset(in.data(), 0, in.size());
        std::atomic<bool> over{false};
        const BatchId batch = pair.engine().allocate_batch();
        REQUIRE(reads->submit(batch, run == 0 ? Duration::max() : 60s, [&] { over = true; })
                    .has_value());
        REQUIRE(pair.engine().wait(batch, 10s * kSlow).has_value());
        for (size_t i = 0; i < kPreparedBlocks; ++i)
          CHECK(pair.engine().status(batch, i).bytes_done == kPreparedBlock);
        CHECK(pair.engine().summary(batch).requests == kPreparedBlocks);
        while (!over) std::this_thread::yield();
        pair.engine().free_batch(batch);
        CHECK(same_blocks(in, pair.remote.bytes()));
      }
      CHECK(reads->submit(9999, 1s).error().code == Code::kNotFound);
    }
  }

  TEST_CASE("what cannot be submitted cannot be prepared") {
    Pair pair("shm", 1 * kMiB);
    std::vector<std::byte> in(kPreparedBlock * kPreparedBlocks);
    const auto refused = [&](std::vector<Request> requests) {
      auto made = PreparedTransfers::make(pair.engine(), std::move(requests));
      REQUIRE_FALSE(made.has_value());
      return made.error().code;
    };
    auto late = blocks_of(pair, Op::kRead, in);
    late[3].deadline = kClock.now() + 1s;
    CHECK(refused(late) == Code::kInvalid);
    auto beyond = blocks_of(pair, Op::kRead, in);
    beyond[3].offset = pair.remote.offset() + 1 * kMiB - 1;
    CHECK(refused(beyond) == Code::kInvalid);
    auto nobody = blocks_of(pair, Op::kRead, in);
    nobody[3].segment = 77;
    CHECK(refused(nobody) == Code::kNotFound);
    CHECK(prepared(pair.engine(), {})->run(1s).has_value());
  }

  TEST_CASE("a peer that offers more memory is still reached; what it withdrew is not") {
    for (const auto& transport : kBetween) {
      CAPTURE(transport);
      Pair pair(transport, 1 * kMiB);
      fill(pair.remote.bytes(), 1);
      std::vector<std::byte> in(kPreparedBlock * kPreparedBlocks);
      const auto reads = prepared(pair.engine(), blocks_of(pair, Op::kRead, in));
      REQUIRE(reads->run(10s * kSlow).has_value());
      auto more = pair.owner->allocate(64 * kKiB);
      REQUIRE(more.has_value());
      REQUIRE(*pair.user->open_segment(pair.owner->describe()) == pair.segment);
      fill(pair.remote.bytes(), 2);
      auto ran = reads->run(10s * kSlow);
      REQUIRE_MESSAGE(ran.has_value(), (ran ? "" : ran.error().what));
      CHECK(same_blocks(in, pair.remote.bytes()));
      // Other memory is offered; offsets are never used twice.
      pair.remote = {};
      auto other = pair.owner->allocate(1 * kMiB);
      REQUIRE(other.has_value());
      fill(other->bytes(), 3);
      const std::vector<std::byte> before = in;
      CHECK_FALSE(reads->run(10s * kSlow).has_value());
      REQUIRE(*pair.user->open_segment(pair.owner->describe()) == pair.segment);
      CHECK(reads->run(10s * kSlow).error().code == Code::kInvalid);
      CHECK(in == before);
      pair.user->close_segment(pair.segment);
      CHECK(reads->run(10s * kSlow).error().code == Code::kNotFound);
    }
  }

  TEST_CASE("what was joined in one buffer of a peer is not once the peer tells two") {
    Pair pair("tcp", 1 * kMiB);
    const uint64_t middle = 512 * kKiB;
    std::vector<std::byte> in(2 * kPreparedBlock);
    const auto reads = prepared(
        pair.engine(),
        {pair.request(Op::kRead, std::span(in).first(kPreparedBlock), middle - kPreparedBlock),
         pair.request(Op::kRead, std::span(in).last(kPreparedBlock), middle)});
    auto two = pair.owner->describe();
    REQUIRE(two.buffers.size() == 1);
    two.buffers.push_back(two.buffers[0]);
    two.buffers[0].bytes = middle;
    two.buffers[1].bytes -= middle;
    two.buffers[1].offset += middle;
    for (uint64_t run = 1; run <= 3; ++run) {
      if (run == 2) {
        ++two.generation.n;
        REQUIRE(*pair.user->open_segment(two) == pair.segment);
      }
      fill(pair.remote.bytes(), run);
      auto ran = reads->run(10s * kSlow);
      REQUIRE_MESSAGE(ran.has_value(), (ran ? "" : ran.error().what));
      CHECK(std::memcmp(in.data(), pair.remote.data() + middle - kPreparedBlock, in.size()) == 0);
    }
  }

  TEST_CASE("local memory that is freed during runs stays for them; later ones are refused") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 1 * kMiB);
      fill(pair.remote.bytes(), 9);
      auto local = pair.engine().allocate(kPreparedBlock * kPreparedBlocks);
      REQUIRE(local.has_value());
      const auto reads = prepared(pair.engine(), blocks_of(pair, Op::kRead, local->bytes()));
      REQUIRE(reads->run(10s * kSlow).has_value());
      std::atomic<int> runs{0};
      std::atomic<bool> freed{false};
      std::jthread other([&] {
        while (runs < 3) std::this_thread::yield();
        *local = {};
        freed = true;
      });
      for (bool refused = false; !refused; ++runs) {
        const bool before = freed;
        const auto ran = reads->run(10s * kSlow);
        refused = before;
        if (refused) {
          REQUIRE(!ran.has_value());
          CHECK(ran.error().code == Code::kInvalid);
        }
      }
      const BatchId batch = pair.engine().allocate_batch();
      CHECK(reads->submit(batch, 1s).error().code == Code::kInvalid);
      pair.engine().free_batch(batch);
    }
  }

#ifndef __SANITIZE_THREAD__  // they write the same bytes to the same places
  TEST_CASE("several threads run the same transfers") {
    for (const auto& transport : kBetween) {
      CAPTURE(transport);
      Pair pair(transport, 1 * kMiB);
      fill(pair.remote.bytes(), 5);
      std::vector<std::byte> out(kPreparedBlock * kPreparedBlocks);
      fill(out, 6);
      const auto writes = prepared(pair.engine(), blocks_of(pair, Op::kWrite, out));
      std::atomic<int> failed{0};
      {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 3; ++t)
          threads.emplace_back([&] {
            for (int i = 0; i < 10; ++i) failed += writes->run(20s * kSlow).has_value() ? 0 : 1;
          });
      }
      CHECK(failed == 0);
      CHECK(same_blocks(out, pair.remote.bytes()));
    }
  }
#endif

  TEST_CASE("local memory that becomes a device's is left to the device") {
    Pair pair("shm", 1 * kMiB);
    fill(pair.remote.bytes(), 8);
    const auto memory = std::make_shared<StandIn>(kPreparedBlock * kPreparedBlocks);
    const auto reads = prepared(pair.engine(), blocks_of(pair, Op::kRead, memory->memory()));
    REQUIRE(pair.engine().add_memory_kind("standin", memory).has_value());
    auto registered = pair.engine().register_memory(memory->memory(), true, "standin:0");
    REQUIRE(registered.has_value());
    auto ran = reads->run(10s * kSlow);
    REQUIRE_MESSAGE(ran.has_value(), (ran ? "" : ran.error().what));
    CHECK(same_blocks(memory->seen_by_device(), pair.remote.bytes()));
  }
}
