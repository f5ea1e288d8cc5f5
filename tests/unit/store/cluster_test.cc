// Master, node and clients of one process, with real sockets and the real transfer engine.
#include <doctest/doctest.h>

#include <thread>

#include "store/client/async_client.h"
#include "tests/unit/store/live_cluster.h"

namespace mc::store {
namespace {

using namespace std::chrono_literals;

// A master on a loop of its own thread.
struct AloneMaster {
  AloneMaster(const std::string& address, uint64_t epoch) : loop(clock) {
    MasterServiceOptions options;
    options.listen = address;
    options.http = "127.0.0.1:0";
    auto opened = MasterService::open(loop, options, epoch, 1, metrics);
    if (!opened) return;  // the port is another process's
    master = std::move(*opened);
    thread = std::thread([this] { (void)loop.run(); });
  }
  ~AloneMaster() {
    loop.stop();
    if (thread.joinable()) thread.join();
  }
  SteadyClock clock;
  Metrics metrics;
  io::Loop loop;
  std::unique_ptr<MasterService> master;
  std::thread thread;
};

// F98: an epoch is the time when its master was started.
TEST_CASE("clients go on with a master that was restarted after the clock went back") {
  for (const bool by_put : {false, true}) {
    CAPTURE(by_put);
    bool tried = false;
    for (int i = 0; i < 10 && !tried; ++i) {  // until no other process took the port meanwhile
      SteadyClock clock;
      Metrics metrics;
      auto engine = xfer::Engine::open(clock, {}, metrics);
      REQUIRE(engine);
      auto first = std::make_unique<AloneMaster>("127.0.0.1:0", 1'700'003'600);
      REQUIRE(first->master);
      ClientOptions options;
      options.master = first->master->control();
      auto client = Client::open(**engine, clock, options, metrics);
      REQUIRE(client);
      REQUIRE((*client)->stat());
      first.reset();
      const Cluster cluster(64 * kMiB, {"shm"}, options.master);
      if (!cluster.master) continue;
      tried = true;
      if (by_put) {  // what it was granted for nothing is not being written
        const auto put = (*client)->put("k", noise(1000, 1));
        REQUIRE_MESSAGE(put, put.error().what);
        CHECK(*put == PutOutcome::kStored);
      }
      const auto stat = (*client)->stat();
      REQUIRE_MESSAGE(stat, stat.error().what);
      CHECK(stat->epoch > 1'700'003'600);
    }
    CHECK(tried);
  }
}

TEST_CASE("F99: a context outlives a master whose successor's clock is an hour ahead") {
  bool tried = false;
  for (int i = 0; i < 10 && !tried; ++i) {
    Cluster cluster(64 * kMiB, {"shm"});
    Caller caller(cluster);
    PutAs as;
    as.config.cls = "context";
    as.config.ttl = std::chrono::minutes(30);
    const auto value = noise(1000, 1);
    const PutItem item{"k", {value}};
    REQUIRE(caller.client->put_batch({&item, 1}, as)[0]);
    if (!cluster.replace_master(1'700'003'600)) continue;
    tried = true;
    const auto why = caller.client->call(Explain{"k", ""});
    REQUIRE(why);
    REQUIRE(!why->facts.empty());
    CHECK(why->facts[0].find("class context") != std::string::npos);
  }
  CHECK(tried);
}

// The clock of a reader whose machine is suspended once: it stands still meanwhile.
class SuspendedClock final : public Clock {
 public:
  Time now() const override {
    if (suspend && std::this_thread::get_id() == reader_) {
      const Time from = steady_.now();
      if (suspend()) {
        suspend = nullptr;
        away_ = steady_.now() - from;
      }
    }
    return steady_.now() - away_;
  }
  // Returns: whether that was the time.
  mutable std::function<bool()> suspend;

 private:
  const std::thread::id reader_ = std::this_thread::get_id();
  SteadyClock steady_;
  mutable Duration away_{};
};

TEST_CASE("F100: who was suspended past its lease gets no bytes of what came instead") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Cluster cluster(8 * kPage, {transport});
    Caller other(cluster);
    SuspendedClock clock;
    ClientOptions options;
    options.master = cluster.master->control();
    options.verify = "never";  // the guard word alone says that it is late
    auto client = Client::open(*other.engine, clock, options, other.metrics);
    REQUIRE(client);
    REQUIRE((*client)->put("k", noise(kPage, 1)));
    REQUIRE((*client)->get("k"));
    const Counter& located = cluster.metrics.counter(
        "mc_rpc_requests_total", "control messages by type", {{"type", GetReplicas::kName}});
    const uint64_t before = located.value();
    bool replaced = false;
    clock.suspend = [&] {
      if (located.value() == before) return false;  // from then on it has a lease
      const Time end = cluster.clock.now() + 60s;
      while (!other.client->remove({"k"})[0] && cluster.clock.now() < end) {
      }
      for (uint64_t i = 0; i < 8; ++i)
        REQUIRE(other.client->put("o" + std::to_string(i), noise(kPage, 2 + i)));
      return replaced = true;
    };
    std::vector<std::byte> into(kPage);
    const auto got = (*client)->get("k", into);
    CHECK(replaced);
    REQUIRE(!got);
    CHECK(got.error().code == Code::kNotFound);
  }
}

// F3: until now one read in 64 was verified.
TEST_CASE("the first read of each replica is verified, and a corrupt one is reported and dropped") {
  Cluster cluster(64 * kMiB);
  Caller caller(cluster);
  for (int i = 0; i < 4; ++i) {
    const auto value = noise(100'000, static_cast<uint64_t>(i));
    REQUIRE(caller.client->put("k" + std::to_string(i), value));
  }
  ClientOptions defaults;
  defaults.master = cluster.master->control();
  auto client = Client::open(*caller.engine, cluster.clock, defaults, caller.metrics);
  REQUIRE(client);
  REQUIRE((*client)->get("k0"));  // one that a sample would take
  for (int i = 1; i < 3; ++i) {
    const std::string key = "k" + std::to_string(i);
    const auto at = caller.client->locate(key);
    REQUIRE(at);
    *cluster.node->bytes_at(at->places[0].offset + 50'000) ^= std::byte{1};
    const auto got = (*client)->get(key);
    REQUIRE(!got);
    CHECK(got.error().code == Code::kCorrupt);
    const auto gone = [&] { return !caller.client->exists({key}).value_or(std::vector{true})[0]; };
    const Time end = cluster.clock.now() + 30s;
    while (!gone()) REQUIRE(cluster.clock.now() < end);
    const auto why = caller.client->call(Explain{key, ""});
    REQUIRE(why);
    REQUIRE(!why->events.empty());
    CHECK(why->events[0].reason.find("corrupt: node n") == 0);
  }
  CHECK((*client)->get("k3"));
}

TEST_CASE("values come back as they were put, whole or in parts, over both transports") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Cluster cluster(64 * kMiB, {transport});
    Caller c(cluster);
    for (const size_t n : {0u, 1u, 4096u, 5000u, 1u << 20, 3'000'001u}) {
      CAPTURE(n);
      const auto value = noise(n, n);
      const std::string key = "k" + std::to_string(n);
      const auto put = c.client->put(key, value);
      REQUIRE(put);
      CHECK(*put == PutOutcome::kStored);
      CHECK(*c.client->put(key, value) == PutOutcome::kExisted);
      const auto got = c.client->get(key);
      REQUIRE(got);
      CHECK(*got == value);
      std::vector<std::byte> a(n / 3), b(n);  // more room than the value needs
      const GetItem scattered{key, {a, b}};
      const auto bytes = c.client->get_batch({&scattered, 1})[0];
      REQUIRE(bytes);
      CHECK(*bytes == n);
      CHECK(std::equal(a.begin(), a.end(), value.begin()));
      CHECK(std::equal(value.begin() + static_cast<ptrdiff_t>(a.size()), value.end(), b.begin()));
    }
    std::vector<std::byte> small(10);
    CHECK(c.client->get("k4096", small).error().code == Code::kNoSpace);
    CHECK(c.client->get("nobody").error().code == Code::kNotFound);
  }
}

TEST_CASE("a key may hold any byte but NUL, and is found, listed and removed as it is") {
  Cluster cluster(64 * kMiB);
  Caller c(cluster);
  ObjectKey every;
  for (int b = 1; b < 256; ++b) every.push_back(static_cast<char>(b));
  const ObjectKey longest(1024, '\xff'), odd("../\n\t %s \"'\\ \xc3");
  uint64_t seed = 0;
  for (const ObjectKey& key : {every, longest, odd}) {
    const auto value = noise(5000, ++seed);
    REQUIRE(c.client->put(key, value));
    const auto got = c.client->get(key);
    REQUIRE(got);
    CHECK(*got == value);
    CHECK(*c.client->exists({key}) == std::vector<bool>{true});
    const auto listed = c.client->list(key, "", 10);
    REQUIRE(listed);
    REQUIRE(listed->items.size() == 1);
    CHECK(listed->items[0].key == key);
    CHECK(c.client->remove({key}, true)[0]);
    CHECK(c.client->get(key).error().code == Code::kNotFound);
  }
  const auto value = noise(10, 9);
  for (const ObjectKey& key : {ObjectKey(), ObjectKey(1025, 'k'), ObjectKey("a\0b", 3)}) {
    CHECK(c.client->put(key, value).error().code == Code::kInvalid);
    CHECK_FALSE(c.client->get(key));
  }
}

TEST_CASE("a value that no segment could hold is refused, and the pool goes on") {
  Cluster cluster(8 * kMiB);
  Caller c(cluster);
  const auto value = noise(1000, 1);
  REQUIRE(c.client->put("before", value));
  const std::vector<std::byte> large(9 * kMiB);
  const auto refused = c.client->put("large", large);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kNoSpace);
  CHECK(refused.error().what.find("larger than the largest segment") != std::string::npos);
  const auto before = c.client->get("before");
  REQUIRE_MESSAGE(before, before.error().what);
  CHECK(*before == value);
  CHECK(c.client->put("after", value));
}

TEST_CASE("items of a batch succeed and fail one by one") {
  Cluster cluster(64 * kMiB);
  Caller c(cluster);
  const auto one = noise(1000, 1), two = noise(2000, 2), big = noise(1000, 3);
  std::vector<PutItem> puts{{"one", {one}},
                            {"", {one}},
                            {"two", {std::span(two).first(500), std::span(two).subspan(500)}}};
  const auto put = c.client->put_batch(puts);
  CHECK(put[0]);
  CHECK(put[1].error().code == Code::kInvalid);
  CHECK(put[2]);
  std::vector<std::byte> a(1000), b(1000), d(2000);
  std::vector<GetItem> gets{{"one", {a}}, {"three", {b}}, {"two", {d}}};
  const auto got = c.client->get_batch(gets);
  CHECK(*got[0] == 1000);
  CHECK(got[1].error().code == Code::kNotFound);
  CHECK(*got[2] == 2000);
  CHECK(a == one);
  CHECK(d == two);
  std::vector<StoredPlace> places;
  CHECK(*c.client->match_prefix({"one", "two", "three"}, &places) == 2);
  REQUIRE(places.size() == 2);
  CHECK(places[0].node != 0);
  CHECK(places[0] == places[1]);
  CHECK(*c.client->exists({"one", "three"}) == std::vector<bool>{true, false});
  const auto removed = c.client->remove({"one", "three"}, true);
  CHECK(removed[0]);
  CHECK(removed[1].error().code == Code::kNotFound);
  CHECK(*c.client->exists({"one"}) == std::vector<bool>{false});
}

TEST_CASE("bytes that rot in the segment are corrupt, not served") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Cluster cluster(4 * kMiB, {transport});
    Caller c(cluster);
    const auto value = noise(1'000'000, 4);
    REQUIRE(c.client->put("k", value));
    REQUIRE(c.client->put("well", value));
    const auto at = c.client->locate("k");
    REQUIRE(at);
    auto segment = c.engine->open_segment(cluster.server->address(), 1s);
    REQUIRE(segment);
    std::byte bad{0x5a};
    xfer::Request write;
    write.op = xfer::Op::kWrite;
    write.local = &bad;
    write.segment = *segment;
    write.offset = at->places[0].offset + 500'000;
    write.bytes = 1;
    if (value[500'000] == bad) bad = std::byte{0x5b};
    REQUIRE(c.engine->transfer_sync(write, 1s));
    std::vector<std::byte> rotten(value.size()), well(value.size());
    const GetItem both[] = {{"k", {rotten}}, {"well", {well}}};
    const auto got = c.client->get_batch(both);
    CHECK(got[0].error().code == Code::kCorrupt);
    REQUIRE(got[1]);
    CHECK(well == value);
    const auto again = c.client->get("k");  // until it was dropped
    REQUIRE(!again);
    CHECK((again.error().code == Code::kCorrupt || again.error().code == Code::kNotFound));
  }
}

TEST_CASE("a port that another node's process answers on is not read from") {
  Cluster cluster(1 * kMiB);
  Caller c(cluster);
  const Generation named = cluster.engine->generation();
  CHECK(c.engine->open_segment(cluster.server->address(), 1s, named));
  const auto other = c.engine->open_segment(cluster.server->address(), 1s, Generation{named.n - 1});
  REQUIRE(!other);
  CHECK(other.error().code == Code::kStale);
}

TEST_CASE("a removed object's guard word has moved on: its old place reads as stale") {
  Cluster cluster(1 * kMiB);
  Caller c(cluster);
  REQUIRE(c.client->put("k", noise(1000, 5)));
  const auto at = c.client->locate("k");
  REQUIRE(at);
  REQUIRE(c.client->remove({"k"}, true)[0]);
  auto segment = c.engine->open_segment(cluster.server->address(), 1s);
  REQUIRE(segment);
  std::vector<std::byte> into(1000);
  xfer::Request read;
  read.local = into.data();
  read.segment = *segment;
  read.offset = at->places[0].offset;
  read.bytes = into.size();
  read.guard = {at->places[0].guard, at->generation.n};
  CHECK(c.engine->transfer_sync(read, 1s).error().code == Code::kStale);
}

TEST_CASE("threads that write three times the pool over lose nothing they read back") {
  Cluster cluster(16 * kMiB);
  std::vector<std::thread> threads;
  std::atomic<int> bad{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Caller c(cluster, 2s);
      for (int i = 0; i < 40; ++i) {
        const uint64_t seed = static_cast<uint64_t>(t * 1000 + i);
        const auto value = noise(100'000 + (seed * 7919) % 400'000, seed);
        const std::string key = std::to_string(seed);
        if (!c.client->put(key, value)) ++bad;
        const auto got = c.client->get(key);
        // Others may have evicted it; wrong bytes are never served.
        if (got ? *got != value : got.error().code != Code::kNotFound) ++bad;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(bad == 0);
}

TEST_CASE("the asynchronous client answers on its loop, and not after its destruction") {
  Cluster cluster(64 * kMiB);
  SteadyClock clock;
  Metrics metrics;
  io::Loop loop(clock);
  auto engine = xfer::Engine::open(clock, {}, metrics);
  REQUIRE(engine);
  ClientOptions options;
  options.master = cluster.master->control();
  auto opened = AsyncClient::open(loop, **engine, options, metrics);
  REQUIRE(opened);
  auto client = std::move(*opened);
  const auto a = noise(10'000, 1), b = noise(20'000, 2);
  std::vector<std::byte> into_a(10'000), into_b(20'000);
  const auto me = std::this_thread::get_id();
  int answers = 0;
  // A consumer that waits for what a producer has not put yet.
  client->get_batch(
      {{"a", {into_a}}, {"b", {into_b}}},
      [&](std::vector<Result<uint64_t>> bytes) {
        CHECK(std::this_thread::get_id() == me);
        CHECK(*bytes[0] == 10'000);
        CHECK(*bytes[1] == 20'000);
        ++answers;
      },
      3s);
  client->put_batch({{"a", {a}}, {"b", {b}}}, [&](std::vector<Result<PutOutcome>> stored) {
    CHECK(stored[0]);
    CHECK(stored[1]);
    client->match_prefix({"a", "b", "c"}, [&](Result<uint64_t> hits) {
      CHECK(*hits == 2);
      ++answers;
    });
  });
  for (int i = 0; i < 1000 && answers < 2; ++i) REQUIRE(loop.turn(10ms));
  CHECK(answers == 2);
  CHECK(into_a == a);
  CHECK(into_b == b);
  client->exists({"a"}, [&](Result<std::vector<bool>>) { ++answers; });
  client.reset();
  for (int i = 0; i < 10; ++i) REQUIRE(loop.turn(1ms));
  CHECK(answers == 2);
}

TEST_CASE("F179: no thread of a rail wakes up for small values over tcp") {
  Cluster cluster(64 * kMiB, {"tcp"});
  Metrics metrics;
  xfer::EngineOptions tcp;
  tcp.node = "caller";
  tcp.transports = {"tcp"};
  auto engine = xfer::Engine::open(cluster.clock, tcp, metrics);
  REQUIRE(engine);
  ClientOptions options;
  options.master = cluster.master->control();
  auto client = Client::open(**engine, cluster.clock, options, metrics);
  REQUIRE(client);
  const auto carried = [&] {
    return metrics.counter("mc_xfer_carried_total", "", {{"transport", "tcp"}}).value();
  };
  std::vector<std::vector<std::byte>> values, into(16, std::vector<std::byte>(4096));
  for (uint64_t i = 0; i < 16; ++i) values.push_back(noise(4096, i));
  // Until its connection has been made, and rests.
  const Time end = cluster.clock.now() + 30s;
  for (int i = 0; carried() == 0; ++i) {
    REQUIRE(cluster.clock.now() < end);
    REQUIRE((*client)->put("warm" + std::to_string(i), values[0]));
  }
  uint64_t before = carried();
  REQUIRE((*client)->put("one", values[0]));
  CHECK(carried() - before == 1);  // it raises its guard word itself
  before = carried();
  REQUIRE((*client)->get("one", into[0]));
  CHECK(carried() - before == 1);
  std::vector<PutItem> items;
  std::vector<GetItem> wanted;
  for (size_t i = 0; i < values.size(); ++i) {
    items.push_back({"many" + std::to_string(i), {values[i]}});
    wanted.push_back({items.back().key, {into[i]}});
  }
  before = carried();
  for (const auto& put : (*client)->put_batch(items)) CHECK(put);
  CHECK(carried() - before == 16);
  before = carried();
  for (const auto& got : (*client)->get_batch(wanted)) CHECK(got);
  CHECK(carried() - before == 16);
  CHECK(into == values);
}

}  // namespace
}  // namespace mc::store
