// What a prefill worker computes next: chosen anew for each chunk, and never waiting for a load.
#include "base/json.h"
#include "pair.h"

namespace mc::serve {
namespace prefill_order_test {
namespace {

// A pool that has whatever prompts begin with `held`'s first block, and gives it when told to.
class HeldPool final : public KvPool {
 public:
  struct Held {
    ObjectKey key;  // of the first block
    std::vector<std::function<void()>> gets;
  };
  HeldPool(io::Loop& loop, Held& held) : loop_(loop), held_(held) {}
  void match_prefix(std::vector<ObjectKey> keys, Done<Result<uint64_t>> done) override {
    const uint64_t found = !keys.empty() && keys[0] == held_.key ? keys.size() : 0;
    (void)loop_.post([found, done = std::move(done)] { done(found); });
  }
  void get_batch(std::vector<store::GetItem> items, Done<Got> done) override {
    held_.gets.push_back([n = items.size(), done = std::move(done)] {
      done(Got(n, fail(Code::kNotFound, "evicted since")));
    });
  }
  void put_batch(std::vector<store::PutItem> items, store::PutAs, Done<Put> done) override {
    (void)loop_.post(
        [n = items.size(), done = std::move(done)] { done(Put(n, fail(Code::kNoSpace, "full"))); });
  }
  void prefetch(std::vector<ObjectKey>) override {}

 private:
  io::Loop& loop_;
  Held& held_;
};

struct Sent {  // a request whose prompt is being computed
  uint64_t tx = 0;
  std::optional<Result<PrefillDone>> done;
};

// Both sides have room for it, and its prompt is queued.
void begin(Pair& pair, const std::string& id, const std::vector<int32_t>& prompt, Sent& sent,
           int64_t priority = 0) {
  const auto target = pair.reserve(id, prompt);
  REQUIRE_MESSAGE(target, target.error().what);
  TxAllocate m;
  m.request = id;
  m.prompt = prompt;
  m.target = *target;
  m.lease_ms = 60'000;
  m.priority = priority;
  const auto tx = pair.call(*pair.to_p, m);
  REQUIRE_MESSAGE(tx, tx.error().what);
  sent.tx = tx->tx;
  pair.to_p->call<Prefill>(Prefill{tx->tx}, 60s,
                           [&sent](Result<PrefillDone> r) { sent.done = std::move(r); });
}

void end(Pair& pair, const std::string& id, Sent& sent) {
  REQUIRE(pair.until([&] { return sent.done && !pair.answers[id].finish.empty(); }));
  REQUIRE_MESSAGE(sent.done->has_value(), sent.done->error().what);
  CHECK(pair.answers[id].finish == "length");
  CHECK(pair.call(*pair.to_p, TxCommit{sent.tx}));
}

TEST_CASE("F70: an urgent prompt goes before the next chunk of a long one, whose KV verifies") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.prefill_blocks = options.decode_blocks = 1024;
  options.chunk_tokens = 16;
  Pair pair(loop, options);
  Sent slow, urgent;
  // So many chunks that they are not all computed before the urgent prompt is there.
  begin(pair, "long", prompt_of(16'000, 1), slow, 1);
  begin(pair, "urgent", prompt_of(40, 2), urgent);
  REQUIRE(pair.until([&] { return urgent.done.has_value(); }));
  CHECK_FALSE(slow.done.has_value());
  end(pair, "urgent", urgent);
  end(pair, "long", slow);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("F78: while the prefix of one prompt loads others compute, and its twin waits for it") {
  SteadyClock clock;
  io::Loop loop(clock);
  HeldPool::Held held;
  const auto prompt = prompt_of(100, 1);
  held.key = pool_key(cost::tiny().pool_name(), chain_hashes(prompt, kBlock)[0]);
  PairOptions options;
  options.master = "127.0.0.1:1";
  options.pool = [&](io::Loop& on, auto&&...) -> Result<std::unique_ptr<KvPool>> {
    return std::make_unique<HeldPool>(on, held);
  };
  TraceEvents trace;
  options.trace = &trace;
  Pair pair(loop, options);
  Sent first, twin, other, more;
  begin(pair, "first", prompt, first);
  REQUIRE(pair.until([&] { return held.gets.size() == 1; }));
  begin(pair, "twin", prompt, twin);
  begin(pair, "other", prompt_of(70, 2), other);
  begin(pair, "more", prompt_of(90, 3), more);
  end(pair, "other", other);
  end(pair, "more", more);
  CHECK_FALSE(first.done.has_value());
  CHECK_FALSE(twin.done.has_value());
  CHECK(held.gets.size() == 1);  // one loads for both
  std::exchange(held.gets, {})[0]();
  end(pair, "first", first);
  end(pair, "twin", twin);
  CHECK(first.done->value().cached_tokens == 0);
  CHECK(twin.done->value().cached_tokens == 96);
  CHECK(pair.comes_to_rest());
  // The trace shows it: `other` was computed while `first` was loaded.
  const std::string path =
      std::filesystem::temp_directory_path() / ("mc-order-" + std::to_string(::getpid()) + ".json");
  REQUIRE(trace.write(path, "p"));
  const auto written = read_json_file(path);
  std::filesystem::remove(path);
  REQUIRE(written);
  double loaded = 0, until = 0, computed = 0;
  for (const Json& e : (*written)["traceEvents"]) {
    if (!e.contains("args") || !e["args"].contains("request")) continue;
    const double begin = e["ts"].get<double>(), end = begin + e["dur"].get<double>();
    if (e["cat"] == "load" && e["args"]["request"] == "first") loaded = begin, until = end;
    if (e["cat"] == "compute" && e["args"]["request"] == "other") computed = end;
  }
  CHECK(loaded > 0);
  CHECK(computed > loaded);
  CHECK(computed < until);
}

TEST_CASE("a request that ends while its prefix is loaded holds up nobody") {
  SteadyClock clock;
  io::Loop loop(clock);
  HeldPool::Held held;
  const auto prompt = prompt_of(100, 1);
  held.key = pool_key(cost::tiny().pool_name(), chain_hashes(prompt, kBlock)[0]);
  PairOptions options;
  options.master = "127.0.0.1:1";
  options.pool = [&](io::Loop& on, auto&&...) -> Result<std::unique_ptr<KvPool>> {
    return std::make_unique<HeldPool>(on, held);
  };
  Pair pair(loop, options);
  Sent first, twin;
  begin(pair, "first", prompt, first);
  REQUIRE(pair.until([&] { return held.gets.size() == 1; }));
  begin(pair, "twin", prompt, twin);
  pair.abort_both("first");
  std::exchange(held.gets, {})[0]();
  REQUIRE(pair.until([&] { return held.gets.size() == 1; }));  // the twin loads now
  std::exchange(held.gets, {})[0]();
  end(pair, "twin", twin);
  CHECK(pair.comes_to_rest());
}

}  // namespace
}  // namespace prefill_order_test
}  // namespace mc::serve
