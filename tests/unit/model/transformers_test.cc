// Every family against what transformers computed of it: folders that
// tests/nightly/families.py wrote. MC_FAMILIES names the folder that has them.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "model/forward/weights.h"
#include "run.h"
#include "shared.h"

using namespace mc;
using namespace mc::model;

namespace mc::transformers_test {
namespace {

std::vector<float> floats_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), values.size() * 4);
  return values;
}

// The greatest difference of a logit, and the greatest logit.
std::pair<double, double> compare(const std::string& folder, size_t chunk) {
  const auto config = parse_config(test::json_at(folder + "/config.json"));
  REQUIRE_MESSAGE(config.has_value(), config.error().what);
  const auto tensors = open_safetensors(folder);
  REQUIRE_MESSAGE(tensors.has_value(), tensors.error().what);
  ThreadPool threads(2);
  auto weights = load_weights(*tensors, *config, Naming::kHuggingFace, DType::kF32, threads);
  REQUIRE_MESSAGE(weights.has_value(), weights.error().what);
  const Transformer t(*config, std::move(*weights), {DType::kF32, 16}, *kernels_named("auto"),
                      threads);
  const auto tokens = test::json_at(folder + "/tokens.json").get<std::vector<int32_t>>();
  test::Sequence sequence(t, tokens.size());
  const auto got = sequence.add(tokens, chunk), want = floats_of(folder + "/logits.f32");
  REQUIRE(got.size() == want.size());
  double most = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    most = std::max(most, std::fabs(double{got[i]} - double{want[i]}));
    size = std::max(size, std::fabs(double{want[i]}));
  }
  return {most, size};
}

TEST_CASE("each family's logits are those of transformers") {
  const char* const folder = std::getenv("MC_FAMILIES");
  if (folder == nullptr) {
    MESSAGE("skipped: wants MC_FAMILIES, the folder that tests/nightly/families.py wrote");
    return;
  }
  size_t families = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    CAPTURE(name);
    const auto [most, size] = compare(entry.path(), 50);
    std::printf("%-16s logits up to %.3g differ by %.2g at most\n", name.c_str(), size, most);
    CHECK(most < 2e-4 * std::max(1.0, size));
    CHECK(size > 0.5);
    ++families;
  }
  CHECK(families > 0);
}

}  // namespace
}  // namespace mc::transformers_test
