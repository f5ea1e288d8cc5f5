// Answers take blocks as they grow; the youngest make room for the oldest, and their tokens are
// those of requests that nobody disturbed.
#include "pool.h"
#include "small_engine.h"
#include "tests/unit/model/shared.h"

namespace mc::serve {
namespace preemption_test {
namespace {

constexpr size_t kRequests = 4;
constexpr uint32_t kOutput = 120;

uint64_t count(Metrics& metrics, const char* name) { return metrics.counter(name, "").value(); }
uint64_t gone(Pair& pair, const char* way) {
  return pair.d_metrics.counter("mc_engine_preempted_kv_total", "", {{"way", way}}).value();
}
uint64_t preemptions(Pair& pair) { return count(pair.d_metrics, "vllm:num_preemptions_total"); }

std::string id_of(size_t i) { return "r" + std::to_string(i); }

// Reserves for all, then computes all prompts, and lets all decode at once. The answers are in
// pair.answers.
void begin_together(Pair& pair, const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<Reservation> targets;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto target = pair.reserve(id_of(i), prompts[i], kOutput);
    REQUIRE_MESSAGE(target, target.error().what);
    targets.push_back(*target);
  }
  std::vector<uint64_t> txs;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto tx = pair.allocate(id_of(i), prompts[i], targets[i]);
    REQUIRE_MESSAGE(tx, tx.error().what);
    txs.push_back(tx->tx);
  }
  const auto prefilled = std::make_shared<size_t>(0);
  for (const uint64_t tx : txs)
    pair.to_p->call<Prefill>(Prefill{tx}, 20s * kSlow, [prefilled](const Result<PrefillDone>& r) {
      CHECK(r.has_value());
      ++*prefilled;
    });
  REQUIRE(pair.until([&] { return *prefilled == txs.size(); }));
  for (const uint64_t tx : txs) CHECK(pair.call(*pair.to_p, TxCommit{tx}));
}

void serve_together(Pair& pair, const std::vector<std::vector<int32_t>>& prompts) {
  begin_together(pair, prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    REQUIRE(pair.until([&] { return !pair.answers[id_of(i)].finish.empty(); }));
    CHECK(pair.answers[id_of(i)].error == "");
  }
}

std::vector<std::vector<int32_t>> prompts() {
  std::vector<std::vector<int32_t>> out;
  for (size_t i = 0; i < kRequests; ++i) out.push_back(small_prompt(20 + i, i + 1));
  return out;
}

// Half the blocks of all prompts and answers: two of four, were they taken at once.
PairOptions half(const Engine& engine) {
  PairOptions o;
  o.prefill_engine = o.decode_engine = &engine;
  uint32_t whole = 0;
  for (const auto& p : prompts())
    whole += static_cast<uint32_t>((p.size() + kOutput + kBlock - 1) / kBlock);
  o.decode_blocks = whole / 2;
  return o;
}

TEST_CASE("F72: half the blocks of all answers serve all at once, with the tokens of each alone") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  const CpuEngine engine = make(1, "auto"), one = make(1, "plain", 512);
  std::vector<std::vector<int32_t>> want;
  for (const auto& prompt : prompts()) want.push_back(alone(one, prompt, kOutput, kGreedy));
  struct Case {
    const char *preempt, *way;
    uint64_t swap_bytes;
    bool pool;
  };
  for (const Case& c :
       {Case{"swap", "host", 64 << 20, false}, Case{"swap", "pool", 0, true},
        Case{"swap", "recompute", 0, false}, Case{"recompute", "recompute", 64, true},
        Case{"auto", nullptr, 64 << 20, false}}) {
    CAPTURE(c.preempt);
    PairOptions options = half(engine);
    options.preempt = c.preempt;
    options.swap_bytes = c.swap_bytes;
    if (c.pool) options.master = store.master->control();
    Pair pair(loop, options);
    serve_together(pair, prompts());
    for (size_t i = 0; i < kRequests; ++i) {
      CAPTURE(i);
      CHECK(pair.answers[id_of(i)].tokens == want[i]);
    }
    CHECK(preemptions(pair) > 0);
    if (c.way != nullptr) CHECK(gone(pair, c.way) == preemptions(pair));
    CHECK(pair.comes_to_rest());
  }
}

