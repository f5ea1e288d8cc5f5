// mc-xfer bench: sweeps operation x block size x batch x threads against a peer.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/hash.h"
#include "base/histogram.h"
#include "base/json.h"
#include "base/random.h"
#include "cmd/daemon.h"
#include "cmd/mc-xfer/verbs.h"
#include "rpc/socket.h"
#include "xfer/engine.h"

namespace mc::xfer {
namespace {

struct BenchOptions {
  std::string target = "127.0.0.1:5600";
  std::vector<std::string> op{"read", "write"}, block{"4KiB", "64KiB", "1MiB", "16MiB"};
  std::vector<std::string> batch{"1"}, threads{"1"};
  Duration duration = std::chrono::seconds(1);
  bool check = true;
  bool csv = false;
  std::string cluster_key;
  EngineOptions engine;
  void describe(OptionList& v) {
    v("op", op, "operations: read, write");
    v("block", block, "block sizes");
    v("batch", batch, "requests in flight per thread");
    v("threads", threads, "threads that submit");
    v("duration", duration, "how long each row runs");
    v("check", check, "verify contents by checksum after each row");
    v("csv", csv, "rows as CSV");
    v("cluster-key", cluster_key, "file with the cluster's secret");
    engine.describe(v);
  }
};

struct Case {
  Op op = Op::kRead;
  uint64_t block = 0, batch = 1, threads = 1;
};

struct Row {
  Case c;
  uint64_t requests = 0;
  double seconds = 0;
  Histogram latency_ns;
  bool checked = false;
  double gigabytes() const {
    return static_cast<double>(requests) * static_cast<double>(c.block) / 1e9 / seconds;
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

Result<std::vector<Case>> cases(const BenchOptions& o) {
  std::vector<Case> out;
  MC_TRY(const auto blocks, sizes(o.block, true));
  MC_TRY(const auto batches, sizes(o.batch, false));
  MC_TRY(const auto threads, sizes(o.threads, false));
  for (const auto& op : o.op) {
    if (op != "read" && op != "write")
      return fail(Code::kInvalid, "operation '%s' is not read or write", op.c_str());
    for (uint64_t block : blocks)
      for (uint64_t batch : batches)
        for (uint64_t n : threads)
          out.push_back({op == "read" ? Op::kRead : Op::kWrite, block, batch, n});
  }
  return out;
}

// One thread: keeps `batch` requests going over its own part of the memory on both sides.
Result<> drive(Engine& engine, SegmentHandle segment, const Case& c, std::span<std::byte> local,
               uint64_t offset, Time until, const Clock& clock, Row& row) {
  std::vector<Request> requests(c.batch);
  for (uint64_t i = 0; i < c.batch; ++i) {
    requests[i].op = c.op;
    requests[i].segment = segment;
    requests[i].local = local.data() + i * c.block;
    requests[i].offset = offset + i * c.block;
    requests[i].bytes = c.block;
  }
  do {
    const Time start = clock.now();
    const BatchId batch = engine.allocate_batch();
    Result<> outcome = engine.submit(batch, requests);
    if (outcome) outcome = engine.wait(batch, std::chrono::seconds(60));
    engine.free_batch(batch);
    MC_TRY_(std::move(outcome));
    row.latency_ns.record(static_cast<uint64_t>((clock.now() - start).count()));
    row.requests += c.batch;
  } while (clock.now() < until);
  return {};
}

// What lies at the peer is what lies here.
Result<> verify(Engine& engine, SegmentHandle segment, const Case& c, std::span<std::byte> local,
                uint64_t span) {
  MC_TRY(const Memory back, engine.allocate(span));
  Request r;
  r.segment = segment;
  r.local = back.data();
  r.bytes = span;
  MC_TRY_(engine.transfer_sync(r, std::chrono::seconds(60)));
  if (xxh3(back.data(), span) != xxh3(local.data(), span))
    return fail(Code::kCorrupt, "contents differ after %s of %s",
                c.op == Op::kRead ? "reads" : "writes", bytes_text(c.block).c_str());
  return {};
}

Result<Row> run_case(Engine& engine, SegmentHandle segment, const Case& c, const BenchOptions& o,
                     const Clock& clock, uint64_t seed) {
  const uint64_t part = c.block * c.batch, span = part * c.threads;
  MC_TRY(const uint64_t offered, engine.segment_bytes(segment));
  if (span > offered)
    return fail(Code::kInvalid, "%llu threads x %llu x %s need %s, the peer offers %s",
                static_cast<unsigned long long>(c.threads),
                static_cast<unsigned long long>(c.batch), bytes_text(c.block).c_str(),
                human_bytes(span).c_str(), human_bytes(offered).c_str());
  MC_TRY(const Memory local, engine.allocate(span));
  Random random(seed);
  for (uint64_t at = 0; at + 8 <= span; at += 8) {
    const uint64_t word = random.next();
    std::memcpy(local.data() + at, &word, sizeof word);
  }
  if (c.op == Op::kRead && o.check) {  // reads must find something worth comparing
    Request put;
    put.op = Op::kWrite;
    put.segment = segment;
    put.local = local.data();
    put.bytes = span;
    MC_TRY_(engine.transfer_sync(put, std::chrono::seconds(60)));
    std::memset(local.data(), 0, span);
  }
  std::vector<Row> rows(c.threads);
  std::vector<Result<>> outcomes(c.threads);
  std::vector<std::thread> threads;
  const Time start = clock.now(), until = start + o.duration;
  for (uint64_t t = 0; t < c.threads; ++t)
    threads.emplace_back([&, t] {
      outcomes[t] = drive(engine, segment, c, local.bytes().subspan(t * part, part), t * part,
                          until, clock, rows[t]);
    });
  for (auto& t : threads) t.join();
  Row row;
  row.c = c;
  row.seconds = to_seconds(clock.now() - start);
  for (uint64_t t = 0; t < c.threads; ++t) {
    MC_TRY_(std::move(outcomes[t]));
    row.requests += rows[t].requests;
    row.latency_ns.merge(rows[t].latency_ns);
  }
  if (o.check) MC_TRY_(verify(engine, segment, c, local.bytes(), span));
  row.checked = o.check;
  return row;
}

void print(const Row& r, const std::string& way, const BenchOptions& o, bool json) {
  const char* op = r.c.op == Op::kRead ? "read" : "write";
  auto us = [&](double q) { return static_cast<double>(r.latency_ns.quantile(q)) / 1e3; };
  const double mean = r.latency_ns.mean() / 1e3;
  const auto batch = static_cast<unsigned long long>(r.c.batch);
  const auto threads = static_cast<unsigned long long>(r.c.threads);
  if (json)
    std::printf("%s\n", dump_json({{"op", op},
                                   {"transport", way},
                                   {"block", r.c.block},
                                   {"batch", r.c.batch},
                                   {"threads", r.c.threads},
                                   {"gb_per_s", r.gigabytes()},
                                   {"mean_us", mean},
                                   {"p50_us", us(.5)},
                                   {"p99_us", us(.99)},
                                   {"p999_us", us(.999)},
                                   {"requests", r.requests},
                                   {"checked", r.checked}})
                            .c_str());
  else if (o.csv)
    std::printf("%s,%s,%llu,%llu,%llu,%.4f,%.1f,%.1f,%.1f,%.1f\n", op, way.c_str(),
                static_cast<unsigned long long>(r.c.block), batch, threads, r.gigabytes(), mean,
                us(.5), us(.99), us(.999));
  else
    std::printf("%-6s %-5s %8s %6llu %8llu %9.3f %10.1f %10.1f %10.1f %10.1f  %s\n", op,
                way.c_str(), bytes_text(r.c.block).c_str(), batch, threads, r.gigabytes(), mean,
                us(.5), us(.99), us(.999), r.checked ? "ok" : "-");
  std::fflush(stdout);
}

Result<int> run(BenchOptions& o, const Context& context) {
  MC_TRY_(rpc::load_cluster_key(o.cluster_key));
  MC_TRY(const auto todo, cases(o));
  SteadyClock clock;
  Metrics metrics;
  o.engine.node = "mc-xfer-bench-" + std::to_string(::getpid());
  MC_TRY(auto engine, Engine::open(clock, o.engine, metrics));
  MC_TRY(const SegmentHandle segment, engine->open_segment(o.target, std::chrono::seconds(3)));
  const std::string way = engine->transport_of(segment);
  if (o.csv && !context.json)
    std::printf("op,transport,block,batch,threads,gb_per_s,mean_us,p50_us,p99_us,p999_us\n");
  else if (!context.json)
    std::printf("%-6s %-5s %8s %6s %8s %9s %10s %10s %10s %10s  %s\n", "op", "via", "block",
                "batch", "threads", "GB/s", "mean us", "p50 us", "p99 us", "p999 us", "check");
  uint64_t seed = 1;
  for (const Case& c : todo) {
    MC_TRY(const Row row, run_case(*engine, segment, c, o, clock, seed++));
    print(row, way, o, context.json);
  }
  return 0;
}

}  // namespace

void add_bench(Program& program) {
  program.verb<BenchOptions>(
      "bench", "measure bandwidth and latency to a peer", [](Verb& v, BenchOptions& o) {
        v.positional("TARGET", o.target, "control address of a peer that serves", false);
        v.example("mc-xfer bench --transports tcp --block 64KiB,1MiB --batch 1,8",
                  "sweep two sizes and two batches over tcp");
        v.run_with([&o](Context& context) { return run(o, context); });
      });
}

}  // namespace mc::xfer
