// Shared-memory transfers to another process against memcpy between two buffers of this one. Large
// blocks are far beyond the caches; 256 KiB fits them.
#include <cstring>

#include "bench/figure.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"

namespace mc::bench {
namespace {

constexpr uint64_t kMemory = 256 * kMiB;

Result<int> run(const Options& o) {
  SteadyClock clock;
  MC_TRY(auto peer, ServingPeer::start(clock, kMemory));
  Metrics metrics;
  xfer::EngineOptions options;
  options.node = "bench";
  options.transports = {"shm"};
  MC_TRY(auto engine, xfer::Engine::open(clock, options, metrics));
  MC_TRY(const auto segment, engine->open_segment(peer->segment));
  MC_TRY(const xfer::Memory local, engine->allocate(kMemory));
  std::vector<std::byte> a(kMemory), b(kMemory);
  fill(a, 1);
  std::memcpy(b.data(), a.data(), kMemory);
  std::memcpy(local.data(), a.data(), kMemory);
  const std::vector<std::pair<uint64_t, std::string>> sizes{
      {64 * kMiB, "64MiB"}, {1 * kMiB, "1MiB"}, {256 * kKiB, "256KiB"}};
  for (const auto& size : sizes) {
    const uint64_t bytes = size.first;  // clang 14 cannot capture structured bindings
    const std::string& text = size.second;
    for (const auto op : {xfer::Op::kWrite, xfer::Op::kRead}) {
      // Both sides walk over all of their memory, so that neither finds it in a cache.
      uint64_t at = 0, from = 0;
      xfer::Request r;
      r.op = op;
      r.segment = segment;
      r.bytes = bytes;
      const size_t rounds = static_cast<size_t>((o.quick ? 512 : 1024) * kMiB / bytes);
      auto ours = [&] {
        return gigabytes(clock, bytes, rounds, [&]() -> Result<> {
          r.local = local.data() + at;
          r.offset = at;
          at = (at + bytes) % kMemory;
          return engine->transfer_sync(r, std::chrono::seconds(10));
        });
      };
      auto theirs = [&] {
        return gigabytes(clock, bytes, rounds, [&]() -> Result<> {
          std::memcpy(b.data() + from, a.data() + from, bytes);
          from = (from + bytes) % kMemory;
          return {};
        });
      };
      const char* verb = op == xfer::Op::kWrite ? "write " : "read ";
      MC_TRY_(compare({"xfer-shm", verb + text + " x1", "GB/s", "memcpy " + text}, o.turns(), ours,
                      theirs));
      // What lies at the peer is what was sent; what came back is what lies there.
      if (std::memcmp(local.data(), a.data(), kMemory) != 0)
        return fail(Code::kCorrupt, "contents differ after %s%s", verb, text.c_str());
    }
  }
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_shm_bench", "shared-memory transfers against memcpy");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
