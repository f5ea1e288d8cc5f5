// Work captured once and launched again: it does what it did, on what its memory holds by then;
// timed against the same launches one by one, as a decode step's small kernels are.
#include <cstring>

#include "bench/gpu_check/bed.h"

namespace mc::gpu_check {
namespace {

constexpr uint32_t kChainWide = 4096;

// x of the host, normalized `times` over on the device, and back.
struct Chain {
  Buffer host, x, out, weight;
  static Result<Chain> make(Bed& bed) {
    Chain c;
    MC_TRY(c.host, bed.device->allocate_host(kChainWide * sizeof(float)));
    MC_TRY(c.x, bed.device->allocate(kChainWide * sizeof(float)));
    MC_TRY(c.out, bed.device->allocate(kChainWide * sizeof(float)));
    MC_TRY(c.weight, bed.put(numbers(kChainWide, 1), DType::kF32));
    return c;
  }
  Result<> submit(device::Stream& s, size_t times) const {
    MC_TRY_(s.copy(x.data(), host.data(), host.size()));
    const float* from = at(x);
    for (size_t i = 0; i < times; ++i) {
      float* const to = i % 2 == 0 ? at(out) : at(x);
      MC_TRY_(launch(s, named(MC_NORMALIZE, DType::kF32), {1}, from,
                     static_cast<const float*>(at(weight)), to, kChainWide, 1e-5));
      from = to;
    }
    return s.copy(host.data(), reinterpret_cast<const std::byte*>(from), host.size());
  }
  Result<std::unique_ptr<device::Graph>> capture(device::Stream& s, size_t times) const {
    MC_TRY_(s.begin_capture());
    const auto given = submit(s, times);
    auto graph = s.end_capture();
    MC_TRY_(given);
    return graph;
  }
};

Result<> check_graphs(const Bench& b) {
  MC_TRY(Bed bed, Bed::make(b));
  MC_TRY(const Chain chain, Chain::make(bed));
  MC_TRY(const auto graph, chain.capture(*bed.stream, 3));
  for (const uint64_t seed : {2u, 3u}) {
    const Values values = numbers(kChainWide, seed);
    std::memcpy(chain.host.data(), values.data(), chain.host.size());
    MC_TRY_(finish(*bed.stream, [&] { return chain.submit(*bed.stream, 3); }));
    const std::vector<std::byte> want(chain.host.bytes.begin(), chain.host.bytes.end());
    std::memcpy(chain.host.data(), values.data(), chain.host.size());
    MC_TRY_(finish(*bed.stream, [&] { return bed.stream->launch(*graph); }));
    MC_TRY_(same(chain.host.bytes, want, "a graph launched again"));
  }
  return {};
}

Result<> time_graphs(const Bench& b) {
  MC_TRY(Bed bed, Bed::make(b));
  MC_TRY(const Chain chain, Chain::make(bed));
  const size_t times = b.device->info().kind == "stand-in" ? 20 : 300;
  std::memset(chain.host.data(), 0, chain.host.size());
  MC_TRY(const auto graph, chain.capture(*bed.stream, times));
  const auto rate = [&](std::function<Result<>()> submit) {
    return [&, submit]() -> Result<bench::Measured> {  // kernels, not bytes: 10^9 of them a second
      return bench::gigabytes(b.clock, times, 1, [&] { return finish(*bed.stream, submit); })
          .map([](bench::Measured m) { return bench::Measured(m.value * 1e6); });
    };
  };
  return bench::compare({.bench = "gpu-graph",
                         .name = strf("%zu small kernels as one", times),
                         .unit = "1000/s",
                         .against = "launched one by one"},
                        b.turns(), rate([&] { return bed.stream->launch(*graph); }),
                        rate([&] { return chain.submit(*bed.stream, times); }));
}

}  // namespace

std::vector<Case> graph_checks() {
  return {{"graphs", "work captured once and launched again", check_graphs}};
}
std::vector<Case> graph_figures() {
  return {{"time-graphs", "a graph of small kernels against their launches", time_graphs}};
}

}  // namespace mc::gpu_check
