#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "p2p/filecopy/service.h"
#include "rpc/client.h"
#include "rpc/server.h"

using namespace std::chrono_literals;

namespace mc::p2p::filecopy {

TEST_CASE(
    "a thread's reply waits for a loop that refuses tasks, and is sent by its thread") {  // (F25)
  char folder[] = "/tmp/mc-service.XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  std::ofstream(std::string(folder) + "/f") << "text";
  SteadyClock clock;
  io::Loop loop(clock);
  Metrics metrics;
  auto server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
  REQUIRE(server.has_value());
  auto engine = xfer::Engine::open(clock, {}, metrics);
  REQUIRE(engine.has_value());
  auto memory = (*engine)->allocate(kPieceBytes);
  REQUIRE(memory.has_value());
  auto service = Service::open(loop, folder, *memory, {});
  REQUIRE(service.has_value());
  (*service)->serve(**server);

  auto found = std::async(std::launch::async, [&clock, address = (*server)->address()] {
    auto client = rpc::SyncClient::connect(address, clock);
    return (*client)->call(LookAt{"f"}, 60s);
  });
  Counter& asked = metrics.counter("mc_rpc_requests_total", "", {{"type", LookAt::kName}});
  const Time until = clock.now() + 60s;
  while (asked.value() == 0 && clock.now() < until) {
    // The loop takes no more tasks for the rest of this turn, in which the call comes at last.
    loop.post([&loop] {
      while (loop.post([] {})) {
      }
    });
    REQUIRE(loop.turn(100ms).has_value());
  }
  CHECK(found.wait_for(200ms) == std::future_status::timeout);  // only this thread may answer
  while (found.wait_for(0s) != std::future_status::ready && clock.now() < until)
    REQUIRE(loop.turn(10ms).has_value());
  const auto answer = found.get();
  REQUIRE(answer.has_value());
  std::filesystem::remove_all(folder);
}

}  // namespace mc::p2p::filecopy
