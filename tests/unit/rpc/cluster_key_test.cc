// The cluster's key: how its file is read, and what becomes of connections while it is replaced.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>

#include "key_world.h"

namespace cluster_key_test {

namespace {

// While it lives no file can be opened.
struct NoDescriptors {
  rlimit before{};
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit none{0, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { (void)::setrlimit(RLIMIT_NOFILE, &before); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
};

// The file is looked at twice, half a second apart.
void look(Time& now) {
  for (int i = 0; i < 3; ++i) rpc::reload_cluster_key(now += 300ms);
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
    {
      const NoDescriptors none;
      look(now);
    }
    CHECK(secrets() == kOld + "|" + kNew);
    look(now);  // it has not changed since, and is read once more
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
      const std::string name = "own process " + std::to_string(i);
      CHECK_MESSAGE(run_case(name) == 0, name);
    }
  }
}

}  // namespace cluster_key_test
