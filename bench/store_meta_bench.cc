// What metadata costs: memory an object; exists, get-replicas and put-start+put-end, one at a time
// and 64 a call, from 1, 4 and 16 clients, against redis-server doing as many EXISTS, GET or SET in
// one pipeline, and against an empty round trip through ZeroMQ; and the p99 of a lookup while the
// pool evicts. Master, node, redis and echo are processes of their own; no value is written.
#include <hiredis/hiredis.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/histogram.h"
#include "bench/store_pool.h"
#include "cmd/command.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "store/master/master.h"

namespace mc {
namespace {

using bench::Measured;
using namespace std::chrono_literals;

constexpr size_t kKeys = 100'000;
constexpr size_t kBatch = 64;

std::string key_of(size_t i) {  // 64 bytes, as a content hash in hex is
  return strf("%016zx%048zx", i * 0x9e3779b97f4a7c15, i);
}

// ---- memory

struct FakeNode {  // acknowledges everything at once
  store::Master& master;
  std::string name = "n";
  uint64_t done = 0;
  bool more = false;  // orders came; a beat that is held tells later
  const Clock* clock = nullptr;
  std::vector<double> steps_us{};  // with a clock: what the master took for each message and tick
  template <class Work>
  void step(const Work& work) {
    const Time start = clock == nullptr ? Time{} : clock->now();
    work();
    if (clock != nullptr) steps_us.push_back(to_seconds(clock->now() - start) * 1e6);
  }
  void beat() {
    for (more = true; more;) {
      more = false;
      step([&] {
        master.handle(store::Heartbeat{name, Generation{1}, done, 1000}, Time{1000s},
                      [&](const Result<store::HeartbeatReply>& beat) {
                        if (!beat || beat->orders.empty()) return;
                        done = beat->orders.back()->seq;
                        more = true;
                      });
      });
    }
  }
  Result<> mount(uint64_t bytes = 1ull << 40) const {
    store::Mount m;
    m.node = {name, "127.0.0.1:1", Generation{1}};
    m.layout = {uint64_t{1} << 40, bytes, 0, {}};
    MC_TRY_(master.handle(m, Time{1000s}));
    MC_TRY_(master.handle(store::Inventory{name, Generation{1}, {}, true}, Time{1000s}));
    return {};
  }
  void put(size_t first, size_t objects, size_t batch = kBatch) {
    for (size_t at = first; at < first + objects; at += batch) {
      store::PutStart start;
      start.prefer = name;
      for (size_t i = 0; i < batch; ++i) start.items.push_back({key_of(at + i), 1});
      store::PutEnd end;
      step([&] {
        master.handle(start, Time{1000s}, [&](const Result<store::PutStarted>& r) {
          for (size_t i = 0; r && i < batch; ++i)
            end.items.push_back({start.items[i].key, r->items[i].generation, 1});
        });
      });
      step([&] { master.handle(end, Time{1000s}, [](const Result<store::Outcomes>&) {}); });
      beat();
      while (clock != nullptr && master.deadline() < Time{1000s})
        step([&] { master.tick(Time{1000s}); });
    }
  }
};

store::MasterOptions never_full() {
  store::MasterOptions options;
  options.rebuild_wait = 0s;
  options.high_watermark = 1;
  options.slow_start = 0s;
  return options;
}

uint64_t heap() {
  const struct mallinfo2 m = ::mallinfo2();
  return m.uordblks + m.hblkhd;
}

struct Filled {
  double bytes = 0;       // an object, beside its key
  double put_us = 0;      // a put, without any wire
  double list_ms = 0;     // the longest wait of a call while the order of all keys is made
  double give_up_ms = 0;  // and while their node is given up
  double give_up_s = 0;   // how long that takes, all in all
};

// The longest of the steps that a master takes until it has nothing to do at once.
double longest_step(store::Master& master, Time now, const Clock& clock) {
  Duration longest{0};
  while (master.deadline() < now) {
    const Time start = clock.now();
    master.tick(now);
    longest = std::max(longest, clock.now() - start);
  }
  return to_ms(longest);
}

// Objects that only the disk of one node has, which then goes.
Result<Filled> fill_disk(size_t objects, const Clock& clock) {
  const Time now{1000s};
  const uint64_t before = heap();
  const store::MasterOptions options = never_full();
  auto master = std::make_unique<store::Master>(options, 1, 1, Time{999s});
  FakeNode node{*master};
  MC_TRY_(node.mount());
  for (size_t at = 0; at < objects; at += store::kTierPageMax) {
    store::TierMount page;
    page.node = node.name;
    page.generation = Generation{1};
    page.capacity = uint64_t{1} << 50;
    page.first = at == 0;
    page.last = at + store::kTierPageMax >= objects;
    for (size_t i = at; i < std::min(objects, at + store::kTierPageMax); ++i)
      page.objects.push_back({key_of(i), 1, 1, Generation{i + 1}, 0, 0});
    MC_TRY_(master->handle(page, now));
  }
  const store::ClusterStat stat = master->handle(store::Stat{}, now);
  if (stat.disk_objects != objects)
    return fail(Code::kInternal, "only %llu objects on the disk",
                static_cast<unsigned long long>(stat.disk_objects));
  Filled out;
  out.bytes = static_cast<double>(heap() - before) / static_cast<double>(objects);
  const Time start = clock.now();
  MC_TRY_(master->handle(store::Unmount{node.name, Generation{1}}, now));
  out.give_up_ms = to_ms(clock.now() - start);
  out.give_up_ms = std::max(out.give_up_ms, longest_step(*master, now, clock));
  out.give_up_s = to_seconds(clock.now() - start);
  if (master->handle(store::Stat{}, now).disk_objects != 0)
    return fail(Code::kInternal, "not given up");
  return out;
}

Result<Filled> fill(size_t objects, const Clock& clock) {
  const Time now{1000s};
  const uint64_t before = heap();
  const store::MasterOptions options = never_full();
  auto master = std::make_unique<store::Master>(options, 1, 1, Time{999s});
  FakeNode node{*master};
  MC_TRY_(node.mount());
  Filled out;
  Time start = clock.now();
  node.put(0, objects);
  const double seconds = to_seconds(clock.now() - start);
  const store::ClusterStat stat = master->handle(store::Stat{}, now);
  if (stat.objects < objects)
    return fail(Code::kInternal, "only %llu objects stored",
                static_cast<unsigned long long>(stat.objects));
  const auto n = static_cast<double>(stat.objects);
  const double log = static_cast<double>(options.event_log) * (sizeof(store::Event) + 80 + 16);
  out.bytes = (static_cast<double>(heap() - before) - log) / n - 64;
  out.put_us = seconds / n * 1e6;
  bool listed = false;
  master->handle(store::List{"", "", 1}, now,
                 [&](const Result<store::Listed>& r) { listed = r && r->items.size() == 1; });
  out.list_ms = longest_step(*master, now, clock);
  start = clock.now();
  MC_TRY_(master->handle(store::Unmount{node.name, Generation{1}}, now));
  out.give_up_ms = to_ms(clock.now() - start);
  out.give_up_ms = std::max(out.give_up_ms, longest_step(*master, now, clock));
  out.give_up_s = to_seconds(clock.now() - start);
  if (!listed || master->handle(store::Stat{}, now).objects != 0)
    return fail(Code::kInternal, "not listed, or not given up");
  return out;
}

// ---- calls

struct FreeRedis {
  void operator()(redisContext* c) const { ::redisFree(c); }
};
using Redis = std::unique_ptr<redisContext, FreeRedis>;

struct Servers {
  std::string master_address, small_address, echo_address, redis_socket;
};

// A large pool, which evicts nothing, and a small one.
Result<> start(bench::StorePool& pool, Servers& s, const std::string& self, const Clock& clock) {
  const auto sized = [&](const std::string& name, const char* size) -> Result<std::string> {
    MC_TRY(std::string address,
           pool.master(name + ".master", {"--lease-ttl", "1ms", "--rebuild-wait", "0s"}));
    MC_TRY_(pool.node(name, address, {"--size", size}));
    return address;
  };
  MC_TRY(s.master_address, sized("large", "8GiB"));
  MC_TRY(s.small_address, sized("small", "64MiB"));
  const std::string announced = pool.folder() + "/echo.json";
  MC_TRY_(pool.run({self, "--echo", announced}, announced));
  MC_TRY(s.echo_address, bench::control_of(announced, clock));
  return {};
}

struct Ping {
  static constexpr const char* kName = "ping";
  using Reply = rpc::Empty;
  static void fields(auto& a, auto&) { a(); }
};

// The other side of an empty round trip: a server that only answers.
Result<int> echo(const std::string& announce) {
  SteadyClock clock;
  io::Loop loop(clock);
  Metrics metrics;
  MC_TRY(auto server, rpc::Server::open(loop, "127.0.0.1:0", metrics));
  server->on<Ping>([](const Ping&, const rpc::Call&) -> Result<rpc::Empty> { return {}; });
  MC_TRY_(io::write_file_atomically(announce, dump_json({{"control", server->address()}})));
  MC_TRY_(loop.run());
  return 0;
}

// One of several clients that call at the same time.
struct Caller {
  std::unique_ptr<rpc::SyncClient> store;
  Redis redis;
  size_t next = 0;  // key
  Error error{};

