// What processes and classes get of one link: two network namespaces joined by 1 Gbit/s. Fairness
// of two processes, one with 16 times the threads; and short high-priority reads beside a
// low-priority bulk stream, from the same process and from another.
#include <cstring>
#include <thread>

#include "base/json.h"
#include "bench/figure.h"
#include "bench/namespaces.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"
#include "rpc/socket.h"

namespace mc::bench {
namespace {

using xfer::Priority;
constexpr uint64_t kMemory = 64 * kMiB;
constexpr double kLink = 1e9 / 8 / 1e9;  // GB/s, frames and all
constexpr Duration kWarmUp = std::chrono::milliseconds(600), kShort = std::chrono::seconds(2);

struct Load {  // reads by some threads, one after the other or one every while
  Priority priority = Priority::kMedium;
  uint32_t threads = 1;
  uint64_t block = 4 * kMiB;
  Duration every{};
};
struct Seen {
  double rate = 0;         // GB/s
  std::vector<double> ms;  // of each read
};

double percentile(std::vector<double> v, double p) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[static_cast<size_t>(p * static_cast<double>(v.size() - 1) + .5)];
}

class Reader {  // a thread of a load
 public:
  Reader(const Clock& clock, xfer::Engine& engine, xfer::Request request, Duration every)
      : clock_(clock), engine_(engine), request_(request), every_(every) {}

  Result<> run(Time from, Time to) {
    Mutex mutex;
    Condition never;
    Time next = clock_.now();
    while (next < to) {
      const Time start = clock_.now();
      MC_TRY_(engine_.transfer_sync(request_, std::chrono::seconds(10)));
      const Time end = clock_.now();
      if (start >= from && end <= to) ms.push_back(to_ms(end - start));
      if (start < to && end > from)  // of one across an edge, the part within
        bytes += static_cast<double>(request_.bytes) *
                 to_seconds(std::min(end, to) - std::max(start, from)) / to_seconds(end - start);
      next = every_ > Duration::zero() ? std::max(next + every_, end) : end;
      Lock lock(mutex);
      for (Time now = end; now < next; now = clock_.now()) never.wait_for(mutex, next - now);
    }
    return {};
  }
  double bytes = 0;
  std::vector<double> ms;

 private:
  const Clock& clock_;
  xfer::Engine& engine_;
  const xfer::Request request_;
  const Duration every_;
};

Result<std::vector<Seen>> read_all(const Clock& clock, const xfer::SegmentDescriptor& peer,
                                   const std::vector<Load>& loads, const std::string& table,
                                   Time from, Time to) {
  Metrics metrics;
  xfer::EngineOptions options;
  options.node = "reader";
  options.transports = {"tcp"};
  options.share_table = table;
  MC_TRY(auto engine, xfer::Engine::open(clock, options, metrics));
  MC_TRY(const auto segment, engine->open_segment(peer));
  MC_TRY(const xfer::Memory local, engine->allocate(kMemory + kMiB));
  std::vector<std::vector<std::unique_ptr<Reader>>> readers(loads.size());
  std::vector<std::thread> threads;
  std::vector<Result<>> outcomes(kMemory / kMiB);
  uint64_t at = 0;
  for (size_t i = 0; i < loads.size(); ++i)
    for (uint32_t t = 0; t < loads[i].threads; ++t) {
      xfer::Request r;
      r.segment = segment;
      r.local = local.data() + at;
      r.offset = at;
      r.bytes = loads[i].block;
      r.priority = loads[i].priority;
      at = (at + r.bytes) % kMemory;
      readers[i].push_back(std::make_unique<Reader>(clock, *engine, r, loads[i].every));
      threads.emplace_back([&, reader = readers[i].back().get(), &out = outcomes[threads.size()]] {
        out = reader->run(from, to);
      });
    }
  for (auto& t : threads) t.join();
  for (auto& outcome : outcomes) MC_TRY_(std::move(outcome));
  std::vector<std::byte> want(kMemory);
  fill(want, 1);
  if (std::memcmp(want.data(), local.data(), at == 0 ? kMemory : at) != 0)
    return fail(Code::kCorrupt, "what was read is not what was there");
  std::vector<Seen> out(loads.size());
  for (size_t i = 0; i < loads.size(); ++i)
    for (const auto& reader : readers[i]) {
      out[i].rate += reader->bytes / 1e9 / to_seconds(to - from);
      out[i].ms.insert(out[i].ms.end(), reader->ms.begin(), reader->ms.end());
    }
  return out;
}

class Scene {
 public:
  static Result<Scene> make(const Clock& clock, const Options& options) {
    Scene s(clock);
    s.time_ = options.quick ? kShort : kShort * 3 / 2;
    MC_TRY_(rpc::use_cluster_key("the key of this benchmark alone"));
    MC_TRY(s.here_, Namespace::make());
    MC_TRY(s.there_, Namespace::make());
    MC_TRY_(s.here_.join(s.there_, "shaped", "10.77.0.1", "10.77.0.2", "1gbit"));
    MC_TRY(s.owner_, Child::start([&](int fd) {
             auto served = s.there_.enter();
             if (served) served = s.serve(fd);
             if (!served) std::fprintf(stderr, "xfer-qos: %s\n", served.error().what.c_str());
           }));
    MC_TRY(s.peer_, wire::decode<xfer::SegmentDescriptor>(s.owner_.answer()));
    std::string folder = "/dev/shm/mc-qos-bench-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) return fail_errno("make a folder in /dev/shm");
    s.table_ = folder;
    return s;
  }
  Scene(Scene&&) = default;
  ~Scene() {
    if (!table_.empty()) (void)Namespace::run("rm -rf " + table_);
  }

