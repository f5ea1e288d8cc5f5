// Gets and puts of 4 KiB by one client, over tcp and over shared memory, against their parts timed
// in the same turn: a get is a call to the master and a read of the node, a put is two calls, a
// guard word and a write. One at a time: the median in microseconds, beside the sum of the parts.
// 64 a call: thousands a second, beside 40. And what 64 clients over tcp cost that do nothing, or
// get a value every 128 ms each: CPU time of all processes, beside a share of one CPU. The servers
// are processes of their own.
#include "bench/store_pool.h"
#include "cmd/command.h"

namespace mc {
namespace {

using bench::Measured;
using bench::StoreClient;

constexpr uint64_t kValue = 4 * kKiB;
constexpr size_t kBatch = 64;
constexpr double kGoal = 40;  // thousands a second
constexpr Duration kBudget = std::chrono::seconds(10);

class Small {
 public:
  Small(const Clock& clock, const bench::StoreOptions& o, std::string transport, StoreClient& c)
      : clock_(clock), options_(o), transport_(std::move(transport)), c_(c) {}

  Result<> run(const std::string& node, std::span<std::byte> memory) {
    MC_TRY(segment_, c_.engine->open_segment(node, kBudget));
    into_ = memory.first(kBatch * kValue);
    for (size_t i = 0; i < into_.size(); ++i) into_[i] = static_cast<std::byte>(i * 31);
    MC_TRY_(c_.client->put("small", value(0)));
    MC_TRY(const auto at, c_.client->locate({"small"}));
    place_ = at.places.at(0);
    MC_TRY_(singles());
    return batches();
  }

 private:
  std::span<std::byte> value(size_t i) const { return into_.subspan(i * kValue, kValue); }
  std::string name(const char* what) const {
    return std::string(what) + (transport_ == "tcp" ? " over tcp" : " over shm");
  }
  template <class Work>
  Result<Measured> median_us(const Work& work) {
    std::vector<double> us;
    for (size_t i = 0; i < (options_.quick ? 200 : 500); ++i) {
      const Time start = clock_.now();
      MC_TRY_(work());
      us.push_back(to_seconds(clock_.now() - start) * 1e6);
    }
    return Measured(bench::median(us));
  }
  template <class Work>
  Result<Measured> thousands(const Work& work) {
    const size_t rounds = options_.quick ? 10 : 40;
    const Time start = clock_.now();
    for (size_t i = 0; i < rounds; ++i) MC_TRY_(work());
    const double seconds = to_seconds(clock_.now() - start);
    return Measured(static_cast<double>(rounds * kBatch) / 1e3 / seconds);
  }
  Result<> call() const {
    MC_TRY_(c_.client->exists({"none"}));
    return {};
  }
  Result<> read() const {
    xfer::Request r;
    r.local = into_.data();
    r.segment = segment_;
    r.offset = place_.offset;
    r.bytes = kValue;
    return c_.engine->transfer_sync(r, kBudget);
  }
  std::string next() { return "n" + std::to_string(puts_++); }
  Result<> forget() {
    std::vector<ObjectKey> keys;
    for (; forgotten_ < puts_; ++forgotten_) keys.push_back("n" + std::to_string(forgotten_));
    for (const auto& removed : c_.client->remove(keys, true)) MC_TRY_(removed);
    return {};
  }

  Result<> singles() {
    const auto parts = [this](int calls, int transfers) -> Result<Measured> {
      MC_TRY(const Measured one, median_us([&] { return call(); }));
      MC_TRY(const Measured moved, median_us([&] { return read(); }));
      return Measured(calls * one.value + transfers * moved.value);
    };
    const auto get = [this] {
      return median_us([this]() -> Result<> {
        MC_TRY_(c_.client->get("small", value(0)));
        return {};
      });
    };
    const auto put = [this]() -> Result<Measured> {
      auto out = median_us([this]() -> Result<> {
        MC_TRY_(c_.client->put(next(), value(0)));
        return {};
      });
      MC_TRY_(forget());
      return out;
    };
    bench::Figure figure{"store-small", name("get 4KiB"), "us", "a call and a read", 0.8, true};
    MC_TRY_(bench::compare(figure, options_.turns(), get, [&] { return parts(1, 1); }));
    figure.name = name("put 4KiB");
    figure.against = "two calls and two reads";
    return bench::compare(figure, options_.turns(), put, [&] { return parts(2, 2); });
  }

