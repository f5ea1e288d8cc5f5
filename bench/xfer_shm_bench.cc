// Shared-memory transfers to another process against the best copy this CPU makes of the very same
// pages: libc's memcpy or non-temporal stores, whichever wins at that size, with as many threads.
//
// "hot" repeats one transfer over the same bytes; "cold" walks through all of the memory, so that
// no cache holds the next block. "x2" is two application threads; "2 workers" is one caller whose
// engine has two copy threads.
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "bench/figure.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"
#include "xfer/memory/copy.h"
#include "xfer/transports/shm/fd_server.h"

namespace mc::bench {
namespace {

constexpr uint64_t kMemory = 1 * kGiB;
constexpr Duration kBudget = std::chrono::seconds(20);

// This process's own view of the peer's memory, for the copies we compare with and the checks.
Result<std::span<std::byte>> map_peer(const xfer::SegmentDescriptor& segment) {
  MC_TRY(const auto received, xfer::fetch_fd(segment.shm_socket, segment.buffers.front().shm_id));
  void* p = ::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                   received.fd.get(), 0);
  if (p == MAP_FAILED) return fail_errno("map the peer's memory");
  return std::span(static_cast<std::byte*>(p), kMemory);
}

struct Ends {  // of what is copied: ours and the peer's
  std::span<std::byte> local, remote;
};

struct Case {
  xfer::Op op = xfer::Op::kWrite;
  uint64_t bytes = 0;
  uint32_t threads = 1;
  bool cold = false;
  uint64_t skew = 0;  // bytes that the other side's place is further on in its page
  std::string verb() const { return op == xfer::Op::kWrite ? "write " : "read "; }
};

class Bench {
 public:
  Bench(const Clock& clock, const Options& options, Ends ends, uint64_t offset)
      : clock_(clock), options_(options), ends_(ends), offset_(offset) {}

  // One turn: every thread makes `rounds` transfers in a part of the memory of its own.
  template <class Work>  // Result<>(at): transfers case.bytes at that place
  Result<Measured> turn(const Case& c, Work work) {
    const uint64_t part = kMemory / c.threads;
    const size_t rounds = std::max<uint64_t>(1, per_turn(c) / c.bytes);
    auto step = [&](uint32_t thread) -> Result<> {
      Result<> outcome;
      for (size_t i = 0; i < rounds && outcome; ++i) {
        outcome = work(thread * part + (c.cold ? next_[thread] : 0));
        if (c.cold) next_[thread] = (next_[thread] + c.bytes) % part;
      }
      return outcome;
    };
    for (uint32_t t = 0; t < c.threads && !c.cold; ++t)  // the other side's turn went before
      for (int i = 0; i < 3; ++i) MC_TRY_(work(t * part));
    return gigabytes(clock_, c.bytes * c.threads * rounds, 1, [&]() -> Result<> {
      std::vector<Result<>> outcomes(c.threads);
      std::vector<std::thread> threads;
      for (uint32_t t = 1; t < c.threads; ++t)
        threads.emplace_back([&, t] { outcomes[t] = step(t); });
      outcomes[0] = step(0);
      for (auto& t : threads) t.join();
      for (auto& outcome : outcomes) MC_TRY_(std::move(outcome));
      return {};
    });
  }

  Turn ours(xfer::Engine& engine, xfer::SegmentHandle segment, const Case& c) {
    return [this, &engine, segment, c] {
      return turn(c, [&](uint64_t at) { return transfer(engine, segment, c, at, c.bytes); });
    };
  }
  Turn raw(const Case& c, bool streaming) {
    return [this, c, streaming] {
      return turn(c, [&](uint64_t at) -> Result<> {
        copy(c, at, c.bytes, streaming);
        return {};
      });
    };
  }
  // One block split between two threads, as a caller without an engine would.
  Turn split(const Case& c, bool streaming) {
    return [this, c, streaming]() -> Result<Measured> {
      const size_t rounds = std::max<uint64_t>(1, per_turn(c) / c.bytes);
      return gigabytes(clock_, c.bytes * rounds, 1, [&]() -> Result<> {
        std::thread second([&] {
          for (size_t i = 0; i < rounds; ++i) copy(c, c.bytes / 2, c.bytes / 2, streaming);
        });
        for (size_t i = 0; i < rounds; ++i) copy(c, 0, c.bytes / 2, streaming);
        second.join();
        return {};
      });
    };
  }

