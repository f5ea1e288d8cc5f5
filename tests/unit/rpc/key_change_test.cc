// What a change of the cluster's key leaves behind: of clients that make no calls, of watches and
// counts, and for the next change.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "io/address.h"
#include "io/fd.h"
#include "key_world.h"

namespace cluster_key_test {
namespace {
thread_local int asks = 0;  // of sockets whether they have input
}
}  // namespace cluster_key_test

// In the place of libzmq's.
extern "C" int zmq_getsockopt(void* socket, int option, void* value, size_t* bytes) {
  using Get = int (*)(void*, int, void*, size_t*);
  static const auto libzmq = reinterpret_cast<Get>(::dlsym(RTLD_NEXT, "zmq_getsockopt"));
  if (option == ZMQ_EVENTS) ++cluster_key_test::asks;
  return libzmq(socket, option, value, bytes);
}

namespace cluster_key_test {

namespace {

// Counts who connects to a port, and sends them off, or keeps them and says nothing.
struct Door {
  io::Fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  bool keeps = false;
  std::vector<io::Fd> kept;
  int knocks = 0;
  bool open(const std::string& address) const {
    const int on = 1;
    (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(io::parse_address(address)->port);
    return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
           ::listen(fd.get(), 64) == 0;
  }
  std::string address() const {
    sockaddr_in at{};
    socklen_t n = sizeof at;
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &n) == 0);
    return "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  int count() {
    for (;;) {
      io::Fd peer(::accept(fd.get(), nullptr, nullptr));
      if (!peer) return knocks;
      ++knocks;
      if (keeps) kept.push_back(std::move(peer));
    }
  }
  bool left(size_t which) const {  // that one went
    char bytes[256];
    ssize_t n = 1;
    while (n > 0) n = ::recv(kept.at(which).get(), bytes, sizeof bytes, MSG_DONTWAIT);
    return n == 0;
  }
};

}  // namespace

