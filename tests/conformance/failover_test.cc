// A request whose transport fails goes on with the next in the order that reaches, as often as is
// allowed, and the metrics tell from what to what.
#include "tests/conformance/child.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

std::unique_ptr<Engine> make(const std::string& node, EngineOptions o, Metrics& metrics) {
  o.node = node;
  auto engine = Engine::open(kClock, o, metrics);
  REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
  return std::move(*engine);
}

// An owner that says it hands out its memory where nobody answers.
SegmentDescriptor without_shm(const Engine& owner) {
  SegmentDescriptor d = owner.describe();
  d.shm_socket = "mc-nobody-answers-here";
  return d;
}

}  // namespace

TEST_SUITE("xfer/failover") {
  TEST_CASE("a transport that fails hands its slices to the next one, and is counted") {
    Metrics metrics, others;
    auto owner = make("owner", {}, others);
    auto memory = owner->allocate(4 * kMiB);
    REQUIRE(memory.has_value());
    fill(memory->bytes(), 1);
    auto user = make("user", {}, metrics);
    auto segment = user->open_segment(without_shm(*owner));
    REQUIRE(segment.has_value());
    CHECK(user->transport_of(*segment) == "shm");
    std::vector<std::byte> got(4 * kMiB);
    Request r = read_of(*segment, 0, got);
    r.priority = Priority::kLow;
    REQUIRE(user->transfer_sync(r, 5s).has_value());
    CHECK(digest(got) == digest(memory->bytes()));
    CHECK(metrics.text().find("mc_xfer_failovers_total{from=\"shm\",to=\"tcp\"}") !=
          std::string::npos);
    CHECK(user->transport_of(*segment) == "tcp");
  }

  TEST_CASE("without failover attempts the first transport's error is the answer") {
    Metrics metrics, others;
    auto owner = make("owner", {}, others);
    auto memory = owner->allocate(4 * kMiB);
    REQUIRE(memory.has_value());
    EngineOptions never;
    never.max_failover_attempts = 0;
    auto user = make("user", never, metrics);
    auto segment = user->open_segment(without_shm(*owner));
    REQUIRE(segment.has_value());
    std::vector<std::byte> got(kMiB);
    const Request r = read_of(*segment, 0, got);
    auto refused = user->transfer_sync(r, 5s);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Code::kUnavailable);
    CHECK(metrics.text().find("mc_xfer_failovers_total{") == std::string::npos);
    REQUIRE(user->transfer_sync(r, 5s).has_value());  // by now it is known that shm does not reach
  }

  TEST_CASE("the order of the transports allowed is the order of preference") {
    Metrics metrics, others;
    auto owner = make("owner", {}, others);
    auto memory = owner->allocate(4096);
    REQUIRE(memory.has_value());
    for (const std::vector<std::string>& order :
         {std::vector<std::string>{"tcp", "shm"}, std::vector<std::string>{"shm", "tcp"}}) {
      EngineOptions ordered;
      ordered.transports = order;
      auto user = make("user", ordered, metrics);
      auto segment = user->open_segment(owner->describe());
      REQUIRE(segment.has_value());
      CHECK(user->transport_of(*segment) == order.front());
    }
  }
}
