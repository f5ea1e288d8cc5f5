// The queue of a peer together with what is in flight on its NIC.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "xfer/rails/rail_queue.h"

namespace mc::xfer {
namespace {

using namespace std::chrono_literals;
constexpr auto kHigh = Priority::kHigh, kMedium = Priority::kMedium, kLow = Priority::kLow;

struct Done final : Sink {
  void finished(SlicePtr, Result<> outcome) override {
    if (!outcome) ++failed;
    ++count;
  }
  std::atomic<uint64_t> count{0}, failed{0};
};

NicInflight::Config alone() {
  NicInflight::Config out;
  out.shared = false;
  return out;
}

struct Bench {
  ManualClock clock;
  Done done;
  std::shared_ptr<Peer> peer = std::make_shared<Peer>();
  std::atomic<bool> cancelled{false};
  NicInflight nic_inflight{alone()};
  RailQueue queue, other;  // two peers behind one NIC

  Bench() : queue(done, clock, config(), peer), other(done, clock, config(), peer) {
    clock.advance(1h);
    for (RailQueue* q : {&queue, &other})
      q->add_rail({"eth0", "remote", -1, true}, [](const AttemptPtr&) {});
  }
  ~Bench() {
    for (RailQueue* q : {&queue, &other}) q->close({Code::kUnavailable, "over"}, true);
  }
  RailQueue::Config config() {
    RailQueue::Config out;
    out.nic_inflight = &nic_inflight;
    return out;
  }
  SlicePtr slice(Priority p, uint64_t bytes) {
    auto s = std::make_unique<Slice>();
    s->local = reinterpret_cast<std::byte*>(0x1000);
    s->piece = {0, 0, bytes, 1, 0, 0};
    s->cancelled = &cancelled;
    s->peer = peer;
    s->priority = p;
    return s;
  }
  AttemptPtr pull(RailQueue& q) { return q.pull(0, {}, RailQueue::Wait::kNo); }
};

}  // namespace

TEST_SUITE("rail queue and classes") {
  TEST_CASE("high work overtakes what is queued") {
    Bench b;
    b.queue.push(b.slice(kLow, 64 * kKiB));
    b.queue.push(b.slice(kLow, 64 * kKiB));
    auto first = b.pull(b.queue);
    b.queue.push(b.slice(kHigh, 64 * kKiB));
    auto second = b.pull(b.queue);
    REQUIRE(first);
    REQUIRE(second);
    CHECK(second->slice->priority == kHigh);
    b.queue.complete(first, {});
    b.queue.complete(second, {});
  }

  TEST_CASE("alone, a large slice goes as one; beside high work in two small pieces at a time") {
    Bench b;
    b.queue.push(b.slice(kLow, 1 * kMiB));
    auto whole = b.pull(b.queue);
    REQUIRE(whole);
    CHECK(whole->piece.bytes == 1 * kMiB);
    b.queue.complete(whole, {});
    CHECK(b.done.count == 1);

    b.queue.push(b.slice(kHigh, 64 * kKiB));
    auto high = b.pull(b.queue);
    b.queue.push(b.slice(kLow, 1 * kMiB));
    auto one = b.pull(b.queue), two = b.pull(b.queue);
    REQUIRE(two);
    CHECK(one->piece.bytes + two->piece.bytes <= 80 * kKiB);
    CHECK(b.pull(b.queue) == nullptr);
    b.queue.complete(high, {});
    CHECK(b.pull(b.queue) == nullptr);
    b.queue.complete(one, {});
    auto three = b.pull(b.queue);
    REQUIRE(three);
    for (const auto& a : {two, three}) b.queue.complete(a, {});
    b.clock.advance(1s);  // no high work for long
    auto rest = b.pull(b.queue);
    REQUIRE(rest);
    CHECK(one->piece.bytes + two->piece.bytes + three->piece.bytes + rest->piece.bytes == 1 * kMiB);
    b.queue.complete(rest, {});
    CHECK(b.done.count == 3);
    CHECK(b.done.failed == 0);
  }

  TEST_CASE("high work to one peer holds back low work to another behind the same NIC") {
    Bench b;
    b.other.push(b.slice(kHigh, 64 * kKiB));
    auto high = b.pull(b.other);
    b.queue.push(b.slice(kLow, 1 * kMiB));
    b.other.push(b.slice(kLow, 1 * kMiB));
    auto one = b.pull(b.queue), two = b.pull(b.other);
    REQUIRE(two);
    CHECK(b.pull(b.queue) == nullptr);
    CHECK(b.pull(b.other) == nullptr);
    b.queue.push(b.slice(kHigh, 64 * kKiB));
    auto again = b.pull(b.queue);
    REQUIRE(again);
    CHECK(again->slice->priority == kHigh);
    for (const auto& a : {high, two}) b.other.complete(a, {});
    for (const auto& a : {one, again}) b.queue.complete(a, {});
  }

  TEST_CASE("high bytes that went past the queue hold back low work, and teach the latency") {
    Bench b;
    CHECK(b.queue.free_for(0, 64, kHigh, {}));
    b.queue.carried(0, 64, kHigh, 30us, b.clock.now());
    const RailView seen = b.queue.view()[0];
    CHECK(seen.latency == 30us);
    CHECK(seen.slices == 1);
    CHECK(seen.bytes == 64);
    b.other.push(b.slice(kLow, 1 * kMiB));
    const auto one = b.pull(b.other), two = b.pull(b.other);
    REQUIRE(two);
    CHECK(one->piece.bytes + two->piece.bytes <= 80 * kKiB);
    CHECK(b.pull(b.other) == nullptr);
    for (const auto& a : {one, two}) b.other.complete(a, {});
  }

  TEST_CASE("a reserved connection is kept free for high work while there is any") {
    Bench b;
    const RailQueue::Limits reserved{.reserved = true};
    b.queue.push(b.slice(kLow, 64 * kKiB));
    auto low = b.queue.pull(0, reserved, RailQueue::Wait::kNo);
    REQUIRE(low);  // no high work about
    b.queue.complete(low, {});

    b.other.push(b.slice(kHigh, 64 * kKiB));
    auto high = b.pull(b.other);
    b.other.complete(high, {});
    b.queue.push(b.slice(kLow, 64 * kKiB));
    CHECK(b.queue.pull(0, reserved, RailQueue::Wait::kNo) == nullptr);
    b.queue.push(b.slice(kHigh, 64 * kKiB));
    high = b.queue.pull(0, reserved, RailQueue::Wait::kNo);
    REQUIRE(high);
    CHECK(high->slice->priority == kHigh);
    b.queue.complete(high, {});
    b.clock.advance(1s);
    low = b.queue.pull(0, reserved, RailQueue::Wait::kNo);
    REQUIRE(low);
    b.queue.complete(low, {});
    CHECK(b.done.count == 4);
  }

  TEST_CASE("a caller carries its short slice past what waits only if the slice is high") {
    Bench b;
    for (int i = 0; i < 2; ++i) b.queue.push(b.slice(kLow, 64 * kKiB));
    CHECK(b.queue.push_or_carry(b.slice(kMedium, 4 * kKiB), 0) == nullptr);
    auto high = b.queue.push_or_carry(b.slice(kHigh, 4 * kKiB), 0);
    REQUIRE(high);
    CHECK(high->slice->priority == kHigh);
    CHECK(high->piece.bytes == 4 * kKiB);
    b.queue.complete(high, {});
    b.queue.push(b.slice(kHigh, 4 * kKiB));
    CHECK(b.queue.push_or_carry(b.slice(kHigh, 4 * kKiB), 0) == nullptr);
    while (auto a = b.pull(b.queue)) b.queue.complete(a, {});
    CHECK(b.done.count == 6);
    CHECK(b.done.failed == 0);
  }

  TEST_CASE("what failed or was cancelled is in flight no more") {
    Bench b;
    b.queue.push(b.slice(kMedium, 64 * kKiB));
    auto a = b.pull(b.queue);
    b.queue.complete(a, fail(Code::kStale, "moved"));
    b.queue.push(b.slice(kMedium, 64 * kKiB));
    a = b.pull(b.queue);
    b.cancelled = true;
    b.queue.tick();
    CHECK(a->recalled.load());
    b.queue.complete(a, fail(Code::kUnavailable, "recalled"));
    CHECK(b.done.failed == 2);
    const auto view = b.nic_inflight.view(b.clock.now());
    for (const uint64_t n : view[0].inflight) CHECK(n == 0);
  }

  TEST_CASE("threads of two peers, all classes: everything is answered, nothing stays in flight") {
    SteadyClock clock;
    Done done;
    auto peer = std::make_shared<Peer>();
    std::atomic<bool> cancelled{false};
    NicInflight nic_inflight(alone());
    RailQueue::Config config;
    config.nic_inflight = &nic_inflight;
    RailQueue queues[2] = {{done, clock, config, peer}, {done, clock, config, peer}};
    std::vector<std::thread> threads;
    for (RailQueue& q : queues) {
      q.add_rail({"eth0", "remote", -1, true}, [](const AttemptPtr&) {});
      for (int t = 0; t < 2; ++t)
        threads.emplace_back([&q] {
          while (auto a = q.pull(0, {}, RailQueue::Wait::kYes)) q.complete(a, {});
        });
    }
    constexpr uint64_t kSlices = 600;
    Random random(3);
    for (uint64_t i = 0; i < kSlices; ++i) {
      auto s = std::make_unique<Slice>();
      s->local = reinterpret_cast<std::byte*>(0x1000);
      s->piece = {0, i, 1 + random.below(kMiB), 1, 0, 0};
      s->cancelled = &cancelled;
      s->peer = peer;
      s->priority = static_cast<Priority>(random.below(3));
      queues[i % 2].push(std::move(s));
    }
    for (const Time end = clock.now() + 60s; done.count < kSlices && clock.now() < end;)
      std::this_thread::yield();
    for (RailQueue& q : queues) q.close({Code::kUnavailable, "over"}, true);
    for (auto& t : threads) t.join();
    CHECK(done.count == kSlices);
    CHECK(done.failed == 0);
    const auto view = nic_inflight.view(clock.now());
    for (const uint64_t n : view[0].inflight) CHECK(n == 0);
  }
}

}  // namespace mc::xfer
