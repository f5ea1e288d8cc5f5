// What a node's start runs beside its loop.
#include "store/node/opening.h"

#include <doctest/doctest.h>

#include <future>
#include <memory>
#include <optional>

#include "store/node/node.h"

namespace mc::store {
namespace {
namespace opening_test {

using namespace std::chrono_literals;

template <class T>
struct Opener {
  void open(typename Opening<T>::Work work) {
    opening = std::make_unique<Opening<T>>(loop, "it starts", std::move(work), [this](Result<T> r) {
      result = std::move(r);
      opening.reset();  // it may be destroyed now
    });
  }
  void await() {
    const Time deadline = clock.now() + 60s;
    while (!result && clock.now() < deadline) REQUIRE(loop.turn(100ms));
    REQUIRE(result);
  }
  SteadyClock clock;
  io::Loop loop{clock};
  std::unique_ptr<Opening<T>> opening;
  std::optional<Result<T>> result;
};

TEST_CASE("the loop goes on while the work of a start stands still, and then gets its result") {
  Opener<std::unique_ptr<int>> o;
  std::promise<void> gate;
  o.open([&gate]() -> Result<std::unique_ptr<int>> {
    gate.get_future().wait();
    return std::make_unique<int>(7);
  });
  int turns = 0;
  std::function<void()> again = [&] {
    if (++turns < 10) o.loop.at(o.loop.now(), again);
  };
  again();
  while (turns < 10) REQUIRE(o.loop.turn(100ms));
  CHECK(!o.result);
  REQUIRE(o.opening);
  CHECK(o.opening->running());
  CHECK(o.opening->what() == "it starts");
  gate.set_value();
  o.await();
  REQUIRE(*o.result);
  CHECK(***o.result == 7);
}

TEST_CASE("a node is prepared beside the loop, and gets its memory or the error") {
  Metrics metrics;
  for (const bool sound : {true, false}) {
    Opener<PreparedNode> o;
    xfer::EngineOptions e;
    e.node = "n";
    auto engine = xfer::Engine::open(o.clock, e, metrics);
    REQUIRE(engine);
    NodeOptions options;
    options.master = "127.0.0.1:1";
    options.size = Bytes{1 * kMiB};
    if (!sound) options.segments = {"1MiB@nonsense"};
    o.open([&] { return prepare_node(**engine, "n", options, o.clock); });
    o.await();
    if (sound) {
      REQUIRE(*o.result);
      CHECK((*o.result)->masters == options.master);
      CHECK((*o.result)->segments->layout().total() == 1 * kMiB);
    } else {
      REQUIRE(!*o.result);
      CHECK(o.result->error().code == Code::kInvalid);
    }
  }
}

}  // namespace opening_test
}  // namespace
}  // namespace mc::store
