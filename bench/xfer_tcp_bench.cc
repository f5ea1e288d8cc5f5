// tcp transfers to another process, against a raw pair of sockets that moves the same bytes between
// the same memory with as many streams, and against iperf3; all with the same congestion control.
#include <algorithm>
#include <cstdlib>

#include "bench/figure.h"
#include "bench/raw_pair.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"

namespace mc::bench {
namespace {

constexpr uint64_t kMemory = RawPair::kMemory;
constexpr double kBandwidthTarget = 0.97, kLatencyTarget = 1 / 1.3;

// iperf3 between two processes of its own; nothing when it is not installed.
class Iperf {
 public:
  static bool installed() { return std::system("command -v iperf3 >/dev/null") == 0; }
  static Result<Measured> turn(uint32_t streams, bool reverse, uint64_t bytes) {
    const std::string port = "5299", n = std::to_string(bytes / streams);
    const std::string command =
        "iperf3 -s -1 -p " + port + " >/dev/null 2>&1 & for i in $(seq 50); do r=$(iperf3 -c " +
        "127.0.0.1 -p " + port + " -C " + kCongestion[0] + " -l 1M -J -n " + n + " -P " +
        std::to_string(streams) + (reverse ? " -R" : "") +
        " 2>/dev/null) && break; sleep 0.1; done; kill $! 2>/dev/null; " + "echo \"$r\"";
    FILE* out = ::popen(command.c_str(), "r");
    if (out == nullptr) return fail_errno("iperf3");
    std::string text;
    char buffer[4096];
    for (size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, out)) > 0;)
      text.append(buffer, got);
    ::pclose(out);
    const auto json = parse_json(text);
    const Json::json_pointer rate("/end/sum_received/bits_per_second");
    if (!json || !json->contains(rate)) return fail(Code::kUnavailable, "iperf3 said nothing");
    return Measured(json->at(rate).get<double>() / 8e9);
  }
};

struct Bench {
  SteadyClock clock;
  std::unique_ptr<RawPair> raw;
  std::unique_ptr<ServingPeer> peer;
  size_t turns = 7;
  bool quick = false;

  // `total` bytes by requests of `size` between the same memory, again and again.
  static Result<> transfer(xfer::Engine& engine, xfer::Request request, uint64_t total) {
    const std::vector<xfer::Request> requests(total / request.bytes, request);
    const xfer::BatchId batch = engine.allocate_batch();
    MC_TRY_(engine.submit(batch, requests));
    auto outcome = engine.wait(batch, std::chrono::seconds(30));
    engine.free_batch(batch);
    return outcome;
  }

  Result<> bandwidth(xfer::Engine& engine, xfer::Request r, uint32_t streams) {
    const uint64_t total = quick ? 512 * kMiB : 2 * kGiB;
    const bool writing = r.op == xfer::Op::kWrite;
    const std::string n = rounded_bytes_text(r.bytes) + " x" + std::to_string(streams);
    const std::string name = (writing ? "write " : "read ") + n;
    std::vector<io::Fd> sockets;
    for (uint32_t i = 0; i < streams; ++i) {
      MC_TRY(io::Fd fd, raw->connect());
      sockets.push_back(std::move(fd));
    }
    std::vector<std::byte> mine(r.bytes);
    std::memset(mine.data(), 2, mine.size());
    const Turn ours = [&] {
      return measured(clock, peer->pid(), total, [&] { return transfer(engine, r, total); });
    };
    MC_TRY_(
        compare({"xfer-tcp", name, "GB/s", "raw pair " + n, kBandwidthTarget}, turns, ours, [&] {
          return measured(clock, raw->pid(), total, [&] {
            return RawPair::move(sockets, mine, {total, r.bytes, writing});
          });
        }));
    // iperf3 moves 1 MiB that stays in the caches.
    if (r.bytes > kMiB || !Iperf::installed()) return {};
    return compare({"xfer-tcp", name, "GB/s", "iperf3 " + n, kBandwidthTarget}, turns, ours,
                   [&] { return Iperf::turn(streams, !writing, total); });
  }

  Result<> latency(xfer::Engine& engine, xfer::Request r) {
    const size_t rounds = quick ? 3000 : 10000;
    MC_TRY(const io::Fd fd, raw->connect());
    const auto times = [&](double quantile, const std::function<bool()>& once) -> Result<Measured> {
      std::vector<double> all(rounds);
      for (double& t : all) {
        const Time start = clock.now();
        if (!once()) return fail(Code::kUnavailable, "a round trip failed");
        t = to_seconds(clock.now() - start) * 1e6;
      }
      std::sort(all.begin(), all.end());
      return Measured(all[static_cast<size_t>(quantile * static_cast<double>(rounds - 1))]);
    };
    const auto once = [&] { return engine.transfer_sync(r, std::chrono::seconds(5)).has_value(); };
    std::vector<std::byte> into(r.bytes);
    const auto theirs = [&] { return RawPair::ping(fd.get(), into); };
    MC_TRY_(compare(
        {"xfer-tcp", "read 4KiB p50", "us", "raw ping-pong p50", kLatencyTarget, true}, turns,
        [&] { return times(.5, once); }, [&] { return times(.5, theirs); }));
    MC_TRY_(compare(
        {"xfer-tcp", "read 4KiB p99", "us", "raw ping-pong p99", 0, true}, turns,
        [&] { return times(.99, once); }, [&] { return times(.99, theirs); }));
    return compare(
        {"xfer-tcp", "read 4KiB p99", "us", "3 x own p50", 1, true}, turns,
        [&] { return times(.99, once); },
        [&]() -> Result<Measured> {
          MC_TRY(const Measured p50, times(.5, once));
          return Measured(3 * p50.value);
        });
  }
};

Result<> verify(const xfer::Memory& local) {
  const auto sum = std::vector<std::byte>(local.bytes().begin(), local.bytes().end());
  std::vector<std::byte> want(sum.size());
  fill(want, 1);
  if (sum != want) return fail(Code::kCorrupt, "contents differ after tcp transfers");
  return {};
}

Result<int> run(const Options& o) {
  Bench b;
  b.turns = o.turns();
  b.quick = o.quick;
  MC_TRY(b.raw, RawPair::start());
  MC_TRY(b.peer, ServingPeer::start(b.clock, kMemory));
  for (const uint32_t streams : {1u, 2u}) {
    Metrics metrics;
    xfer::EngineOptions options;
    options.node = "bench";
    options.transports = {"tcp"};
    options.connections = streams;
    MC_TRY(auto engine, xfer::Engine::open(b.clock, options, metrics));
    MC_TRY(const auto segment, engine->open_segment(b.peer->segment));
    MC_TRY(const xfer::Memory local, engine->allocate(kMemory));
    fill(local.bytes(), 1);
    xfer::Request r;
    r.segment = segment;
    r.local = local.data();
    for (const uint64_t size : {kMemory, 1 * kMiB})
      for (const auto op : {xfer::Op::kWrite, xfer::Op::kRead}) {
        r.op = op;
        r.bytes = size;
        MC_TRY_(b.bandwidth(*engine, r, streams));
      }
    MC_TRY_(verify(local));
    if (streams > 1) continue;
    r.bytes = 4 * kKiB;
    MC_TRY_(b.latency(*engine, r));
  }
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_tcp_bench", "tcp transfers against raw sockets and iperf3");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
