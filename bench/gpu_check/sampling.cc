// The next token of a row of logits, greedy or drawn: the host's, bit for bit. It is timed against
// what the host would do, taking the logits there and drawing, and against a copy of the logits.
#include <cstring>

#include "bench/gpu_check/bed.h"
#include "model/forward/sampler.h"

namespace mc::gpu_check {
namespace {

struct Asked {
  std::vector<mc_row> rows;
  std::vector<mc_draw> draws;
  std::vector<model::Draw> of_host;
  void add(model::Draw d, bool masked, std::span<const int32_t> ends) {
    rows.push_back({0, 0, 0, masked ? 1u : 0u});
    draws.push_back({d.temperature, d.top_p, d.bits(), d.top_k, 0});
    if (masked) d.never = ends;
    of_host.push_back(d);
  }
};

// Every way of drawing in turn; every third row may not end its answer.
Asked asked(size_t rows, std::span<const int32_t> ends) {
  Asked a;
  for (size_t i = 0; i < rows; ++i) {
    model::Draw d{.seed = 11 * i, .position = i};
    if (i % 5 != 0) d.temperature = 0.3 * static_cast<double>(i % 4 + 1);
    if (i % 4 == 1) d.top_k = static_cast<uint32_t>(1 + i % 50);
    if (i % 4 == 2) d.top_p = 0.9;
    if (i % 8 == 7) d.top_k = 40, d.top_p = 0.5;
    a.add(d, i % 3 == 2, ends);
  }
  return a;
}

// All rows in one way.
struct Way {
  const char* name;
  model::Draw draw;
};
const Way kWays[] = {
    {"greedy", {}},
    {"drawn", {.temperature = 1}},
    {"top-p 0.9", {.temperature = 1, .top_p = 0.9}},
    {"top-k 40, top-p 0.9", {.temperature = 1, .top_k = 40, .top_p = 0.9}},
};
Asked asked(size_t rows, const Way& way) {
  Asked a;
  for (size_t i = 0; i < rows; ++i) {
    model::Draw d = way.draw;
    d.seed = i;
    a.add(d, false, {});
  }
  return a;
}

struct Sampling {
  uint32_t rows = 0, vocab = 0;
  std::vector<int32_t> ends{100, 999};
  Asked asked{};
  Values logits{};
  Buffer on_device{}, row_list{}, draws{}, end_list{}, tokens{};

