// mc-xfer kv: moves the pattern of a KV cache from prefill to decode. A layer has blocks in several
// parts; no block touches the next on either side. The latency is that of a layer. The same run
// moves the same bytes contiguously, and the ratio is the cost of the pattern.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "base/hash.h"
#include "base/histogram.h"
#include "base/json.h"
#include "cmd/mc-xfer/client.h"
#include "cmd/mc-xfer/scratch.h"
#include "cmd/mc-xfer/verbs.h"
#include "cmd/side_by_side.h"

namespace mc::xfer {
namespace {

constexpr uint64_t kGap = 4 * kKiB;  // between blocks: nothing can be merged

struct KvOptions {
  ClientOptions client;
  std::string op = "write";
  uint32_t layers = 61, blocks = 32, rounds = 5;
  std::vector<std::string> part{"128KiB", "16KiB"}, threads{"1"};
  bool each = false;
  bool check = true;
  void describe(OptionList& v) {
    v("op", op, "write (prefill pushes) or read (decode pulls)", {"write", "read"});
    v("layers", layers, "layers of the model");
    v("blocks", blocks, "blocks a layer");
    v("part", part, "bytes a block, one for each part of it");
    v("threads", threads, "threads that submit layers");
    v("rounds", rounds, "times the whole pattern is moved, each beside its contiguous twin");
    v("each", each, "a request for every block instead of one strided request for a layer's part");
    v("check", check, "verify contents by checksum, where the peer's may be filled");
    client.describe_device(v);
    client.describe_overwrite(v);
    client.describe(v);
  }
};

// The layout, equal on both sides: parts one after another, in each the layers, in each the blocks.
struct Pattern {
  Op op = Op::kWrite;
  uint64_t layers = 0, blocks = 0;
  std::vector<uint64_t> parts;
  bool each = false;

  uint64_t stride(size_t part) const { return parts[part] + kGap; }
  uint64_t start(size_t part, uint64_t layer) const {
    uint64_t at = 0;
    for (size_t p = 0; p < part; ++p) at += stride(p) * blocks * layers;
    return at + stride(part) * blocks * layer;
  }
  uint64_t span() const { return start(parts.size() - 1, layers); }
  uint64_t layer_bytes() const {
    uint64_t n = 0;
    for (uint64_t part : parts) n += part * blocks;
    return n;
  }