  // Against libc's memcpy or streaming stores, whichever wins over all turns: the better of the two
  // in each would be compared with their luck.
  static Result<> against_best(const Figure& figure, size_t turns, const Turn& ours,
                               const Turn& libc, const Turn& streaming) {
    std::vector<Measured> mine, peers[2];
    for (size_t i = 0; i <= turns; ++i) {
      MC_TRY(const Measured a, ours());
      mine.push_back(a);
      for (const bool stream : {false, true}) {
        MC_TRY(const Measured b, stream ? streaming() : libc());
        peers[stream ? 1 : 0].push_back(b);
      }
    }
    const auto middle = [](const std::vector<Measured>& of) {
      std::vector<double> v;
      for (size_t i = 1; i < of.size(); ++i) v.push_back(of[i].value);
      return median(std::move(v));
    };
    const auto& best = peers[middle(peers[1]) > middle(peers[0]) ? 1 : 0];
    size_t a = 0, b = 0;
    return compare(
        figure, turns, [&]() -> Result<Measured> { return mine[a++]; },
        [&]() -> Result<Measured> { return best[b++]; });
  }

  Result<> transfer(xfer::Engine& engine, xfer::SegmentHandle segment, const Case& c, uint64_t at,
                    uint64_t bytes) {
    xfer::Request r;
    r.op = c.op;
    r.segment = segment;
    r.local = ends_.local.data() + at;
    r.offset = offset_ + at + c.skew;
    r.bytes = bytes;
    return engine.transfer_sync(r, kBudget);
  }

  // Where the bytes go is wiped first: the copies we compare with wrote there too.
  Result<> verify(xfer::Engine& engine, xfer::SegmentHandle segment, const Case& c) {
    const auto& to = c.op == xfer::Op::kWrite ? ends_.remote : ends_.local;
    const auto& from = c.op == xfer::Op::kWrite ? ends_.local : ends_.remote;
    std::memset(to.data(), 0, c.bytes);
    MC_TRY_(transfer(engine, segment, c, 0, c.bytes));
    if (std::memcmp(to.data(), from.data(), c.bytes) == 0) return {};
    return fail(Code::kCorrupt, "contents differ after %s%s", c.verb().c_str(),
                bytes_text(c.bytes).c_str());
  }

  const Clock& clock_;
  const Options& options_;

 private:
  uint64_t per_turn(const Case& c) const {
    // Cold: what the other side left in the caches must be little beside it.
    const uint64_t most = (options_.quick && !c.cold ? 64 : 256) * kMiB / c.threads;
    return c.bytes < 64 * kKiB ? most / 8 : most;
  }
  void copy(const Case& c, uint64_t at, uint64_t bytes, bool streaming) const {
    std::byte* to = (c.op == xfer::Op::kWrite ? ends_.remote : ends_.local).data() + at;
    const std::byte* from = (c.op == xfer::Op::kWrite ? ends_.local : ends_.remote).data() + at;
    if (c.op == xfer::Op::kWrite)
      to += c.skew;
    else
      from += c.skew;
    if (streaming)
      xfer::copy_rows({to, from, bytes}, true);
    else
      std::memcpy(to, from, bytes);
  }

