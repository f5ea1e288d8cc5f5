// mc-xfer bench: measures a peer by operation, block size, batch and threads, or a mix of classes.
#include <cstdio>

#include "base/json.h"
#include "cmd/mc-xfer/presets.h"
#include "cmd/mc-xfer/scratch.h"
#include "cmd/mc-xfer/verbs.h"
#include "cmd/mc-xfer/workload.h"

namespace mc::xfer {
namespace {

struct BenchOptions {
  ClientOptions client;
  std::vector<std::string> op{"read", "write"}, block{"4KiB", "64KiB", "1MiB", "16MiB"};
  std::vector<std::string> batch{"1"}, threads{"1"}, mix;
  std::string scheduler = "spray", preset = "none";
  Duration duration = std::chrono::seconds(1);
  bool check = true;
  void describe(OptionList& v) {
    v("op", op, "operations: read, write");
    v("block", block, "block sizes");
    v("batch", batch, "requests in flight per thread");
    v("threads", threads, "threads that submit");
    v("mix", mix, "streams side by side instead of a sweep: CLASS:OP:BLOCK[:THREADS[:SLO]]");
    v("scheduler", scheduler,
      "how slices find their rail: spray, or as older engines do, to compare",
      {"spray", "random", "round-robin", "static"});
    v("preset", preset,
      "a paper's experiment, in turns with an older behaviour, instead of a sweep; a ratio is the "
      "median of those of each turn",
      {"none", "fig3", "fig4", "fig20"});
    v("duration", duration, "how long each row runs");
    v("check", check, "verify contents by checksum after each row, where the peer's may be filled");
    client.describe_device(v);
    client.describe_overwrite(v);
    client.describe(v);
  }
};

Result<std::vector<uint64_t>> sizes(const std::vector<std::string>& texts, bool bytes) {
  std::vector<uint64_t> out;
  for (const auto& text : texts) {
    MC_TRY(const uint64_t n, bytes ? parse_bytes(text) : parse_uint(text));
    if (n == 0) return fail(Code::kInvalid, "'%s': want 1 or more", text.c_str());
    out.push_back(n);
  }
  return out;
}

// Each element is a row of the report, or the rows of one mix.
Result<std::vector<std::vector<Stream>>> plan(const BenchOptions& o) {
  std::vector<std::vector<Stream>> out;
  if (!o.mix.empty()) {
    out.emplace_back();
    for (const auto& text : o.mix) {
      MC_TRY(const Stream s, parse_mix(text));
      out.back().push_back(s);
    }
    return out;
  }
  MC_TRY(const auto blocks, sizes(o.block, true));
  MC_TRY(const auto batches, sizes(o.batch, false));
  MC_TRY(const auto threads, sizes(o.threads, false));
  for (const auto& op : o.op) {
    if (op != "read" && op != "write")
      return fail(Code::kInvalid, "operation '%s' is not read or write", op.c_str());
    for (uint64_t block : blocks)
      for (uint64_t batch : batches)
        for (uint64_t n : threads) {
          if (n > kThreadsMax)
            return fail(Code::kInvalid, "--threads %llu: want 1 to %llu",
                        static_cast<unsigned long long>(n),
                        static_cast<unsigned long long>(kThreadsMax));
          Stream s;
          s.op = op == "read" ? Op::kRead : Op::kWrite;
          s.block = block;
          s.batch = batch;
          s.threads = n;
          out.push_back({s});
        }
  }
  return out;
}

class Report {
 public:
  Report(const Context& context, std::string transport)
      : context_(context), transport_(std::move(transport)) {
    if (context.csv)
      std::printf(
          "class,op,transport,block,batch,threads,gb_per_s,mean_us,p50_us,p99_us,p999_us,"
          "slo_attainment,fairness\n");
    else if (!context.json)
      std::printf("%-6s %-6s %-5s %8s %6s %8s %9s %10s %10s %10s %10s  %s\n", "class", "op", "via",
                  "block", "batch", "threads", "GB/s", "mean us", "p50 us", "p99 us", "p999 us",
                  "check");
  }

