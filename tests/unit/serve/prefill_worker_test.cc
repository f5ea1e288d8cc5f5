// A prompt from a prefill to a decode worker, and every way to end it early.
#include "pair.h"

namespace mc::serve {

namespace prefill_worker_test {

namespace {

uint64_t counted(Metrics& metrics, const char* name) { return metrics.counter(name, "").value(); }

TEST_CASE("KV computed by prefill verifies at decode, by every transport and length") {
  SteadyClock clock;
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    io::Loop loop(clock);
    Pair pair(loop, {.transports = {transport}});
    uint64_t seed = 1;
    for (const size_t n : {1u, 15u, 16u, 17u, 64u, 65u, 300u}) {
      CAPTURE(n);
      const auto done = pair.serve("r" + std::to_string(n), prompt_of(n, seed++), 20);
      CHECK(done.cached_tokens == 0);
      CHECK(done.kv_bytes == (n + kBlock - 1) / kBlock * cost::tiny().block_bytes(kBlock));
      CHECK(done.queue_ms >= 0);
      CHECK(done.prefill_ms >= 0);
      CHECK(done.transfer_ms >= 0);
    }
    CHECK(counted(pair.d_metrics, "mc_engine_kv_errors_total") == 0);
    CHECK(pair.comes_to_rest());
  }
}

TEST_CASE("the same prompt gives the same tokens, reused or computed, on one worker or another") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair one(loop, {.chunk_tokens = 64}, "1"), two(loop, {.chunk_tokens = 16}, "2");
  const auto prompt = prompt_of(100, 9);
  CHECK(one.serve("a", prompt, 40).cached_tokens == 0);
  CHECK(one.serve("b", prompt, 40).cached_tokens == 96);
  CHECK(two.serve("a", prompt, 40).cached_tokens == 0);
  CHECK(one.answers["a"].tokens == one.answers["b"].tokens);
  CHECK(one.answers["a"].tokens == two.answers["a"].tokens);
}

TEST_CASE("a fully cached prompt computes its last block") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto prompt = prompt_of(4 * kBlock, 3);
  pair.serve("a", prompt);
  const auto again = pair.serve("b", prompt);
  CHECK(again.cached_tokens == 3 * kBlock);
  CHECK(again.pool_tokens == 0);
  CHECK(pair.answers["a"].tokens == pair.answers["b"].tokens);
  auto longer = prompt;
  longer.push_back(5);
  CHECK(pair.serve("c", longer).cached_tokens == 4 * kBlock);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a prompt queued behind its twin reuses what that one computed") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop, {.time_scale = 1});
  const auto prompt = prompt_of(200, 4);
  std::map<size_t, PrefillDone> done;  // by request, whichever ends first
  std::vector<TxId> txs;
  for (const char* id : {"a", "b"}) {
    const auto target = pair.reserve(id, prompt);
    REQUIRE(target);
    const auto tx = pair.allocate(id, prompt, *target);
    REQUIRE(tx);
    CHECK(tx->local_blocks == 0);
    txs.push_back(tx->tx);
  }
  for (size_t i = 0; i < txs.size(); ++i)
    pair.to_p->call<Prefill>(Prefill{txs[i]}, 5s * kSlow, [&, i](const Result<PrefillDone>& r) {
      REQUIRE(r);
      done[i] = *r;
    });
  REQUIRE(pair.until([&] { return done.size() == 2; }));
  CHECK(done[0].cached_tokens == 0);
  CHECK(done[1].cached_tokens == 192);
  CHECK(done[1].queue_ms > 0);
}

TEST_CASE("a full pool refuses a prompt, and serves it when there is room again") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop, {.prefill_blocks = 8});
  const auto big = prompt_of(6 * kBlock, 1);
  const auto target = pair.reserve("a", big);
  REQUIRE(target);
  REQUIRE(pair.allocate("a", big, *target));
  const auto other = prompt_of(3 * kBlock, 2);
  const auto second = pair.reserve("b", other);
  REQUIRE(second);
  CHECK(pair.allocate("b", other, *second).error().code == Code::kNoSpace);
  pair.abort_both("a");
  CHECK(pair.allocate("b", other, *second));
  pair.abort_both("b");
  CHECK(pair.comes_to_rest());
  CHECK(pair.allocate("c", prompt_of(9 * kBlock, 3), *second).error().code == Code::kInvalid);
}

