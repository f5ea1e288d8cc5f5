#include "xfer/rails/rail_queue.h"

#include <doctest/doctest.h>

#include <map>
#include <thread>

#include "base/random.h"

namespace mc::xfer {

namespace rail_queue_test {

namespace {

constexpr uint64_t kBytes = 64 * kKiB;

struct Done final : Sink {
  void finished(SlicePtr slice, Result<> outcome) override {
    Lock lock(mutex);
    digests.push_back(slice->digest);
    outcomes.emplace_back(slice->piece.remote, std::move(outcome));
    all.notify_all();
  }
  size_t count() {
    Lock lock(mutex);
    return outcomes.size();
  }
  std::vector<std::pair<uint64_t, Result<>>> ended() {
    Lock lock(mutex);
    return outcomes;
  }
  Mutex mutex;
  Condition all;
  std::optional<uint64_t> digest(size_t i) {
    Lock lock(mutex);
    return digests.at(i);
  }
  std::vector<std::pair<uint64_t, Result<>>> outcomes MC_GUARDED_BY(mutex);
  std::vector<std::optional<uint64_t>> digests MC_GUARDED_BY(mutex);
};

// A queue with rails whose connections are the test's hand.
struct Bench {
  ManualClock clock;
  Done done;
  std::shared_ptr<Peer> peer = std::make_shared<Peer>();
  std::atomic<bool> cancelled{false};
  std::vector<AttemptPtr> recalled;
  RailQueue queue;

