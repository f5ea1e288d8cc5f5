// Clients of a live store put, get and remove self-describing values and log every answer, until a
// file says to stop or the time is over. Then the history is checked. tests/net/store_history.sh
// kills and stops the nodes meanwhile.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/json.h"
#include "base/random.h"
#include "cmd/command.h"
#include "rpc/socket.h"
#include "store/client/client.h"
#include "tests/history/check.h"

namespace mc {
namespace {

using history::Fate;
using history::Kind;
using history::Op;
using store::PutOutcome;

constexpr uint64_t kMagic = 0x6d63686973746f72, kValueMax = 400 * kKiB;
constexpr Duration kOverTime = std::chrono::seconds(3);  // beyond its timeout an operation hangs

struct Options {
  std::string master = "127.0.0.1:5550", stop, cluster_key;
  Duration time = std::chrono::seconds(10), timeout = std::chrono::seconds(2);
  uint32_t clients = 6, keys = 60;
  uint64_t seed = 0;
  void describe(OptionList& v) {
    v("master", master, "address of mc-master");
    v("cluster-key", cluster_key, "file with the cluster's secret");
    v("stop", stop, "file that ends it when it is there");
    v("time", time, "how long");
    v("timeout", timeout, "of one operation");
    v("clients", clients, "how many at the same time");
    v("keys", keys, "how many they share");
    v("seed", seed, "of what they do; 0: a fresh one");
  }
};

// 32 bytes that identify the key and the value, then words derived from them.
void describe_value(std::span<std::byte> value, uint64_t key, uint64_t id) {
  const uint64_t head[4] = {kMagic, key, id, value.size()};
  std::memcpy(value.data(), head, sizeof head);
  for (size_t at = sizeof head; at < value.size(); at += 8) {
    const uint64_t word = mix64(id * 0x9e3779b97f4a7c15 + key + at);
    std::memcpy(value.data() + at, &word, std::min<size_t>(8, value.size() - at));
  }
}

// Which value of `key` it is; 0: none.
uint64_t read_value(std::span<const std::byte> value, uint64_t key, std::vector<std::byte>& want) {
  uint64_t head[4];
  if (value.size() < sizeof head) return 0;
  std::memcpy(head, value.data(), sizeof head);
  if (head[0] != kMagic || head[1] != key || head[2] == 0 || head[3] != value.size()) return 0;
  want.resize(value.size());
  describe_value(want, key, head[2]);
  return std::memcmp(want.data(), value.data(), value.size()) == 0 ? head[2] : 0;
}

struct Shared {
  Options options;
  uint64_t seed = 0;
  SteadyClock clock;
  Time began;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> values{0}, puts{0}, gets{0}, misses{0}, removed{0}, errors{0}, lost{0};
  std::atomic<int64_t> slowest_ns{0};
  Mutex mutex;
  std::vector<Op> ops MC_GUARDED_BY(mutex);
  std::vector<std::string> wrong MC_GUARDED_BY(mutex);
  void accuse(std::string what) {
    const Lock lock(mutex);
    wrong.push_back(std::move(what));
  }
};

class Worker {
 public:
  static Result<std::unique_ptr<Worker>> open(Shared& shared, uint32_t n) {
    auto w = std::unique_ptr<Worker>(new Worker(shared, n));
    xfer::EngineOptions engine;
    engine.node = "client" + std::to_string(n);
    MC_TRY(w->engine_, xfer::Engine::open(shared.clock, engine, w->metrics_));
    store::ClientOptions client;
    client.master = shared.options.master;
    client.timeout = shared.options.timeout;
    client.local_hot_cache = Bytes{2 * kMiB};
    client.verify = "never";  // wrong bytes are for us to find
    client.tenant = n % 3 == 2 ? "other" : "";
    client.replicas = n % 4 == 3 ? 2 : 1;
    MC_TRY(w->client_, store::Client::open(*w->engine_, shared.clock, client, w->metrics_));
    w->tenant_ = client.tenant;
    return w;
  }

  void run() {
    while (!shared_.stop) {
      const ObjectKey key = "k" + std::to_string(random_.below(shared_.options.keys));
      const double what = random_.uniform();
      if (what < 0.35)
        put(key);
      else if (what < 0.8)
        get(key);
      else if (what < 0.93)
        remove(key);
      else if (what < 0.97)
        (void)client_->exists({key});
      else
        (void)client_->prefetch({key});
    }
    const Lock lock(shared_.mutex);
    shared_.ops.insert(shared_.ops.end(), ops_.begin(), ops_.end());
  }

 private:
  Worker(Shared& shared, uint32_t n) : shared_(shared), random_(shared.seed + n) {}