  std::vector<Request> layer(uint64_t index, SegmentHandle segment, std::byte* local) const {
    std::vector<Request> out;
    for (size_t p = 0; p < parts.size(); ++p) {
      Request r;
      r.op = op;
      r.segment = segment;
      r.bytes = parts[p];
      r.rows = each ? 1 : blocks;
      r.local_stride = r.remote_stride = stride(p);
      for (uint64_t b = 0; b < (each ? blocks : 1); ++b) {
        r.offset = start(p, index) + b * stride(p);
        r.local = local + r.offset;
        out.push_back(r);
      }
    }
    return out;
  }
  // The same bytes, contiguous, apart from those of other layers.
  Request twin(uint64_t index, SegmentHandle segment, std::byte* local) const {
    Request r;
    r.op = op;
    r.segment = segment;
    r.bytes = layer_bytes();
    r.offset = index * r.bytes;
    r.local = local + r.offset;
    return r;
  }
};

struct Pass {
  double seconds = 0;
  Histogram layer_ns;
};

// Threads take the next layer as they become free.
Result<Pass> pass(Client& client, const Pattern& pattern, std::byte* local, uint64_t threads,
                  bool contiguous) {
  std::atomic<uint64_t> next{0};
  std::vector<Pass> passes(threads);
  std::vector<Result<>> outcomes(threads);
  auto work = [&](uint64_t t) -> Result<> {
    Engine& engine = *client.engine;
    for (;;) {
      const uint64_t layer = next.fetch_add(1);
      if (layer >= pattern.layers) return {};
      const auto requests = contiguous
                                ? std::vector<Request>{pattern.twin(layer, client.segment, local)}
                                : pattern.layer(layer, client.segment, local);
      const Time start = client.clock.now();
      const BatchId batch = engine.allocate_batch();
      Result<> outcome = engine.submit(batch, requests);
      if (outcome) outcome = engine.wait(batch, client.timeout);
      engine.free_batch(batch);
      MC_TRY_(std::move(outcome));
      passes[t].layer_ns.record(static_cast<uint64_t>((client.clock.now() - start).count()));
    }
  };
  const Time start = client.clock.now();
  MC_TRY_(side_by_side(threads, [&](size_t t, const auto&) { outcomes[t] = work(t); }));
  Pass whole;
  whole.seconds = to_seconds(client.clock.now() - start);
  for (uint64_t t = 0; t < threads; ++t) {
    MC_TRY_(std::move(outcomes[t]));
    whole.layer_ns.merge(passes[t].layer_ns);
  }
  return whole;
}

// Compares every block of the pattern with the peer's.
Result<> verify(Client& client, const Pattern& pattern, std::byte* local) {
  Pattern reading = pattern;
  reading.op = Op::kRead;
  MC_TRY(const Memory back, client.engine->allocate(pattern.span()));
  for (uint64_t layer = 0; layer < pattern.layers; ++layer) {
    for (const Request& r : reading.layer(layer, client.segment, back.data())) {
      MC_TRY_(client.engine->transfer_sync(r, client.timeout));
      for (uint64_t row = 0; row < r.rows; ++row) {
        const uint64_t at = r.offset + row * r.remote_stride;
        if (xxh3(back.data() + at, r.bytes) != xxh3(local + at, r.bytes))
          return fail(Code::kCorrupt, "layer %llu: the block at %llu differs",
                      static_cast<unsigned long long>(layer), static_cast<unsigned long long>(at));
      }
    }
  }
  return {};
}

struct Row {
  uint64_t threads = 0;
  double gb_per_s = 0, contiguous_gb_per_s = 0, ratio = 0;
  Histogram layer_ns;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

Result<Row> measure(Client& client, const Pattern& pattern, const KvOptions& o, std::byte* local,
                    uint64_t threads) {
  Row row;
  row.threads = threads;
  std::vector<double> ours, twins, ratios;
  const double bytes = static_cast<double>(pattern.layer_bytes() * pattern.layers) / 1e9;
  for (uint32_t round = 0; round < std::max(1u, o.rounds); ++round) {
    MC_TRY(const Pass apart, pass(client, pattern, local, threads, false));
    MC_TRY(const Pass whole, pass(client, pattern, local, threads, true));
    ours.push_back(bytes / apart.seconds);
    twins.push_back(bytes / whole.seconds);
    ratios.push_back(whole.seconds / apart.seconds);
    row.layer_ns.merge(apart.layer_ns);
  }
  row.gb_per_s = median(ours);
  row.contiguous_gb_per_s = median(twins);
  row.ratio = median(ratios);
  return row;
}

void print(const Row& r, const KvOptions& o, const std::string& way, const Context& context) {
  auto us = [&](double q) { return static_cast<double>(r.layer_ns.quantile(q)) / 1e3; };
  const auto threads = static_cast<unsigned long long>(r.threads);
  if (context.json)
    std::printf("%s\n", dump_json({{"op", o.op},
                                   {"transport", way},
                                   {"threads", r.threads},
                                   {"gb_per_s", r.gb_per_s},
                                   {"contiguous_gb_per_s", r.contiguous_gb_per_s},
                                   {"ratio", r.ratio},
                                   {"layer_p50_us", us(.5)},
                                   {"layer_p99_us", us(.99)},
                                   {"checked", o.check}})
                            .c_str());
  else if (context.csv)
    std::printf("%s,%s,%llu,%.4f,%.4f,%.3f,%.1f,%.1f\n", o.op.c_str(), way.c_str(), threads,
                r.gb_per_s, r.contiguous_gb_per_s, r.ratio, us(.5), us(.99));
  else
    std::printf("%-6s %-5s %8llu %9.3f %12.3f %6.2f %12.1f %12.1f  %s\n", o.op.c_str(), way.c_str(),
                threads, r.gb_per_s, r.contiguous_gb_per_s, r.ratio, us(.5), us(.99),
                o.check ? "ok" : "-");
  std::fflush(stdout);
}

Result<Pattern> pattern_of(const KvOptions& o) {
  Pattern p;
  p.op = o.op == "write" ? Op::kWrite : Op::kRead;
  p.layers = o.layers;
  p.blocks = o.blocks;
  p.each = o.each;
  for (const auto& text : o.part) {
    MC_TRY(const uint64_t bytes, parse_bytes(text));
    if (bytes == 0) return fail(Code::kInvalid, "a part of 0 bytes");
    p.parts.push_back(bytes);
  }
  if (p.layers == 0 || p.blocks == 0 || p.parts.empty())
    return fail(Code::kInvalid, "--layers, --blocks, --part: want at least one of each");
  if (o.rounds == 0) return fail(Code::kInvalid, "--rounds 0: want 1 or more");
  return p;
}

Result<int> run(KvOptions o, const Context& context) {
  MC_TRY(const Pattern pattern, pattern_of(o));
  std::vector<uint64_t> threads;
  for (const auto& text : o.threads) {
    MC_TRY(const uint64_t n, parse_uint(text));
    if (n == 0 || n > 1024)
      return fail(Code::kInvalid, "'%s' threads: want 1 to 1024", text.c_str());
    threads.push_back(n);
  }
  MC_TRY(const auto client, Client::open(o.client, "kv"));
  MC_TRY(const Memory local,
         client->memory(pattern.span(), strf("%u layers x %u blocks", o.layers, o.blocks)));
  MC_TRY_(ask_scratch(*client, o.client));
  MC_TRY(const bool fills, may_fill(*client, pattern.span(), pattern.op == Op::kWrite));
  o.check = o.check && fills;
  const bool on_device = client->location != "*";
  std::vector<std::byte> host(on_device ? local.size() : 0);
  const std::span<std::byte> image = on_device ? std::span(host) : local.bytes();
  fill_random(image, 1);
  if (pattern.op == Op::kRead && o.check) {  // reads must find something worth comparing
    MC_TRY_(client->move(Op::kWrite, image, 0));
    std::memset(image.data(), 0, image.size());
  }
  MC_TRY_(client->put(local, image));
  const std::string way = client->engine->transport_of(client->segment);
  if (context.csv)
    std::printf(
        "op,transport,threads,gb_per_s,contiguous_gb_per_s,ratio,layer_p50_us,layer_p99_us\n");
  else if (!context.json)
    std::printf("%-6s %-5s %8s %9s %12s %6s %12s %12s  %s\n", "op", "via", "threads", "GB/s",
                "contiguous", "ratio", "layer p50 us", "layer p99 us", "check");
  for (uint64_t n : threads) {
    MC_TRY(const Row row, measure(*client, pattern, o, local.data(), n));
    if (o.check) {
      MC_TRY_(client->get(local, image));
      MC_TRY_(verify(*client, pattern, image.data()));
    }
    print(row, o, way, context);
  }
  return 0;
}

}  // namespace

void add_kv(Program& program) {
  program.verb<KvOptions>(
      "kv", "replay the pattern of a KV cache to a peer", [](Verb& v, KvOptions& o) {
        v.tables();
        v.positional("TARGET", o.client.target, "control address of a peer that serves", false);
        v.example("mc-xfer kv --threads 1,2,4",
                  "61 layers x 32 blocks x (128 KiB + 16 KiB), every block apart");
        v.example("mc-xfer kv --device cuda:0", "the same from a GPU's memory");
        v.run_with([&o](Context& context) { return run(o, context); });
      });
}

}  // namespace mc::xfer
