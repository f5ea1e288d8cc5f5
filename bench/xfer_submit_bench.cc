// What the engine adds to each small request: many of them in one submit, neighbours (which become
// one movement) and scattered ones, and single ones that the caller waits for, over shared memory.
#include <cstring>

#include "bench/figure.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"

namespace mc::bench {
namespace {

constexpr uint64_t kPiece = 4 * kKiB, kRequests = 1024;
constexpr uint64_t kMemory = kPiece * kRequests;

class Submits {
 public:
  static Result<int> run(const Options& o) {
    Submits s;
    MC_TRY(s.peer_, ServingPeer::start(s.clock_, kMemory));
    xfer::EngineOptions options;
    options.node = "bench";
    options.transports = {"shm"};
    MC_TRY(s.engine_, xfer::Engine::open(s.clock_, options, s.metrics_));
    MC_TRY(s.segment_, s.engine_->open_segment(s.peer_->segment));
    fill(s.local_, 1);
    const size_t rounds = o.quick ? 40 : 200;
    const std::string n = std::to_string(kRequests) + " x 4KiB";
    MC_TRY_(compare({"xfer-submit", n + " neighbours", "M/s", "memcpy of each"}, o.turns(),
                    s.submits(s.requests(1), rounds), s.copies(1, rounds)));
    MC_TRY_(s.verify());
    MC_TRY_(compare({"xfer-submit", n + " scattered", "M/s", "memcpy of each"}, o.turns(),
                    s.submits(s.requests(kRequests - 257), rounds),
                    s.copies(kRequests - 257, rounds)));
    MC_TRY_(s.verify());
    MC_TRY_(compare({"xfer-submit", "4KiB, waited for", "M/s", "memcpy of each"}, o.turns(),
                    s.syncs(rounds), s.copies(kRequests - 257, rounds)));
    MC_TRY_(s.verify());
    return 0;
  }

 private:
  // All pieces, each `step` places (odd) after the one before.
  std::vector<xfer::Request> requests(uint64_t step) {
    std::vector<xfer::Request> out;
    for (uint64_t i = 0; i < kRequests; ++i) {
      xfer::Request r;
      r.op = xfer::Op::kWrite;
      r.segment = segment_;
      r.offset = i * step % kRequests * kPiece;
      r.local = local_.data() + r.offset;
      r.bytes = kPiece;
      out.push_back(r);
    }
    return out;
  }

  // Million requests a second.
  Result<Measured> rate(size_t rounds, const std::function<Result<>()>& round) {
    const Time start = clock_.now();
    for (size_t i = 0; i < rounds; ++i) MC_TRY_(round());
    return Measured(static_cast<double>(rounds * kRequests) / 1e6 /
                    to_seconds(clock_.now() - start));
  }

  Turn submits(std::vector<xfer::Request> all, size_t rounds) {
    return [this, rounds, all = std::move(all)] {
      return rate(rounds, [&]() -> Result<> {
        const xfer::BatchId batch = engine_->allocate_batch();
        MC_TRY_(engine_->submit(batch, all));
        const Result<> outcome = engine_->wait(batch, std::chrono::seconds(10));
        engine_->free_batch(batch);
        return outcome;
      });
    };
  }

  Turn syncs(size_t rounds) {
    return [this, rounds, all = requests(kRequests - 257)] {
      return rate(rounds, [&]() -> Result<> {
        for (const xfer::Request& r : all)
          MC_TRY_(engine_->transfer_sync(r, std::chrono::seconds(10)));
        return {};
      });
    };
  }

  Turn copies(uint64_t step, size_t rounds) {
    return [this, rounds, step] {
      return rate(rounds, [&]() -> Result<> {
        for (uint64_t i = 0; i < kRequests; ++i) {
          const uint64_t at = i * step % kRequests * kPiece;
          std::memcpy(copy_.data() + at, local_.data() + at, kPiece);
        }
        return {};
      });
    };
  }

  // What lies at the peer is what was sent; the next case sends something else.
  Result<> verify() {
    xfer::Request r;
    r.segment = segment_;
    r.local = copy_.data();
    r.bytes = kMemory;
    MC_TRY_(engine_->transfer_sync(r, std::chrono::seconds(10)));
    if (copy_ != local_) return fail(Code::kCorrupt, "contents differ");
    fill(local_, ++seed_);
    return {};
  }

  SteadyClock clock_;
  Metrics metrics_;
  std::unique_ptr<ServingPeer> peer_;
  std::unique_ptr<xfer::Engine> engine_;
  xfer::SegmentHandle segment_ = 0;
  std::vector<std::byte> local_ = std::vector<std::byte>(kMemory), copy_ = local_;
  uint64_t seed_ = 1;
};

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_submit_bench", "what the engine adds to small requests");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::Submits::run(options); });
  return program.main(argc, argv);
}
