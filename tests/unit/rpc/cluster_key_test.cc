// The cluster's key: how its file is read, and what becomes of connections while it is replaced.
// The keys are the process's, so each of these runs in a process of its own.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"
#include "rpc/client.h"
#include "rpc/server.h"

using namespace mc;
using namespace std::chrono_literals;

extern char** environ;

namespace cluster_key_test {

namespace {

constexpr int kNoAnswer = 7;  // the exit status of an unknown peer
const std::string kOld = "the old secret of the cluster", kNew = "the new secret of the cluster";

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

// The file is looked at twice, half a second apart.
void look(Time& now) {
  for (int i = 0; i < 3; ++i) rpc::reload_cluster_key(now += 300ms);
}

std::string secrets() {
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
  // with its budget.
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
int proven(World& w, const rpc::ClusterKey* key, int of) {
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

// What a process that knows only `secret` gets from the server at `address`.
Result<Echoed> as_unknown(World& w, const std::string& secret, Duration budget) {
  std::optional<int> status;
  std::thread other([&, address = w.server->address()] {
    const std::string ms = std::to_string(budget.count() / 1'000'000);
    const char* arguments[] = {"unit_rpc", "--no-skip", "--test-case=unknown peer:*", nullptr};
    ::setenv("MC_TEST_UNKNOWN", (secret + "\n" + address + "\n" + ms).c_str(), 1);
    pid_t child = 0;
    int got = -1;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char* const*>(arguments),
                    environ) == 0)
      (void)waitpid(child, &got, 0);
    w.loop.post([&status, got] { status = got; });
  });
  const bool done = w.until([&] { return status.has_value(); });
  other.join();
  REQUIRE(done);
  REQUIRE(WIFEXITED(*status));
  if (WEXITSTATUS(*status) == kNoAnswer) return fail(Code::kDenied, "no answer");
  REQUIRE(*status == 0);
  return Echoed{};
}

}  // namespace

TEST_SUITE("cluster key") {
  TEST_CASE("own process 1: a file of one line is read as ever" * doctest::skip()) {
    const KeyFile f;
    for (const std::string& text : {kOld, kOld + "\n", kOld + "  \n\n", kOld + "\n \n"}) {
      f.put(text);
      REQUIRE(rpc::load_cluster_key(f.path).has_value());
      CHECK(secrets() == kOld + "|");
    }
    f.put("\t" + kOld + "\r\n");
    REQUIRE(rpc::load_cluster_key(f.path).has_value());
    CHECK(secrets() == "\t" + kOld + "\r|");
    CHECK(std::string(rpc::cluster_keys().first->server_public).size() == 40);
  }

  TEST_CASE("own process 2: a file has two keys at most, and each is a whole one" *
            doctest::skip()) {
    const KeyFile f;
    f.put(kOld + " \n" + kNew + "\n");
    REQUIRE(rpc::load_cluster_key(f.path).has_value());
    CHECK(secrets() == kOld + "|" + kNew);
    for (const std::string& text :
         {std::string(), std::string("\n"), kOld + "\nshort", "\n" + kOld, kOld + "\n\n" + kNew,
          kOld + "\n" + kOld, kOld + "\n" + kNew + "\n" + kNew + "x"}) {
      f.put(text);
      CHECK(rpc::load_cluster_key(f.path).error().code == Code::kInvalid);
      CHECK(secrets() == kOld + "|" + kNew);
    }
  }

  TEST_CASE("own process 3: a file that cannot be used changes nothing" * doctest::skip()) {
    const KeyFile f;
    f.put(kOld);
    REQUIRE(rpc::load_cluster_key(f.path).has_value());
    Time now{};
    look(now);
    f.put(kOld + "\n" + kNew, 0640);
    look(now);
    CHECK(secrets() == kOld + "|");
    f.put("");
    look(now);
    CHECK(secrets() == kOld + "|");
    f.put(kNew + "\nshort");
    look(now);
    CHECK(secrets() == kOld + "|");
    REQUIRE(::unlink(f.path.c_str()) == 0);
    look(now);
    CHECK(secrets() == kOld + "|");
    f.put(kOld + "\n" + kNew);
    rpc::reload_cluster_key(now += 300ms);
    CHECK(secrets() == kOld + "|");  // it may be half written: seen once only
    look(now);
    CHECK(secrets() == kOld + "|" + kNew);
    f.put(kNew);
    look(now);
    CHECK(secrets() == kNew + "|");
  }

  TEST_CASE("own process 4: a client with two keys reaches a server with either" *
            doctest::skip()) {
    REQUIRE(rpc::use_cluster_key(kOld).has_value());
    World w;  // opened before there is a file: it goes on to serve the old key
    const KeyFile f;
    for (const std::string& keys : {kOld + "\n" + kNew, kNew + "\n" + kOld}) {
      f.put(keys);
      REQUIRE(rpc::load_cluster_key(f.path).has_value());
      w.client = *rpc::Client::connect(w.loop, w.server->address());
      CHECK(w.call("loop").has_value());
      std::optional<bool> answered;
      std::thread sync([&, address = w.server->address()] {
        auto client = *rpc::SyncClient::connect(address, w.clock);
        const bool ok = client->call(Echo{"sync"}, 30s).has_value();
        w.loop.post([&answered, ok] { answered = ok; });
      });
      CHECK(w.until([&] { return answered.has_value(); }));
      sync.join();
      CHECK(answered == true);
    }
    // Each was handled once.
    CHECK(w.heard == std::vector<std::string>{"loop", "sync", "loop", "sync"});
  }

  TEST_CASE("own process 5: a key is replaced under load, and none waits in vain" *
            doctest::skip()) {
    for (const rpc::Channel channel : {rpc::Channel::kZeroMq, rpc::Channel::kShm}) {
      World w(kOld, channel);
      REQUIRE(w.call("first").has_value());
      REQUIRE(w.changes_to(kOld + "\n" + kNew, kOld + "|" + kNew));
      const auto slow = w.send("keep", 120s);  // in flight over the step to the new key
      REQUIRE(w.until([&] { return w.kept.size() == 1; }));
      REQUIRE(w.changes_to(kNew + "\n" + kOld, kNew + "|" + kOld));
      REQUIRE(w.serves(kNew));
      REQUIRE(w.moved(1));
      CHECK(proven(w, rpc::cluster_keys().first, 30) == 30);  // by the key that is served
      CHECK(proven(w, rpc::cluster_keys().second, 30) == 0);
      w.kept[0](Echoed{"kept"});
      REQUIRE(w.until([&] { return slow->has_value(); }));
      CHECK((**slow).has_value());
      REQUIRE(w.moved(0));
      REQUIRE(w.changes_to(kNew, kNew + "|"));
      // And on, without the step between: what a client gets by the other key, it still gets.
      REQUIRE(w.changes_to(kNew + "\n" + kOld, kNew + "|" + kOld));
    }
  }

  // Run by the next one, with the secret, the address and a budget in its environment.
  TEST_CASE("unknown peer: asks once" * doctest::skip()) {
    const char* const told = std::getenv("MC_TEST_UNKNOWN");
    REQUIRE(told != nullptr);
    const std::string text = told;
    const size_t a = text.find('\n'), b = text.find('\n', a + 1);
    REQUIRE(rpc::use_cluster_key(text.substr(0, a)).has_value());
    const SteadyClock clock;
    for (const rpc::Channel channel : {rpc::Channel::kShm, rpc::Channel::kZeroMq}) {
      auto client = *rpc::SyncClient::connect(text.substr(a + 1, b - a - 1), clock, channel);
      const auto reply =
          client->call(Echo{"unknown"}, std::chrono::milliseconds(std::stoi(text.substr(b + 1))));
      if (!reply) ::_exit(kNoAnswer);
    }
  }

  TEST_CASE("own process 6: who knows only the revoked key is out" * doctest::skip()) {
    World w(kOld);
    CHECK(as_unknown(w, kOld, 30s).has_value());
    CHECK_FALSE(as_unknown(w, kNew, 300ms).has_value());
    REQUIRE(w.changes_to(kOld + "\n" + kNew, kOld + "|" + kNew));
    CHECK(as_unknown(w, kOld, 30s).has_value());
    REQUIRE(w.changes_to(kNew + "\n" + kOld, kNew + "|" + kOld));
    CHECK(as_unknown(w, kNew, 30s).has_value());
    REQUIRE(w.serves(kNew));
    REQUIRE(w.moved(0));
    REQUIRE(w.changes_to(kNew, kNew + "|"));
    CHECK(as_unknown(w, kNew, 30s).has_value());
    w.heard.clear();
    CHECK_FALSE(as_unknown(w, kOld, 500ms).has_value());
    CHECK(std::count(w.heard.begin(), w.heard.end(), "unknown") == 0);
  }

  TEST_CASE("own process 7: connections by a revoked key end" * doctest::skip()) {
    World w(kOld);
    rpc::Socket old = *rpc::Socket::connect(rpc::Socket::Kind::kDealer, w.server->address(),
                                            rpc::cluster_keys().first);
    rpc::Envelope e;
    e.type = "echo";
    e.id = 1;
    const std::string envelope = wire::encode(e), body = wire::encode(Echo{"old"});
    REQUIRE(old.send({envelope, body}).has_value());
    REQUIRE(w.until([&] { return !old.receive().empty(); }));
    auto handshake = rpc::ShmHandshake::to(w.server->address());
    REQUIRE(handshake.has_value());
    std::optional<rpc::ShmChannel> near;
    REQUIRE(w.until([&] {
      auto end = handshake->step();
      REQUIRE(end.has_value());
      if (*end) near = std::move(**end);
      return near.has_value();
    }));
    // At once to another key: what a stolen one asks for. The server listens by the new key alone.
    REQUIRE(w.until([&] {
      if (w.heard.size() == 1) w.file.put(kNew);
      w.heard.push_back("written");
      return secrets() == kNew + "|";
    }));
    CHECK(w.reaches("new key"));
    const Time deadline = w.clock.now() + 1s;
    w.heard.clear();
    (void)old.send({envelope, body});
    REQUIRE(w.until([&] { return w.clock.now() > deadline; }));
    CHECK(w.heard.empty());
    CHECK(old.receive().empty());
    CHECK(w.until([&] {
      near->woken();
      return !near->receive() && near->broken();
    }));
    // And back: the address is listened at by the old key again.
    w.file.put(kOld);
    REQUIRE(w.until([&] { return secrets() == kOld + "|"; }));
    CHECK(w.reaches("old key"));
  }

  TEST_CASE("the key of a cluster is replaced") {
    for (int i = 1; i <= 7; ++i) {
      const std::string filter = "--test-case=own process " + std::to_string(i) + ":*";
      const char* arguments[] = {"unit_rpc", "--no-skip", filter.c_str(), nullptr};
      pid_t child = 0;
      REQUIRE(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr,
                          const_cast<char* const*>(arguments), environ) == 0);
      int status = -1;
      REQUIRE(waitpid(child, &status, 0) == child);
      CHECK_MESSAGE(status == 0, filter);
    }
  }
}

}  // namespace cluster_key_test
