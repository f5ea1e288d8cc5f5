// How a benchmark measures and prints: two sides take turns, the figure is the median of their
// per-turn ratios, one JSON line each. Where both sides tell what CPU time they took (`cpu`, ns per
// KiB or token), the line has that too.
#pragma once
#include <sys/resource.h>

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
  double target = 0;            // of the ratio; 0: none
  bool less_is_better = false;  // a time: the ratio is theirs / ours
};

struct Measured {
  double value = 0;
  double cpu = 0;  // ns of CPU per KiB or token; 0: not told
  Measured() = default;
  Measured(double v, double c = 0) : value(v), cpu(c) {}
};

using Turn = std::function<Result<Measured>()>;  // what one turn gives

// User and system time of this process and all its threads.
inline double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Part of the names of the cases to measure; empty: all.
inline std::string& wanted_cases() {
  static std::string text;
  return text;
}

// `turns` turns of each side, interleaved, after one of each that is not counted.
inline Result<> compare(const Figure& figure, size_t turns, const Turn& ours, const Turn& theirs) {
  if (figure.name.find(wanted_cases()) == std::string::npos) return {};
  std::vector<double> mine, peer, ratio, my_cpu, peer_cpu;
  for (size_t i = 0; i <= turns; ++i) {
    MC_TRY(const Measured a, ours());
    MC_TRY(const Measured b, theirs());
    if (i == 0) continue;
    mine.push_back(a.value);
    peer.push_back(b.value);
    ratio.push_back(figure.less_is_better ? b.value / a.value : a.value / b.value);
    my_cpu.push_back(a.cpu);
    peer_cpu.push_back(b.cpu);
  }
  Json line = {{"bench", figure.bench},          {"case", figure.name},
               {"value", round3(median(mine))},  {"unit", figure.unit},
               {"against", figure.against},      {"against_value", round3(median(peer))},
               {"ratio", round3(median(ratio))}, {"n", turns},
               {"spread", round3(spread(ratio))}};
  if (figure.target > 0) {
    line["target"] = figure.target;
    line["met"] = median(ratio) >= figure.target;
  }
  if (median(my_cpu) > 0 && median(peer_cpu) > 0) {
    line["cpu"] = round3(median(my_cpu));
    line["against_cpu"] = round3(median(peer_cpu));
  }
  std::printf("%s\n", dump_json(line).c_str());
  std::fflush(stdout);
  return {};
}

// A count that must be 0, among `of` that were looked at.
inline void none(const Figure& figure, uint64_t count, uint64_t of) {
  const double share = of > 0 ? static_cast<double>(count) / static_cast<double>(of) : 0;
  const Json line = {{"bench", figure.bench},
                     {"case", figure.name},
                     {"value", count},
                     {"unit", figure.unit},
                     {"against", figure.against},
                     {"against_value", of},
                     {"ratio", 1 - share},
                     {"n", 1},
                     {"spread", 0},
                     {"target", 1},
                     {"met", count == 0}};
  std::printf("%s\n", dump_json(line).c_str());
  std::fflush(stdout);
}

// Bytes a second, in GB/s, of `work` done `rounds` times, and its CPU time.
inline Result<Measured> gigabytes(const Clock& clock, uint64_t bytes, size_t rounds,
                                  const std::function<Result<>()>& work) {
  const double cpu = cpu_seconds();
  const Time start = clock.now();
  for (size_t i = 0; i < rounds; ++i) MC_TRY_(work());
  const double seconds = to_seconds(clock.now() - start);
  const double total = static_cast<double>(bytes) * static_cast<double>(rounds);
  return Measured(total / 1e9 / seconds, (cpu_seconds() - cpu) * 1e9 / (total / 1024));
}

struct Options {
  bool quick = false;
  void describe(OptionList& v) {
    v("quick", quick, "fewer and shorter turns");
    v("case", wanted_cases(), "measure the cases with this text in their names");
  }
  size_t turns() const { return quick ? 7 : 15; }
};

}  // namespace mc::bench