  explicit Bench(size_t rails, RailQueue::Config config = {})
      : queue(done, clock, config, named(peer)) {
    for (size_t i = 0; i < rails; ++i)
      queue.add_rail({"l" + std::to_string(i), "r" + std::to_string(i), -1, true},
                     [this](const AttemptPtr& a) { recalled.push_back(a); });
  }
  ~Bench() { queue.close({Code::kUnavailable, "over"}, true); }
  static PeerPtr named(const std::shared_ptr<Peer>& p) {
    p->descriptor.node = "peer";
    return p;
  }
  void push(uint64_t offset, uint64_t bytes = kBytes, Op op = Op::kRead) {
    queue.push(slice(offset, bytes, op));
  }
  SlicePtr slice(uint64_t offset, uint64_t bytes = kBytes, Op op = Op::kRead) const {
    auto s = std::make_unique<Slice>();
    s->op = op;
    s->local = reinterpret_cast<std::byte*>(0x1000);
    s->piece = {0, offset, bytes, 1, 0, 0};
    s->cancelled = &cancelled;
    s->peer = peer;
    return s;
  }
  AttemptPtr pull(RailIndex r, RailQueue::Limits limits = {}) {
    return queue.pull(r, limits, RailQueue::Wait::kNo);
  }
  // From whichever rail takes it.
  AttemptPtr pull_any() {
    for (RailIndex r = 0; r < queue.view().size(); ++r)
      if (auto a = pull(r)) return a;
    return nullptr;
  }
  void pass(Duration d) { clock.advance(d); }
};

Result<> broken() { return fail(Code::kUnavailable, "connection reset"); }

using std::chrono::milliseconds;

}  // namespace

TEST_SUITE("rail queue") {
  TEST_CASE("a slice is answered once, when its attempt comes back") {
    Bench b(2);
    b.push(7);
    auto a = b.pull_any();
    REQUIRE(a);
    CHECK(a->piece.remote == 7);
    CHECK(b.pull_any() == nullptr);
    CHECK(b.done.count() == 0);
    b.pass(milliseconds(1));
    b.queue.complete(a, {});
    REQUIRE(b.done.count() == 1);
    CHECK(b.done.ended()[0].second.has_value());
    CHECK(b.queue.idle());
  }

  TEST_CASE("what failed on one rail goes to the other, and the error is held against the first") {
    Bench b(2);
    b.push(0);
    auto a = b.pull_any();
    const RailIndex first = a->rail;
    b.queue.complete(a, broken());
    CHECK(b.done.count() == 0);
    CHECK(b.pull(first) == nullptr);
    auto again = b.pull(1 - first);
    REQUIRE(again);
    b.queue.complete(again, {});
    CHECK(b.done.ended()[0].second.has_value());
    CHECK(b.queue.view()[first].errors == 1);
    CHECK(b.queue.view()[first].state == RailState::kSuspect);
  }

  TEST_CASE("an error of the request's own ends it at once and no rail is blamed") {
    Bench b(2);
    b.push(0);
    auto a = b.pull_any();
    b.queue.complete(a, fail(Code::kStale, "another owner"));
    REQUIRE(b.done.count() == 1);
    CHECK(b.done.ended()[0].second.error().code == Code::kStale);
    CHECK(b.queue.view()[a->rail].errors == 0);
  }

  TEST_CASE("several are queued together, and completed together, each with its own outcome") {
    constexpr uint64_t kFew = 4 * kKiB;
    Bench b(1);
    std::vector<SlicePtr> slices;
    for (uint64_t i = 0; i < 4; ++i) slices.push_back(b.slice(i * kFew, kFew));
    b.queue.push(slices);
    std::vector<RailQueue::Ended> ended;
    for (AttemptPtr& a : b.queue.pull_some(0, {}, 3, kBytes)) ended.push_back({a, {}});
    REQUIRE(ended.size() == 3);
    ended[1].attempt->reached = true;
    ended[1].outcome = broken();
    ended[2].outcome = fail(Code::kStale, "another owner");
    b.queue.complete(ended);
    REQUIRE(b.done.count() == 2);
    const auto outcomes = b.done.ended();
    CHECK(outcomes[0].first == 0);
    CHECK(outcomes[0].second.has_value());
    CHECK(outcomes[1].first == 2 * kFew);
    CHECK(outcomes[1].second.error().code == Code::kStale);
    const auto again = b.pull(0);  // the one that broke, before what waited longer
    REQUIRE(again);
    CHECK(again->piece.remote == kFew);
    b.queue.complete(again, {});
    CHECK(b.done.count() == 3);
  }

  TEST_CASE("what is pushed together after the end comes back, each once") {
    Bench b(1);
    b.queue.close({Code::kUnavailable, "over"}, true);
    std::vector<SlicePtr> slices;
    for (uint64_t i = 0; i < 3; ++i) slices.push_back(b.slice(i * kBytes));
    b.queue.push(slices);
    REQUIRE(b.done.count() == 3);
    for (const auto& [offset, outcome] : b.done.ended())
      CHECK(outcome.error().code == Code::kUnavailable);
  }

  TEST_CASE("when no rail is left the slice fails, naming the peer and the last error") {
    Bench b(2);
    b.push(0);
    while (auto a = b.pull_any()) b.queue.complete(a, broken());
    REQUIRE(b.done.count() == 1);
    CHECK(b.done.ended()[0].second.error().what == "peer: connection reset");
  }

  TEST_CASE("an only rail is tried again when the peer had been reached, not when it had not") {
    Bench b(1);
    b.push(0);
    int tries = 0;
    while (auto a = b.pull(0)) {
      a->reached = true;
      ++tries;
      b.queue.complete(a, broken());
    }
    CHECK(tries == 3);
    b.push(1);
    b.queue.complete(b.pull(0), broken());
    CHECK(b.done.count() == 2);
  }

  TEST_CASE(
      "an overdue attempt is hedged on another rail; the loser is recalled before the answer") {
    Bench b(2);
    b.push(0);
    auto slow = b.pull_any();
    b.pass(milliseconds(30));
    b.queue.tick();
    auto quick = b.pull(1 - slow->rail);
    REQUIRE(quick);
    CHECK(quick->slice == slow->slice);
    b.queue.complete(quick, {});
    CHECK(slow->recalled.load());
    CHECK(b.recalled == std::vector<AttemptPtr>{slow});
    CHECK(b.done.count() == 0);  // the loser may still move bytes
    b.queue.complete(slow, fail(Code::kUnavailable, "recalled"));
    REQUIRE(b.done.count() == 1);
    CHECK(b.done.ended()[0].second.has_value());
    CHECK(b.queue.view()[slow->rail].errors == 0);
  }

  TEST_CASE("a guarded read whose loser did not look at the guard is read again, by one attempt") {
    const auto hedged = [](Bench& b) {
      SlicePtr guarded = b.slice(0);
      guarded->guard.offset = 64;
      b.queue.push(std::move(guarded));
      auto slow = b.pull_any();
      b.pass(milliseconds(30));
      b.queue.tick();
      auto quick = b.pull(1 - slow->rail);
      REQUIRE(quick);
      return std::pair(slow, quick);
    };
    for (const bool loser_first : {false, true}) {
      Bench b(2);
      const auto [slow, quick] = hedged(b);
      if (loser_first) b.queue.complete(slow, broken());
      b.queue.complete(quick, {});
      if (!loser_first) b.queue.complete(slow, fail(Code::kUnavailable, "recalled"));
      CHECK(b.done.count() == 0);  // the slow one's bytes may be of another object
      auto again = b.pull_any();
      REQUIRE(again);
      CHECK(again->rail == quick->rail);
      b.pass(milliseconds(30));
      b.queue.tick();
      CHECK_FALSE(b.pull(1 - again->rail));
      again->digest = 9;
      b.queue.complete(again, {});
      REQUIRE(b.done.count() == 1);
      CHECK(b.done.ended()[0].second.has_value());
      CHECK(b.done.digest(0) == uint64_t{9});
    }
    Bench stale(2);
    const auto [late, first] = hedged(stale);
    stale.queue.complete(first, {});
    stale.queue.complete(late, fail(Code::kStale, "the guard holds another generation"));
    CHECK(stale.done.count() == 0);
    stale.queue.complete(stale.pull(first->rail), fail(Code::kStale, "it holds another"));
    REQUIRE(stale.done.count() == 1);
    CHECK(stale.done.ended()[0].second.error().code == Code::kStale);
    Bench both(2);  // each looked at the guard after its bytes
    const auto [one, other] = hedged(both);
    both.queue.complete(other, {});
    both.queue.complete(one, {});
    REQUIRE(both.done.count() == 1);
    CHECK(both.done.ended()[0].second.has_value());
  }

  TEST_CASE("a digest is reported for bytes that one rail alone has moved") {
    Bench b(2);
    b.push(0);
    auto alone = b.pull_any();
    alone->digest = 7;
    b.queue.complete(alone, {});
    REQUIRE(b.done.count() == 1);
    CHECK(b.done.digest(0) == uint64_t{7});
    b.push(1);
    auto slow = b.pull_any();
    b.pass(milliseconds(30));
    b.queue.tick();
    auto quick = b.pull(1 - slow->rail);
    REQUIRE(quick);
    quick->digest = 8;
    b.queue.complete(quick, {});
    b.queue.complete(slow, fail(Code::kUnavailable, "recalled"));  // it has moved bytes since
    REQUIRE(b.done.count() == 2);
    CHECK(b.done.ended()[1].second.has_value());
    CHECK_FALSE(b.done.digest(1));
  }

  TEST_CASE("a lost attempt is recalled, held against its rail, and sent again elsewhere") {
    Bench b(2);
    b.push(0);
    auto lost = b.pull_any();
    b.pass(milliseconds(500));
    b.queue.tick();
    CHECK(lost->recalled.load());
    CHECK(b.queue.view()[lost->rail].errors == 1);
    b.queue.complete(lost, fail(Code::kUnavailable, "recalled"));
    auto again = b.pull(1 - lost->rail);
    REQUIRE(again);
    b.queue.complete(again, {});
    CHECK(b.done.ended()[0].second.has_value());
  }

  TEST_CASE("cancelled work is dropped from the queue and recalled from the rails") {
    Bench b(2);
    b.push(0);
    b.push(1);
    auto a = b.pull_any();
    b.cancelled.store(true);
    b.queue.tick();
    CHECK(a->recalled.load());
    CHECK(b.done.count() == 1);
    b.queue.complete(a, fail(Code::kUnavailable, "recalled"));
    CHECK(b.done.count() == 2);
    for (const auto& [offset, outcome] : b.done.ended()) CHECK(!outcome.has_value());
  }

  TEST_CASE("a look at all that waits takes a hundredth of the time at most") {
    struct : Clock {
      mutable Time t{};
      Time now() const override { return t += std::chrono::milliseconds(1); }
    } clock;  // each look takes a millisecond, or several
    Done done;
    const auto peer = std::make_shared<Peer>();
    std::atomic<bool> cancelled{false};
    RailQueue queue(done, clock, {}, Bench::named(peer));
    queue.add_rail({"l", "r", -1, true}, [](const AttemptPtr&) {});
    auto s = std::make_unique<Slice>();
    s->piece = {0, 0, kBytes, 1, 0, 0};
    s->cancelled = &cancelled;
    s->peer = peer;
    queue.push(std::move(s));
    queue.tick();
    cancelled.store(true);
    const Time looked = clock.t;
    while (done.count() == 0 && clock.t - looked < std::chrono::seconds(1)) queue.tick();
    CHECK(clock.t - looked > std::chrono::milliseconds(90));
    CHECK(clock.t - looked < std::chrono::milliseconds(900));
    queue.close({Code::kUnavailable, "over"}, true);
  }

  TEST_CASE("a long slice is cut to what suits the rail, and all of it is moved once") {
    Bench b(2);
    b.push(0, 10 * kMiB + 77);
    std::map<uint64_t, uint64_t> moved;
    uint64_t attempts = 0;
    while (auto a = b.pull_any()) {
      ++attempts;
      CHECK(a->local == reinterpret_cast<std::byte*>(0x1000) + a->piece.remote);
      moved[a->piece.remote] = a->piece.total();
      b.pass(milliseconds(1));
      b.queue.complete(a, {});
    }
    CHECK(attempts > 3);
    uint64_t at = 0;
    for (const auto& [offset, bytes] : moved) {
      CHECK(offset == at);
      at += bytes;
    }
    CHECK(at == 10 * kMiB + 77);
    CHECK(b.done.count() == 1);
  }

  TEST_CASE("one part's own error ends the whole slice, once its other parts are back") {
    Bench b(2);
    b.push(0, 4 * kMiB);
    auto first = b.pull(0), second = b.pull(1);
    REQUIRE(first);
    REQUIRE(second);
    b.queue.complete(first, fail(Code::kStale, "another owner"));
    CHECK(second->recalled.load());
    b.queue.tick();
    CHECK(b.done.count() == 0);
    b.queue.complete(second, fail(Code::kUnavailable, "recalled"));
    REQUIRE(b.done.count() == 1);
    CHECK(b.done.ended()[0].second.error().code == Code::kStale);
  }

  TEST_CASE("a scheduler that binds keeps a slice for its rail, and rebinds it when that fails") {
    RailQueue::Config config;
    config.spray.scheduler = Scheduler::kRoundRobin;
    Bench b(2, config);
    for (uint64_t i = 0; i < 4; ++i) b.push(i * kBytes);
    auto first = b.pull(0), third = b.pull(0);
    REQUIRE(first);
    REQUIRE(third);
    CHECK(first->piece.remote == 0);
    CHECK(third->piece.remote == 2 * kBytes);
    CHECK(b.pull(0) == nullptr);  // though the other rail does nothing
    b.queue.complete(first, broken());
    auto second = b.pull(1), fourth = b.pull(1), again = b.pull(1);
    REQUIRE(again);
    for (const auto& a : {second, third, fourth, again}) b.queue.complete(a, {});
    CHECK(b.done.count() == 4);
    CHECK(b.queue.idle());
  }

  TEST_CASE("connections take what they may: reads and writes apart") {
    Bench b(1);
    b.push(0, kBytes, Op::kWrite);
    CHECK(b.pull(0, {.reads = true, .writes = false}) == nullptr);
    const auto write = b.pull(0, {.reads = false, .writes = true});
    REQUIRE(write != nullptr);
    b.queue.complete(write, {});
  }

  TEST_CASE("with all rails at rest, work waits for one to heal, for the peer's timeout") {
    Bench b(2);
    for (int i = 0; i < 6; ++i) {
      b.push(static_cast<uint64_t>(i));
      while (auto a = b.pull_any()) b.queue.complete(a, broken());
    }
    const size_t before = b.done.count();
    for (const auto& v : b.queue.view()) CHECK(v.state == RailState::kResting);
    b.push(100);
    CHECK(b.pull_any() == nullptr);
    b.pass(milliseconds(300));
    const auto ping = b.queue.tick();
    REQUIRE(ping.size() == 2);
    CHECK(b.queue.tick().empty());  // each once
    for (RailIndex r : ping) b.queue.pinged(r, fail(Code::kTimeout, "silent"));
    b.pass(std::chrono::seconds(4));
    b.queue.tick();
    REQUIRE(b.done.count() > before);
    CHECK(b.queue.idle());
    const std::string what = b.done.ended().back().second.error().what;
    CHECK(what.find("no rail has worked for 3s") != std::string::npos);
    // A rail that heals serves again.
    b.push(101);
    for (int i = 0; i < 2; ++i) b.queue.pinged(0, Duration(1000));
    auto a = b.pull(0);
    REQUIRE(a);
    b.queue.complete(a, {});
    CHECK(b.done.ended().back().second.has_value());
  }

  TEST_CASE("closing fails what is queued and recalls what is out") {
    Bench b(2);
    b.push(0);
    b.push(1);
    auto a = b.pull_any();
    b.queue.close({Code::kUnavailable, "closed"}, true);
    CHECK(b.done.count() == 1);
    CHECK(a->recalled.load());
    b.queue.complete(a, fail(Code::kUnavailable, "recalled"));
    CHECK(b.done.count() == 2);
    b.push(2);
    CHECK(b.done.count() == 3);
  }

  TEST_CASE("many threads, failing rails: every slice is answered exactly once") {
    SteadyClock clock;
    Done done;
    auto peer = std::make_shared<Peer>();
    peer->descriptor.node = "peer";
    std::atomic<bool> cancelled{false};
    RailQueue queue(done, clock, {}, peer);
    for (int i = 0; i < 3; ++i) queue.add_rail({"l", "r", -1, true}, [](const AttemptPtr&) {});
    constexpr uint64_t kSlices = 2000;
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 6; ++t)
      threads.emplace_back([&, t] {
        Random random(t);
        while (auto a = queue.pull(t % 3, {}, RailQueue::Wait::kYes)) {
          a->reached = true;
          Result<> outcome;
          if (a->recalled.load() || random.chance(.02)) outcome = broken();
          queue.complete(a, std::move(outcome));
        }
      });
    std::atomic<bool> ending{false};
    std::thread timer([&] {
      while (!ending.load()) {
        for (RailIndex r : queue.tick()) queue.pinged(r, Duration(1));
        std::this_thread::yield();
      }
    });
    for (uint64_t i = 0; i < kSlices; ++i) {
      auto s = std::make_unique<Slice>();
      s->local = reinterpret_cast<std::byte*>(0x1000);
      s->piece = {0, i, 4096, 1, 0, 0};
      s->cancelled = &cancelled;
      s->peer = peer;
      queue.push(std::move(s));
    }
    {
      Lock lock(done.mutex);
      while (done.outcomes.size() < kSlices) done.all.wait_for(done.mutex, milliseconds(100));
    }
    ending.store(true);
    timer.join();
    queue.close({Code::kUnavailable, "over"}, true);
    for (auto& t : threads) t.join();
    std::map<uint64_t, int> seen;
    for (const auto& [offset, outcome] : done.ended()) ++seen[offset];
    CHECK(seen.size() == kSlices);
    CHECK(done.ended().size() == kSlices);
  }
}

}  // namespace rail_queue_test
}  // namespace mc::xfer
