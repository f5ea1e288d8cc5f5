// Several rails at once, between two network namespaces: how near to their sum, what a rail that
// slows down, dies, heals or loses connections costs, and which rail short transfers take. Beside
// them plain sockets over the same links, one stream a rail.
#include "bench/figure.h"
#include "bench/rails_scene.h"
#include "cmd/command.h"

namespace mc::bench {
namespace {

using std::chrono::milliseconds;
constexpr const char* kEqual = "500mbit";
constexpr double kWarm = .4;  // seconds until the rails are known

struct Bench {
  Scene& scene;
  size_t turns;
  Duration time;

  Result<> shape(const std::vector<std::string>& rates) const {
    for (size_t i = 0; i < rates.size(); ++i) MC_TRY_(scene.shape(Scene::rail(i), rates[i]));
    return {};
  }
  // What was measured, told as a figure: its turns are over.
  static Result<> tell(const Figure& figure, const std::vector<Measured>& ours,
                       const std::vector<Measured>& theirs) {
    size_t mine = 0, peer = 0;
    return compare(
        figure, ours.size() - 1, [&]() -> Result<Measured> { return ours[mine++]; },
        [&]() -> Result<Measured> { return theirs[peer++]; });
  }

  Result<> sums(const char* name, const std::vector<std::string>& rates, double target,
                bool static_too) const {
    MC_TRY_(shape(rates));
    const double end = to_seconds(time);
    const std::vector<size_t> all{0, 1, 2, 3};
    std::vector<Measured> ours, sum, stripes;
    for (size_t i = 0; i <= turns; ++i) {
      MC_TRY(const Seen seen, scene.measure({.time = time}));
      ours.emplace_back(seen.rate(kWarm, end), seen.cpu_per_kib());
      MC_TRY(const Measured raw, scene.raw(all, time));
      sum.push_back(raw);
      if (!static_too) continue;
      MC_TRY(const Measured striped,
             scene.raw(all, time, static_cast<uint64_t>(raw.value * 1e9 * end)));
      stripes.push_back(striped);
    }
    MC_TRY_(tell({"xfer-rails", name, "GB/s", "sum of raw streams", target}, ours, sum));
    if (!static_too) return {};
    return tell({"xfer-rails", name, "GB/s", "raw, static stripes"}, ours, stripes);
  }

  Result<> throttled() const {
    std::vector<Measured> after, share, loud, quiet;
    const double at = to_seconds(time);
    for (size_t i = 0; i <= turns; ++i) {
      MC_TRY_(shape({kEqual, kEqual, kEqual, kEqual}));
      MC_TRY(const Seen seen, scene.measure({.block = 256 * kKiB,
                                             .threads = 16,
                                             .time = 2 * time,
                                             .events = {{time, Scene::rail(2), "50mbit"}}}));
      after.push_back(seen.rate(at + .05, 2 * at));
      share.push_back(seen.rate(kWarm, at) * 3.1 / 4);
      loud.push_back(seen.quantile(.99, at, 2 * at) * 1e3);
      quiet.push_back(seen.quantile(.99, kWarm, at) * 1e3);
    }
    MC_TRY_(tell({"xfer-rails", "1 of 4 throttled to 1/10", "GB/s", "3.1/4 of before", .95}, after,
                 share));
    return tell({"xfer-rails", "1 of 4 throttled, p99", "ms", "p99 before", .5, true}, loud, quiet);
  }

  // When the rate over the next 100 ms is what it should be, from `from` on.
  static double reached(const Seen& seen, double rate, double from, double to) {
    for (double t = from; t < to; t += .005)
      if (seen.rate(t, t + .1) >= rate) return t - from;
    return to - from;
  }

  Result<> cut() const {
    std::vector<Measured> recovery, reuse;
    const double at = 1, healed = 3;
    for (size_t i = 0; i <= turns; ++i) {
      MC_TRY_(shape({kEqual, kEqual, kEqual, kEqual}));
      const std::string rail = Scene::rail(1);
      MC_TRY(const Seen seen, scene.measure({.block = 256 * kKiB,
                                             .threads = 16,
                                             .time = milliseconds(4200),
                                             .events = {{milliseconds(1000), rail, ""},
                                                        {milliseconds(3000), rail, "up"}}}));
      const double before = seen.rate(kWarm, at);
      recovery.push_back(std::max(1., reached(seen, .9 * before * 3 / 4, at, healed) * 1e3));
      double bytes = -1, used = 4.2;
      for (const Look& look : seen.looks) {
        if (look.at < healed) bytes = look.bytes.at(1);
        if (look.at >= healed && look.bytes.at(1) > bytes + 256e3) used = std::min(used, look.at);
      }
      reuse.push_back((used - healed) * 1e3);
    }
    const std::vector<Measured> soon(recovery.size(), 200.), second(recovery.size(), 1000.);
    MC_TRY_(
        tell({"xfer-rails", "1 of 4 cut: rate is back", "ms", "200 ms", 1, true}, recovery, soon));
    return tell({"xfer-rails", "1 of 4 healed: in use", "ms", "1 s", 1, true}, reuse, second);
  }

