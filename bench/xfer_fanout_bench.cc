// One set of files pulled by eight nodes at once, against by one: each node behind a link of its
// own, shaped both ways, in a network namespace; a router joins them. The origin's link alone would
// make eight pulls take eight times as long.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/random.h"
#include "bench/figure.h"
#include "bench/namespaces.h"
#include "cmd/command.h"
#include "p2p/swarm/node.h"
#include "rpc/server.h"

namespace mc::bench {
namespace {

constexpr size_t kPullers = 8;
constexpr uint64_t kShard = 512 * kKiB;
constexpr const char* kRate = "100mbit";  // nine of them cost this machine less than it has

std::string host(size_t node) { return strf("10.77.%zu.1", node); }

// A member of the swarm, in this process.
struct Member {
  Member() : loop(clock) {}
  ~Member() {
    loop.stop();
    if (thread.joinable()) thread.join();
  }
  SteadyClock clock;
  io::Loop loop;
  Metrics metrics;
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<p2p::SwarmMember> node;
  std::thread thread;

  Result<> open(size_t number, uint16_t port) {
    MC_TRY_(rpc::use_cluster_key("the key of a benchmark"));
    xfer::EngineOptions options;
    options.node = strf("fanout-%zu", number);
    options.data = {host(number) + ":0"};
    options.transports = {"tcp"};
    MC_TRY(engine, xfer::Engine::open(clock, options, metrics));
    MC_TRY(server, rpc::Server::open(loop, strf("%s:%u", host(number).c_str(), port), metrics));
    xfer::serve(*engine, *server);
    p2p::SwarmMember::Config config;
    config.seed = number + 1;
    node = std::make_unique<p2p::SwarmMember>(*engine, clock, config, server->address());
    node->serve(*server);
    thread = std::thread([this] { (void)loop.run(); });
    return {};
  }
};

double now_seconds(const Clock& clock) {
  return to_seconds(clock.now() - Time{});  // of one machine: the same for all processes
}

struct Bench {
  std::filesystem::path folder;
  uint64_t bytes = 0;
  std::vector<Namespace> nodes;
  Namespace router;
  uint16_t port = 6000;

  // Runs `work` as node `number`, in a process of its own, which stays until it is dropped.
  Result<Child> start(size_t number, const std::function<Result<std::string>(Member&)>& work) {
    return Child::start([&](int fd) {
      Member member;
      const auto answer = [&]() -> Result<std::string> {
        MC_TRY_(nodes[number].enter());
        MC_TRY_(member.open(number, port));
        return work(member);
      }();
      say(fd, answer ? *answer : "error " + answer.error().what);
      for (;;) ::pause();
    });
  }

  // Seconds from the first puller's start to the last one's end.
  Result<Measured> turn(size_t pullers) {
    ++port;
    MC_TRY(const Child origin, start(0, [&](Member& m) -> Result<std::string> {
             MC_TRY_(m.node->publish("set", {folder / "set"}, kShard));
             return "ready";
           }));
    if (const std::string said = origin.answer(); said != "ready")
      return fail(Code::kUnavailable, "publish: %s", said.c_str());
    std::vector<Child> children;
    for (size_t i = 1; i <= pullers; ++i) {
      MC_TRY(Child child, start(i, [&](Member& m) -> Result<std::string> {
               p2p::PullRequest request;
               request.name = "set";
               request.folder = folder / std::to_string(i);
               request.from = {strf("%s:%u", host(0).c_str(), port)};
               const double begin = now_seconds(m.clock);
               const std::atomic<bool> stop{false};
               MC_TRY(const auto report, m.node->pull(request, stop));
               return strf("%.6f %.6f %zu", begin, now_seconds(m.clock), report.from.size());
             }));
      children.push_back(std::move(child));
    }
    double begin = 1e300, end = 0;
    for (const Child& child : children) {
      const std::string said = child.answer();
      double from = 0, to = 0;
      if (std::sscanf(said.c_str(), "%lf %lf", &from, &to) != 2)
        return fail(Code::kUnavailable, "pull: %s", said.c_str());
      begin = std::min(begin, from);
      end = std::max(end, to);
    }
    for (size_t i = 1; i <= pullers; ++i) {
      MC_TRY_(
          Namespace::run(strf("cmp %s/set/data %s/%zu/data", folder.c_str(), folder.c_str(), i)));
      std::filesystem::remove_all(folder / std::to_string(i));
    }
    return Measured(end - begin);
  }
};

Result<> network(Bench& bench) {
  MC_TRY(bench.router, Namespace::make());
  MC_TRY_(bench.router.command("sysctl -qw net.ipv4.ip_forward=1"));
  for (size_t i = 0; i <= kPullers; ++i) {
    MC_TRY(Namespace node, Namespace::make());
    const std::string gate = strf("10.77.%zu.2", i);
    MC_TRY_(node.join(bench.router, strf("n%zu", i), host(i), gate, kRate));
    MC_TRY_(node.command(strf("ip link set n%zu mtu 9000", i)));
    MC_TRY_(bench.router.command(strf("ip link set n%zu mtu 9000", i)));
    MC_TRY_(node.command("ip route add default via " + gate));
    bench.nodes.push_back(std::move(node));
  }
  return {};
}

Result<> fill(const Bench& bench) {
  std::filesystem::create_directories(bench.folder / "set");
  std::ofstream out(bench.folder / "set" / "data", std::ios::binary);
  Random random(1);
  std::vector<uint64_t> words(kMiB / 8);
  for (uint64_t at = 0; at < bench.bytes; at += kMiB) {
    for (uint64_t& w : words) w = random.next();
    out.write(reinterpret_cast<const char*>(words.data()), kMiB);
  }
  out.close();
  return out ? Result<>() : fail(Code::kNoSpace, "cannot write %s", bench.folder.c_str());
}

Result<int> run(const Options& o) {
  char name[] = "/dev/shm/mc-fanout.XXXXXX";  // memory: the links are to be the limit
  if (::mkdtemp(name) == nullptr) return fail_errno("make a folder in /dev/shm");
  const std::unique_ptr<char, void (*)(char*)> remove(
      name, [](char* folder) { std::filesystem::remove_all(folder); });
  Bench bench;
  bench.folder = name;
  bench.bytes = (o.quick ? 16 : 48) * kMiB;
  if (const auto made = network(bench); !made) {
    std::fprintf(stderr, "xfer-fanout: %s\n", made.error().what.c_str());
    return 77;
  }
  MC_TRY_(fill(bench));
  const Figure figure{
      "xfer-fanout", strf("1 to %zu, %s links", kPullers, kRate), "s", "1 to 1", 0.5, true};
  MC_TRY_(compare(
      figure, o.quick ? 2 : 5, [&] { return bench.turn(kPullers); },
      [&] { return bench.turn(1); }));
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_fanout_bench", "a set pulled by eight nodes, against by one");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
