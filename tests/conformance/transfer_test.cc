// One suite over every transport: what a transfer promises does not depend on how it travels.
#include <cstring>
#include <future>

#include "tests/conformance/pair.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

TEST_SUITE("xfer") {
  TEST_CASE("bytes written are the bytes read back, at every size") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport);
      for (uint64_t bytes :
           {1ul, 7ul, 64ul, 4097ul, 65536ul, 100'001ul, 1'048'577ul, 4'194'304ul}) {
        CAPTURE(bytes);
        std::vector<std::byte> out(bytes), in(bytes);
        fill(out, bytes);
        auto wrote = pair.engine().transfer_sync(pair.request(Op::kWrite, out), 5s);
        REQUIRE_MESSAGE(wrote.has_value(), (wrote ? "" : wrote.error().what));
        CHECK(std::memcmp(pair.remote.data(), out.data(), bytes) == 0);
        auto read = pair.engine().transfer_sync(pair.request(Op::kRead, in), 5s);
        REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
        CHECK(digest(in) == digest(out));
      }
    }
  }

  TEST_CASE("a strided request moves its rows and nothing between them") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport);
      std::memset(pair.remote.data(), 0x55, pair.remote.size());
      std::vector<std::byte> local(40 * 3000);
      fill(local, 7);
      Request r = pair.request(Op::kWrite, local, 100);
      r.bytes = 1000;
      r.rows = 40;
      r.local_stride = 3000;
      r.remote_stride = 5000;
      REQUIRE(pair.engine().transfer_sync(r, 5s).has_value());
      for (uint64_t row = 0; row < 40; ++row) {
        const std::byte* at = pair.remote.data() + 100 + row * 5000;
        CHECK(std::memcmp(at, local.data() + row * 3000, 1000) == 0);
        CHECK(at[1000] == std::byte{0x55});
        CHECK(at[-1] == std::byte{0x55});
      }
      std::vector<std::byte> back(40 * 1000);
      r.op = Op::kRead;
      r.local = back.data();
      r.local_stride = 1000;
      REQUIRE(pair.engine().transfer_sync(r, 5s).has_value());
      for (uint64_t row = 0; row < 40; ++row)
        CHECK(std::memcmp(back.data() + row * 1000, local.data() + row * 3000, 1000) == 0);
    }
  }

  TEST_CASE("many requests in one batch all land, and all_done runs once, after them") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 8 * kMiB);
      std::vector<std::byte> out(8 * kMiB), in(8 * kMiB);
      fill(out, 3);
      std::vector<Request> writes, reads;
      for (uint64_t at = 0; at < out.size(); at += 128 * kKiB) {
        writes.push_back(pair.request(Op::kWrite, std::span(out).subspan(at, 128 * kKiB), at));
        reads.push_back(pair.request(Op::kRead, std::span(in).subspan(at, 128 * kKiB), at));
      }
      std::promise<void> done;  // a second call would throw
      const BatchId batch = pair.engine().allocate_batch();
      REQUIRE(pair.engine().submit(batch, writes, [&] { done.set_value(); }).has_value());
      REQUIRE(pair.engine().wait(batch, 10s).has_value());
      REQUIRE(pair.engine().submit(batch, reads).has_value());
      REQUIRE(pair.engine().wait(batch, 10s).has_value());
      for (size_t i = 0; i < writes.size() + reads.size(); ++i)
        CHECK(pair.engine().status(batch, i).state == TransferState::kCompleted);
      CHECK(digest(in) == digest(out));
      pair.engine().free_batch(batch);
      CHECK(done.get_future().wait_for(10s) == std::future_status::ready);
    }
  }

  TEST_CASE("ranges outside the segment are refused before anything moves") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 64 * kKiB);
      std::vector<std::byte> local(4096);
      for (uint64_t at :
           {uint64_t{61'441}, uint64_t{65'536}, uint64_t{1} << 40, UINT64_MAX - 100}) {
        Request r = pair.request(Op::kWrite, local, 0);
        r.offset += at;
        auto moved = pair.engine().transfer_sync(r, 1s);
        REQUIRE_FALSE(moved.has_value());
        CHECK(moved.error().code == Code::kInvalid);
      }
      Request overlap = pair.request(Op::kWrite, local, 0);
      overlap.rows = UINT64_MAX / 2;
      overlap.remote_stride = 1 << 20;
      CHECK_FALSE(pair.engine().transfer_sync(overlap, 1s).has_value());
    }
  }

  TEST_CASE("memory offered for reading cannot be written") {
    for (const std::string& transport : kBetween) {
      CAPTURE(transport);
      Pair pair(transport, 64 * kKiB, false);
      fill(pair.remote.bytes(), 5);
      std::vector<std::byte> local(4096);
      auto wrote = pair.engine().transfer_sync(pair.request(Op::kWrite, local), 1s);
      REQUIRE_FALSE(wrote.has_value());
      CHECK(wrote.error().code == Code::kDenied);
      REQUIRE(pair.engine().transfer_sync(pair.request(Op::kRead, local), 1s).has_value());
      CHECK(std::memcmp(local.data(), pair.remote.data(), local.size()) == 0);
    }
  }

  TEST_CASE("a guard that moved on stops readers and writers") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 64 * kKiB);
      std::vector<std::byte> local(1024);
      const uint64_t guard = pair.remote.offset();
      REQUIRE(pair.engine().advance_guard(pair.segment, guard, 5, 1s).has_value());
      for (const Op op : {Op::kRead, Op::kWrite}) {
        Request r = pair.request(op, local, 64);
        r.guard = {guard, 5};
        CHECK(pair.engine().transfer_sync(r, 1s).has_value());
        r.guard.expected = 4;
        auto stale = pair.engine().transfer_sync(r, 1s);
        REQUIRE_FALSE(stale.has_value());
        CHECK(stale.error().code == Code::kStale);
      }
      // Generations only grow.
      auto lower = pair.engine().advance_guard(pair.segment, guard, 3, 1s);
      REQUIRE_FALSE(lower.has_value());
      CHECK(lower.error().code == Code::kStale);
      CHECK(pair.engine().advance_guard(pair.segment, guard, 5, 1s).has_value());
    }
  }

  TEST_CASE("a write can raise its guard word itself") {
    for (const std::string transport : {"self", "shm", "tcp"}) {
      CAPTURE(transport);
      Pair pair(transport, 8 * kMiB);
      const uint64_t guard = pair.remote.offset();
      const auto word = [&] {
        uint64_t value = 0;
        std::memcpy(&value, pair.remote.data(), 8);
        return value;
      };
      std::vector<std::byte> local(6 * kMiB), before;  // several slices
      fill(local, 3);
      Request r = pair.request(Op::kWrite, local, 64);
      for (const uint64_t value : {5u, 5u, 6u}) {
        r.guard = {guard, value, true};
        REQUIRE(pair.engine().transfer_sync(r, 10s * kSlow).has_value());
        CHECK(word() == value);
        CHECK(std::memcmp(pair.remote.data() + 64, local.data(), local.size()) == 0);
      }
      const auto stale = [&](Op op, uint64_t value, bool raises) {
        Request small = pair.request(op, std::span(local).first(1024), 64);
        small.guard = {guard, value, raises};
        const auto moved = pair.engine().transfer_sync(small, 10s * kSlow);
        return !moved && moved.error().code == Code::kStale && word() == 6;
      };
      before.assign(pair.remote.data(), pair.remote.data() + pair.remote.size());
      fill(local, 4);
      CHECK(stale(Op::kWrite, 5, true));   // it is newer already
      CHECK(stale(Op::kWrite, 7, false));  // only those that say so raise it
      CHECK(stale(Op::kRead, 7, true));
      CHECK(std::memcmp(pair.remote.data(), before.data(), before.size()) == 0);

      std::vector<Request> many;  // each behind a word of its own
      for (uint64_t i = 0; i < 80; ++i) {
        many.push_back(pair.request(
            Op::kWrite, std::span(local).subspan(i * 8192, 4096 - 8 * (i % 3)), i * 16384 + 8));
        many.back().guard = {guard + i * 16384, 10 + i, true};
      }
      many[7].guard.expected = 1;
      for (uint64_t i = 0; i < many.size(); ++i) {
        const uint64_t old = 2;
        std::memcpy(pair.remote.data() + i * 16384, &old, 8);
      }
      const BatchId batch = pair.engine().allocate_batch();
      REQUIRE(pair.engine().submit_awaited(batch, many, 10s * kSlow).has_value());
      (void)pair.engine().wait(batch, 10s * kSlow);
      for (uint64_t i = 0; i < many.size(); ++i) {
        CAPTURE(i);
        const Status status = pair.engine().status(batch, i);
        CHECK(status.state == (i == 7 ? TransferState::kFailed : TransferState::kCompleted));
        if (i == 7) CHECK(status.error.code == Code::kStale);
        const bool landed =
            std::memcmp(pair.remote.data() + i * 16384 + 8, many[i].local, many[i].bytes) == 0;
        CHECK(landed == (i != 7));
      }
      pair.engine().free_batch(batch);
    }
  }

  TEST_CASE("memory that was withdrawn is stale, not served") {
    for (const std::string& transport : kBetween) {
      CAPTURE(transport);
      Pair pair(transport, 256 * kKiB);
      std::vector<std::byte> local(1024);
      REQUIRE(pair.engine().transfer_sync(pair.request(Op::kRead, local), 1s).has_value());
      const Request r = pair.request(Op::kRead, local);
      pair.remote = Memory();
      auto stale = pair.engine().transfer_sync(r, 1s);
      REQUIRE_FALSE(stale.has_value());
      CHECK(stale.error().code == Code::kStale);
    }
  }

  TEST_CASE("a request past its deadline is timed out and moves nothing") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 64 * kKiB);
      std::vector<std::byte> local(1024, std::byte{1});
      Request r = pair.request(Op::kWrite, local);
      r.deadline = kClock.now() - 1ms;
      auto late = pair.engine().transfer_sync(r, 1s);
      REQUIRE_FALSE(late.has_value());
      CHECK(late.error().code == Code::kTimeout);
      CHECK(pair.remote.data()[0] == std::byte{0});
    }
  }

  TEST_CASE("after cancel returns, the memory is free") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, 32 * kMiB);
      const BatchId batch = pair.engine().allocate_batch();
      {
        std::vector<std::byte> local(32 * kMiB);
        const Request r = pair.request(Op::kRead, local);
        REQUIRE(pair.engine().submit(batch, {&r, 1}).has_value());
        pair.engine().cancel(batch);
        CHECK(finished(pair.engine().status(batch, 0).state));
      }
      pair.engine().free_batch(batch);
      CHECK(pair.engine().status(batch, 0).error.code == Code::kNotFound);
    }
  }
}
