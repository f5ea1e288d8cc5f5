// Peers that a process read once and never again.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>

#include "tests/conformance/pair.h"

namespace mc::xfer {
namespace unused_peers_test {
namespace {

class SharedClock final : public Clock {  // a manual one for several threads
 public:
  Time now() const override { return Time(Duration(now_.load())); }
  void advance(Duration d) { now_ += d.count(); }

 private:
  std::atomic<Duration::rep> now_{Duration(1h).count()};
};

size_t threads() {
  size_t n = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/task"))
    ++n;
  return n;
}

struct Owner {
  explicit Owner(const std::string& name) : engine(make_engine(name, {"tcp"})) {
    auto memory = engine->allocate(64 * kKiB, true);
    REQUIRE(memory);
    remote = *memory;
    fill({remote.data(), 64 * kKiB}, name.size());
  }
  std::unique_ptr<Engine> engine;
  Memory remote;
};

TEST_CASE("connections and threads to a tcp peer end ten minutes after its last transfer") {
  std::vector<Owner> owners;
  for (const char* name : {"first", "second.", "third.."}) owners.emplace_back(name);
  SharedClock clock;
  Metrics metrics;
  EngineOptions options;
  options.node = "user";
  options.transports = {"tcp"};
  options.connections = 1;  // else a second one begins when the first is slow
  auto user = Engine::open(clock, options, metrics);
  REQUIRE(user);
  const auto read = [&](const Owner& owner) {
    const auto segment = (*user)->open_segment(owner.engine->describe());
    REQUIRE(segment);
    std::vector<std::byte> into(64 * kKiB);
    Request r;
    r.op = Op::kRead;
    r.local = into.data();
    r.bytes = into.size();
    r.segment = *segment;
    r.offset = owner.remote.offset();
    const auto moved = (*user)->transfer_sync(r, 20s * kSlow);
    REQUIRE_MESSAGE(moved, moved.error().what);
    CHECK(digest(into) == digest({owner.remote.data(), 64 * kKiB}));
  };
  const auto falls_to = [&](size_t most) {
    const Time until = kClock.now() + 20s * kSlow;
    while (threads() > most && kClock.now() < until) {
      clock.advance(1s);  // what is used meanwhile stays
      read(owners[2]);
    }
    return threads() <= most;
  };
  const size_t alone = threads();
  read(owners[2]);
  const size_t one = threads();
  CHECK(one > alone);
  read(owners[0]);
  read(owners[1]);
  const size_t all = threads();
  CHECK(all > one);
  clock.advance(5min);
  read(owners[0]);
  clock.advance(6min);
  REQUIRE(falls_to(all - 1));  // those of the second, and not those of the first
  CHECK(threads() > one);
  clock.advance(5min);
  CHECK(falls_to(one));
  for (const Owner& owner : owners) read(owner);  // as before
}

}  // namespace
}  // namespace unused_peers_test
}  // namespace mc::xfer
