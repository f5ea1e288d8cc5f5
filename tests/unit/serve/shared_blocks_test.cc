// Prompts that begin alike share their full blocks on a decode worker.
#include <algorithm>

#include "pair.h"
#include "small_engine.h"

namespace mc::serve {
namespace shared_blocks_test {
namespace {

constexpr uint32_t kLong = 3000;  // tokens of an answer that is still being generated

PairOptions wide() {
  PairOptions o;
  o.prefill_blocks = o.decode_blocks = 512;
  return o;
}

uint64_t used(const Pair& pair) {
  const WorkerLoad l = pair.decode->load();
  return l.blocks_total - l.blocks_free;
}

// Reserves, and begins to compute the prompt.
Reservation reserve(Pair& pair, const std::string& id, const std::vector<int32_t>& prompt,
                    uint32_t output) {
  const auto target = pair.reserve(id, prompt, output);
  REQUIRE_MESSAGE(target, target.error().what);
  return *target;
}
PrefillDone prefill(Pair& pair, const std::string& id, const std::vector<int32_t>& prompt,
                    const Reservation& target) {
  const auto tx = pair.allocate(id, prompt, target);
  REQUIRE_MESSAGE(tx, tx.error().what);
  const auto done = pair.call(*pair.to_p, Prefill{tx->tx, {}}, 20s * kSlow);
  REQUIRE_MESSAGE(done, done.error().what);
  CHECK(pair.call(*pair.to_p, TxCommit{tx->tx, {}}));
  return *done;
}

TEST_CASE("a prompt whose beginning is on the decode worker takes and gets only the rest") {
  SteadyClock clock;
  io::Loop loop(clock);
  for (const Way& way : kWays) {
    if (way.connector == Connector::kPool) continue;
    CAPTURE(way.name);
    PairOptions options = wide();
    options.connector = way.connector;
    options.layerwise = way.layerwise;
    Pair pair(loop, options);
    const auto prompt = prompt_of(10 * kBlock + 5, 1);
    const Reservation first = reserve(pair, "a", prompt, kLong);
    CHECK(first.blocks_here == 0);
    prefill(pair, "a", prompt, first);
    REQUIRE(pair.until([&] { return !pair.answers["a"].tokens.empty(); }));
    auto other = prompt_of(3 * kBlock, 2);
    other.insert(other.begin(), prompt.begin(), prompt.begin() + 6 * kBlock);
    struct Case {
      const char* id;
      std::vector<int32_t> text;
      uint32_t here;
    };
    for (const Case& c : {Case{"same", prompt, 10}, Case{"begins alike", other, 6}}) {
      CAPTURE(c.id);
      const Reservation target = reserve(pair, c.id, c.text, 4);
      CHECK(target.blocks_here == c.here);
      CHECK(target.block_offsets.size() == (c.text.size() + kBlock - 1) / kBlock);
      for (size_t i = 0; i < target.block_offsets.size(); ++i)
        CHECK((target.block_offsets[i] == first.block_offsets[i < 11 ? i : 0]) == (i < c.here));
      const PrefillDone done = prefill(pair, c.id, c.text, target);
      CHECK(done.kv_bytes ==
            (target.block_offsets.size() - c.here) * cost::tiny().block_bytes(kBlock));
      REQUIRE(pair.until([&] { return !pair.answers[c.id].finish.empty(); }));
      CHECK(pair.answers[c.id].error == "");  // the dummy engine reads every byte
    }
    CHECK(std::equal(pair.answers["same"].tokens.begin(), pair.answers["same"].tokens.end(),
                     pair.answers["a"].tokens.begin()));
    pair.abort_both("a");
    CHECK(pair.comes_to_rest());
    CHECK(pair.decode->load().blocks_cached >= 13);  // they stay for the next prompt
    const Reservation again = reserve(pair, "again", prompt, 4);
    CHECK(again.blocks_here == 10);
    CHECK(pair.call(*pair.to_d, Abort{"again", "enough"}));
    CHECK(pair.comes_to_rest());
  }
}

TEST_CASE("eight answers to a prompt fit where two prompts would not") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  PairOptions options = wide();
  options.prefill_engine = options.decode_engine = &engine;
  options.decode_blocks = 40;
  Pair pair(loop, options);
  pair.temperature = 0.9;
  const auto prompt = small_prompt(20 * kBlock + 3, 1);
  pair.serve("warm", prompt, 2);
  std::vector<Reservation> targets;
  for (uint64_t i = 0; i < 8; ++i) {
    pair.seed = i;
    targets.push_back(reserve(pair, std::to_string(i), prompt, 10));
    CHECK(targets.back().blocks_here == 20);
  }
  CHECK(used(pair) == 20 + 8);
  for (uint64_t i = 0; i < 8; ++i) prefill(pair, std::to_string(i), prompt, targets[i]);
  for (uint64_t i = 0; i < 8; ++i) {
    const std::string id = std::to_string(i);
    REQUIRE(pair.until([&] { return !pair.answers[id].finish.empty(); }));
    CHECK(pair.answers[id].tokens ==
          alone(engine, prompt, 10, {.temperature = 0.9, .seed = i, .ignore_eos = true}));
  }
  CHECK(pair.comes_to_rest());
}

TEST_CASE("prompts that arrive together share their blocks once they are there") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop, wide());
  const auto prompt = prompt_of(60 * kBlock + 1, 1);
  std::vector<Reservation> targets;
  for (const char* id : {"a", "b", "c"}) targets.push_back(reserve(pair, id, prompt, kLong));
  CHECK(targets[2].blocks_here == 0);
  CHECK(used(pair) == 3 * 61);
  prefill(pair, "a", prompt, targets[0]);
  prefill(pair, "b", prompt, targets[1]);
  prefill(pair, "c", prompt, targets[2]);
  for (const char* id : {"a", "b", "c"})
    REQUIRE(pair.until([&] { return !pair.answers[id].tokens.empty(); }));
  size_t generated = 0;
  for (const char* id : {"a", "b", "c"}) generated += pair.answers[id].tokens.size();
  CHECK(used(pair) < 60 + 3 + generated / kBlock + 30);  // tokens may be on their way
  for (const char* id : {"a", "b", "c"}) pair.abort_both(id);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a prefill worker that sends all blocks again changes nothing") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop, wide());
  const auto prompt = prompt_of(10 * kBlock + 5, 1);
  prefill(pair, "a", prompt, reserve(pair, "a", prompt, 40));
  REQUIRE(pair.until([&] { return !pair.answers["a"].tokens.empty(); }));
  Reservation target = reserve(pair, "b", prompt, 40);
  target.blocks_here = 0;  // as one of an earlier release reads it
  CHECK(prefill(pair, "b", prompt, target).kv_bytes == 11 * cost::tiny().block_bytes(kBlock));
  for (const char* id : {"a", "b"})
    REQUIRE(pair.until([&] { return !pair.answers[id].finish.empty(); }));
  CHECK(pair.answers["b"].error == "");
  CHECK(pair.answers["b"].tokens == pair.answers["a"].tokens);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a reservation that claims more blocks than there are fails its request alone") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop, wide());
  const auto prompt = prompt_of(10 * kBlock + 5, 1);
  Reservation target = reserve(pair, "a", prompt, 4);
  target.blocks_here = UINT32_MAX;
  prefill(pair, "a", prompt, target);
  REQUIRE(pair.until([&] { return !pair.answers["a"].finish.empty(); }));
  CHECK(pair.answers["a"].error.find("did not verify") != std::string::npos);
  CHECK(pair.comes_to_rest());
  CHECK(reserve(pair, "b", prompt, 4).blocks_here == 0);  // what did not verify is not shared
  CHECK(pair.call(*pair.to_d, Abort{"b", "enough"}));
  CHECK(pair.comes_to_rest());
}

}  // namespace
}  // namespace shared_blocks_test
}  // namespace mc::serve