  Result<> losing() const {
    MC_TRY_(shape({kEqual, kEqual, kEqual, kEqual}));
    MC_TRY_(scene.serve({0, 1, 2, 3}));
    MC_TRY_(scene.relay(3, {.breaks = .2}));
    const Duration long_enough = milliseconds(3000);
    std::vector<Measured> ours, sum, resting, all;
    for (size_t i = 0; i <= turns; ++i) {
      MC_TRY(const Seen seen, scene.measure({.time = long_enough}));
      ours.emplace_back(seen.rate(1, 3), seen.cpu_per_kib());
      MC_TRY(const Measured raw, scene.raw({0, 1, 2}, time));
      sum.push_back(raw);
      double rests = 0, looks = 0;
      for (const Look& look : seen.looks) {
        if (look.at < 1) continue;
        looks += 1;
        rests += look.states.at(3) == "resting" || look.states.at(3) == "probing" ? 1 : 0;
      }
      resting.push_back(rests / looks);
      all.push_back(1);
    }
    MC_TRY_(tell({"xfer-rails", "1 of 4 loses 20 %/MiB", "GB/s", "raw sum of the others", .9}, ours,
                 sum));
    return tell({"xfer-rails", "1 of 4 loses: quarantined", "of time", "always", .9}, resting, all);
  }

  Result<> near_and_far() const {
    MC_TRY_(shape({kEqual, kEqual, kEqual, kEqual}));
    MC_TRY_(scene.serve({0, 1}));
    MC_TRY_(scene.relay(1, {.delay = milliseconds(1)}));
    const Load both{.rails = {0, 1}, .block = 4 * kKiB, .threads = 1, .time = time};
    std::vector<Measured> share, all, ours, alone;
    std::vector<Seen> quick;
    for (size_t i = 0; i <= turns; ++i) {
      MC_TRY(const Seen seen, scene.measure(both));
      const auto& bytes = seen.looks.back().bytes;
      share.push_back(bytes.at(0) / (bytes.at(0) + bytes.at(1)));
      all.push_back(1);
      ours.push_back(seen.quantile(.5, 0, to_seconds(time)) * 1e6);
    }
    MC_TRY_(scene.serve({0}));
    Load one = both;
    one.rails = {0};
    for (size_t i = 0; i <= turns; ++i) {
      MC_TRY(const Seen seen, scene.measure(one));
      alone.push_back(seen.quantile(.5, 0, to_seconds(time)) * 1e6);
    }
    MC_TRY_(tell({"xfer-rails", "4KiB, 2nd rail 2 ms away", "by 1st", "all", .95}, share, all));
    return tell({"xfer-rails", "4KiB p50, 2nd rail 2 ms", "us", "1st rail alone", .9, true}, ours,
                alone);
  }
};

Result<int> run(const Options& o) {
  SteadyClock clock;
  auto scene = Scene::make(clock);
  if (!scene && (scene.error().code == Code::kDenied || scene.error().code == Code::kUnsupported)) {
    std::fprintf(stderr, "xfer-rails: skipped: %s\n", scene.error().what.c_str());
    return 77;
  }
  if (!scene) return fail(scene.error());
  // The first turn is not counted.
  const Bench b{**scene, o.quick ? 3u : 7u, o.quick ? milliseconds(800) : milliseconds(1500)};
  MC_TRY_((*scene)->serve({0, 1, 2, 3}));
  MC_TRY_(b.sums("4 equal rails", {kEqual, kEqual, kEqual, kEqual}, .95, false));
  MC_TRY_(b.sums("rails of 1:2:4:8", {"100mbit", "200mbit", "400mbit", "800mbit"}, .92, true));
  MC_TRY_(b.throttled());
  MC_TRY_(b.cut());
  MC_TRY_(b.losing());
  MC_TRY_(b.near_and_far());
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_rails_bench", "transfers over several rails that come and go");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