TEST_CASE("bad requests are refused with the reason and leave nothing behind") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto prompt = prompt_of(40, 1);
  const auto target = pair.reserve("a", prompt);
  REQUIRE(target);
  CHECK(pair.allocate("x", {}, *target).error().code == Code::kInvalid);
  CHECK(pair.allocate("x", {1, 2, 32000}, *target).error().code == Code::kInvalid);
  CHECK(pair.allocate("x", {1, 2, -1}, *target).error().code == Code::kInvalid);
  CHECK(pair.allocate("x", prompt_of(80, 1), *target).error().code == Code::kInvalid);
  Reservation unknown = *target;
  unknown.segment = {};
  unknown.segment.node = "nobody";
  CHECK(pair.allocate("x", prompt, unknown).error().code == Code::kStale);
  REQUIRE(pair.allocate("a", prompt, *target));
  CHECK(pair.allocate("a", prompt, *target).error().code == Code::kExists);
  CHECK(pair.call(*pair.to_p, Prefill{12345}).error().code == Code::kNotFound);
  CHECK(pair.call(*pair.to_p, TxCommit{12345}).error().code == Code::kNotFound);
  CHECK(pair.call(*pair.to_p, Abort{"nobody", ""}));
  pair.abort_both("a");
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a prefill follows its allocation by name, and is refused with it") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto prompt = prompt_of(40, 1);
  const auto target = pair.reserve("a", prompt);
  REQUIRE(target);
  REQUIRE(pair.allocate("a", prompt, *target));
  REQUIRE(pair.call(*pair.to_p, Prefill{0, "a"}));
  CHECK(pair.call(*pair.to_p, Prefill{0, "a"}).error().code == Code::kExists);
  CHECK(pair.call(*pair.to_p, TxCommit{0, "a"}));
  CHECK(pair.call(*pair.to_p, TxCommit{0, "a"}).error().code == Code::kNotFound);
  CHECK(pair.allocate("b", {}, *target).error().code == Code::kInvalid);
  CHECK(pair.call(*pair.to_p, Prefill{0, "b"}).error().code == Code::kNotFound);
  CHECK(pair.call(*pair.to_p, Prefill{}).error().code == Code::kNotFound);
  pair.abort_both("a");
  CHECK(pair.comes_to_rest());
}

TEST_CASE("an abort at any step leaves no block in use") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop, {.time_scale = 2});
  const auto prompt = prompt_of(500, 11);
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    const std::string id = "r" + std::to_string(step);
    const auto target = pair.reserve(id, prompt, 50);
    REQUIRE(target);
    if (step > 0) {
      const auto tx = pair.allocate(id, prompt, *target);
      REQUIRE(tx);
      bool answered = false;
      if (step > 1)
        pair.to_p->call<Prefill>(Prefill{tx->tx}, 5s,
                                 [&](const Result<PrefillDone>&) { answered = true; });
      if (step > 2)
        for (int turns = 0; turns < (step - 2) * 4; ++turns) REQUIRE(loop.turn(1ms));
      if (step == 7) REQUIRE(pair.until([&] { return pair.answers[id].tokens.size() > 2; }));
      pair.abort_both(id);
      if (step > 1) REQUIRE(pair.until([&] { return answered; }));
    } else {
      pair.abort_both(id);
    }
    CHECK(pair.comes_to_rest());
  }
  // Blocks computed before the aborts are valid; the others were never shared.
  pair.serve("after", prompt);
  CHECK(counted(pair.d_metrics, "mc_engine_kv_errors_total") == 0);
}

TEST_CASE("a transaction that is not started, or not committed, is rolled back by its lease") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto prompt = prompt_of(50, 1);
  auto target = pair.reserve("a", prompt);
  REQUIRE(target);
  REQUIRE(pair.allocate("a", prompt, *target, 50));
  CHECK(pair.until([&] { return pair.prefill->idle(); }));
  REQUIRE(pair.until([&] { return !pair.answers["a"].finish.empty(); }));
  CHECK(pair.answers["a"].finish == "error");  // decode was told, not left waiting
  target = pair.reserve("b", prompt);
  REQUIRE(target);
  const auto tx = pair.allocate("b", prompt, *target, 200);
  REQUIRE(tx);
  REQUIRE(pair.call(*pair.to_p, Prefill{tx->tx}));
  CHECK(pair.comes_to_rest());
  CHECK(pair.call(*pair.to_p, TxCommit{tx->tx}).error().code == Code::kNotFound);
  CHECK(pair.answers["b"].finish == "length");
}