TEST_CASE("KV goes to a pool that nobody has measured if the model's network is quick enough") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options;
  options.master = store.master->control();
  options.time_scale = 1;
  options.swap_bytes = 0;
  options.decode_blocks = 18;
  cost::ModelSpec spec = cost::tiny();
  spec.cost.c1 = 2e-4;                           // seconds to compute a token
  for (const double bytes_per_s : {2e9, 1e3}) {  // a token has 1 KiB
    CAPTURE(bytes_per_s);
    spec.cost.transfer_bytes_per_s = bytes_per_s;
    const DummyEngine engine(spec, kBlock);
    options.prefill_engine = options.decode_engine = &engine;
    Pair pair(loop, options);
    serve_together(pair, prompts());
    CHECK(preemptions(pair) > 0);
    if (bytes_per_s > 1e6)
      CHECK(gone(pair, "pool") > 0);
    else
      CHECK(gone(pair, "recompute") == preemptions(pair));
    CHECK(pair.comes_to_rest());
  }
}

TEST_CASE("the dummy engine's tokens, which come from the bytes of the KV, are the same too") {
  SteadyClock clock;
  io::Loop loop(clock);
  for (const char* preempt : {"swap", "recompute"}) {
    CAPTURE(preempt);
    PairOptions options;
    options.preempt = preempt;
    options.decode_blocks = 18;
    Pair tight(loop, options), wide(loop, {}, "wide");
    serve_together(tight, prompts());
    serve_together(wide, prompts());
    CHECK(preemptions(tight) > 0);
    CHECK(preemptions(wide) == 0);
    for (size_t i = 0; i < kRequests; ++i)
      CHECK(tight.answers[id_of(i)].tokens == wide.answers[id_of(i)].tokens);
    CHECK(tight.comes_to_rest());
  }
}

TEST_CASE("a small real model says the same with half the blocks") {
  const std::string models = mc::test::shared_models();
  if (models.empty()) return;
  SteadyClock clock;
  io::Loop loop(clock);
  CpuOptions cpu;
  cpu.threads = 1;
  const auto engine = open_engine({.model = models + "/stories260K/hf-f32"}, cpu, kBlock);
  REQUIRE_MESSAGE(engine.has_value(), engine.error().what);
  for (const char* preempt : {"swap", "recompute"}) {
    CAPTURE(preempt);
    PairOptions options = half(**engine);
    options.preempt = preempt;
    Pair tight(loop, options);
    options.decode_blocks = 64;
    Pair wide(loop, options, "wide");
    for (Pair* pair : {&tight, &wide}) {
      pair->temperature = 0.9;
      serve_together(*pair, prompts());
    }
    CHECK(preemptions(tight) > 0);
    CHECK(preemptions(wide) == 0);
    for (size_t i = 0; i < kRequests; ++i)
      CHECK(tight.answers[id_of(i)].tokens == wide.answers[id_of(i)].tokens);
  }
}

TEST_CASE("a preempted answer keeps its draws, penalties and logprobs") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  for (const char* preempt : {"swap", "recompute"}) {
    CAPTURE(preempt);
    PairOptions options = half(engine);
    options.preempt = preempt;
    Pair tight(loop, options);
    options.decode_blocks = 64;
    Pair wide(loop, options, "wide");
    for (Pair* pair : {&tight, &wide}) {
      pair->temperature = 0.8;
      pair->controls.frequency_penalty = 0.7;
      pair->controls.presence_penalty = 0.3;
      pair->controls.logprobs = 3;
      serve_together(*pair, prompts());
    }
    CHECK(preemptions(tight) > 0);
    CHECK(preemptions(wide) == 0);
    for (size_t i = 0; i < kRequests; ++i) {
      const Answer &a = tight.answers[id_of(i)], &b = wide.answers[id_of(i)];
      CHECK(a.tokens == b.tokens);
      REQUIRE(a.logprobs.size() == b.logprobs.size());
      for (size_t t = 0; t < a.logprobs.size(); ++t) {
        CHECK(a.logprobs[t].logprob == b.logprobs[t].logprob);
        CHECK(a.logprobs[t].top == b.logprobs[t].top);
      }
    }
  }
}

