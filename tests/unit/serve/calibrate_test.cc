#include "serve/engine/calibrate.h"

#include <doctest/doctest.h>

#include "serve/engine/dummy_engine.h"

using namespace mc;
using namespace mc::serve;

namespace calibrate_test {
namespace {

// An engine whose work takes exactly the time of a spec, on its own clock.
class TimedEngine final : public Engine {
 public:
  TimedEngine(cost::ModelSpec spec, ManualClock& clock) : spec_(std::move(spec)), clock_(clock) {}
  const cost::ModelSpec& spec() const override { return spec_; }
  uint32_t block_tokens() const override { return 16; }
  bool ends_answer(int32_t) const override { return false; }
  bool modelled_time() const override { return false; }
  void prefill_layer(const ChunkView& chunk, uint32_t layer, Activations&) const override {
    REQUIRE(chunk.sequence.blocks.size() * 16 >= chunk.end);
    const auto b = static_cast<double>(chunk.begin), e = static_cast<double>(chunk.end);
    if (layer == 0)
      clock_.advance(
          from_seconds(spec_.cost.c0 + spec_.cost.c1 * (e - b) + spec_.cost.c2 * (e * e - b * b)));
  }
  uint64_t verify(const SequenceView&) const override { return 0; }
  std::vector<int32_t> decode(std::span<const DecodeItem> batch) const override {
    uint64_t context = 0;
    for (const DecodeItem& item : batch) context += item.sequence.tokens.size();
    clock_.advance(from_seconds(cost::step_seconds(spec_, batch.size(), context)));
    return std::vector<int32_t>(batch.size(), 7);
  }

 private:
  const cost::ModelSpec spec_;
  ManualClock& clock_;
};

}  // namespace

TEST_CASE("calibration finds the cost model that an engine follows") {
  cost::ModelSpec s = cost::tiny();
  s.cost = {.c0 = 0.01, .c1 = 3e-5, .c2 = 4e-9, .t0 = 0.02, .t1 = 0.003, .t2 = 5e-7};
  ManualClock clock;
  const TimedEngine engine(s, clock);
  size_t lines = 0;
  const auto found = calibrate(engine, clock, {.blocks = 256, .tokens = 2048, .chunk_tokens = 4096},
                               [&](const std::string&) { ++lines; });
  REQUIRE(found);
  CHECK(lines == found->prefill.size() + found->steps.size());
  CHECK(found->fit.cost.c0 == doctest::Approx(s.cost.c0));
  CHECK(found->fit.cost.c1 == doctest::Approx(s.cost.c1));
  CHECK(found->fit.cost.c2 == doctest::Approx(s.cost.c2));
  CHECK(found->fit.cost.load_bytes_per_s == cost::kFreeLoad);
  CHECK(found->fit.cost.t0 == doctest::Approx(s.cost.t0));
  CHECK(found->fit.cost.t1 == doctest::Approx(s.cost.t1));
  CHECK(found->fit.cost.t2 == doctest::Approx(s.cost.t2));
}

TEST_CASE("calibration measures what fits the pool, and refuses an engine it cannot measure") {
  ManualClock clock;
  const TimedEngine engine(cost::tiny(), clock);
  const auto quiet = [](const std::string&) {};
  const auto small = calibrate(engine, clock, {.blocks = 8}, quiet);  // 128 tokens in all
  REQUIRE(small);
  for (const auto& at : small->prefill) CHECK(at.n <= 128);
  for (const auto& at : small->steps) CHECK(at.context_tokens <= 128);
  CHECK(!calibrate(engine, clock, {.blocks = 2}, quiet));
  CHECK(!calibrate(engine, clock, {.blocks = 100, .tokens = 10}, quiet));
  CHECK(!calibrate(engine, clock, {.blocks = 100, .chunk_tokens = 0}, quiet));
  const DummyEngine dummy(cost::tiny(), 16);
  const auto refused = calibrate(dummy, clock, {.blocks = 100}, quiet);
  REQUIRE(!refused);
  CHECK(refused.error().what.find("--engine cpu") != std::string::npos);
}

}  // namespace calibrate_test
