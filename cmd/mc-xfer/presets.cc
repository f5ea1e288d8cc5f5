#include "cmd/mc-xfer/presets.h"

#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "cmd/mc-xfer/scratch.h"
#include "cmd/mc-xfer/workload.h"

namespace mc::xfer {
namespace {

constexpr size_t kTurns = 3;

struct Preset {
  const char *ours, *theirs, *published;
  std::vector<Stream> rows;
};

Stream row(Op op, uint64_t block, uint64_t batch, uint64_t threads, uint64_t gap = 0) {
  Stream s;
  s.op = op;
  s.block = block;
  s.batch = batch;
  s.threads = threads;
  s.gap = gap;
  return s;
}

Preset fig3() {
  Preset p{"spray", "random", "p99 0.695 to 1 of another engine's, over RDMA (TENT, figure 3)", {}};
  for (const Op op : {Op::kRead, Op::kWrite})
    for (const uint64_t kib : {4u, 64u, 1024u, 4096u, 16384u, 65536u})
      p.rows.push_back(row(op, kib * kKiB, 1, 2));
  return p;
}

// A batch is a layer: its blocks of 128 + 16 KiB, each apart from the next.
Preset fig4() {
  Preset p{"spray",
           "random",
           "up to 4.07 x the bandwidth, p99 of a layer 0.144 to 0.687, over RDMA (TENT, figure 4)",
           {}};
  for (const uint64_t threads : {1u, 2u, 4u, 8u})
    p.rows.push_back(row(Op::kWrite, 144 * kKiB, 32, threads, 4 * kKiB));
  return p;
}

// A cache of some size, in blocks of 128 KiB, 64 requests in flight.
Preset fig20() {
  Preset p{"engine",
           "one stream",
           "RDMA 2.4 and 4.6 x tcp, on 4 x 200 and 8 x 400 Gbit/s (Mooncake, figure 20)",
           {}};
  for (const uint64_t threads : {1u, 4u, 16u})
    p.rows.push_back(row(Op::kWrite, 128 * kKiB, 64 / threads, threads));
  return p;
}

struct Side {
  std::vector<double> gb_per_s, p99_us;
};
double median_of(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> out;
  for (size_t i = 0; i < a.size(); ++i) out.push_back(b[i] > 0 ? a[i] / b[i] : 0);
  return median_of(out);
}

Result<> turn(Client& client, const Stream& stream, WorkloadConfig config, Side& side) {
  MC_TRY(const auto results, run_workload(client, {stream}, config));
  side.gb_per_s.push_back(results[0].gigabytes());
  side.p99_us.push_back(static_cast<double>(results[0].latency_ns.quantile(.99)) / 1e3);
  return {};
}

void print(const Preset& p, const std::string& name, const Stream& s, const Side& a, const Side& b,
           const Context& context) {
  const char* op = s.op == Op::kRead ? "read" : "write";
  const double bandwidth = median_ratio(a.gb_per_s, b.gb_per_s);
  const double p99 = median_ratio(a.p99_us, b.p99_us);
  if (context.json)
    std::printf("%s\n", dump_json({{"preset", name},
                                   {"op", op},
                                   {"block", s.block},
                                   {"batch", s.batch},
                                   {"threads", s.threads},
                                   {"gb_per_s", median_of(a.gb_per_s)},
                                   {"against", p.theirs},
                                   {"against_gb_per_s", median_of(b.gb_per_s)},
                                   {"ratio", bandwidth},
                                   {"p99_us", median_of(a.p99_us)},
                                   {"against_p99_us", median_of(b.p99_us)},
                                   {"p99_ratio", p99},
                                   {"published", p.published}})
                            .c_str());
  else if (context.csv)
    std::printf("%s,%s,%llu,%llu,%llu,%.4f,%s,%.4f,%.3f,%.1f,%.1f,%.3f\n", name.c_str(), op,
                static_cast<unsigned long long>(s.block), static_cast<unsigned long long>(s.batch),
                static_cast<unsigned long long>(s.threads), median_of(a.gb_per_s), p.theirs,
                median_of(b.gb_per_s), bandwidth, median_of(a.p99_us), median_of(b.p99_us), p99);
  else
    std::printf("%-6s %8s %6llu %8llu %12.3f %12.3f %8.2f %12.1f %12.1f %8.2f\n", op,
                bytes_text(s.block).c_str(), static_cast<unsigned long long>(s.batch),
                static_cast<unsigned long long>(s.threads), median_of(a.gb_per_s),
                median_of(b.gb_per_s), bandwidth, median_of(a.p99_us), median_of(b.p99_us), p99);
  std::fflush(stdout);
}

void head(const Preset& p, const Context& context) {
  if (context.csv)
    std::printf(
        "preset,op,block,batch,threads,gb_per_s,against,against_gb_per_s,ratio,p99_us,"
        "against_p99_us,p99_ratio\n");
  else if (!context.json)
    std::printf(
        "published: %s\n"
        "medians of %zu turns; a ratio is the median of the turns' own, not that of two columns\n"
        "%-6s %8s %6s %8s %12s %12s %8s %12s %12s %8s\n",
        p.published, kTurns, "op", "block", "batch", "threads",
        (std::string(p.ours) + " GB/s").c_str(), (std::string(p.theirs) + " GB/s").c_str(), "ratio",
        "p99 us", "its p99 us", "ratio");
}

size_t rails_of(const Client& client) {
  size_t most = 0;
  if (const auto paths = client.engine->paths(client.segment, 0, Op::kRead, kMiB))
    for (const Path& path : *paths) most = std::max(most, path.rails.size());
  return most;
}

}  // namespace

Scheduler scheduler_of(const std::string& name) {
  if (name == "static") return Scheduler::kStatic;
  if (name == "round-robin") return Scheduler::kRoundRobin;
  return name == "random" ? Scheduler::kRandom : Scheduler::kSpray;
}

Result<int> run_preset(const std::string& name, const ClientOptions& options, Duration duration,
                       const Context& context) {
  const Preset p = name == "fig3" ? fig3() : name == "fig4" ? fig4() : fig20();
  ClientOptions ours = options, theirs = options;
  // As published, between machines: never over memory that both ends share.
  const auto& allowed = options.engine.transports;
  const bool rdma = std::find(allowed.begin(), allowed.end(), "rdma") != allowed.end();
  ours.engine.transports = theirs.engine.transports = {rdma ? "rdma" : "tcp"};
  if (name == "fig20") {
    theirs.engine.transports = {"tcp"};
    theirs.engine.connections = 1;
    theirs.engine.scheduler = Scheduler::kStatic;
  } else {
    theirs.engine.scheduler = Scheduler::kRandom;
    theirs.engine.slice = Bytes{64 * kKiB};
  }
  MC_TRY(const auto mine, Client::open(ours, "bench"));
  MC_TRY(const auto other, Client::open(theirs, "bench-older"));
  MC_TRY_(ask_scratch(*mine, ours));
  MC_TRY_(ask_scratch(*other, theirs));
  for (const Stream& stream : p.rows) MC_TRY_(may_write(*mine, {stream}));
  head(p, context);
  WorkloadConfig config{duration, true, 1};
  for (const Stream& stream : p.rows) {
    if (stream.span() > std::min(mine->offered, other->offered)) {
      std::fprintf(stderr, "left out: %s x %llu, the peer offers %s\n",
                   bytes_text(stream.block).c_str(),
                   static_cast<unsigned long long>(stream.threads),
                   rounded_bytes_text(mine->offered).c_str());
      continue;
    }
    Side a, b;
    for (size_t i = 0; i < kTurns; ++i) {
      MC_TRY_(turn(*mine, stream, config, a));
      MC_TRY_(turn(*other, stream, config, b));
      ++config.seed;
    }
    print(p, name, stream, a, b, context);
  }
  if (name != "fig20" && rails_of(*mine) < 2)
    std::fprintf(stderr, "one rail leads to the peer: a scheduler has nothing to choose there\n");
  return 0;
}

}  // namespace mc::xfer