  void add(const StreamResult& r) const {
    const Stream& s = r.stream;
    const char* op = s.op == Op::kRead ? "read" : "write";
    const double mean = r.latency_ns.mean() / 1e3;
    const auto batch = static_cast<unsigned long long>(s.batch);
    const auto threads = static_cast<unsigned long long>(s.threads);
    const double fairness = jain(r.thread_bytes);
    auto us = [&](double q) { return static_cast<double>(r.latency_ns.quantile(q)) / 1e3; };
    if (context_.json) {
      Json row = {{"class", name(s.priority)}, {"op", op},
                  {"transport", transport_},   {"block", s.block},
                  {"batch", s.batch},          {"threads", s.threads},
                  {"gb_per_s", r.gigabytes()}, {"mean_us", mean},
                  {"p50_us", us(.5)},          {"p99_us", us(.99)},
                  {"p999_us", us(.999)},       {"requests", r.requests},
                  {"fairness", fairness},      {"checked", r.checked}};
      if (s.slo.count() > 0) {
        row["slo_us"] = static_cast<double>(s.slo.count()) / 1e3;
        row["slo_attainment"] = r.slo_attainment();
      }
      std::printf("%s\n", dump_json(row).c_str());
    } else if (context_.csv) {
      std::printf("%s,%s,%s,%llu,%llu,%llu,%.4f,%.1f,%.1f,%.1f,%.1f,", name(s.priority), op,
                  transport_.c_str(), static_cast<unsigned long long>(s.block), batch, threads,
                  r.gigabytes(), mean, us(.5), us(.99), us(.999));
      if (s.slo.count() > 0) std::printf("%.4f", r.slo_attainment());
      std::printf(",%.4f\n", fairness);
    } else {
      std::printf("%-6s %-6s %-5s %8s %6llu %8llu %9.3f %10.1f %10.1f %10.1f %10.1f  %s",
                  name(s.priority), op, transport_.c_str(), bytes_text(s.block).c_str(), batch,
                  threads, r.gigabytes(), mean, us(.5), us(.99), us(.999), r.checked ? "ok" : "-");
      if (s.slo.count() > 0)
        std::printf("  %.1f %% within %s", 100 * r.slo_attainment(), to_text(s.slo).c_str());
      if (s.threads > 1) std::printf("  fairness %.3f", fairness);
      std::printf("\n");
    }
    std::fflush(stdout);
  }

 private:
  const Context& context_;
  const std::string transport_;
};

// A preset and a mix say what is moved. Errors: kInvalid for a flag that would be ignored.
Result<> check_alone(const BenchOptions& o) {
  const BenchOptions plain;
  const bool preset = o.preset != "none";
  if (!preset && o.mix.empty()) return {};
  const std::string by = preset ? "--preset " + o.preset : "--mix";
  const char* given = preset && !o.mix.empty()           ? "--mix"
                      : o.op != plain.op                 ? "--op"
                      : o.block != plain.block           ? "--block"
                      : o.batch != plain.batch           ? "--batch"
                      : o.threads != plain.threads       ? "--threads"
                      : preset && o.check != plain.check ? "--no-check"
                                                         : nullptr;
  if (given == nullptr) return {};
  return fail(Code::kInvalid, "%s has no place beside %s, which says what is moved", given,
              by.c_str());
}

Result<int> run(BenchOptions& o, const Context& context) {
  MC_TRY_(check_alone(o));
  o.client.engine.scheduler = scheduler_of(o.scheduler);
  if (o.preset != "none") return run_preset(o.preset, o.client, o.duration, context);
  MC_TRY(const auto rows, plan(o));
  MC_TRY(const auto client, Client::open(o.client, "bench"));
  MC_TRY_(ask_scratch(*client, o.client));
  for (const auto& streams : rows) MC_TRY_(may_write(*client, streams));  // before the first
  const Report report(context, client->engine->transport_of(client->segment));
  WorkloadConfig config{o.duration, o.check, 1};
  for (const auto& streams : rows) {
    MC_TRY(const auto results, run_workload(*client, streams, config));
    for (const StreamResult& r : results) report.add(r);
    ++config.seed;
  }
  return 0;
}

}  // namespace

void add_bench(Program& program) {
  program.verb<BenchOptions>(
      "bench", "measure bandwidth and latency to a peer", [](Verb& v, BenchOptions& o) {
        v.tables();
        v.positional("TARGET", o.client.target, "control address of a peer that serves", false);
        v.example("mc-xfer bench --transports tcp --block 64KiB,1MiB --batch 1,8",
                  "sweep two sizes and two batches over tcp");
        v.example("mc-xfer bench --mix high:read:64KiB:1:2ms,low:write:4MiB:2",
                  "urgent reads during bulk writes");
        v.example("mc-xfer bench --transports tcp --scheduler random --slice 64KiB",
                  "as an older engine schedules");
        v.example("mc-xfer bench --preset fig4 --duration 200ms",
                  "layers of a KV cache, compared with an older engine's scheduling");
        v.example("mc-xfer bench --device cuda:0 --block 1MiB,64MiB",
                  "to and from a GPU's memory; the peer's may be on one too (serve --device)");
        v.run_with([&o](Context& context) { return run(o, context); });
      });
}

}  // namespace mc::xfer
