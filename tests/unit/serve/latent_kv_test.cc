// A model of latent attention between a prefill and a decode worker, by every connector and over a
// pool: KV is the latent vectors, and the tokens are those of one process.
#include "pool.h"
#include "small_engine.h"
#include "tests/unit/model/family_files.h"

namespace mc::serve {
namespace latent_kv_test {
namespace {

mc::test::FamilyCase family() {
  for (mc::test::FamilyCase& c : mc::test::family_cases())
    if (c.name == "deepseek2") return c;
  return {};
}

CpuEngine engine_of(uint32_t threads, uint32_t block, model::KvFormat kv) {
  const mc::test::FamilyCase c = family();
  const auto tensors = mc::test::hf_tensors(c, 5);
  const model::TensorSet set{mc::test::views(tensors), {}};
  auto config = model::parse_config(c.json);
  REQUIRE_MESSAGE(config.has_value(), config.error().what);
  config->name = c.name;
  auto pool = std::make_unique<model::ThreadPool>(threads);
  auto weights =
      model::load_weights(set, *config, model::Naming::kHuggingFace, model::DType::kF32, *pool);
  REQUIRE_MESSAGE(weights.has_value(), weights.error().what);
  return {model::spec_of(*config, kv),   *config,        std::move(*weights), {kv, block},
          *model::kernels_named("auto"), std::move(pool)};
}

std::vector<int32_t> tokens_of(size_t n) {
  auto tokens = prompt_of(n, n);
  for (int32_t& t : tokens) t %= 61;
  return tokens;
}

TEST_CASE("a model of latent attention gives one process's tokens by every connector") {
  SteadyClock clock;
  for (const model::KvFormat kv : {model::KvFormat(model::DType::kBf16), model::KvFormat::q8()}) {
    const CpuEngine p = engine_of(2, kBlock, kv), d = engine_of(1, kBlock, kv);
    const CpuEngine one = engine_of(1, 512, kv);
    CHECK(p.spec().mla);
    CHECK(p.spec().kv_bytes_per_token() == 4 * kv.row_bytes(32));
    int serial = 0;
    for (const Way& way : kWays) {
      CAPTURE(way.name);
      CAPTURE(name(kv));
      io::Loop loop(clock);
      Store store(loop, 64 * kMiB);
      PairOptions options;
      options.connector = way.connector;
      options.layerwise = way.layerwise;
      options.master = store.master->control();
      options.prefill_engine = &p;
      options.decode_engine = &d;
      Pair pair(loop, options);
      bool again = false;
      for (const size_t n : {5u, 100u, 100u}) {  // the last from blocks that are there
        const std::string id = std::to_string(++serial);
        const PrefillDone done = pair.serve(id, tokens_of(n), 6);
        const size_t here = again ? n / kBlock : 0;  // on the decode worker
        again = n == 100;
        CHECK(done.kv_bytes == ((n + kBlock - 1) / kBlock - here) * p.spec().block_bytes(kBlock));
        CHECK(pair.answers[id].tokens == alone(one, tokens_of(n), 6, kGreedy));
      }
      CHECK(pair.comes_to_rest());
    }
  }
}

TEST_CASE("KV of latent vectors is not split between tensor-parallel ranks") {
  const CpuEngine engine = engine_of(1, kBlock, model::DType::kF32);
  const KvShape shape = KvShape::of(engine.spec(), kBlock, 1);
  CHECK(check_ranks(shape, 1).has_value());
  CHECK_FALSE(check_ranks(shape, 2).has_value());
}

}  // namespace
}  // namespace latent_kv_test
}  // namespace mc::serve
