// A simulated prefill node computes what a live worker's queue chooses, chunk by chunk.
#include "sim/cluster/prefiller.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/random.h"

namespace mc::sim {
namespace prefiller_test {
namespace {

constexpr uint32_t kBlock = 16, kChunk = 64;

struct Ask {
  Time at{};
  uint64_t tokens = 0, reused = 0;
  std::optional<Time> comes;      // KV of it from elsewhere
  uint64_t comes_tokens = 0;      // so much is here then
  std::optional<Duration> loads;  // when its turn has come: from the pool, for so long
  uint64_t loads_tokens = 0;      // so much is here then
  std::optional<Time> leaves;     // it is given up, if it has not ended
};

// Nothing comes or goes at a chunk's end, where which is first would not be known.
std::vector<Ask> asks(uint64_t seed) {
  Random random(seed);
  std::vector<Ask> out;
  uint64_t ms = 0;
  for (int i = 0; i < 60; ++i) {
    ms += random.below(random.chance(0.1) ? 2000 : 200);
    Ask a;
    a.at = Time{} + from_seconds(double(ms) / 1e3 + 1e-4);
    a.tokens = 1 + random.below(random.chance(0.2) ? 1500 : 200);
    a.reused = random.below((a.tokens + kBlock - 1) / kBlock) * kBlock;
    if (random.chance(0.3)) {
      a.comes = a.at + from_seconds(double(random.below(1500)) / 1e3 + 2e-4);
      a.comes_tokens = random.below((a.tokens + kBlock - 1) / kBlock) * kBlock;
    }
    if (random.chance(0.5)) {
      a.loads = from_seconds(double(random.below(2500)) / 1e3 + 5e-5);
      a.loads_tokens = random.below((a.tokens + kBlock - 1) / kBlock) * kBlock;
    }
    if (random.chance(0.3))
      a.leaves = a.at + from_seconds(double(100 + random.below(2000)) / 1e3 + 3e-4);
    out.push_back(a);
  }
  return out;
}

struct Change {  // of the queue
  Time at{};
  enum Kind : uint8_t { kPush, kCame, kRemove } kind;
  uint64_t id;
  bool operator<(const Change& o) const { return at < o.at; }
};

std::vector<Change> changes(const std::vector<Ask>& asks) {
  std::vector<Change> out;
  for (uint64_t id = 0; id < asks.size(); ++id) {
    out.push_back({asks[id].at, Change::kPush, id});
    if (asks[id].comes) out.push_back({*asks[id].comes, Change::kCame, id});
    if (asks[id].leaves) out.push_back({*asks[id].leaves, Change::kRemove, id});
  }
  std::sort(out.begin(), out.end());
  return out;
}

// One millisecond a token, and a fixed cost.
serve::Timing timing() {
  serve::Timing t{cost::tiny(), 1};
  t.spec.cost = {.c0 = 3e-3, .c1 = 1e-3, .load_bytes_per_s = 1e9};
  return t;
}

struct Outcome {
  std::vector<std::pair<uint64_t, Time>> turns;  // whose prompt began or went on
  std::map<uint64_t, Time> ends;
  std::vector<Duration> waits;  // as predicted when a prompt came
  size_t overtaken = 0;
  size_t loading = 0;  // prompts at a time, at most
};

// Loads from the pool, by when they end.
class Loads {
 public:
  Time next() const { return all_.empty() ? Time::max() : all_.begin()->first; }
  size_t size() const { return all_.size(); }
  void begin(uint64_t id, Time until) { all_.emplace(until, id); }
  uint64_t take() {
    const uint64_t id = all_.begin()->second;
    all_.erase(all_.begin());
    return id;
  }
  void drop(uint64_t id) {
    std::erase_if(all_, [&](const auto& load) { return load.second == id; });
  }