  Result<> batches() {
    const auto goal = []() -> Result<Measured> { return Measured(kGoal); };
    const auto put_new = [this]() -> Result<> {
      std::vector<store::PutItem> items;
      for (size_t i = 0; i < kBatch; ++i) items.push_back({next(), {value(i)}});
      for (const auto& put : c_.client->put_batch(items)) MC_TRY_(put);
      return {};
    };
    const auto puts = [&]() -> Result<Measured> {
      auto out = thousands(put_new);
      MC_TRY_(forget());
      return out;
    };
    bench::Figure figure{"store-small", name("put 64x4KiB"), "k/s", "40 k/s", 1};
    MC_TRY_(bench::compare(figure, options_.turns(), puts, goal));
    std::vector<store::PutItem> kept;
    std::vector<store::GetItem> items;
    for (size_t i = 0; i < kBatch; ++i) {
      const ObjectKey key = transport_ + "-" + std::to_string(i);
      kept.push_back({key, {value(i)}});
      items.push_back({key, {value(i)}});
    }
    for (const auto& put : c_.client->put_batch(kept)) MC_TRY_(put);
    const auto get_all = [&]() -> Result<> {
      for (const auto& got : c_.client->get_batch(items)) MC_TRY_(got);
      return {};
    };
    figure.name = name("get 64x4KiB");
    return bench::compare(
        figure, options_.turns(), [&] { return thousands(get_all); }, goal);
  }

  const Clock& clock_;
  const bench::StoreOptions& options_;
  const std::string transport_;
  StoreClient& c_;
  xfer::SegmentHandle segment_ = 0;
  std::span<std::byte> into_;
  store::ReplicaLocation place_;
  size_t puts_ = 0, forgotten_ = 0;
};

struct SmallOptions : bench::StoreOptions {
  std::string only;
  void describe(OptionList& v) {
    StoreOptions::describe(v);
    v("only", only, "a part of it", {"", "values", "rare"});
  }
  bool wants(const char* part) const { return only.empty() || only == part; }
};

// Clients with a connection each that is used rarely: ends that poll must not take a CPU.
Result<> rare(const Clock& clock, const bench::StoreOptions& o, const bench::StorePool& pool,
              const store::ClientOptions& options) {
  constexpr size_t kClients = 64;
  constexpr int kApartMs = 2;
  constexpr double kIdleMs = 10, kRareMs = 100;  // of CPU time, in a second
  xfer::EngineOptions engine;
  engine.transports = {"tcp"};
  std::vector<std::byte> value(kValue, std::byte{7});
  std::vector<std::unique_ptr<StoreClient>> all;
  for (size_t i = 0; i < kClients; ++i) {
    MC_TRY(auto c, StoreClient::open(clock, "rare" + std::to_string(i), options, engine));
    if (i == 0) MC_TRY_(c->client->put("rare", value));
    MC_TRY_(c->client->get("rare", value));
    all.push_back(std::move(c));
  }
  const auto cpu_ms = [&](const auto& work) -> Result<Measured> {
    const double before = pool.cpu() + bench::cpu_seconds();
    const Time start = clock.now();
    MC_TRY_(work());
    const double used = pool.cpu() + bench::cpu_seconds() - before;
    return Measured(1e3 * used / to_seconds(clock.now() - start));
  };
  const auto idle = []() -> Result<> {
    ::poll(nullptr, 0, 1000);
    return {};
  };
  const auto in_turn = [&]() -> Result<> {
    for (size_t i = 0; i < 500; ++i) {
      MC_TRY_(all[i % kClients]->client->get("rare", value));
      ::poll(nullptr, 0, kApartMs);
    }
    return {};
  };
  const size_t turns = o.quick ? 3 : 7;
  const auto limit = [](double ms) { return [ms]() -> Result<Measured> { return Measured(ms); }; };
  MC_TRY_(bench::compare(
      {"store-small", "64 clients that do nothing", "ms/s", "1 % of a CPU", 1, true}, turns,
      [&] { return cpu_ms(idle); }, limit(kIdleMs)));
  return bench::compare(
      {"store-small", "64 clients, a get each 128 ms", "ms/s", "10 % of a CPU", 1, true}, turns,
      [&] { return cpu_ms(in_turn); }, limit(kRareMs));
}

Result<int> run(const SmallOptions& o) {
  const SteadyClock clock;
  bench::StorePool pool(o.bin, clock);
  for (const char* const transport : {"tcp", "shm"}) {
    const std::string name = transport;
    MC_TRY(const std::string master, pool.master("master-" + name));
    MC_TRY(const std::string node, pool.node("n-" + name, master, {"--size", "256MiB"}));
    store::ClientOptions options;
    options.master = master;
    if (o.wants("rare") && name == "tcp") MC_TRY_(rare(clock, o, pool, options));
    if (!o.wants("values")) continue;
    xfer::EngineOptions engine;
    engine.transports = {name};
    MC_TRY(auto c, StoreClient::open(clock, "bench", options, engine));
    MC_TRY(xfer::Memory memory, c->engine->allocate(kBatch * kValue));
    MC_TRY_(Small(clock, o, name, *c).run(node, memory.bytes()));
  }
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::SmallOptions options;
  options.bin = std::filesystem::path(argv[0]).parent_path().string();
  mc::Program program("store_small_bench", "small values of the store against their parts");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