  // Without a way: all of them.
  static Result<Sampling> make(Bed& bed, uint32_t rows, uint32_t vocab, const Way* way = nullptr) {
    Sampling s{.rows = rows, .vocab = vocab};
    s.asked = way == nullptr ? gpu_check::asked(rows, s.ends) : gpu_check::asked(rows, *way);
    s.logits = numbers(size_t{rows} * vocab, vocab);
    for (size_t r = 0; r < rows; ++r) {  // peaks, some of the same height, one of them an end
      float* const row = &s.logits[r * vocab];
      for (size_t i = 0; i < vocab; ++i) row[i] *= 8;
      row[100] = row[101 + r % 7] = 9;
    }
    MC_TRY(s.on_device, bed.put(s.logits, DType::kF32));
    MC_TRY(s.row_list, bed.put(s.asked.rows.data(), rows * sizeof(mc_row)));
    MC_TRY(s.draws, bed.put(s.asked.draws.data(), rows * sizeof(mc_draw)));
    MC_TRY(s.end_list, bed.put(s.ends.data(), s.ends.size() * sizeof(int32_t)));
    MC_TRY(s.tokens, bed.device->allocate(rows * sizeof(int32_t)));
    return s;
  }
  Result<> submit(device::Stream& stream) const {
    return launch(stream, MC_SAMPLE, {rows}, static_cast<const float*>(at(on_device)),
                  rows_at(row_list), reinterpret_cast<const mc_draw*>(draws.data()),
                  reinterpret_cast<const int32_t*>(end_list.data()),
                  static_cast<uint32_t>(ends.size()), reinterpret_cast<int32_t*>(tokens.data()),
                  vocab);
  }
  Result<> run(Bed& bed) const {
    return finish(*bed.stream, [&] { return submit(*bed.stream); });
  }
  // The tokens that a run has left are the host's.
  Result<> check(Bed& bed) const {
    std::vector<int32_t> got(rows);
    auto* const bytes = reinterpret_cast<std::byte*>(got.data());
    MC_TRY_(
        finish(*bed.stream, [&] { return bed.stream->copy(bytes, tokens.data(), tokens.size()); }));
    const std::vector<int32_t> want = by_host(logits);
    for (size_t r = 0; r < rows; ++r)
      if (got[r] != want[r])
        return fail(Code::kCorrupt, "%s: row %zu of %u tokens says %d, the host %d", MC_SAMPLE, r,
                    vocab, got[r], want[r]);
    return {};
  }
  std::vector<int32_t> by_host(Values all) const {
    std::vector<int32_t> chosen;
    for (size_t r = 0; r < rows; ++r)
      chosen.push_back(model::sample(std::span(all).subspan(r * vocab, vocab), asked.of_host[r]));
    return chosen;
  }
};

Result<> check_sampling(const Bench& b) {
  MC_TRY(Bed bed, Bed::make(b));
  const uint32_t large = b.device->info().kind == "stand-in" ? 5000 : 128'256;
  for (const uint32_t vocab : {uint32_t{1000}, large}) {
    MC_TRY(const Sampling s, Sampling::make(bed, 64, vocab));
    MC_TRY_(s.run(bed));
    MC_TRY_(s.check(bed));
  }
  return {};
}

bool small(const Bench& b) { return b.device->info().kind == "stand-in"; }
Result<Sampling> timed(const Bench& b, Bed& bed, const Way* way = nullptr) {
  return Sampling::make(bed, small(b) ? 4 : 32, small(b) ? 2000 : 128'256, way);
}

Result<> time_sampling(const Bench& b) {
  MC_TRY(Bed bed, Bed::make(b));
  MC_TRY(const Sampling s, timed(b, bed));
  const uint64_t bytes = s.logits.size() * sizeof(float);
  const auto device = [&]() -> Result<bench::Measured> {
    return bench::gigabytes(b.clock, bytes, 1, [&] { return s.run(bed); });
  };
  const auto host = [&]() -> Result<bench::Measured> {
    return bench::gigabytes(b.clock, bytes, 1, [&]() -> Result<> {
      MC_TRY(Values all, bed.get(s.on_device, DType::kF32));
      (void)s.by_host(std::move(all));
      return {};
    });
  };
  return bench::compare({.bench = "gpu-kernel",
                         .name = strf("tokens of %u rows of %u", s.rows, s.vocab),
                         .against = "logits taken to the host"},
                        b.turns(), device, host);
}

// Microseconds of one of many that run one after the other, beside a copy of the logits on the
// device, which reads them once.
Result<> time_way(const Bench& b, const Way& way) {
  MC_TRY(Bed bed, Bed::make(b));
  MC_TRY(const Sampling s, timed(b, bed, &way));
  MC_TRY(const Buffer copied, b.device->allocate(s.on_device.size()));
  MC_TRY_(s.run(bed));
  MC_TRY_(s.check(bed));
  const size_t times = small(b) ? 1 : 50;
  const auto each = [&](const std::function<Result<>()>& submit) -> Result<bench::Measured> {
    const auto all = [&]() -> Result<> {
      for (size_t i = 0; i < times; ++i) MC_TRY_(submit());
      return {};
    };
    const Time start = b.clock.now();
    MC_TRY_(finish(*bed.stream, all));
    return bench::Measured(to_seconds(b.clock.now() - start) * 1e6 / static_cast<double>(times));
  };
  return bench::compare(
      {.bench = "gpu-kernel",
       .name = strf("tokens of %u rows of %u, %s", s.rows, s.vocab, way.name),
       .unit = "us",
       .against = "a copy of the logits on the device",
       .less_is_better = true},
      b.turns(), [&] { return each([&] { return s.submit(*bed.stream); }); },
      [&] {
        return each([&] {
          return bed.stream->copy(copied.data(), s.on_device.data(), s.on_device.size());
        });
      });
}
Result<> time_ways(const Bench& b) {
  for (const Way& way : kWays) MC_TRY_(time_way(b, way));
  return {};
}

}  // namespace

std::vector<Case> sampling_checks() {
  return {{"sampling", "tokens greedy and drawn, as the host has them", check_sampling}};
}
std::vector<Case> sampling_figures() {
  return {{"time-sampling", "tokens chosen there against logits taken to the host", time_sampling},
          {"time-draws", "tokens greedy and drawn against a copy of the logits", time_ways}};
}

}  // namespace mc::gpu_check