TEST_CASE("a decode worker that is gone fails the prefill with its address, and frees its blocks") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop, {.transports = {"tcp"}});
  const auto prompt = prompt_of(300, 5);
  const auto target = pair.reserve("a", prompt);
  REQUIRE(target);
  const auto tx = pair.allocate("a", prompt, *target);
  REQUIRE(tx);
  pair.decode.reset();
  pair.d_server.reset();
  pair.d_xfer.reset();
  const auto done = pair.call(*pair.to_p, Prefill{tx->tx});
  REQUIRE(!done);
  CHECK(done.error().what.find(target->control) != std::string::npos);
  CHECK(pair.until([&] { return pair.prefill->cache().counts().used == 0; }));
  pair.prefill->cache().check();
}

TEST_CASE("KV damaged before it is pushed fails the request at decode, with a count") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto prompt = prompt_of(64, 6), other = prompt_of(64, 7);
  pair.serve("a", prompt_of(64, 8));
  // The wrong KV: another prompt's, pushed into the blocks of this one.
  const auto target = pair.reserve("b", prompt);
  REQUIRE(target);
  const auto tx = pair.allocate("b", other, *target);
  REQUIRE(tx);
  CHECK(pair.call(*pair.to_p, Prefill{tx->tx}));
  REQUIRE(pair.until([&] { return !pair.answers["b"].finish.empty(); }));
  CHECK(pair.answers["b"].finish == "error");
  CHECK(pair.answers["b"].kv_errors == 4);
  CHECK(pair.answers["b"].tokens.empty());
  pair.abort_both("b");
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a message for an earlier process of the worker is refused, and holds nothing") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto prompt = prompt_of(50, 1);
  Reserve r;
  r.request = "old";
  r.conductor = pair.c_server->address();
  r.prompt = prompt;
  r.max_tokens = 4;
  r.epoch = pair.d_xfer->generation().n + 1;
  CHECK(pair.call(*pair.to_d, r).error().code == Code::kStale);
  r.epoch = pair.d_xfer->generation().n;
  const auto target = pair.call(*pair.to_d, r);
  REQUIRE(target);
  TxAllocate m;
  m.request = "old";
  m.prompt = prompt;
  m.target = *target;
  m.epoch = 6;  // this one is 7
  CHECK(pair.call(*pair.to_p, m).error().code == Code::kStale);
  CHECK(pair.call(*pair.to_d, Abort{"old", "enough"}));
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a drained worker refuses new requests and finishes those it has") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto prompt = prompt_of(50, 1);
  const auto target = pair.reserve("a", prompt);
  REQUIRE(target);
  const auto tx = pair.allocate("a", prompt, *target);
  REQUIRE(tx);
  pair.prefill->drain();
  CHECK(pair.allocate("b", prompt, *target).error().code == Code::kBusy);
  CHECK(pair.call(*pair.to_p, Prefill{tx->tx}));
  CHECK_FALSE(pair.prefill->idle());
  CHECK(pair.call(*pair.to_p, TxCommit{tx->tx}));
  CHECK(pair.until([&] { return pair.prefill->idle(); }));
}

TEST_CASE("blocks by state sum to the pool in the metrics") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  pair.serve("a", prompt_of(50, 1));
  pair.prefill->update_metrics();
  double sum = 0;
  for (const char* state : {"free", "cached", "used"})
    sum += pair.p_metrics.gauge("mc_engine_blocks", "", {{"state", state}}).value();
  CHECK(sum == 64);
  CHECK(pair.p_metrics.gauge("mc_engine_blocks", "", {{"state", "cached"}}).value() == 3);
}

TEST_CASE("a commit before the KV is delivered ends the transaction when it is") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.time_scale = 1;  // it computes for a while
  Pair pair(loop, options);
  const auto prompt = prompt_of(400, 1);
  const auto target = pair.reserve("a", prompt, 4);
  REQUIRE(target);
  const auto tx = pair.allocate("a", prompt, *target, 600'000);  // its lease ends in ten minutes
  REQUIRE(tx);
  bool done = false;
  pair.to_p->call<Prefill>(Prefill{tx->tx}, 20s * kSlow,
                           [&](const Result<PrefillDone>& d) { done = d.has_value(); });
  CHECK(pair.call(*pair.to_p, TxCommit{tx->tx}));
  CHECK_FALSE(done);
  CHECK(pair.until([&] { return done && pair.answers["a"].finish == "length"; }));
  CHECK(pair.comes_to_rest());
  CHECK(pair.prefill->cache().counts().cached == 400 / kBlock);
  CHECK(pair.call(*pair.to_p, TxCommit{tx->tx}).error().code == Code::kNotFound);
}

}  // namespace

}  // namespace prefill_worker_test
}  // namespace mc::serve
