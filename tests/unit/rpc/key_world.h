// A process's cluster key, its file, and a server with a client that follow it. The keys are the
// process's, so each case with them runs in a process of its own.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rpc/client.h"
#include "rpc/server.h"

extern char** environ;

namespace cluster_key_test {

using namespace mc;
using namespace std::chrono_literals;

constexpr int kNoAnswer = 7;  // the exit status of a peer that got none
inline const std::string kOld = "the old secret of the cluster",
                         kNew = "the new secret of the cluster",
                         kNext = "the next secret of the cluster";

struct Echoed {
  static constexpr const char* kName = "echoed";
  std::string text;
  static void fields(auto& a, auto& m) { a(m.text); }
};
struct Echo {
  static constexpr const char* kName = "echo";
  using Reply = Echoed;
  std::string text;
  static void fields(auto& a, auto& m) { a(m.text); }
};

struct KeyFile {
  std::string folder, path;
  KeyFile() {
    std::string name = "/tmp/mc-key.XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder = name;
    path = folder + "/key";
  }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  ~KeyFile() {
    ::unlink(path.c_str());
    ::rmdir(folder.c_str());
  }
  void put(const std::string& text, mode_t mode = 0600) const {
    const std::string fresh = path + ".new";
    const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    REQUIRE(::fchmod(fd, mode) == 0);
    ::close(fd);
    REQUIRE(::rename(fresh.c_str(), path.c_str()) == 0);
  }
};

inline std::string secrets() {
  const rpc::ClusterKeys keys = rpc::cluster_keys();
  const auto text = [](const rpc::ClusterKey* k) { return k == nullptr ? "" : k->secret; };
  return text(keys.first) + "|" + text(keys.second);
}

// A server and its clients in one process: both follow the file of this process.
struct World {
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  KeyFile file;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<rpc::Client> client;
  std::vector<std::string> heard;
  std::vector<rpc::Reply<Echoed>> kept;

  World() { open(); }
  explicit World(const std::string& keys, rpc::Channel channel = rpc::Channel::kZeroMq) {
    file.put(keys);
    REQUIRE(rpc::load_cluster_key(file.path).has_value());
    open();
    client = *rpc::Client::connect(loop, server->address(), channel);
  }
  void open(const std::string& address = "127.0.0.1:0") {
    server = *rpc::Server::open(loop, address, metrics);
    REQUIRE(server->listen_shm().has_value());
    server->on_later<Echo>(
        [this](const Echo& m, const rpc::Call&, const rpc::Reply<Echoed>& reply) {
          heard.push_back(m.text);
          if (m.text == "keep")
            kept.push_back(reply);
          else
            reply(Echoed{m.text});
        });
  }
  bool until(const std::function<bool()>& condition) {
    const Time deadline = clock.now() + 30s;
    while (clock.now() < deadline) {
      if (condition()) return true;
      REQUIRE(loop.turn(10ms).has_value());
    }
    return false;
  }
  std::shared_ptr<std::optional<Result<Echoed>>> send(const std::string& text,
                                                      Duration budget = 30s) {
    auto got = std::make_shared<std::optional<Result<Echoed>>>();
    client->call(Echo{text}, budget, [got](Result<Echoed> r) { *got = std::move(r); });
    return got;
  }
  Result<Echoed> call(const std::string& text, Duration budget = 30s) {
    const auto got = send(text, budget);
    REQUIRE(until([&] { return got->has_value(); }));
    return **got;
  }
  // Calls without a pause until `condition`; none may fail.
  bool calls_until(const std::function<bool()>& condition) {
    const Time deadline = clock.now() + 30s;
    while (!condition()) {
      if (clock.now() >= deadline) return false;
      const auto reply = call("load");
      CHECK_MESSAGE(reply.has_value(), reply.error().what);
      if (!reply) return false;
    }
    return true;
  }
  // A call at the moment of a change may go over a connection whose key was just revoked, and end
  // with it.
  bool reaches(const std::string& text) {
    const Time deadline = clock.now() + 30s;
    while (clock.now() < deadline)
      if (call(text, 500ms)) return true;
    return false;
  }
  // Until no connection but those of calls in flight is by the second key.
  bool moved(size_t left) {
    const Gauge& second = metrics.gauge("mc_rpc_second_key_connections", "");
    return calls_until([&] { return second.value() == static_cast<double>(left); });
  }
  // Until the server gives new connections to the socket of that key.
  bool serves(const std::string& secret) {
    return calls_until([&] {
      const rpc::ClusterKeys keys = rpc::cluster_keys();
      auto s = rpc::Socket::connect(rpc::Socket::Kind::kDealer, server->address(), keys.first);
      REQUIRE(keys.first->secret == secret);
      REQUIRE(until([&] { return s->fate() != rpc::Socket::Fate::kOpen; }));
      return s->known_fate() == rpc::Socket::Fate::kProven;
    });
  }
  bool changes_to(const std::string& keys, const std::string& want) {
    file.put(keys);
    return calls_until([&] { return secrets() == want; });
  }
};

// Of so many connections by a key, those whose key the server knew.
inline int proven(World& w, const rpc::ClusterKey* key, int of) {
  using Fate = rpc::Socket::Fate;
  int out = 0;
  for (int i = 0; i < of; ++i) {
    for (bool slow = true; std::exchange(slow, false);) {
      const Time began = w.clock.now();
      auto s = rpc::Socket::connect(rpc::Socket::Kind::kDealer, w.server->address(), key);
      REQUIRE(s.has_value());
      REQUIRE(w.until([&] { return s->fate() != Fate::kOpen; }));
      out += s->known_fate() == Fate::kProven ? 1 : 0;
      // A process that stood still lets the server's limit of a handshake pass.
      slow = s->known_fate() != Fate::kProven && w.clock.now() > began + 2s;
    }
  }
  return out;
}

// Runs a case of this program in a process of its own. Returns its exit status, or -1.
inline int run_case(const std::string& name) {
  const std::string filter = "--test-case=" + name + ":*";
  const char* arguments[] = {"unit_rpc", "--no-skip", filter.c_str(), nullptr};
  pid_t child = 0;
  int status = -1;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char* const*>(arguments),
                  environ) != 0 ||
      waitpid(child, &status, 0) != child)
    return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Runs it in another thread, while the loop turns.
template <class T>
T beside(World& w, const std::function<T()>& work) {
  std::optional<T> got;
  std::thread other([&] {
    auto result = std::make_shared<T>(work());
    w.loop.post([&got, result] { got = std::move(*result); });
  });
  const bool done = w.until([&] { return got.has_value(); });
  other.join();
  REQUIRE(done);
  return std::move(*got);
}

// What a process that knows only `secret` gets from the server at `address`.
inline Result<Echoed> as_unknown(World& w, const std::string& secret, Duration budget) {
  const std::string ms = std::to_string(budget.count() / 1'000'000);
  ::setenv("MC_TEST_UNKNOWN", (secret + "\n" + w.server->address() + "\n" + ms).c_str(), 1);
  const int status = beside<int>(w, [] { return run_case("unknown peer"); });
  if (status == kNoAnswer) return fail(Code::kDenied, "no answer");
  REQUIRE(status == 0);
  return Echoed{};
}

}  // namespace cluster_key_test
