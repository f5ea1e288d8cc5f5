// How long a conductor takes from its start until it is ready and knows a million blocks of eight
// workers' caches, against the budget of two seconds.
#include <atomic>
#include <thread>

#include "base/json.h"
#include "base/random.h"
#include "bench/figure.h"
#include "cmd/command.h"
#include "serve/conductor/conductor.h"
#include "serve/runtime/heartbeat.h"

namespace mc {
namespace {

constexpr uint32_t kBlock = 16, kRun = 1000;  // blocks of a transaction
constexpr size_t kWorkers = 8;

// A worker with a full cache, in all but the computing.
class Holder {
 public:
  Holder(io::Loop& loop, size_t number, size_t blocks)
      : loop_(loop),
        cache_(static_cast<uint32_t>(blocks), kBlock, number + 1),
        server_(*rpc::Server::open(loop, "127.0.0.1:0", metrics_)) {
    for (size_t done = 0; done < blocks; done += kRun) {
      std::vector<BlockHash> hashes(std::min<size_t>(kRun, blocks - done));
      for (size_t i = 0; i < hashes.size(); ++i) {
        const uint64_t word = mix64((number << 40) + done + i);
        std::memcpy(hashes[i].bytes.data(), &word, sizeof word);
      }
      const size_t n = hashes.size();
      const auto tx = cache_.allocate({"fill", hashes, n * kBlock, n, std::chrono::seconds(1)}, {});
      MC_CHECK(tx.has_value() && cache_.start(*tx).has_value());
      cache_.computed(*tx, n);
      MC_CHECK(cache_.commit(*tx).has_value());
    }
    server_->on<serve::Snapshot>(
        [this](const serve::Snapshot& m, const rpc::Call&) -> Result<serve::KvSnapshot> {
          serve::KvSnapshot page = cache_.snapshot(m.from, 65536);
          page.epoch = 1;
          return page;
        });
    me_.node = "p" + std::to_string(number);
    me_.role = "prefill";
    me_.epoch = 1;
    me_.control = server_->address();
    me_.model = "tiny";
    me_.block_tokens = kBlock;
    me_.fingerprint = cost::tiny().fingerprint(kBlock);
  }
  Result<> join(const std::string& conductor) {
    MC_TRY(beats_, serve::Heartbeats::open(
                       loop_, me_, {conductor}, std::chrono::milliseconds(500), &cache_,
                       [](serve::Heartbeat&, const std::string&) {}, metrics_));
    return {};
  }

 private:
  io::Loop& loop_;
  Metrics metrics_;
  serve::BlockManager cache_;
  std::unique_ptr<rpc::Server> server_;
  serve::Heartbeat me_;
  std::unique_ptr<serve::Heartbeats> beats_;
};

// Seconds from the start of a conductor until it knows `blocks`.
Result<double> rebuild(io::Loop& far, std::vector<std::unique_ptr<Holder>>& holders, size_t blocks,
                       const Clock& clock, uint64_t epoch) {
  io::Loop loop(clock);
  Metrics metrics;
  serve::ConductorOptions o;
  o.listen = "127.0.0.1:0";
  o.block_size = kBlock;
  const Time began = clock.now();
  MC_TRY(const auto conductor, serve::Conductor::open(loop, o, epoch, metrics));
  std::atomic<bool> failed = false;
  (void)far.post([&, address = conductor->control()] {
    for (auto& h : holders)
      if (!h->join(address)) failed = true;
  });
  while (conductor->cluster()["index_blocks"] != blocks) {
    MC_TRY_(loop.turn(std::chrono::milliseconds(1)));
    if (failed || clock.now() - began > std::chrono::seconds(60))
      return fail(Code::kTimeout, "the view is not whole after %s",
                  to_text(clock.now() - began).c_str());
  }
  return to_seconds(clock.now() - began);
}

Result<int> run(bool quick) {
  const size_t each = quick ? 12'500 : 125'000;
  SteadyClock clock;
  io::Loop far(clock);
  std::vector<std::unique_ptr<Holder>> holders;
  for (size_t i = 0; i < kWorkers; ++i) holders.push_back(std::make_unique<Holder>(far, i, each));
  std::thread thread([&] { (void)far.run(); });
  uint64_t epoch = 0;
  const auto done = bench::compare(
      {"rebuild", std::to_string(each * kWorkers) + " blocks", "s", "2 seconds", 1, true},
      quick ? 3 : 7,
      [&]() -> Result<bench::Measured> {
        MC_TRY(const double s, rebuild(far, holders, each * kWorkers, clock, ++epoch));
        return bench::Measured(s);
      },
      [] { return Result<bench::Measured>(2.0); });
  (void)far.post([&] {
    holders.clear();
    far.stop();
  });
  thread.join();
  MC_TRY_(done);
  return 0;
}

struct Options {
  bool quick = false;
  void describe(OptionList& v) { v("quick", quick, "a tenth of the blocks, fewer turns"); }
};

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::Options options;
  mc::Program program("rebuild_bench", "from the start of a conductor to a whole view");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options.quick); });
  return program.main(argc, argv);
}