  // Each list of loads is a process; all at the same time.
  Result<std::vector<Seen>> measure(const std::vector<std::vector<Load>>& processes) {
    const Time from = clock_.now() + kWarmUp, to = from + time_;
    std::vector<Child> children;
    for (const auto& loads : processes) {
      MC_TRY(Child child, Child::start([&](int fd) { work(fd, loads, from, to); }));
      children.push_back(std::move(child));
    }
    std::vector<Seen> out;
    for (const Child& child : children) {
      MC_TRY(const Json answer, parse_json(child.answer()));
      if (answer.contains("error"))
        return fail(Code::kInternal, "%s", answer["error"].get<std::string>().c_str());
      for (const Json& one : answer["seen"])
        out.push_back({one["rate"].get<double>(), one["ms"].get<std::vector<double>>()});
    }
    return out;
  }

 private:
  explicit Scene(const Clock& clock) : clock_(clock) {}
  Result<> serve(int fd) const {
    Metrics metrics;
    xfer::EngineOptions options;
    options.node = "owner";
    options.data = {"10.77.0.2:0"};
    options.transports = {"tcp"};
    MC_TRY(const auto engine, xfer::Engine::open(clock_, options, metrics));
    MC_TRY(const xfer::Memory memory, engine->allocate(kMemory));
    fill(memory.bytes(), 1);
    say(fd, wire::encode(engine->describe()));
    for (;;) ::pause();
  }
  void work(int fd, const std::vector<Load>& loads, Time from, Time to) const {
    Json answer;
    auto entered = here_.enter();
    Result<std::vector<Seen>> seen = fail(Code::kInternal, "not started");
    if (entered)
      seen = read_all(clock_, peer_, loads, table_, from, to);
    else
      seen = fail(entered.error());
    if (!seen) answer["error"] = seen.error().what;
    for (const Seen& one : seen.value_or(std::vector<Seen>{}))
      answer["seen"].push_back({{"rate", one.rate}, {"ms", one.ms}});
    say(fd, dump_json(answer));
  }

  const Clock& clock_;
  Duration time_{};
  Namespace here_, there_;
  Child owner_;
  xfer::SegmentDescriptor peer_;
  std::string table_;
};

// What a figure's turns measured besides, told as another figure.
Result<> also(const Figure& figure, const std::vector<double>& ours,
              const std::vector<double>& theirs) {
  size_t mine = 0, peer = 0;
  return compare(
      figure, ours.size() - 1, [&]() -> Result<Measured> { return Measured(ours[mine++]); },
      [&]() -> Result<Measured> { return Measured(theirs[peer++]); });
}
std::vector<double> link(size_t turns) { return std::vector<double>(turns, kLink); }

Result<> fairness(Scene& scene, size_t turns) {
  std::vector<double> sums;
  auto ours = [&]() -> Result<Measured> {
    MC_TRY(const auto seen, scene.measure({{{.threads = 16}}, {{.threads = 1}}}));
    const double a = seen[0].rate, b = seen[1].rate;
    sums.push_back(a + b);
    return Measured((a + b) * (a + b) / (2 * (a * a + b * b)));
  };
  auto theirs = []() -> Result<Measured> { return Measured(1); };
  MC_TRY_(compare({"xfer-qos", "2 processes, 16:1 threads", "Jain", "equal shares", .95}, turns,
                  ours, theirs));
  return also({"xfer-qos", "both together", "GB/s", "1 Gbit/s"}, sums, link(sums.size()));
}

Result<> behind_bulk(Scene& scene, size_t turns, bool one_process) {
  const Load quick{Priority::kHigh, 1, 64 * kKiB, std::chrono::milliseconds(10)};
  const Load bulk{Priority::kLow, 4, 4 * kMiB, {}};
  const std::string where = one_process ? ", same process" : ", 2 processes";
  std::vector<double> rates, mid, mid_alone;
  auto ours = [&]() -> Result<Measured> {
    std::vector<std::vector<Load>> processes{{quick}, {bulk}};
    if (one_process) processes = {{quick, bulk}};
    MC_TRY(const auto seen, scene.measure(processes));
    rates.push_back(seen[1].rate);
    mid.push_back(percentile(seen[0].ms, .5));
    return Measured(percentile(seen[0].ms, .99));
  };
  auto theirs = [&]() -> Result<Measured> {
    MC_TRY(const auto seen, scene.measure({{quick}}));
    mid_alone.push_back(percentile(seen[0].ms, .5));
    return Measured(percentile(seen[0].ms, .99));
  };
  MC_TRY_(compare({"xfer-qos", "high 64KiB p99" + where, "ms", "high alone", .5, true}, turns, ours,
                  theirs));
  MC_TRY_(
      also({"xfer-qos", "high 64KiB p50" + where, "ms", "high alone", 0, true}, mid, mid_alone));
  return also({"xfer-qos", "bulk beside it" + where, "GB/s", "1 Gbit/s", .85}, rates,
              link(rates.size()));
}

Result<int> run(const Options& o) {
  SteadyClock clock;
  auto scene = Scene::make(clock, o);
  if (!scene && (scene.error().code == Code::kDenied || scene.error().code == Code::kUnsupported)) {
    std::fprintf(stderr, "xfer-qos: skipped: %s\n", scene.error().what.c_str());
    return 77;
  }
  if (!scene) return fail(scene.error());
  const size_t turns = o.quick ? 3 : 7;
  MC_TRY_(fairness(*scene, turns));
  for (const bool one_process : {false, true}) MC_TRY_(behind_bulk(*scene, turns, one_process));
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_qos_bench", "what processes and classes get of one link");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
