// How a benchmark measures and prints: two sides take turns, the figure is the median of their
// per-turn ratios, one JSON line each.
#pragma once
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/options.h"
#include "base/time.h"

namespace mc::bench {

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}
inline double spread(const std::vector<double>& v) {
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  return (*high - *low) / median(v);
}
inline double round3(double v) {
  return static_cast<double>(static_cast<int64_t>(v * 1000 + .5)) / 1e3;
}

struct Figure {
  std::string bench, name, unit = "GB/s", against;
};

using Turn = std::function<Result<double>()>;  // the value of one turn, bigger is better

// `turns` turns of each side, interleaved, after one of each that is not counted.
inline Result<> compare(const Figure& figure, size_t turns, const Turn& ours, const Turn& theirs) {
  std::vector<double> mine, peer, ratio;
  for (size_t i = 0; i <= turns; ++i) {
    MC_TRY(const double a, ours());
    MC_TRY(const double b, theirs());
    if (i == 0) continue;
    mine.push_back(a);
    peer.push_back(b);
    ratio.push_back(a / b);
  }
  const Json line = {{"bench", figure.bench},          {"case", figure.name},
                     {"value", round3(median(mine))},  {"unit", figure.unit},
                     {"against", figure.against},      {"against_value", round3(median(peer))},
                     {"ratio", round3(median(ratio))}, {"n", turns},
                     {"spread", round3(spread(ratio))}};
  std::printf("%s\n", dump_json(line).c_str());
  std::fflush(stdout);
  return {};
}

// Bytes a second, in GB/s, of `work` done `rounds` times.
inline Result<double> gigabytes(const Clock& clock, uint64_t bytes, size_t rounds,
                                const std::function<Result<>()>& work) {
  const Time start = clock.now();
  for (size_t i = 0; i < rounds; ++i) MC_TRY_(work());
  return static_cast<double>(bytes) * static_cast<double>(rounds) / 1e9 /
         to_seconds(clock.now() - start);
}

struct Options {
  bool quick = false;
  void describe(OptionList& v) { v("quick", quick, "fewer and shorter turns"); }
  size_t turns() const { return quick ? 7 : 15; }
};

}  // namespace mc::bench
