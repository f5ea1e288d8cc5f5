// A pool at three times overcommit, without disks: eight writers put new objects as fast as they
// can, each waiting at most 100 ms for room. No put may fail; and what eviction costs is the ratio
// to the same puts into an empty pool.
#include <atomic>
#include <thread>

#include "base/random.h"
#include "bench/store_pool.h"

namespace mc {
namespace {

constexpr uint64_t kValue = 256 * kKiB, kPool = 256 * kMiB;
constexpr size_t kWriters = 8;

Result<std::string> start(bench::StorePool& pool) {
  MC_TRY(std::string master, pool.master("master", {"--slow-start", "0s"}));
  for (const std::string name : {"a", "b"})
    MC_TRY_(pool.node(name, master, {"--size", std::to_string(kPool / 2)}));
  return master;
}

// One client each.
class Writers {
 public:
  static Result<std::unique_ptr<Writers>> open(const Clock& clock, const std::string& master) {
    auto w = std::unique_ptr<Writers>(new Writers(clock));
    for (size_t i = 0; i < kWriters; ++i) {
      store::ClientOptions o;
      o.master = master;
      o.put_wait = std::chrono::milliseconds(100);
      MC_TRY(auto c, bench::StoreClient::open(clock, "writer" + std::to_string(i), o));
      w->clients_.push_back(std::move(c));
    }
    for (size_t i = 0; i < w->value_.size(); ++i) w->value_[i] = static_cast<std::byte>(mix64(i));
    return w;
  }

  // GB/s of `bytes` of new objects.
  Result<bench::Measured> put(uint64_t bytes) {
    const size_t each = bytes / kValue / kWriters;
    ++round_;
    std::atomic<uint64_t> bad{0};
    const Time began = clock_.now();
    std::vector<std::thread> threads;
    for (size_t w = 0; w < kWriters; ++w)
      threads.emplace_back([&, w] {
        for (size_t i = 0; i < each; ++i)
          if (!clients_[w]->client->put(strf("%zu/%zu/%zu", round_, w, i), value_)) ++bad;
      });
    for (std::thread& t : threads) t.join();
    const double seconds = to_seconds(clock_.now() - began);
    puts_ += each * kWriters;
    failed_ += bad;
    return bench::Measured(static_cast<double>(each * kWriters * kValue) / 1e9 / seconds);
  }
  Result<> clear() {
    store::RemovePrefix m;
    m.force = true;
    for (;;) {
      MC_TRY(const auto removed, clients_[0]->client->call(m));
      if (!removed.more) break;
      m.after = removed.last;
    }
    const Time deadline = clock_.now() + std::chrono::seconds(10);
    for (;;) {
      MC_TRY(const auto stat, clients_[0]->client->stat());
      if (stat.used == 0) return {};
      if (clock_.now() > deadline) return fail(Code::kTimeout, "the pool is not empty after 10 s");
      ::poll(nullptr, 0, 5);
    }
  }
  uint64_t puts() const { return puts_; }
  uint64_t failed() const { return failed_; }

 private:
  explicit Writers(const Clock& clock) : clock_(clock), value_(kValue) {}
  const Clock& clock_;
  std::vector<std::unique_ptr<bench::StoreClient>> clients_;
  std::vector<std::byte> value_;
  size_t round_ = 0;
  uint64_t puts_ = 0, failed_ = 0;
};

Result<int> run(const bench::StoreOptions& o) {
  const SteadyClock clock;
  bench::StorePool pool(o.bin, clock);
  MC_TRY(const std::string master, start(pool));
  MC_TRY(auto writers, Writers::open(clock, master));
  uint64_t puts = 0, failed = 0;
  MC_TRY_(bench::compare(
      {"store-evict", "put 256KiB, 8 writers, 3x", "GB/s", "into an empty pool"}, o.turns(),
      [&]() -> Result<bench::Measured> {
        const uint64_t puts_before = writers->puts(), failed_before = writers->failed();
        const auto measured = writers->put(3 * kPool);
        puts += writers->puts() - puts_before;
        failed += writers->failed() - failed_before;
        return measured;
      },
      [&]() -> Result<bench::Measured> {
        if (auto cleared = writers->clear(); !cleared) return fail(cleared.error());
        return writers->put(kPool / 4 * 3);
      }));
  bench::none({"store-evict", "failed puts, 100 ms wait", "puts", "puts at 3x overcommit"}, failed,
              puts);
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  return mc::bench::store_main(argc, argv, "store_evict_bench", "puts into a pool that is full",
                               mc::run);
}