  Ends ends_;
  const uint64_t offset_;
  std::array<uint64_t, 2> next_{};  // of each thread's cold walk
};

// The middle one of many transfers in a row, in microseconds.
Turn latency(const Clock& clock, size_t rounds, std::function<Result<>()> work) {
  return [&clock, rounds, work = std::move(work)]() -> Result<Measured> {
    std::vector<double> us;
    for (size_t i = 0; i < rounds; ++i) {
      const Time start = clock.now();
      MC_TRY_(work());
      us.push_back(to_seconds(clock.now() - start) * 1e6);
    }
    return Measured(median(us));
  };
}

// Reads into memory of the application, 16 bytes into a cache line as malloc has it: not
// registered, and registered; against libc's memcpy or streaming stores into it, whichever wins,
// and against reads into the engine's own.
Result<> into_application(const Clock& clock, const Options& o, std::span<std::byte> remote,
                          uint64_t offset, xfer::Engine& engine, xfer::SegmentHandle segment,
                          std::span<std::byte> own) {
  constexpr uint64_t kMost = 64 * kMiB, kSkew = 16;
  std::vector<std::byte> memory(kMost + kSkew);
  const std::span<std::byte> local = std::span(memory).subspan(kSkew);
  const Ends ends{local, remote};
  Bench bench(clock, o, ends, offset), engines(clock, o, {own, remote}, offset);
  for (const bool registered : {false, true}) {
    xfer::Memory kept;
    if (registered) {
      MC_TRY(kept, engine.register_memory(local));
    }
    for (const uint64_t bytes : {8 * kMiB, kMost}) {
      const Case c{xfer::Op::kRead, bytes};
      const std::string what = bytes_text(bytes) + (registered ? " registered" : " not registered");
      MC_TRY_(bench.verify(engine, segment, c));
      const Figure figure{"xfer-shm", "read " + what, "GB/s", "best copy " + bytes_text(bytes),
                          0.95};
      MC_TRY_(Bench::against_best(figure, o.turns(), bench.ours(engine, segment, c),
                                  bench.raw(c, false), bench.raw(c, true)));
      MC_TRY_(compare({"xfer-shm", "read " + what, "GB/s", "into the engine's own", 0.9}, o.turns(),
                      bench.ours(engine, segment, c), engines.ours(engine, segment, c)));
    }
  }
  return {};
}

struct ShmOptions : Options {
  std::string only;
  void describe(OptionList& v) {
    Options::describe(v);
    v("only", only, "a part of it", {"", "application"});
  }
};

Result<int> run(const ShmOptions& o) {
  SteadyClock clock;
  MC_TRY(auto peer, ServingPeer::start(clock, kMemory));
  MC_TRY(const std::span<std::byte> remote, map_peer(peer->segment));
  Metrics metrics;
  std::vector<std::unique_ptr<xfer::Engine>> engines;
  std::vector<xfer::SegmentHandle> segments;
  for (const uint32_t workers : {1u, 2u}) {
    xfer::EngineOptions options;
    options.node = "bench";
    options.transports = {"shm"};
    options.workers = workers;
    MC_TRY(auto engine, xfer::Engine::open(clock, options, metrics));
    MC_TRY(const auto segment, engine->open_segment(peer->segment));
    engines.push_back(std::move(engine));
    segments.push_back(segment);
  }
  MC_TRY(const xfer::Memory local, engines[0]->allocate(kMemory));
  fill(local.bytes(), 1);
  Bench bench(clock, o, {local.bytes(), remote}, peer->segment.buffers.front().offset);
  const size_t turns = 9;
  auto check = [&](const Case& c, size_t engine) {
    return bench.verify(*engines[engine], segments[engine], c);
  };
  auto mine = [&](const Case& c, size_t engine = 0) {
    return bench.ours(*engines[engine], segments[engine], c);
  };
  // Turns of a few milliseconds meet the machine's moods: there are more of them.
  auto repeats = [](uint64_t bytes) -> size_t {
    return bytes >= 256 * kMiB ? 7 : bytes > kMiB ? 9 : 31;
  };
  auto best = [&](xfer::Op op, uint64_t bytes, uint32_t threads, bool cold = false) -> Result<> {
    const Case c{op, bytes, threads, cold};
    const std::string what = bytes_text(bytes) + (cold ? " cold" : " x" + std::to_string(threads));
    const Figure figure{"xfer-shm", c.verb() + what, "GB/s", "best copy " + what,
                        bytes >= 64 * kKiB ? 0.95 : 0};
    MC_TRY_(bench.against_best(figure, repeats(bytes), mine(c), bench.raw(c, false),
                               bench.raw(c, true)));
    return check(c, 0);
  };
  // The first transfer of all maps the memory and touches its pages.
  MC_TRY_(check({xfer::Op::kWrite, kMemory}, 0));
  MC_TRY_(check({xfer::Op::kWrite, kMemory}, 1));
  MC_TRY_(into_application(clock, o, remote, peer->segment.buffers.front().offset, *engines[0],
                           segments[0], local.bytes()));
  if (!o.only.empty()) return 0;

  const Case tiny{xfer::Op::kWrite, 4 * kKiB};
  auto once = [&] { return bench.transfer(*engines[0], segments[0], tiny, 0, tiny.bytes); };
  const size_t many = o.quick ? 20000 : 100000;
  Figure figure{"xfer-shm", "write 4KiB median", "us", "1 us", 1.0, true};
  MC_TRY_(compare(figure, turns, latency(clock, many, once),
                  []() -> Result<Measured> { return Measured(1.0); }));

  for (const uint64_t bytes : {4 * kKiB, 16 * kKiB, 64 * kKiB, 256 * kKiB, 1 * kMiB, 4 * kMiB,
                               16 * kMiB, 64 * kMiB, 256 * kMiB, 1 * kGiB}) {
    MC_TRY_(best(xfer::Op::kWrite, bytes, 1));
    if (!o.quick || bytes == 64 * kKiB || bytes == 64 * kMiB)
      MC_TRY_(best(xfer::Op::kRead, bytes, 1));
  }
  const Case large{xfer::Op::kWrite, 64 * kMiB};
  MC_TRY_(compare({"xfer-shm", "write 64MiB x1", "GB/s", "memcpy 64MiB x1", 1.25}, turns,
                  mine(large), bench.raw(large, false)));
  // Where the CPU's string instruction, libc's choice, stumbles on some CPUs.
  const Case skewed{xfer::Op::kWrite, 64 * kKiB, 1, false, 8};
  MC_TRY_(compare({"xfer-shm", "write 64KiB 8 bytes on", "GB/s", "memcpy 64KiB 8 bytes on", 1},
                  repeats(skewed.bytes), mine(skewed), bench.raw(skewed, false)));
  for (const uint64_t bytes : {64 * kKiB, 1 * kMiB, 64 * kMiB}) {
    const Case c{xfer::Op::kWrite, bytes, 1, true};
    const std::string what = bytes_text(bytes) + " cold";
    MC_TRY_(compare({"xfer-shm", "write " + what, "GB/s", "memcpy " + what, 1.5}, repeats(bytes),
                    mine(c), bench.raw(c, false)));
    MC_TRY_(best(c.op, bytes, 1, true));
  }
  for (const uint64_t bytes : {64 * kKiB, 1 * kMiB, 64 * kMiB})
    MC_TRY_(best(xfer::Op::kWrite, bytes, 2));
  for (const uint64_t bytes : {64 * kMiB, 1 * kGiB}) {
    const Case c{xfer::Op::kWrite, bytes};
    const std::string what = bytes_text(bytes);
    const Figure halves{"xfer-shm", "write " + what + " 2 workers", "GB/s",
                        "best copy " + what + " in halves", 0.95};
    MC_TRY_(bench.against_best(halves, repeats(bytes), mine(c, 1), bench.split(c, false),
                               bench.split(c, true)));
    MC_TRY_(check(c, 1));
  }
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::ShmOptions options;
  mc::Program program("xfer_shm_bench", "shared-memory transfers against the best copy");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
