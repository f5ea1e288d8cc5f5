// A pull that is interrupted, and what of the folder it leaves alone.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "io/loop.h"
#include "p2p/swarm/node.h"
#include "rpc/server.h"

namespace mc::p2p {
namespace {

using namespace std::chrono_literals;

struct Member {
  explicit Member(const char* name) : loop(clock) {
    xfer::EngineOptions options;
    options.node = name;
    auto opened = xfer::Engine::open(clock, options, metrics);
    REQUIRE(opened);
    engine = std::move(*opened);
    auto listening = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(listening);
    server = std::move(*listening);
    xfer::serve(*engine, *server);
    swarm.emplace(*engine, clock, SwarmMember::Config{}, server->address());
    swarm->serve(*server);
    thread = std::thread([this] { (void)loop.run(); });
  }
  ~Member() {
    loop.stop();
    thread.join();
  }
  SteadyClock clock;
  io::Loop loop;
  Metrics metrics;
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<rpc::Server> server;
  std::optional<SwarmMember> swarm;
  std::thread thread;
};

}  // namespace

TEST_CASE("a pull that is stopped while it looks at whole files leaves them their names") {
  char made[] = "/tmp/mc-pull.XXXXXX";
  REQUIRE(::mkdtemp(made) != nullptr);
  const std::filesystem::path folder(made);
  std::filesystem::create_directory(folder / "set");
  for (const char* name : {"a", "b"})
    std::ofstream(folder / "set" / name) << std::string(300'000, *name);
  Member origin("origin"), puller("puller");
  REQUIRE(origin.swarm->publish("set", {folder / "set"}, 64 * kKiB));
  PullRequest request;
  request.name = "set";
  request.folder = folder / "copy";
  request.from = {origin.server->address()};
  std::atomic<bool> stop{false};
  REQUIRE(puller.swarm->pull(request, stop));
  const auto count = [&] {
    size_t n = 0;
    for (const auto& e : std::filesystem::recursive_directory_iterator(folder / "copy"))
      n += e.is_regular_file() && e.path().extension() != ".mc-part" ? 1 : 0;
    return n;
  };
  REQUIRE(count() == 2);
  stop = true;
  Member again("again");
  const auto stopped = again.swarm->pull(request, stop);
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().what.find("stopped") != std::string::npos);
  CHECK(count() == 2);
  std::filesystem::remove_all(folder);
}

}  // namespace mc::p2p