TEST_SUITE("a change of the key") {
  TEST_CASE("own process 8: a client that makes no calls tries no revoked key" * doctest::skip()) {
    World w(kOld);
    const std::string address = w.server->address();
    const auto idle = *rpc::SyncClient::connect(address, w.clock);
    const auto call = [&] { return idle->call(Echo{"idle"}, 30s).has_value(); };
    REQUIRE(beside<bool>(w, call));
    w.file.put(kNew);
    REQUIRE(w.until([&] { return secrets() == kNew + "|"; }));
    REQUIRE(w.reaches("new key"));
    w.client.reset();
    w.server.reset();
    {
      Door door, other;
      REQUIRE(w.until([&] { return door.open(address); }));
      REQUIRE(other.open("127.0.0.1:0"));
      // One that does try again and again, as libzmq does.
      const auto tries = rpc::Socket::connect(rpc::Socket::Kind::kSub, other.address());
      REQUIRE(w.until([&] {
        (void)door.count();
        return other.count() >= 30;
      }));
      CHECK(door.knocks == 0);
    }
    w.open(address);
    CHECK(beside<bool>(w, call));
  }

  // Run by the next one, with the file, the address, the channel and a descriptor.
  TEST_CASE("idle peer: calls, and once more when the test wants it" * doctest::skip()) {
    const char* const told = std::getenv("MC_TEST_IDLE");
    REQUIRE(told != nullptr);
    std::istringstream words(told);
    std::string file, address;
    int channel = 0, fd = -1;
    REQUIRE((words >> file >> address >> channel >> fd));
    REQUIRE(rpc::load_cluster_key(file).has_value());
    const SteadyClock clock;
    auto client = *rpc::SyncClient::connect(address, clock, static_cast<rpc::Channel>(channel));
    if (!client->call(Echo{"idle 1"}, 30s)) ::_exit(kNoAnswer);
    char byte = 0;
    REQUIRE(::read(fd, &byte, 1) == 1);
    // This process may not have heard yet that its connection ended: then it does in the call,
    // which fails at once.
    const auto calls = [&] { return client->call(Echo{"idle 2"}, 30s); };
    const Time begun = clock.now();
    if (const auto got = calls(); !got) {
      REQUIRE(clock.now() < begun + 29s);
      if (!calls()) ::_exit(kNoAnswer);
    }
  }

  TEST_CASE("own process 9: the first call after a whole change is answered" * doctest::skip()) {
    for (const rpc::Channel channel : {rpc::Channel::kZeroMq, rpc::Channel::kShm}) {
      World w(kOld, channel);
      int ends[2];
      REQUIRE(::pipe(ends) == 0);
      const io::Fd told(ends[0]), tell(ends[1]);
      REQUIRE(::fcntl(tell.get(), F_SETFD, FD_CLOEXEC) == 0);
      ::setenv("MC_TEST_IDLE",
               (w.file.path + " " + w.server->address() + " " +
                std::to_string(static_cast<int>(channel)) + " " + std::to_string(told.get()))
                   .c_str(),
               1);
      std::optional<int> status;
      std::thread idle([&] {
        const int got = run_case("idle peer");
        w.loop.post([&status, got] { status = got; });
      });
      const auto calls = [&](const char* text) {
        return std::count(w.heard.begin(), w.heard.end(), text);
      };
      bool kept = w.until([&] { return status || calls("idle 1") == 1; }) &&
                  w.changes_to(kOld + "\n" + kNew, kOld + "|" + kNew) && w.serves(kOld);
      // Ends when that of the idle client does: a call that is on its way then is lost.
      auto same = rpc::Socket::connect(rpc::Socket::Kind::kDealer, w.server->address());
      const auto becomes = [&](rpc::Socket::Fate fate) {
        return w.until([&] { return same->fate() == fate; });
      };
      kept = kept && becomes(rpc::Socket::Fate::kProven) &&
             w.changes_to(kNew + "\n" + kOld, kNew + "|" + kOld) && w.serves(kNew) && w.moved(2) &&
             w.changes_to(kNew, kNew + "|") && becomes(rpc::Socket::Fate::kEnded) && w.moved(0);
      CHECK(::write(tell.get(), "x", 1) == 1);
      const bool ended = w.until([&] { return status.has_value(); });
      idle.join();
      CHECK(kept);
      CHECK(ended);
      CHECK(status == 0);
      CHECK(calls("idle 2") == 1);
    }
  }

  TEST_CASE("own process 10: connections of a change cost a loop nothing" * doctest::skip()) {
    World w(kOld);
    REQUIRE(w.changes_to(kOld + "\n" + kNew, kOld + "|" + kNew));
    REQUIRE(w.changes_to(kNew + "\n" + kOld, kNew + "|" + kOld));
    REQUIRE(w.serves(kNew));
    REQUIRE(w.moved(0));
    REQUIRE(w.changes_to(kNew, kNew + "|"));
    REQUIRE(w.call("over a connection that was made meanwhile").has_value());
    // While nothing comes in, a turn asks no socket.
    CHECK(w.until([&] {
      const int before = asks;
      int turns = 0;
      w.loop.post([&] { ++turns; });
      while (turns == 0) REQUIRE(w.loop.turn(1s).has_value());
      return asks == before;
    }));
  }

  TEST_CASE("own process 11: one key after the other is replaced" * doctest::skip()) {
    World w(kOld);
    for (const auto& [from, to] : {std::pair(kOld, kNew), std::pair(kNew, kNext)}) {
      REQUIRE(w.changes_to(from + "\n" + to, from + "|" + to));
      REQUIRE(w.changes_to(to + "\n" + from, to + "|" + from));
      REQUIRE(w.serves(to));
      REQUIRE(w.moved(0));
      const rpc::ClusterKeys keys = rpc::cluster_keys();
      CHECK(proven(w, keys.first, 30) == 30);
      CHECK(proven(w, keys.second, 30) == 0);
      REQUIRE(w.changes_to(to, to + "|"));
      CHECK_FALSE(as_unknown(w, from, 300ms).has_value());
    }
    CHECK(as_unknown(w, kNext, 30s).has_value());
  }

  // A try of the first key beside the connection that works.
  TEST_CASE("own process 12: a try that says nothing is given up after ten seconds" *
            doctest::skip()) {
    const KeyFile f;
    f.put(kOld);
    REQUIRE(rpc::load_cluster_key(f.path).has_value());
    Door server;
    server.keeps = true;
    REQUIRE(server.open("127.0.0.1:0"));
    ManualClock clock;
    io::Loop loop(clock);
    const auto client = *rpc::Client::connect(loop, server.address());
    const auto until = [&](const std::function<bool()>& condition) {
      const SteadyClock real;
      for (const Time end = real.now() + 30s; !condition();) {
        if (real.now() > end) return false;
        REQUIRE(loop.turn(1ms).has_value());
      }
      return true;
    };
    REQUIRE(until([&] { return server.count() == 1; }));
    f.put(kNew + "\n" + kOld);
    REQUIRE(rpc::load_cluster_key(f.path).has_value());
    clock.advance(rpc::kKeyLook);
    REQUIRE(until([&] { return server.count() == 2; }));
    // The loop is at work, and leaves it alone: one more would be there by the last turn.
    for (const Time end = clock.now() + 9500ms; clock.now() < end;) {
      clock.advance(rpc::kKeyLook);
      for (int i = 0; i < 5; ++i) REQUIRE(loop.turn(1ms).has_value());
    }
    CHECK(server.count() == 2);
    CHECK_FALSE(server.left(1));
    clock.advance(500ms);
    REQUIRE(until([&] { return server.count() == 3; }));
    CHECK(until([&] { return server.left(1); }));
    CHECK_FALSE(server.left(0));
  }

  TEST_CASE("own process 13: connections of servers that ended are not counted" * doctest::skip()) {
    World w(kOld);
    REQUIRE(w.call("over the old key").has_value());
    REQUIRE(w.changes_to(kOld + "\n" + kNew, kOld + "|" + kNew));
    const auto slow = w.send("keep", 120s);
    REQUIRE(w.until([&] { return w.kept.size() == 1; }));
    REQUIRE(w.changes_to(kNew + "\n" + kOld, kNew + "|" + kOld));
    REQUIRE(w.moved(1));
    w.server.reset();
    CHECK(w.metrics.gauge("mc_rpc_second_key_connections", "").value() == 0);
  }

  TEST_CASE("own process 14: subscribers whose key was revoked are not counted" * doctest::skip()) {
    World w(kOld);
    std::unique_ptr<rpc::Listener> events;
    events = *rpc::Listener::open(w.loop, rpc::Socket::Kind::kPub, "127.0.0.1:0", w.metrics, [&] {
      for (uint64_t port = 0; !events->receive(port).empty();) continue;
    });
    const auto subscribe = [&] {
      return *rpc::Socket::connect(rpc::Socket::Kind::kSub, events->address());
    };
    const rpc::Socket old = subscribe(), other = subscribe();
    REQUIRE(w.until([&] { return events->subscriptions() == 1; }));  // one topic
    w.file.put(kNew);
    REQUIRE(w.until([&] { return secrets() == kNew + "|"; }));
    CHECK(w.until([&] { return events->subscriptions() == 0; }));
    std::optional<rpc::Socket> fresh = subscribe();
    CHECK(w.until([&] { return events->subscriptions() == 1; }));
    events->send_to_all({"topic", "an event"});
    CHECK(w.until([&] { return !fresh->receive().empty(); }));
    fresh.reset();
    CHECK(w.until([&] { return events->subscriptions() == 0; }));
  }

  TEST_CASE("own process 15: a call ends with its connection" * doctest::skip()) {
    World w(kOld);
    const auto other = *rpc::SyncClient::connect(w.server->address(), w.clock);
    const auto call = [&](const char* text) {
      return [&, text] { return other->call(Echo{text}, 600s); };
    };
    CHECK(beside<Result<Echoed>>(w, call("over the old key")).has_value());
    std::optional<Result<Echoed>> got;
    std::thread calls([&] {
      auto answer = call("keep")();
      w.loop.post([&got, answer = std::move(answer)] { got = answer; });
    });
    bool ended = w.until([&] { return w.kept.size() == 1; });
    w.file.put(kNew);
    ended = ended && w.until([&] { return got.has_value(); });
    if (!ended) ::_exit(kNoAnswer);  // not after ten minutes
    calls.join();
    REQUIRE_FALSE(got->has_value());
    CHECK(got->error().code == Code::kUnavailable);
    CHECK(got->error().what.find("ended before it answered") != std::string::npos);
    CHECK(beside<Result<Echoed>>(w, call("over the new key")).has_value());
  }

  TEST_CASE("own process 16: a call of a loop ends with its connection" * doctest::skip()) {
    World w(kOld + "\n" + kNew);
    REQUIRE(w.call("proven").has_value());
    const auto got = w.send("keep", 600s);
    REQUIRE(w.until([&] { return w.kept.size() == 1; }));
    w.server.reset();
    REQUIRE(w.until([&] { return got->has_value(); }));
    REQUIRE_FALSE((*got)->has_value());
    CHECK((*got)->error().code == Code::kUnavailable);
    CHECK((*got)->error().what.find("ended before it answered") != std::string::npos);
    CHECK(w.client->in_flight() == 0);
  }

  TEST_CASE("a change of the key leaves nothing behind") {
    for (int i = 8; i <= 16; ++i) {
      const std::string name = "own process " + std::to_string(i);
      CHECK_MESSAGE(run_case(name) == 0, name);
    }
  }
}

}  // namespace cluster_key_test
