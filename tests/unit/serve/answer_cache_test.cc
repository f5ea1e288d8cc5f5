// The KV of generated tokens is reused by prompts that begin with them, as the next turn of a chat.
#include "pool.h"
#include "small_engine.h"

namespace mc::serve {
namespace answer_cache_test {
namespace {

uint64_t count(Metrics& metrics, const char* name) { return metrics.counter(name, "").value(); }

std::vector<int32_t> next_turn(std::vector<int32_t> prompt, const std::vector<int32_t>& answer) {
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  const auto more = small_prompt(9, 77);
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

PairOptions chat(const CpuEngine& engine, const Store& store) {
  PairOptions o;
  o.master = store.master->control();
  o.prefill_engine = o.decode_engine = &engine;
  return o;
}

// A put or a look-up that comes too late costs blocks, and may on a machine that stands still: such
// a run says nothing, and the next one is judged. `run` returns whether it came to its end.
void judge(const std::function<bool()>& run) {
  for (int i = 0; i < 10; ++i)
    if (run()) return;
  FAIL("the machine stood still in each of ten runs");
}

// False: the run says nothing.
bool reuses(const Pair& pair, uint32_t reused, uint32_t known) {
  if (reused < known && pair.stood_still) return false;
  CHECK(reused == known);
  return true;
}

TEST_CASE("F73: the next turn of a chat reuses prompt and answer, with the tokens of one process") {
  judge([] {
    SteadyClock clock;
    io::Loop loop(clock);
    Store store(loop, 64 * kMiB);
    const CpuEngine engine = make(1, "auto"), one = make(1, "plain", 512);
    Pair pair(loop, chat(engine, store));
    auto prompt = small_prompt(100, 1);
    for (uint32_t turn = 0, known = 0; turn < 4; ++turn) {
      CAPTURE(turn);
      const std::string id = std::to_string(turn);
      const PrefillDone done = pair.serve(id, prompt, 60);
      if (!reuses(pair, done.cached_tokens, known)) return false;
      REQUIRE(pair.comes_to_rest());  // all is put, before anything else takes its time
      CHECK(pair.answers[id].tokens == alone(one, prompt, 60, kGreedy));
      // The last generated token has no KV.
      known = static_cast<uint32_t>((prompt.size() + 60 - 1) / kBlock * kBlock);
      prompt = next_turn(prompt, pair.answers[id].tokens);
    }
    return true;
  });
}

TEST_CASE("without cache_answers only prompts are reused") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  const CpuEngine engine = make(1, "auto");
  PairOptions options = chat(engine, store);
  options.cache_answers = false;
  Pair pair(loop, options);
  const auto prompt = small_prompt(100, 1);
  pair.serve("a", prompt, 60);
  REQUIRE(pair.comes_to_rest());
  CHECK(pair.serve("b", next_turn(prompt, pair.answers["a"].tokens)).cached_tokens == 96);
}

TEST_CASE("of an answer that is aborted what was generated is kept; other salts do not find it") {
  judge([] {
    SteadyClock clock;
    io::Loop loop(clock);
    Store store(loop, 64 * kMiB);
    PairOptions options;
    options.master = store.master->control();
    Pair pair(loop, options);
    const auto prompt = prompt_of(40, 1);
    const auto target = pair.reserve("a", prompt, 900);
    REQUIRE(target);
    const auto tx = pair.allocate("a", prompt, *target);
    REQUIRE(tx);
    REQUIRE(pair.call(*pair.to_p, Prefill{tx->tx}));
    REQUIRE(pair.until([&] { return pair.answers["a"].tokens.size() >= 70; }));
    CHECK(pair.call(*pair.to_p, TxCommit{tx->tx}));
    CHECK(pair.call(*pair.to_d, Abort{"a", "the client left"}));
    REQUIRE(pair.comes_to_rest());
    auto answer = pair.answers["a"].tokens;
    answer.resize(57);
    const auto more = next_turn(prompt, answer);
    if (!reuses(pair, pair.serve("b", more).cached_tokens, 96)) return false;
    REQUIRE(pair.comes_to_rest());
    Reserve salted;
    salted.request = "c";
    salted.conductor = pair.c_server->address();
    salted.prompt = more;
    salted.max_tokens = 4;
    salted.cache_salt = "another tenant";
    const auto room = pair.call(*pair.to_d, salted);
    REQUIRE(room);
    TxAllocate m;
    m.request = "c";
    m.prompt = more;
    m.target = *room;
    m.lease_ms = 10'000;
    m.cache_salt = "another tenant";
    const auto other = pair.call(*pair.to_p, m);
    REQUIRE(other);
    const auto done = pair.call(*pair.to_p, Prefill{other->tx});
    REQUIRE(done);
    CHECK(done->cached_tokens == 0);
    REQUIRE(pair.until([&] { return !pair.answers["c"].finish.empty(); }));
    CHECK(pair.call(*pair.to_p, TxCommit{other->tx}));
    CHECK(pair.comes_to_rest());
    return true;
  });
}

TEST_CASE("a request whose KV did not verify leaves nothing") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options;
  options.master = store.master->control();
  Pair pair(loop, options);
  const auto target = pair.reserve("a", prompt_of(40, 1), 100);
  REQUIRE(target);
  CHECK(pair.call(*pair.to_d, KvReady{"a", target->guard, {}}));  // nobody wrote it
  REQUIRE(pair.until([&] { return !pair.answers["a"].finish.empty(); }));
  CHECK(pair.answers["a"].finish == "error");
  CHECK(pair.comes_to_rest());
  CHECK(count(pair.d_metrics, "mc_engine_answer_blocks_total") == 0);
}

}  // namespace
}  // namespace answer_cache_test
}  // namespace mc::serve
