// Drills: transports that are slow, silent, or fail, before or after the bytes moved.
#include <filesystem>
#include <fstream>

#include "tests/conformance/child.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

// An engine under a drill.
struct Drill {
  Metrics metrics;
  std::string script =
      (std::filesystem::temp_directory_path() / ("mc-drill-" + std::to_string(::getpid())))
          .string();
  std::unique_ptr<Engine> engine;
  Drill(std::vector<std::string> transports, const std::string& rules,
        Duration peer_timeout = 2s * kSlow) {
    std::ofstream(script) << rules;
    EngineOptions o;
    o.node = "user";
    o.transports = std::move(transports);
    o.peer_timeout = peer_timeout;
    o.fault = script;
    auto opened = Engine::open(kClock, o, metrics);
    std::filesystem::remove(script);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().what));
    engine = std::move(*opened);
  }
  bool counted(const std::string& text) const {
    return metrics.text().find(text) != std::string::npos;
  }
};

// The peer of a drill: memory filled from seed 11, offered over both transports.
struct Owner {
  std::unique_ptr<Engine> engine = make_engine("owner", with_rdma({"shm", "tcp"}));
  Memory memory;
  explicit Owner(uint64_t bytes = 4 * kMiB) {
    auto allocated = engine->allocate(bytes);
    REQUIRE(allocated.has_value());
    memory = *allocated;
    fill(memory.bytes(), 11);
  }
};

}  // namespace

TEST_SUITE("xfer/fault") {
  TEST_CASE("failures at submit and at completion both move on to the next transport") {
    for (const std::string when : {"submit", "completion"}) {
      CAPTURE(when);
      Owner owner;
      Drill drill({"shm", "tcp"}, R"({"transport": "shm", "error": ")" + when + "\"}");
      auto segment = drill.engine->open_segment(owner.engine->describe());
      REQUIRE(segment.has_value());
      std::vector<std::byte> got(4 * kMiB);
      Request r = read_of(*segment, 0, got);
      auto read = drill.engine->transfer_sync(r, 10s);
      REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
      CHECK(digest(got) == digest(owner.memory.bytes()));
      fill(got, 12);
      r.op = Op::kWrite;
      REQUIRE(drill.engine->transfer_sync(r, 10s).has_value());
      CHECK(digest(got) == digest(owner.memory.bytes()));
      CHECK(drill.counted("mc_xfer_failovers_total{from=\"shm\",to=\"tcp\"} 8"));
    }
  }

  TEST_CASE("one slice in five failing costs no request, in any order of transports") {
    for (const std::vector<std::string>& order :
         {std::vector<std::string>{"shm", "tcp"}, std::vector<std::string>{"tcp", "shm"}}) {
      Owner owner;
      Drill drill(order, "{\"transport\": \"" + order[0] +
                             "\", \"error\": \"completion\", \"share\": 0.2, \"jitter\": \"1ms\"}");
      auto segment = drill.engine->open_segment(owner.engine->describe());
      REQUIRE(segment.has_value());
      for (uint64_t round = 0; round < 10; ++round) {
        std::vector<std::byte> got(4 * kMiB);
        auto read = drill.engine->transfer_sync(read_of(*segment, 0, got), 10s);
        REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
        CHECK(digest(got) == digest(owner.memory.bytes()));
      }
      CHECK(drill.counted("mc_xfer_failovers_total{from=\"" + order[0] + "\""));
    }
  }

  TEST_CASE("where every transport fails, so does the request, with the last one's reason") {
    Owner owner;
    Drill drill({"shm", "tcp"}, R"({"error": "submit"})");
    auto segment = drill.engine->open_segment(owner.engine->describe());
    REQUIRE(segment.has_value());
    std::vector<std::byte> got(4096);
    auto read = drill.engine->transfer_sync(read_of(*segment, 0, got), 5s);
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().code == Code::kUnavailable);
    CHECK(read.error().what.find("tcp refused") != std::string::npos);
  }

  TEST_CASE("a transport that never answers holds a request no longer than its time") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Owner owner;
      Drill drill({transport == "self" ? "shm" : transport}, R"({"drop": true})", 500ms * kSlow);
      SegmentHandle segment = drill.engine->self();
      Memory mine;
      if (transport == "self") {
        auto memory = drill.engine->allocate(kMiB);
        REQUIRE(memory.has_value());
        mine = *memory;
      } else {
        auto opened = drill.engine->open_segment(owner.engine->describe());
        REQUIRE(opened.has_value());
        segment = *opened;
      }
      std::vector<std::byte> got(kMiB);
      // Its deadline, a cancel, or the peer timeout: whichever is first.
      auto late = drill.engine->transfer_sync(read_of(segment, 0, got), 50ms);
      REQUIRE_FALSE(late.has_value());
      CHECK(late.error().code == Code::kTimeout);
      const BatchId batch = drill.engine->allocate_batch();
      const Request r = read_of(segment, 0, got);
      REQUIRE(drill.engine->submit(batch, {&r, 1}).has_value());
      CHECK(drill.engine->status(batch, 0).state == TransferState::kPending);
      drill.engine->cancel(batch);
      CHECK(drill.engine->status(batch, 0).state == TransferState::kCancelled);
      drill.engine->free_batch(batch);
      auto silent = drill.engine->transfer_sync(read_of(segment, 0, got), 20s);
      REQUIRE_FALSE(silent.has_value());
      CHECK(silent.error().code == Code::kUnavailable);
    }
  }

  TEST_CASE("a script that cannot be read, or is wrong, keeps the engine from starting") {
    Metrics metrics;
    EngineOptions o;
    o.fault = "/nonexistent/drill";
    auto opened = Engine::open(kClock, o, metrics);
    REQUIRE_FALSE(opened.has_value());
    CHECK(opened.error().what.find("/nonexistent/drill") != std::string::npos);
  }
}