  // Keys are made beforehand: to print one takes longer than to look it up.
  static const ObjectKey& key(size_t i, bool fresh = false) {
    const auto make = [](size_t first) {
      std::vector<ObjectKey> out;
      for (size_t k = 0; k < kKeys; ++k) out.push_back(key_of(first + k));
      return out;
    };
    static const std::vector<ObjectKey> all = make(0), others = make(kKeys);
    return (fresh ? others : all)[i % kKeys];
  }
  std::vector<ObjectKey> keys(size_t n, bool fresh = false) {
    std::vector<ObjectKey> out;
    out.reserve(n);
    for (size_t i = 0; i < n; ++i) out.push_back(key(next++, fresh));
    return out;
  }
  Result<> exists(size_t n) {
    MC_TRY(const auto r, store->call(store::Exists{keys(n), {}}, 5s));
    return r.items.size() == n ? Result<>() : fail(Code::kCorrupt, "exists: too few answers");
  }
  Result<> locate(size_t n) {
    MC_TRY(const auto r, store->call(store::GetReplicas{keys(n), 0, {}}, 5s));
    for (const auto& item : r.items) MC_TRY_(item.outcome.result());
    return {};
  }
  Result<> put(size_t n) {
    store::PutStart start;
    start.items.reserve(n);
    for (auto& key : keys(n, true)) start.items.push_back({std::move(key), 1});
    MC_TRY(const auto started, store->call(start, 5s));
    store::PutEnd end;
    end.items.reserve(n);
    for (size_t i = 0; i < n; ++i)
      if (started.items[i].outcome.ok())
        end.items.push_back({std::move(start.items[i].key), started.items[i].generation, 1});
    MC_TRY_(store->call(end, 5s));
    return {};
  }
  Result<> forget(size_t n) {  // what put stored
    store::Remove remove;
    remove.keys = keys(n, true);
    remove.force = true;
    MC_TRY_(store->call(remove, 5s));
    return {};
  }
  Result<> forget_last(size_t n) {
    next -= n;
    return forget(n);
  }
  Result<> ping(size_t) {
    MC_TRY_(store->call(Ping{}, 5s));
    return {};
  }
  Result<> redis_command(const char* format, size_t n) {
    for (size_t i = 0; i < n; ++i) ::redisAppendCommand(redis.get(), format, key(next++).c_str());
    for (size_t i = 0; i < n; ++i) {
      void* reply = nullptr;
      if (::redisGetReply(redis.get(), &reply) != REDIS_OK)
        return fail(Code::kUnavailable, "redis: %s", redis->errstr);
      ::freeReplyObject(reply);
    }
    return {};
  }
};

using Call = std::function<Result<>(Caller&)>;

class Callers {
 public:
  static Result<Callers> open(const std::string& address, const std::string& redis, size_t n,
                              const Clock& clock, rpc::Channel channel = rpc::Channel::kShm) {
    Callers out(clock);
    for (size_t i = 0; i < n; ++i) {
      Caller caller;
      caller.next = i * (kKeys / n);
      if (!address.empty()) {
        MC_TRY(caller.store, rpc::SyncClient::connect(address, clock, channel));
      }
      if (!redis.empty()) caller.redis.reset(::redisConnectUnix(redis.c_str()));
      out.all_.push_back(std::move(caller));
    }
    return out;
  }
  // Microseconds of CPU time a call, of these clients and of all servers of the pool.
  Result<Measured> cpu_turn(const bench::StorePool& pool, size_t calls, const Call& call,
                            const Call& after = {}) {
    const double before = pool.cpu() + bench::cpu_seconds();
    MC_TRY_(all_run(calls, call));
    const double used = pool.cpu() + bench::cpu_seconds() - before;
    if (after) {
      for (Caller& c : all_) c.next -= calls;
      MC_TRY_(all_run(calls, after));
    }
    return Measured(used * 1e6 / static_cast<double>(all_.size() * calls));
  }
  // Calls a second, each client making `calls` of them; `after` each client's turn, not timed.
  Result<Measured> turn(size_t calls, size_t each, const Call& call, const Call& after = {}) {
    const Time start = clock_->now();
    MC_TRY_(all_run(calls, call));
    const double seconds = to_seconds(clock_->now() - start);
    if (after) {
      for (Caller& c : all_) c.next -= calls * each;
      MC_TRY_(all_run(calls, after));
    }
    return Measured(static_cast<double>(all_.size() * calls * each) / seconds / 1e3);
  }
  Caller& first() { return all_[0]; }

