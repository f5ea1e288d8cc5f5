#include "cmd/mc-xfer/workload.h"

#include <atomic>
#include <cstring>

#include "cmd/mc-xfer/scratch.h"
#include "cmd/side_by_side.h"

namespace mc::xfer {
namespace {

// One thread: keeps `batch` requests going over its own part of the memory on both sides.
Result<> drive(const Client& client, const Stream& s, std::span<std::byte> local, uint64_t offset,
               Time until, const std::atomic<bool>& stop, StreamResult& result) {
  Engine& engine = *client.engine;
  std::vector<Request> requests(s.batch);
  for (uint64_t i = 0; i < s.batch; ++i) {
    requests[i].op = s.op;
    requests[i].priority = s.priority;
    requests[i].segment = client.segment;
    requests[i].local = local.data() + i * (s.block + s.gap);
    requests[i].offset = offset + i * (s.block + s.gap);
    requests[i].bytes = s.block;
  }
  do {
    const Time start = client.clock.now();
    if (s.batch == 1) {
      MC_TRY_(engine.transfer_sync(requests[0], client.timeout));
    } else {
      const BatchId batch = engine.allocate_batch();
      Result<> outcome = engine.submit(batch, requests);
      if (outcome) outcome = engine.wait(batch, client.timeout);
      engine.free_batch(batch);
      MC_TRY_(std::move(outcome));
    }
    const Duration took = client.clock.now() - start;
    result.latency_ns.record(static_cast<uint64_t>(took.count()));
    result.requests += s.batch;
    ++result.batches;
    if (s.slo.count() > 0 && took <= s.slo) ++result.within_slo;
  } while (client.clock.now() < until && !stop.load(std::memory_order_relaxed));
  return {};
}

struct Uses {  // of the peer's memory, from offset 0
  uint64_t bytes = 0;
  bool writes = false;
};

Uses uses(const std::vector<Stream>& streams) {
  Uses out;
  for (const Stream& s : streams) {
    out.bytes += s.span();
    out.writes = out.writes || s.op == Op::kWrite;
  }
  return out;
}

struct Worker {
  size_t stream = 0;
  uint64_t offset = 0;
  std::span<std::byte> local;
  StreamResult result;
  Result<> outcome;
};

std::vector<Worker> workers_of(const std::vector<Stream>& streams, std::span<std::byte> memory) {
  std::vector<Worker> out;
  uint64_t at = 0;
  for (size_t i = 0; i < streams.size(); ++i)
    for (uint64_t t = 0; t < streams[i].threads; ++t) {
      const uint64_t part = streams[i].span() / streams[i].threads;
      out.push_back({i, at, memory.subspan(at, part), {}, {}});
      at += part;
    }
  return out;
}

}  // namespace

Result<> may_write(Client& client, const std::vector<Stream>& streams) {
  const auto [bytes, writes] = uses(streams);
  if (!writes || bytes > client.offered) return {};
  MC_TRY_(may_fill(client, bytes, true));
  return {};
}

Result<std::vector<StreamResult>> run_workload(Client& client, const std::vector<Stream>& streams,
                                               const WorkloadConfig& config) {
  const auto [span, writes] = uses(streams);
  std::string need;
  for (const Stream& s : streams) {
    need += strf("%s%llu threads x %llu x %s", need.empty() ? "" : " and ",
                 static_cast<unsigned long long>(s.threads),
                 static_cast<unsigned long long>(s.batch), bytes_text(s.block).c_str());
  }
  MC_TRY(const Memory local, client.memory(span, need));
  MC_TRY(const bool fills, may_fill(client, span, writes));
  const bool check = config.check && fills;
  const bool on_device = client.location != "*";
  std::vector<std::byte> host(on_device ? span : 0);
  const std::span<std::byte> image = on_device ? std::span(host) : local.bytes();
  fill_random(image, config.seed);
  if (check) {  // reads must find something worth comparing
    MC_TRY_(client.move(Op::kWrite, image, 0));
    uint64_t at = 0;
    for (const Stream& s : streams) {
      const uint64_t end = at + s.span();
      for (uint64_t seed = config.seed + 1; at < end; at += s.block + s.gap, ++seed) {
        if (s.op == Op::kRead)
          std::memset(image.data() + at, 0, s.block);
        else
          fill_random(image.subspan(at, s.block), seed);
      }
    }
  }
  MC_TRY_(client.put(local, image));
  auto workers = workers_of(streams, local.bytes());
  const Time start = client.clock.now(), until = start + config.duration;
  MC_TRY_(side_by_side(workers.size(), [&](size_t i, const std::atomic<bool>& stop) {
    Worker& w = workers[i];
    w.outcome = drive(client, streams[w.stream], w.local, w.offset, until, stop, w.result);
  }));
  const double seconds = to_seconds(client.clock.now() - start);
  std::vector<StreamResult> out(streams.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    out[i].stream = streams[i];
    out[i].seconds = seconds;
    out[i].checked = check;
  }
  for (Worker& w : workers) {
    MC_TRY_(std::move(w.outcome));
    StreamResult& r = out[w.stream];
    r.requests += w.result.requests;
    r.batches += w.result.batches;
    r.within_slo += w.result.within_slo;
    r.latency_ns.merge(w.result.latency_ns);
    r.thread_bytes.push_back(static_cast<double>(w.result.requests * r.stream.block));
  }
  if (check) {
    MC_TRY_(client.get(local, image));
    MC_TRY_(client.verify(image, need));
  }
  return out;
}

double jain(const std::vector<double>& shares) {
  double sum = 0, squares = 0;
  for (double s : shares) {
    sum += s;
    squares += s * s;
  }
  return squares == 0 ? 1 : sum * sum / (static_cast<double>(shares.size()) * squares);
}

Result<Stream> parse_mix(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t colon = std::min(text.find(':', at), text.size());
    words.push_back(text.substr(at, colon - at));
    at = colon + 1;
  }
  const auto bad = [&](const char* what) {
    return fail(Code::kInvalid,
                "mix '%s': %s; want CLASS:OP:BLOCK[:THREADS[:SLO]], as "
                "high:read:64KiB:1:2ms",
                text.c_str(), what);
  };
  if (words.size() < 3 || words.size() > 5) return bad("wrong number of parts");
  Stream s;
  s.name = words[0];
  if (words[0] == "high")
    s.priority = Priority::kHigh;
  else if (words[0] == "low")
    s.priority = Priority::kLow;
  else if (words[0] != "medium")
    return bad("the class is high, medium or low");
  if (words[1] != "read" && words[1] != "write") return bad("the operation is read or write");
  s.op = words[1] == "read" ? Op::kRead : Op::kWrite;
  const auto block = parse_bytes(words[2]);
  if (!block || *block == 0) return bad("the block is a size");
  s.block = *block;
  if (words.size() > 3) {
    const auto threads = parse_uint(words[3]);
    if (!threads || *threads == 0 || *threads > kThreadsMax) return bad("1 to 1024 threads");
    s.threads = *threads;
  }
  if (words.size() > 4) {
    const auto slo = parse_duration(words[4]);
    if (!slo || slo->count() <= 0) return bad("the SLO is a duration");
    s.slo = *slo;
  }
  return s;
}

}  // namespace mc::xfer