 private:
  std::multimap<Time, uint64_t> all_;
};

serve::PrefillQueue live_queue(const serve::PrefillOrder& order) {
  auto queue = serve::PrefillQueue::create(timing(), kChunk, kBlock, order);
  REQUIRE(queue);
  return std::move(*queue);
}

// The queue of a live worker, asked at each chunk as PrefillRun::advance does.
Outcome live(const std::vector<Ask>& asks, const serve::PrefillOrder& order) {
  serve::PrefillQueue queue = live_queue(order);
  Outcome out;
  std::set<uint64_t> gone;
  Loads loads;
  Time chunk_ends = Time::max();
  uint64_t last = UINT64_MAX;
  // As PrefillRun::prepare. False: it has to wait.
  const auto prepare = [&](const serve::PrefillItem& item, Time now) {
    const std::string request = item.request;
    const uint64_t id = std::stoull(request);
    if (!asks[id].loads) {
      queue.set_loaded(request);
      return true;
    }
    queue.set_ready(request, false);
    loads.begin(id, now + *asks[id].loads);
    out.loading = std::max(out.loading, loads.size());
    return false;
  };
  const auto advance = [&](Time now) {
    const auto may_load = [&] { return loads.size() < serve::PrefillQueue::kLoadsMax; };
    const serve::PrefillItem* head = queue.head(now, may_load());
    while (head != nullptr && !head->loaded && !prepare(*head, now))
      head = queue.head(now, may_load());
    if (head == nullptr) return;
    const Duration load = head->started ? Duration{} : timing().load(head->reused);
    const auto chunk = queue.next(now, may_load());
    const uint64_t id = std::stoull(chunk->request);
    chunk_ends = now + load + chunk->predicted;
    if (id != last) out.turns.emplace_back(id, now);
    last = chunk->last ? UINT64_MAX : id;
    if (chunk->last) out.ends[id] = chunk_ends;
  };
  const auto run_until = [&](Time when) {
    while (std::min(chunk_ends, loads.next()) <= when) {
      if (loads.next() < chunk_ends) {
        const Time now = loads.next();
        const uint64_t id = loads.take();
        queue.set_reused(std::to_string(id), asks[id].loads_tokens);
        queue.set_loaded(std::to_string(id));
        queue.set_ready(std::to_string(id), true);
        if (!queue.running()) advance(now);
        continue;
      }
      const Time now = std::exchange(chunk_ends, Time::max());
      queue.finished();
      advance(now);
    }
  };
  for (const Change& c : changes(asks)) {
    run_until(c.at);
    const Ask& a = asks[c.id];
    const std::string request = std::to_string(c.id);
    switch (c.kind) {
      case Change::kPush:
        out.waits.push_back(queue.queue_time(c.at, a.tokens, a.reused, 0));
        queue.push(request, a.tokens, a.reused, c.at);
        if (a.comes) queue.set_ready(request, false);
        break;
      case Change::kCame:
        queue.set_reused(request, a.comes_tokens);
        queue.set_ready(request, true);
        break;
      case Change::kRemove:
        if (queue.remove(request) && last == c.id) last = UINT64_MAX;
        loads.drop(c.id);
        if (out.ends.contains(c.id) && out.ends[c.id] > c.at) out.ends.erase(c.id);
        break;
    }
    if (!queue.running()) advance(c.at);
  }
  run_until(Time::max() - Duration{1});
  return out;
}

Outcome simulated(const std::vector<Ask>& asks, const serve::PrefillOrder& order) {
  Prefiller node(timing(), kChunk, kBlock, order);
  Outcome out;
  Loads loads;
  std::set<uint64_t> prepared;
  uint64_t last = UINT64_MAX;
  const auto prepare = [&](uint64_t id, Time now) {
    if (!prepared.insert(id).second) return true;
    if (!asks[id].loads) {
      node.loaded(id);
      return true;
    }
    node.loads(id);
    loads.begin(id, now + *asks[id].loads);
    out.loading = std::max(out.loading, loads.size());
    return false;
  };
  const auto start = [&](Time now) {
    auto head = node.head(now);
    while (head && !prepare(head->id, now)) head = node.head(now);
    if (!head) return;
    if (head->id != last) out.turns.emplace_back(head->id, now);  // else another had to load first
    last = head->id;
    const uint64_t tokens = asks[head->id].tokens;
    if (head->started) return node.resume(now, head->done);
    node.begin(now, timing().prefill(tokens, head->done));
  };
  const auto run_until = [&](Time when) {
    while (std::min(node.deadline(), loads.next()) <= when) {
      if (loads.next() < node.deadline()) {
        const Time now = loads.next();
        const uint64_t id = loads.take();
        node.came(id, asks[id].loads_tokens, now);
        if (!node.running()) start(now);
        continue;
      }
      const Time now = node.deadline();
      const Prefiller::Outcome outcome = node.tick(now);
      if (outcome == Prefiller::Outcome::kRuns) continue;
      if (outcome == Prefiller::Outcome::kEnded) {
        out.ends[node.runs()] = now;
        last = UINT64_MAX;
      }
      out.overtaken += outcome == Prefiller::Outcome::kOvertaken;
      start(now);
    }
  };
  for (const Change& c : changes(asks)) {
    run_until(c.at);
    const Ask& a = asks[c.id];
    switch (c.kind) {
      case Change::kPush:
        out.waits.push_back(node.queue_time(c.at, a.tokens, a.reused));
        node.push(c.id, a.tokens, a.reused, !a.comes, c.at);
        break;
      case Change::kCame: node.came(c.id, a.comes_tokens, c.at); break;
      case Change::kRemove:
        node.remove(c.id, c.at);
        loads.drop(c.id);
        if (last == c.id) last = UINT64_MAX;
        break;
    }
    if (!node.running()) start(c.at);
  }
  run_until(Time::max() - Duration{1});
  return out;
}

bool about(Duration a, Duration b) {
  return a - b < std::chrono::microseconds(1) && b - a < std::chrono::microseconds(1);
}

}  // namespace

TEST_CASE("a simulated node computes the prompts that a live worker's queue chooses, as long") {
  for (const serve::PrefillOrder& order :
       {serve::PrefillOrder{}, serve::PrefillOrder{true, 0.1}, serve::PrefillOrder{true, 0}}) {
    CAPTURE(order.srpf);
    CAPTURE(order.ageing);
    size_t overtaken = 0, left = 0, loading = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      CAPTURE(seed);
      const std::vector<Ask> these = asks(seed);
      const Outcome want = live(these, order), got = simulated(these, order);
      REQUIRE(got.turns.size() == want.turns.size());
      for (size_t i = 0; i < want.turns.size(); ++i) {
        CHECK(got.turns[i].first == want.turns[i].first);
        CHECK(about(got.turns[i].second - Time{}, want.turns[i].second - Time{}));
      }
      REQUIRE(got.ends.size() == want.ends.size());
      for (const auto& [id, end] : want.ends) {
        REQUIRE(got.ends.contains(id));
        CHECK(about(got.ends.at(id) - Time{}, end - Time{}));
      }
      REQUIRE(got.waits.size() == want.waits.size());
      for (size_t i = 0; i < want.waits.size(); ++i) CHECK(about(got.waits[i], want.waits[i]));
      overtaken += got.overtaken;
      left += these.size() - got.ends.size();
      CHECK(got.loading == want.loading);
      loading = std::max(loading, got.loading);
    }
    CHECK(loading == serve::PrefillQueue::kLoadsMax);
    CHECK(overtaken > (order.srpf ? 200 : 20));
    CHECK(left > 20);
  }
}

TEST_CASE("a prompt goes on behind what others computed of it") {
  Prefiller node(timing(), kChunk, kBlock, {true, 0});
  node.push(1, 640, 0, true, Time{});
  node.begin(Time{}, timing().prefill(640, 0));
  node.push(2, 48, 0, true, Time{} + from_seconds(0.2));
  CHECK(node.deadline() == Time{} + from_seconds(0.003 + 0.256));  // of the fourth chunk
  CHECK(node.tick(node.deadline()) == Prefiller::Outcome::kOvertaken);
  CHECK(node.runs() == 1);
  CHECK(node.done(node.deadline()) == 256);
  const Time then = Time{} + from_seconds(0.259);
  REQUIRE(node.head(then));
  CHECK(node.head(then)->id == 2);
  node.begin(then, timing().prefill(48, 0));
  CHECK(node.tick(node.deadline()) == Prefiller::Outcome::kEnded);
  const Time after = then + timing().prefill(48, 0);
  REQUIRE(node.head(after));
  CHECK(node.head(after)->done == 256);
  CHECK(node.head(after)->started);
  node.resume(after, 512);
  CHECK(about(node.deadline() - after, from_seconds(0.128)));
  CHECK(node.tick(node.deadline()) == Prefiller::Outcome::kEnded);
}

TEST_CASE("chunks are whole blocks, one at least") {
  CHECK(whole_blocks(1024, 512) == 1024);
  CHECK(whole_blocks(1000, 512) == 1024);
  CHECK(whole_blocks(1, 512) == 512);
  CHECK(whole_blocks(0, 512) == 512);
  CHECK(whole_blocks(UINT64_MAX, 512) == 1 << 30);
}

}  // namespace prefiller_test
}  // namespace mc::sim