TEST_CASE("with preemption off a reservation takes prompt and answer") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.preempt = "off";
  options.decode_blocks = 18;
  Pair pair(loop, options);
  CHECK(pair.reserve("a", small_prompt(20, 1), kOutput));
  CHECK(pair.reserve("b", small_prompt(20, 1), kOutput));
  CHECK(pair.decode->load().growth == 0);
  const auto third = pair.reserve("c", small_prompt(20, 1), kOutput);
  REQUIRE_FALSE(third);
  CHECK(third.error().code == Code::kNoSpace);
  for (const char* id : {"a", "b"}) CHECK(pair.call(*pair.to_d, Abort{id, "enough"}));
}

TEST_CASE("a reservation leaves the watermark free, unless nobody else is there") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.decode_blocks = 20;
  options.watermark = 0.25;
  Pair pair(loop, options);
  CHECK(pair.decode->load().growth == 1);
  CHECK(pair.reserve("a", prompt_of(16 * 12, 1), 100));  // 12 blocks now, 19 at its end
  CHECK(pair.decode->load().growth == 6);
  const auto none = pair.reserve("b", prompt_of(16 * 4, 2), 4);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == Code::kNoSpace);
  CHECK(none.error().what.find("leaves 5 for answers that grow") != std::string::npos);
  CHECK(pair.reserve("c", prompt_of(16 * 3, 2), 4));
  CHECK(pair.call(*pair.to_d, Abort{"a", "enough"}));
  CHECK(pair.call(*pair.to_d, Abort{"c", "enough"}));
  REQUIRE(pair.comes_to_rest());
  CHECK(pair.reserve("d", prompt_of(16 * 19, 1), 16));  // alone it may take all
  CHECK(pair.call(*pair.to_d, Abort{"d", "enough"}));
}

TEST_CASE("a request that the whole pool cannot hold is refused by name when it comes") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.decode_blocks = 10;
  Pair pair(loop, options);
  const auto no = pair.reserve("long", prompt_of(16, 1), 16 * 10);
  REQUIRE_FALSE(no);
  CHECK(no.error().code == Code::kInvalid);
  CHECK(no.error().what.find("request long needs 11 blocks of 16 tokens, the pool has 10") !=
        std::string::npos);
  pair.serve("fits", prompt_of(16, 1), 16 * 9);
  CHECK(preemptions(pair) == 0);
}

TEST_CASE("aborted while it is preempted, a request leaves nothing") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  for (const char* preempt : {"swap", "recompute"}) {
    CAPTURE(preempt);
    PairOptions options = half(engine);
    options.preempt = preempt;
    Pair pair(loop, options);
    begin_together(pair, prompts());
    REQUIRE(pair.until([&] { return preemptions(pair) > 0; }));
    for (size_t i = kRequests; i-- > 0;) CHECK(pair.call(*pair.to_d, Abort{id_of(i), "enough"}));
    CHECK(pair.comes_to_rest());
  }
}

TEST_CASE("blocks into which a prefill side may still write are fenced before others get them") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto"), one = make(1, "plain", 512);
  PairOptions options = half(engine);
  options.decode_blocks = 12;
  options.recompute_after = 20ms;
  Pair pair(loop, options);
  // Nobody computes their prompts: the decode worker does, and the prefill side never says that it
  // has done with them. On a busy machine the first may be through before the second begins.
  for (size_t i = 0; i < 12 && preemptions(pair) == 0; i += 2) {
    for (const size_t k : {i, i + 1}) REQUIRE(pair.reserve(id_of(k), prompts()[k % 2], kOutput));
    for (const size_t k : {i, i + 1}) {
      REQUIRE(pair.until([&] { return !pair.answers[id_of(k)].finish.empty(); }));
      CHECK(pair.answers[id_of(k)].tokens == alone(one, prompts()[k % 2], kOutput, kGreedy));
    }
    REQUIRE(pair.comes_to_rest());
  }
  CHECK(preemptions(pair) > 0);
  CHECK(pair.comes_to_rest());
}

}  // namespace
}  // namespace preemption_test
}  // namespace mc::serve
