#include <doctest/doctest.h>

#include "io/limits.h"
#include "serve/conductor/worker_registry.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::serve;
using namespace std::chrono_literals;

namespace {

struct Watched {  // one decode worker, with a time to live of three seconds
  Watched() {
    options.model = options.fingerprint = "m";
    options.block_tokens = 16;
    options.worker_ttl = 3s;
    workers = std::make_unique<WorkerRegistry>(loop, options, index, metrics);
    workers->on_gone = [this](const Worker&, const std::string&) { ++gone; };
    beat.node = "d";
    beat.role = "decode";
    beat.epoch = 1;
    beat.control = "127.0.0.1:1";
    beat.model = beat.fingerprint = "m";
    beat.block_tokens = 16;
    REQUIRE(workers->heartbeat(beat, now).has_value());
    tick_for(100ms);
  }
  void tick_for(Duration time) {
    for (const Time end = now + time; now < end;) workers->tick(now += 100ms);
  }
  ManualClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  sched::PrefixIndex index{16};
  WorkerRegistryOptions options;
  std::unique_ptr<WorkerRegistry> workers;
  Heartbeat beat;
  Time now{100s};
  int gone = 0;
};

}  // namespace

TEST_CASE("a conductor that stood still for ten seconds keeps workers that report right after") {
  for (const bool tick_first : {true, false}) {
    Watched w;
    w.now += 10s;  // suspended, or starved
    if (tick_first) w.workers->tick(w.now);
    REQUIRE(w.workers->heartbeat(w.beat, w.now).has_value());
    w.workers->tick(w.now);
    w.tick_for(2900ms);
    CHECK(w.gone == 0);
    CHECK(w.workers->live(false) == 1);
    w.tick_for(100ms);
    CHECK(w.gone == 1);
    CHECK(w.workers->find("d") == nullptr);
  }
}

TEST_CASE("a worker that died while the conductor stood still is gone soon after") {
  Watched w;
  w.now += 10s;
  w.workers->tick(w.now);
  w.tick_for(2s);
  CHECK(w.gone == 0);
  w.tick_for(1s);
  CHECK(w.gone == 1);
}

TEST_CASE("a worker given up for its silence joins again, and its predecessors stay out") {
  Watched w;
  w.tick_for(3s);
  CHECK(w.gone == 1);
  REQUIRE(w.workers->heartbeat(w.beat, w.now).has_value());
  w.beat.epoch = 2;
  REQUIRE(w.workers->heartbeat(w.beat, w.now).has_value());
  CHECK(w.gone == 2);
  w.beat.epoch = 1;
  CHECK(w.workers->heartbeat(w.beat, w.now).error().code == Code::kStale);
  w.beat.epoch = 3;
  w.beat.control = "no address";
  CHECK_FALSE(w.workers->heartbeat(w.beat, w.now).has_value());
  w.tick_for(4s);  // one that could not be connected to is not watched
  CHECK(w.gone == 3);
}

// F76: 1,024 workers were all that could join.
TEST_CASE("F76: 10,000 workers join one conductor, go, and join again") {
  constexpr int kWorkers{fewer(10'000)}, kOpenFiles = kWorkers + 2000;  // a socket each
  if (io::raise_open_files(kOpenFiles) < kOpenFiles) {
    MESSAGE("skipped: too few files may be opened");
    return;
  }
  Watched w;
  const auto beat_all = [&] {
    for (int i = 0; i < kWorkers - 1; ++i) {
      w.beat.node = "w" + std::to_string(i);
      w.beat.role = i % 2 == 0 ? "prefill" : "decode";
      REQUIRE(w.workers->heartbeat(w.beat, w.now).has_value());
    }
  };
  beat_all();
  CHECK(w.workers->all().size() == kWorkers);
  CHECK(w.workers->live(true) == kWorkers / 2);
  CHECK(w.workers->live(false) == kWorkers / 2);
  beat_all();
  CHECK(w.workers->all().size() == kWorkers);
  CHECK(w.workers->find("w" + std::to_string(kWorkers - 2)) != nullptr);
  w.tick_for(3100ms);
  CHECK(w.gone == kWorkers);
  CHECK(w.workers->all().empty());
}
