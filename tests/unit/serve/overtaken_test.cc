// A prompt that another overtook between its chunks, between a prefill and a decode worker: real
// sockets, every connector.
#include "gated_engine.h"
#include "pool.h"

namespace mc::serve {
namespace overtaken_test {
namespace {

struct Sent {
  std::string id;
  std::optional<Result<PrefillDone>> done;
  TxId tx = 0;
};

void send(Pair& pair, const std::string& id, const std::vector<int32_t>& prompt, int64_t priority,
          Sent& sent) {
  const auto target = pair.reserve(id, prompt);
  REQUIRE(target);
  TxAllocate m;
  m.request = id;
  m.prompt = prompt;
  m.target = *target;
  m.lease_ms = 60'000;
  m.priority = priority;
  const auto tx = pair.call(*pair.to_p, m);
  REQUIRE(tx);
  sent.id = id;
  sent.tx = tx->tx;
  pair.to_p->call(Prefill{tx->tx}, 60s * kSlow,
                  [&sent](Result<PrefillDone> done) { sent.done = std::move(done); });
}

TEST_CASE("what others computed of an overtaken prompt reaches its decode worker as well") {
  SteadyClock clock;
  std::vector<int32_t> want;
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    io::Loop loop(clock);
    Store store(loop, 64 * kMiB);
    GatedEngine engine;
    PairOptions options;
    options.connector = way.connector;
    options.layerwise = way.layerwise;
    options.master = store.master->control();
    options.pool_reuse = "never";
    options.kv_deadline_ms = 60'000;
    options.send_timeout = options.peer_timeout = 20s * kSlow;
    options.prefill_engine = &engine;
    Pair pair(loop, options);
    const auto prompt = prompt_of(300, 1);  // 19 blocks, in chunks of four
    Sent begun, urgent;
    send(pair, "begun", prompt, 1, begun);
    const bool waits = pair.until([&] { return engine.called(); });
    send(pair, "urgent", prompt, 0, urgent);
    const bool queued = pair.until([&] { return pair.prefill->load().waiting == 1; });
    engine.open();
    REQUIRE((waits && queued));
    REQUIRE(pair.until([&] { return begun.done && urgent.done; }));
    REQUIRE_MESSAGE(*begun.done, begun.done->error().what);
    REQUIRE_MESSAGE(*urgent.done, urgent.done->error().what);
    CHECK((*urgent.done)->cached_tokens == 64);
    CHECK((*begun.done)->cached_tokens == 288 - 64);
    CHECK(pair.p_metrics.counter("mc_engine_computed_tokens_total", "").value() == 300 + 12);
    for (const Sent* sent : {&begun, &urgent}) {
      const auto& answer = pair.answers[sent->id];
      REQUIRE(pair.until([&] { return !answer.finish.empty(); }));
      CHECK(answer.finish == "length");
      if (want.empty()) want = answer.tokens;
      CHECK(answer.tokens == want);
      CHECK(pair.call(*pair.to_p, TxCommit{sent->tx}));
    }
    CHECK(pair.d_metrics.counter("mc_engine_kv_errors_total", "").value() == 0);
    CHECK(pair.comes_to_rest());
  }
}

}  // namespace
}  // namespace overtaken_test
}  // namespace mc::serve