  std::string full(const ObjectKey& key) const { return tenant_ + "/" + key; }
  Op& begin(Kind kind, const ObjectKey& key) {
    ops_.push_back({kind, Fate::kNot, full(key), 0, now(), 0});
    return ops_.back();
  }
  int64_t now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(shared_.clock.now() - shared_.began)
        .count();
  }
  void end(Op& op, const Error* error) {
    op.end_ns = now();
    const bool lost = error != nullptr && error->code != Code::kNotFound &&
                      error->code != Code::kBusy && error->code != Code::kNoSpace;
    if (lost && ++shared_.lost <= 20)
      std::fprintf(stderr, "lost: %s: %s\n", op.key.c_str(), error->what.c_str());
    int64_t slowest = shared_.slowest_ns;
    while (op.end_ns - op.start_ns > slowest &&
           !shared_.slowest_ns.compare_exchange_weak(slowest, op.end_ns - op.start_ns)) {
    }
    const Duration took = std::chrono::nanoseconds(op.end_ns - op.start_ns);
    if (took > shared_.options.timeout + kOverTime)
      shared_.accuse(strf("%s: an operation took %s", op.key.c_str(), to_text(took).c_str()));
  }

  void put(const ObjectKey& key) {
    const uint64_t id = ++shared_.values;
    const double share = random_.uniform();
    buffer_.resize(32 + static_cast<uint64_t>(share * share * static_cast<double>(kValueMax)));
    Op& op = begin(Kind::kPut, key);
    op.value = id;
    describe_value(buffer_, xxh3(op.key), id);
    const auto outcome = client_->put(key, buffer_);
    end(op, outcome ? nullptr : &outcome.error());
    if (outcome && *outcome == PutOutcome::kStored) {
      op.fate = Fate::kDone;
      ++shared_.puts;
    } else if (outcome) {
      op.fate = Fate::kMaybe;  // an attempt before may be what is there
    } else {
      const Code code = outcome.error().code;
      op.fate = code == Code::kNoSpace || code == Code::kBusy ? Fate::kNot : Fate::kMaybe;
      ++shared_.errors;
    }
  }

  void get(const ObjectKey& key) {
    into_.resize(kValueMax + 64);
    Op& op = begin(Kind::kGet, key);
    const auto bytes = client_->get(key, into_);
    end(op, bytes ? nullptr : &bytes.error());
    if (!bytes) {
      ++(bytes.error().code == Code::kNotFound ? shared_.misses : shared_.errors);
      return;
    }
    ++shared_.gets;
    op.value = read_value(std::span(into_).first(*bytes), xxh3(op.key), want_);
    op.fate = Fate::kDone;
    if (op.value != 0) return;
    op.fate = Fate::kNot;
    shared_.accuse(strf("%s: wrong bytes in a get at %.3f ms of %llu bytes", op.key.c_str(),
                        static_cast<double>(op.start_ns) / 1e6,
                        static_cast<unsigned long long>(*bytes)));
  }

  void remove(const ObjectKey& key) {
    Op& op = begin(Kind::kRemove, key);
    const auto outcome = client_->remove({key}, random_.chance(0.5))[0];
    end(op, outcome ? nullptr : &outcome.error());
    const Code code = outcome ? Code{} : outcome.error().code;
    op.fate = outcome || code == Code::kNotFound ? Fate::kDone
              : code == Code::kBusy              ? Fate::kNot
                                                 : Fate::kMaybe;
    if (outcome) ++shared_.removed;
  }

  Shared& shared_;
  Random random_;
  Metrics metrics_;
  std::unique_ptr<xfer::Engine> engine_;
  std::unique_ptr<store::Client> client_;
  std::string tenant_;
  std::vector<Op> ops_;
  std::vector<std::byte> buffer_, into_, want_;
};

Result<int> run(const Options& options) {
  MC_TRY_(rpc::load_cluster_key(options.cluster_key));
  Shared shared;
  shared.options = options;
  shared.seed = options.seed != 0 ? options.seed : fresh_seed();
  shared.began = shared.clock.now();
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint32_t n = 0; n < options.clients; ++n) {
    MC_TRY(auto worker, Worker::open(shared, n));
    workers.push_back(std::move(worker));
  }
  std::vector<std::thread> threads;
  for (const auto& w : workers) threads.emplace_back([&w] { w->run(); });
  Mutex mutex;
  Condition never;
  const Time until = shared.clock.now() + options.time;
  while (shared.clock.now() < until &&
         (options.stop.empty() || !std::filesystem::exists(options.stop))) {
    Lock lock(mutex);
    never.wait_for(mutex, std::chrono::milliseconds(50));
  }
  shared.stop = true;
  for (std::thread& t : threads) t.join();
  const Lock lock(shared.mutex);
  for (std::string& w : history::check(shared.ops)) shared.wrong.push_back(std::move(w));
  for (const std::string& w : shared.wrong) std::fprintf(stderr, "%s\n", w.c_str());
  std::printf("%s\n", dump_json({{"seed", shared.seed},
                                 {"operations", shared.ops.size()},
                                 {"stored", shared.puts.load()},
                                 {"got", shared.gets.load()},
                                 {"missed", shared.misses.load()},
                                 {"removed", shared.removed.load()},
                                 {"errors", shared.errors.load()},
                                 {"lost", shared.lost.load()},
                                 {"slowest-ms", static_cast<double>(shared.slowest_ns) / 1e6},
                                 {"wrong", shared.wrong.size()}})
                          .c_str());
  return shared.wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::Options options;
  mc::Program program("store-history", "uses a live store and checks the history of it");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
