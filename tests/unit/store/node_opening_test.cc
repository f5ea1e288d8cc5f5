// A node that opens beside its loop.
#include <doctest/doctest.h>

#include <optional>

#include "store/node/node_opening.h"

namespace mc::store {
namespace {
namespace node_opening_test {

using namespace std::chrono_literals;

struct Opener {
  Opener() {
    xfer::EngineOptions e;
    e.node = "n";
    auto opened = xfer::Engine::open(clock, e, metrics);
    REQUIRE(opened);
    engine = std::move(*opened);
  }
  void open(const NodeOptions& options) {
    opening =
        std::make_unique<NodeOpening>(loop, *engine, "n", options, [this](Result<PreparedNode> r) {
          prepared = std::move(r);
          opening.reset();  // it may be destroyed now
        });
  }
  void await() {
    const Time deadline = clock.now() + 60s;
    while (!prepared && clock.now() < deadline) REQUIRE(loop.turn(100ms));
    REQUIRE(prepared);
  }
  SteadyClock clock;
  Metrics metrics;
  io::Loop loop{clock};
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<NodeOpening> opening;
  std::optional<Result<PreparedNode>> prepared;
};

TEST_CASE("a node is prepared beside the loop, and gets its memory or the error") {
  Opener o;
  NodeOptions options;
  options.master = "127.0.0.1:1";
  options.size = Bytes{1 * kMiB};
  o.open(options);
  CHECK(o.opening->what() == "starting: finds 127.0.0.1:1 and allocates 1.0 MiB");
  o.await();
  REQUIRE(*o.prepared);
  CHECK((*o.prepared)->masters == options.master);
  CHECK((*o.prepared)->segments->layout().total() == 1 * kMiB);

  Opener wrong;
  options.segments = {"1MiB@nonsense"};
  wrong.open(options);
  wrong.await();
  REQUIRE(!*wrong.prepared);
  CHECK(wrong.prepared->error().code == Code::kInvalid);
}

}  // namespace node_opening_test
}  // namespace
}  // namespace mc::store
