// Products of a prompt's rows with quantized weights, by each set of kernels against the next:
// AVX-512, AMX, AVX2. Before, that all have the bits of the plain kernels.
#include <cstring>

#include "base/random.h"
#include "bench/figure.h"
#include "cmd/command.h"
#include "model/kernels/matrix.h"

namespace mc {
namespace {

using bench::Measured;
constexpr uint32_t kSize = 2048;  // outputs, and numbers of a sum
constexpr size_t kRows = 512, kChecked = 47;
constexpr size_t kRounds = 4;  // of a turn

struct BenchFormat {
  const char* name;
  uint32_t f16_at[2];  // scales and minimums of a block: less than 2
};
constexpr BenchFormat kFormats[] = {
    {"Q4_0", {0, 0}}, {"Q4_1", {0, 2}}, {"Q8_0", {0, 0}}, {"Q4_K", {0, 2}}, {"Q6_K", {208, 208}}};

struct ProductOptions : bench::Options {
  uint32_t threads = 0;
  void describe(OptionList& v) {
    Options::describe(v);
    v("threads", threads, "threads that compute; 0: one for each CPU");
  }
};

model::Matrix random_matrix(const BenchFormat& wanted, model::ThreadPool& threads) {
  const model::BlockFormat* format = nullptr;
  for (const model::BlockFormat& f : model::block_formats())
    if (std::string_view(f.name) == wanted.name) format = &f;
  MC_CHECK(format != nullptr);
  const size_t row = size_t{kSize} / format->elements * format->bytes;
  std::vector<std::byte> bytes(row * kSize);
  for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(mix64(at));
  for (size_t block = 0; block < bytes.size(); block += format->bytes)
    for (const uint32_t at : wanted.f16_at) bytes[block + at + 1] &= std::byte{0xBF};
  const model::BlockRows rows{
      format, kSize, [&](uint32_t n, std::vector<std::byte>&) { return bytes.data() + n * row; }};
  return model::Matrix::pack_blocks(kSize, 8, {&rows, 1}, threads);
}

// Numbers that have other bits than those of the plain kernels.
size_t unlike_plain(const model::Matrix& m, const model::Kernels& set, model::ThreadPool& threads,
                    const std::vector<float>& x) {
  std::vector<float> want(kChecked * kSize), got(want.size());
  m.multiply(*model::kernels_named("plain"), threads, x.data(), kChecked, want.data());
  m.multiply(set, threads, x.data(), kChecked, got.data());
  size_t unlike = 0;
  for (size_t i = 0; i < want.size(); ++i)
    unlike += std::memcmp(&want[i], &got[i], sizeof(float)) != 0;
  return unlike;
}

Result<int> run(const ProductOptions& o) {
  const SteadyClock clock;
  model::ThreadPool threads(o.threads);
  Random random(1);
  std::vector<float> x(kRows * kSize), y(x.size());
  for (float& v : x) v = static_cast<float>(random.uniform(-1, 1));
  const auto sets = model::kernels_here();
  for (const BenchFormat& format : kFormats) {
    const model::Matrix m = random_matrix(format, threads);
    const auto rate = [&](const model::Kernels& set) {
      return [&]() -> Result<Measured> {
        const Time start = clock.now();
        for (size_t i = 0; i < kRounds; ++i) m.multiply(set, threads, x.data(), kRows, y.data());
        const double products = static_cast<double>(kRounds * kRows) * kSize * kSize;
        return Measured(2 * products / 1e9 / to_seconds(clock.now() - start));
      };
    };
    for (size_t i = 0; i + 1 < sets.size(); ++i) {
      const model::Kernels &set = *sets[i], &next = *sets[i + 1];
      const std::string name = strf("%s, %s", format.name, set.name);
      if (set.blocks == next.blocks) continue;  // the same products, by another name
      bench::none({"block-products", name + ", bits", "numbers", "plain"},
                  unlike_plain(m, set, threads, x), kChecked * kSize);
      if (i + 2 < sets.size())
        MC_TRY_(bench::compare({"block-products", name + ", 512 rows", "GFLOP/s", next.name},
                               o.turns(), rate(set), rate(next)));
    }
  }
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::ProductOptions options;
  mc::Program program("block_products_bench", "how fast rows are multiplied by quantized weights");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
