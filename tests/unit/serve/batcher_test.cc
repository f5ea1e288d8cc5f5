#include "serve/batch/batcher.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/random.h"

namespace mc::serve {
namespace {

using namespace std::chrono_literals;

// 1 ms a token of prefill; a step: 10 ms, 1 ms for each further request, 1 ms for 100 tokens.
Timing round_numbers() {
  Timing t{cost::tiny(), 1};
  t.spec.cost = {.c1 = 1e-3, .load_bytes_per_s = 1e12, .t0 = 10e-3, .t1 = 1e-3, .t2 = 1e-5};
  return t;
}

PrefillQueue queue_of(uint32_t chunk = 64, PrefillOrder order = {}) {
  auto q = PrefillQueue::create(round_numbers(), chunk, 16, order);
  REQUIRE(q);
  return std::move(*q);
}

bool about(Duration a, Duration b) { return a - b < 10us && b - a < 10us; }

}  // namespace

TEST_CASE("prefill queue: chunks must be whole blocks") {
  CHECK(!PrefillQueue::create(round_numbers(), 0, 16));
  CHECK(!PrefillQueue::create(round_numbers(), 24, 16));
  CHECK(!PrefillQueue::create(round_numbers(), 24, 0));
  CHECK(PrefillQueue::create(round_numbers(), 32, 16));
  CHECK(!PrefillQueue::create(round_numbers(), 32, 16, {true, -1}));
}

// The order in which prompts leave a queue that is full at `now`.
std::string order_of(PrefillQueue& q, Time now) {
  std::string order;
  while (auto c = q.next(now)) {
    if (c->first) order += c->request;
    q.finished();
  }
  return order;
}

TEST_CASE("prefill queue: srpf takes the prompt with the least left to compute, minus its age") {
  const auto fill = [](PrefillQueue& q) {
    q.push("a", 200, 0, Time{});
    q.push("b", 190, 150, Time{});  // 40 left
    q.push("c", 60, 0, Time{});
  };
  PrefillQueue q = queue_of(64, {true, 0.1});
  fill(q);
  CHECK(order_of(q, Time{}) == "bca");
  PrefillQueue fcfs = queue_of(64);
  fill(fcfs);
  CHECK(order_of(fcfs, Time{}) == "abc");
  // Two seconds of waiting outweigh 200 ms of computing; one second does not.
  PrefillQueue aged = queue_of(64, {true, 0.1});
  aged.push("a", 200, 0, Time{});
  aged.push("b", 10, 0, Time{} + 1s);
  CHECK(order_of(aged, Time{} + 1s) == "ba");
  aged.push("a", 200, 0, Time{});
  aged.push("b", 10, 0, Time{} + 2s);
  CHECK(order_of(aged, Time{} + 2s) == "ab");
}

TEST_CASE("prefill queue: prompts of a conductor are in the order of its decisions") {
  PrefillQueue q = queue_of(64);
  const auto push = [&](const char* request, const char* conductor, uint64_t number) {
    q.push(request, 10, 0, Time{}, 0, {conductor, number});
  };
  push("b", "x", 2);
  push("d", "x", 4);
  CHECK(about(q.queue_time(Time{}, 10, 0, 0, {"x", 3}), 10ms));
  CHECK(about(q.queue_time(Time{}, 10, 0, 0, {"x", 1}), 0ms));
  CHECK(about(q.queue_time(Time{}, 10, 0, 0, {"y", 1}), 20ms));
  CHECK(about(q.queue_time(Time{}, 10, 0, 0), 20ms));
  push("c", "x", 3);
  push("a", "x", 1);
  push("y", "y", 1);  // of another: behind those that came before
  push("z", "", 0);
  CHECK(order_of(q, Time{}) == "abcdyz");
  // With srpf it is as old as the one that it goes before.
  PrefillQueue aged = queue_of(64, {true, 0.1});
  aged.push("b", 100, 0, Time{}, 0, {"x", 2});
  aged.push("a", 100, 0, Time{} + 1s, 0, {"x", 1});
  CHECK(order_of(aged, Time{} + 1s) == "ab");
}

TEST_CASE("prefill queue: an urgent prompt waits for one chunk of the long one, not for all") {
  PrefillQueue q = queue_of(1024);
  q.push("long", 128 * 1024, 0, Time{}, 1);
  REQUIRE(q.next(Time{})->request == "long");
  // Predicted as it comes: the rest of the chunk, then its own.
  CHECK(about(q.queue_time(Time{} + 1s, 100, 0, 0), 24ms));
  CHECK(q.queue_time(Time{} + 1s, 100, 0, 1) > 100s);
  q.push("urgent", 100, 0, Time{} + 1s, 0);
  CHECK(q.head(Time{} + 1s) == nullptr);  // a chunk runs
  q.finished();
  CHECK(q.next(Time{} + 1024ms)->request == "urgent");
  q.finished();
  const auto on = q.next(Time{} + 1124ms);
  CHECK(on->request == "long");
  CHECK(on->begin == 1024);
  CHECK_FALSE(on->first);
}

TEST_CASE("prefill queue: with srpf a short prompt goes between two chunks, equals run in turn") {
  PrefillQueue q = queue_of(64, {true, 0.1});
  q.push("a", 200, 0, Time{});
  CHECK(q.next(Time{})->request == "a");
  q.push("b", 10, 0, Time{});
  q.push("c", 136, 0, Time{});  // as much as `a` has left: that came first
  CHECK(about(q.queue_time(Time{}, 10, 0, 0), 74ms));
  q.finished();
  CHECK(q.next(Time{})->request == "b");
  q.finished();
  for (const char* who : {"a", "a", "a", "c"}) {
    CHECK(q.next(Time{})->request == who);
    q.finished();
  }
  PrefillQueue fcfs = queue_of(64);
  fcfs.push("a", 200, 0, Time{});
  CHECK(fcfs.next(Time{})->request == "a");
  fcfs.push("b", 10, 0, Time{});
  fcfs.finished();
  CHECK(fcfs.next(Time{})->request == "a");
}

TEST_CASE(
    "prefill queue: while one prompt is loaded others compute, and only those that are loaded") {
  PrefillQueue q = queue_of();
  q.push("a", 64, 0, Time{});
  q.push("b", 64, 0, Time{});
  q.set_ready("a", false);  // its KV is on its way
  CHECK(q.head(Time{})->request == "b");
  CHECK(q.head(Time{}, false) == nullptr);
  q.set_loaded("b");
  CHECK(q.head(Time{}, false)->request == "b");
  CHECK(q.next(Time{}, false)->request == "b");
  q.set_loaded("a");
  q.set_ready("a", true);
  q.finished();
  CHECK(q.next(Time{}, false)->request == "a");
}

TEST_CASE("prefill queue: prompts run in turn from their reused prefix, the last chunk shorter") {
  PrefillQueue q = queue_of();
  q.push("a", 150, 16, Time{});
  q.push("b", 10, 0, Time{});
  std::vector<PrefillChunk> chunks;
  while (auto c = q.next(Time{})) {
    CHECK(!q.next(Time{}));  // one at a time
    chunks.push_back(*c);
    q.finished();
  }
  REQUIRE(chunks.size() == 4);
  CHECK(chunks[0].begin == 16);
  CHECK(chunks[0].first);
  CHECK(!chunks[0].last);
  CHECK(chunks[1].begin == 80);
  CHECK(chunks[2].begin == 144);
  CHECK(chunks[2].end == 150);
  CHECK(chunks[2].last);
  CHECK(about(chunks[2].predicted, 6ms));
  CHECK(chunks[3].request == "b");
  CHECK(chunks[3].first);
  CHECK(chunks[3].last);
  CHECK(q.size() == 0);
}

TEST_CASE("prefill queue: a prompt goes on behind what others computed of it meanwhile") {
  PrefillQueue q = queue_of();
  q.push("a", 300, 0, Time{});
  q.push("b", 300, 16, Time{});
  REQUIRE(q.next(Time{}));
  q.finished();
  q.skip_to("a", 256);
  q.skip_to("b", 288);
  CHECK(q.queued_tokens() == 44 + 12);
  const auto a = q.next(Time{});
  REQUIRE(a);
  CHECK((a->begin == 256 && a->end == 300 && !a->first && a->last));
  q.finished();
  const auto b = q.next(Time{});
  REQUIRE(b);
  CHECK((b->begin == 288 && b->end == 300 && b->first && b->last));
}

TEST_CASE("prefill queue: queue time is the rest of the running chunk and all waiting prompts") {
  PrefillQueue q = queue_of();
  q.push("a", 100, 0, Time{});
  q.push("b", 50, 0, Time{});
  CHECK(about(q.queue_time(Time{}), 150ms));
  REQUIRE(q.next(Time{}));
  CHECK(about(q.queue_time(Time{} + 10ms), 140ms));
  CHECK(about(q.queue_time(Time{} + 10s), 86ms));  // later than thought: nothing below zero
  CHECK(q.queued_tokens() == 150);
  q.finished();
  CHECK(q.queued_tokens() == 86);
  q.set_reused("b", 48);
  CHECK(q.queued_tokens() == 38);
  q.set_reused("a", 96);  // it has begun: too late
  CHECK(q.queued_tokens() == 38);
}

TEST_CASE(
    "prefill queue: a lower priority number goes first, and a prompt that is not ready waits") {
  PrefillQueue q = queue_of();
  q.push("a", 64, 0, Time{}, 1);
  q.push("b", 32, 0, Time{});
  q.push("c", 16, 0, Time{});
  q.set_ready("b", false);
  // A prompt of 10 tokens waits only for those that it does not overtake.
  CHECK(about(q.queue_time(Time{}, 10, 0, 0), 48ms));
  CHECK(about(q.queue_time(Time{}, 10, 0, 1), 112ms));
  CHECK(q.queue_time(Time{}, 10, 0, -1).count() == 0);
  CHECK(order_of(q, Time{}).substr(0, 2) == "ca");
  CHECK(q.head(Time{}) == nullptr);
  CHECK(!q.next(Time{}));
  CHECK(q.size() == 1);
  q.set_ready("b", true);
  CHECK(q.head(Time{})->request == "b");
  PrefillQueue srpf = queue_of(64, {true, 0});
  srpf.push("a", 64, 0, Time{});
  srpf.push("b", 32, 0, Time{});
  CHECK(about(srpf.queue_time(Time{}, 40, 0, 0), 32ms));
  CHECK(about(srpf.queue_time(Time{}, 40, 30, 0), 0ms));
}

TEST_CASE("prefill queue: a request that is removed while its chunk runs does not come back") {
  PrefillQueue q = queue_of();
  q.push("a", 200, 0, Time{});
  q.push("b", 10, 0, Time{});
  REQUIRE(q.next(Time{}));
  CHECK(q.remove("a"));
  CHECK(!q.remove("a"));
  CHECK(q.running());
  q.push("a", 64, 0, Time{});  // the same name again, queued behind
  q.finished();
  CHECK(q.next(Time{})->request == "b");
  q.finished();
  CHECK(q.next(Time{})->request == "a");
  CHECK(q.remove("a"));
  q.finished();
  CHECK(q.size() == 0);
  CHECK(q.queue_time(Time{}).count() == 0);
}

TEST_CASE("decode batch: only requests with their KV join, in the order they became ready") {
  DecodeBatch d(round_numbers(), {});
  for (const char* r : {"a", "b", "c"}) REQUIRE(d.wait(r, 100, Time{} + 1s));
  CHECK(d.wait("a", 1, Time{}).error().code == Code::kExists);
  CHECK(d.admit().empty());
  CHECK(d.kv_arrived("c"));
  CHECK(d.kv_arrived("a"));
  CHECK(!d.kv_arrived("a"));
  CHECK(!d.kv_arrived("nobody"));
  CHECK(d.admit() == std::vector<std::string>{"c", "a"});
  CHECK(d.state("b") == DecodeState::kWaitingForKv);
  CHECK(about(d.step_time(), 13ms));
  CHECK(about(d.step_time_all(), 15ms));
  d.advanced("a", 100);
  CHECK(about(d.step_time(), 14ms));
  CHECK(d.remove("a"));
  CHECK(!d.state("a"));
  CHECK(about(d.step_time(), 11ms));
}

TEST_CASE("decode batch: admission keeps the predicted step within the SLO") {
  DecodeBatch d(round_numbers(), {.tbt_slo = 14900us, .batch_max = 0});
  REQUIRE(d.wait("huge", 10'000, Time{} + 1s));
  REQUIRE(d.wait("one", 100, Time{} + 1s));
  REQUIRE(d.wait("two", 100, Time{} + 1s));
  REQUIRE(d.wait("three", 100, Time{} + 1s));
  for (const char* r : {"huge", "one", "two", "three"}) d.kv_arrived(r);
  CHECK(d.admit() == std::vector<std::string>{"huge"});  // alone: else it would never run
  CHECK(d.admit().empty());
  d.remove("huge");
  CHECK(d.admit() == std::vector<std::string>{"one", "two"});  // 13 ms; a third makes 15
  d.advanced("one", 1);
  CHECK(d.ready() == 1);
  d.remove("two");
  CHECK(d.admit() == std::vector<std::string>{"three"});
}

TEST_CASE("decode batch: batch_max bounds the number of requests") {
  DecodeBatch d(round_numbers(), {.tbt_slo = {}, .batch_max = 2});
  for (const char* r : {"a", "b", "c"}) {
    REQUIRE(d.wait(r, 1, Time{}));
    d.kv_arrived(r);
  }
  CHECK(d.admit().size() == 2);
  d.remove("a");
  CHECK(d.admit() == std::vector<std::string>{"c"});
}

TEST_CASE("decode batch: a preempted request leaves the batch, and is the next to join again") {
  DecodeBatch b(round_numbers(), {0ms, 2});
  for (const char* r : {"a", "b", "c"}) {
    CHECK(b.wait(r, 100, Time::max()));
    CHECK_FALSE(b.preempt(r));  // its KV is not here
    CHECK(b.kv_arrived(r));
  }
  CHECK(b.admit().size() == 2);
  CHECK(b.preempt("b"));
  CHECK_FALSE(b.preempt("b"));
  CHECK(b.state("b") == DecodeState::kPreempted);
  CHECK(b.batch() == std::vector<std::string>{"a"});
  CHECK(b.context_tokens() == 100);
  CHECK(b.preempted() == 1);
  CHECK(b.step_time_all() == round_numbers().step(3, 300));  // the conductor plans with it
  CHECK(b.preempt("c"));                                     // it was ready
  CHECK(b.admit().empty());
  CHECK(b.restored("c"));
  CHECK(b.restored("b"));
  CHECK_FALSE(b.restored("b"));
  CHECK(b.admit() == std::vector<std::string>{"b"});
  CHECK(b.preempt("b"));
  CHECK(b.remove("b"));
  CHECK(b.preempted() == 0);
  CHECK(b.admit() == std::vector<std::string>{"c"});
  CHECK(b.context_tokens() == 200);
}

TEST_CASE("decode batch: a request whose KV is late ends, one whose KV is here does not") {
  DecodeBatch d(round_numbers(), {});
  REQUIRE(d.wait("late", 1, Time{} + 2s));
  REQUIRE(d.wait("here", 1, Time{} + 1s));
  CHECK(d.deadline() == Time{} + 1s);
  CHECK(d.kv_arrived("here"));
  CHECK(d.deadline() == Time{} + 2s);
  CHECK(d.expire(Time{} + 1999ms).empty());
  CHECK(d.expire(Time{} + 2s) == std::vector<std::string>{"late"});
  CHECK(!d.kv_arrived("late"));
  CHECK(!d.deadline());
  CHECK(d.admit() == std::vector<std::string>{"here"});
}

TEST_CASE("batchers: random operations lose and invent no token and no request") {
  Random random(11);
  PrefillQueue q = queue_of();
  DecodeBatch d(round_numbers(), {.tbt_slo = 20ms, .batch_max = 5});
  std::map<std::string, uint64_t> left;  // prompts not computed, tokens to go
  std::map<std::string, uint64_t> context;
  Time now{};
  uint64_t made = 0;
  for (int i = 0; i < 20'000; ++i) {
    now += 1ms;
    const uint64_t what = random.below(8);
    const std::string any =
        context.empty()
            ? ""
            : std::next(context.begin(), static_cast<std::ptrdiff_t>(random.below(context.size())))
                  ->first;
    if (what == 0 && left.size() < 20) {
      const uint64_t n = 1 + random.below(300), reused = random.below(n);
      const std::string name = "r" + std::to_string(++made);
      q.push(name, n, reused, Time{});
      REQUIRE(d.wait(name, n, now + Duration(random.below(100'000'000))));
      left[name] = n - reused;
      context[name] = n;
    } else if (what <= 3 && !q.running()) {
      if (const auto c = q.next(now)) {
        REQUIRE(left.at(c->request) >= c->end - c->begin);
        left[c->request] -= c->end - c->begin;
        REQUIRE(c->last == (left[c->request] == 0));
        q.finished();
        if (c->last) d.kv_arrived(c->request);
        if (c->last) left.erase(c->request);
      }
    } else if (what == 4 && !any.empty() && random.chance(0.3)) {
      REQUIRE(q.remove(any) == left.contains(any));
      REQUIRE(d.remove(any));
      left.erase(any);
      context.erase(any);
    } else if (what == 5) {
      for (const auto& late : d.expire(now)) {
        REQUIRE(context.erase(late) == 1);
        q.remove(late);
        left.erase(late);
      }
    } else {
      d.admit();
      for (const std::string& r : d.batch()) {
        d.advanced(r);
        ++context[r];
      }
    }
    uint64_t tokens = 0, running = 0;
    for (const auto& [name, n] : left) tokens += n;
    for (const std::string& r : d.batch()) running += context.at(r);
    REQUIRE(q.queued_tokens() == tokens);
    REQUIRE(q.size() == left.size());
    REQUIRE(d.context_tokens() == running);
    REQUIRE(d.waiting_for_kv() + d.ready() + d.batch().size() == context.size());
    REQUIRE(d.batch().size() <= 5);
  }
  CHECK(made > 1000);
}

}  // namespace mc::serve