 private:
  explicit Callers(const Clock& clock) : clock_(&clock) {}
  Result<> all_run(size_t calls, const Call& call) {
    std::vector<std::thread> threads;
    std::vector<Result<>> results(all_.size());
    for (size_t i = 0; i < all_.size(); ++i)
      threads.emplace_back([&, i] {
        for (size_t n = 0; n < calls && results[i]; ++n) results[i] = call(all_[i]);
      });
    for (auto& t : threads) t.join();
    for (const auto& r : results) MC_TRY_(r);
    return {};
  }
  const Clock* clock_;
  std::vector<Caller> all_;
};

struct Case {
  const char* name;
  Call ours;
  Call after;
  const char* peer;
  const char* command;
  double target;  // of batches, against redis
};

// What single puts cost: where other work has the CPUs, that and not the clock says who is faster.
Result<> measure_cpu(const bench::StorePool& pool, const Servers& s, const bench::Options& o,
                     const Clock& clock) {
  for (const size_t clients : {size_t{1}, size_t{4}, size_t{16}}) {
    MC_TRY(Callers store, Callers::open(s.master_address, "", clients, clock));
    MC_TRY(Callers redis, Callers::open("", s.redis_socket, clients, clock));
    const size_t calls = 2000 / clients;
    bench::Figure figure{
        "store-meta", "CPU of a put x" + std::to_string(clients) + " clients", "us", "redis SET", 0,
        true};
    MC_TRY_(bench::compare(
        figure, o.turns(),
        [&] {
          return store.cpu_turn(
              pool, calls, [](Caller& c) { return c.put(1); },
              [](Caller& c) { return c.forget(1); });
        },
        [&] {
          return redis.cpu_turn(pool, calls,
                                [](Caller& c) { return c.redis_command("SET %s 1", 1); });
        }));
  }
  return {};
}

Result<> measure_calls(const Servers& s, const bench::Options& o, const Clock& clock) {
  for (const size_t clients : {size_t{1}, size_t{4}, size_t{16}}) {
    MC_TRY(Callers store, Callers::open(s.master_address, "", clients, clock));
    MC_TRY(Callers redis, Callers::open("", s.redis_socket, clients, clock));
    MC_TRY(Callers echo, Callers::open(s.echo_address, "", clients, clock, rpc::Channel::kZeroMq));
    const std::string by = " x" + std::to_string(clients) + " clients";
    for (const size_t n : {size_t{1}, kBatch}) {
      const size_t calls = (o.quick ? 400 : 2000) / (n == 1 ? 1 : 4) / clients + 1;
      const Case cases[] = {
          {"exists", [n](Caller& c) { return c.exists(n); }, {}, "redis EXISTS", "EXISTS %s", 2},
          {"get-replicas", [n](Caller& c) { return c.locate(n); }, {}, "redis GET", "GET %s", 2},
          {"put", [n](Caller& c) { return c.put(n); }, [n](Caller& c) { return c.forget(n); },
           "redis SET", "SET %s 1", 1}};
      for (const Case& k : cases) {
        bench::Figure figure{"store-meta", k.name + (n == 1 ? std::string() : " /64") + by, "k/s",
                             n == 1 ? k.peer : k.peer + std::string(" /64")};
        if (n > 1 && clients == 1) figure.target = k.target;
        MC_TRY_(bench::compare(
            figure, o.turns(), [&] { return store.turn(calls, n, k.ours, k.after); },
            [&] {
              return redis.turn(calls, n, [&](Caller& c) { return c.redis_command(k.command, n); });
            }));
      }
      if (n > 1) continue;
      bench::Figure figure{"store-meta", "exists" + by, "k/s", "empty round trip"};
      if (clients == 1) figure.target = 0.8;
      MC_TRY_(bench::compare(
          figure, o.turns(),
          [&] { return store.turn(calls, 1, [](Caller& c) { return c.exists(1); }); },
          [&] { return echo.turn(calls, 1, [](Caller& c) { return c.ping(1); }); }));
    }
  }
  return {};
}

// How long a call may wait for the master itself: the p99 of its steps, in microseconds, while 16
// are put at a time, into a pool that is full, or that never is.
Result<Measured> step_p99(bool full, size_t objects, const Clock& clock) {
  constexpr uint64_t kSmall = 64 * kMiB;
  store::MasterOptions options = never_full();
  if (full) options.high_watermark = store::MasterOptions().high_watermark;
  store::Master master(options, 1, 1, Time{999s});
  FakeNode node{master};
  MC_TRY_(node.mount(full ? kSmall : kSmall * 1024));
  const size_t before = kSmall / store::kPage + kBatch;
  node.put(0, before);
  const uint64_t evicted = master.totals().evicted_objects;
  node.clock = &clock;
  node.put(before, objects, 16);
  if (full != (master.totals().evicted_objects > evicted))
    return fail(Code::kInternal, full ? "nothing was evicted" : "something was evicted");
  std::sort(node.steps_us.begin(), node.steps_us.end());
  return Measured(node.steps_us[node.steps_us.size() * 99 / 100]);
}

Result<> measure_steps(const bench::Options& o, const Clock& clock) {
  const size_t objects = o.quick ? 16'000 : 160'000;
  const bench::Figure figure{
      "store-meta", "p99 of a step that evicts", "us", "of one of puts alone", 0.5, true};
  return bench::compare(
      figure, o.turns(), [&] { return step_p99(true, objects, clock); },
      [&] { return step_p99(false, objects, clock); });
}

// The p99 of exists, in microseconds, while other clients put 16 at a time, here, elsewhere, or
// not.
Result<> measure_eviction(const Servers& s, const bench::Options& o, const Clock& clock) {
  MC_TRY(Callers asker, Callers::open(s.small_address, "", 1, clock));
  MC_TRY(Callers writer, Callers::open(s.small_address, "", 1, clock));
  MC_TRY(Callers elsewhere, Callers::open(s.master_address, "", 1, clock));
  const size_t calls = o.quick ? 500 : 3000;
  const auto p99 = [&]() -> Result<Measured> {
    std::vector<double> us;
    for (size_t i = 0; i < calls; ++i) {
      const Time start = clock.now();
      MC_TRY_(asker.first().exists(1));
      us.push_back(to_seconds(clock.now() - start) * 1e6);
    }
    std::sort(us.begin(), us.end());
    return Measured(us[us.size() * 99 / 100]);
  };
  // While a client puts into the small pool, which evicts as much, or into the large one.
  const auto beside = [&](Callers& who) -> Result<Measured> {
    std::atomic<bool> stop{false};
    Result<> written;
    std::thread thread([&] {
      while (!stop && written) {
        written = who.first().put(16);
        if (&who == &elsewhere && written) written = who.first().forget_last(16);
      }
    });
    auto out = p99();
    stop = true;
    thread.join();
    MC_TRY_(written);
    return out;
  };
  const auto evicting = [&] { return beside(writer); };
  const std::string name = "p99 of exists while evicting";
  bench::Figure busy{"store-meta", name, "us", "as much put elsewhere", 0.5, true};
  MC_TRY_(bench::compare(busy, o.turns(), evicting, [&] { return beside(elsewhere); }));
  bench::Figure figure{"store-meta", name, "us", "idle", 0.5, true};
  return bench::compare(figure, o.turns(), evicting, p99);
}

Result<> preload(const Servers& s, const Clock& clock) {
  MC_TRY(auto master, rpc::SyncClient::connect(s.master_address, clock));
  Redis redis(::redisConnectUnix(s.redis_socket.c_str()));
  for (size_t at = 0; at < kKeys; at += 1000) {
    store::PutStart start;
    for (size_t i = 0; i < 1000; ++i) start.items.push_back({key_of(at + i), 1});
    MC_TRY(const auto started, master->call(start, 5s));
    store::PutEnd end;
    for (size_t i = 0; i < 1000; ++i)
      end.items.push_back({start.items[i].key, started.items[i].generation, 1});
    MC_TRY(const auto ended, master->call(end, 5s));
    for (const auto& outcome : ended.items) MC_TRY_(outcome.result());
    for (size_t i = 0; i < 1000; ++i)
      ::redisAppendCommand(redis.get(), "SET %s 1", key_of(at + i).c_str());
    for (size_t i = 0; i < 1000; ++i) {
      void* reply = nullptr;
      if (::redisGetReply(redis.get(), &reply) != REDIS_OK)
        return fail(Code::kUnavailable, "redis: %s", redis->errstr);
      ::freeReplyObject(reply);
    }
  }
  return {};
}

struct BenchOptions : bench::StoreOptions {
  std::string echo, only;
  void describe(OptionList& v) {
    bench::StoreOptions::describe(v);
    v("echo", echo, "serve empty round trips, announced in this file");
    v("only", only, "a part of it", {"", "memory", "steps", "calls", "cpu", "eviction"});
  }
  bool wants(const char* part) const { return only.empty() || only == part; }
};

Result<> measure_memory(const bench::Options& o, const Clock& clock) {
  const size_t objects = o.quick ? 1'000'000 : 10'000'000;
  MC_TRY(const auto filled, fill(objects, clock));
  const std::string all = std::to_string(objects / 1'000'000) + "M objects";
  const auto once = [&](const std::string& name, const char* unit, double value, double limit,
                        double target) {
    const bench::Figure figure{"store-meta", name, unit, number_text(limit) + " " + unit,
                               target,       true};
    return bench::compare(
        figure, 1, [&] { return Result<Measured>(value); },
        [&] { return Result<Measured>(limit); });
  };
  MC_TRY_(once(all, "bytes each", filled.bytes, 200, 1));
  MC_TRY_(once("puts in the master alone", "us each", filled.put_us, 1, 0));
  MC_TRY_(once("longest wait while " + all + " are put in order", "ms", filled.list_ms, 10, 1));
  MC_TRY_(once("longest wait while their node is given up", "ms", filled.give_up_ms, 10, 1));
  MC_TRY_(once("their node given up", "s", filled.give_up_s, 10, 0));
  const size_t on_disk = o.quick ? 300'000 : 1'000'000;
  MC_TRY(const auto disk, fill_disk(on_disk, clock));
  MC_TRY_(once("objects on a disk, with keys of 64 bytes", "bytes each", disk.bytes, 200, 1));
  MC_TRY_(once("longest wait while their node is lost", "ms", disk.give_up_ms, 10, 1));
  MC_TRY_(once("their node lost and given up", "s", disk.give_up_s, 10, 0));
  ::malloc_trim(0);
  return {};
}

Result<int> run(const BenchOptions& o, const std::string& self) {
  if (!o.echo.empty()) return echo(o.echo);
  SteadyClock clock;
  if (o.wants("memory")) MC_TRY_(measure_memory(o, clock));
  if (o.wants("steps")) MC_TRY_(measure_steps(o, clock));
  if (o.only == "memory" || o.only == "steps") return 0;
  bench::StorePool pool(o.bin, clock);
  Servers servers;
  const auto redis = pool.redis();
  if (bench::skipped("store-meta", redis, "redis-server")) return 0;
  servers.redis_socket = *redis;
  MC_TRY_(start(pool, servers, self, clock));
  MC_TRY_(preload(servers, clock));
  if (o.wants("calls")) MC_TRY_(measure_calls(servers, o, clock));
  if (o.wants("cpu")) MC_TRY_(measure_cpu(pool, servers, o, clock));
  if (o.wants("eviction")) MC_TRY_(measure_eviction(servers, o, clock));
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::BenchOptions options;
  options.bin = std::filesystem::path(argv[0]).parent_path().string();
  mc::Program program("store_meta_bench", "metadata calls against redis and empty round trips");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options, argv[0]); });
  return program.main(argc, argv);
}
