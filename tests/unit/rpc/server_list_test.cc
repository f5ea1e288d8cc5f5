// One of several servers answers: finding it, and finding the next one when it is gone.
#include "rpc/server_list.h"

#include <doctest/doctest.h>

#include <optional>
#include <thread>

#include "rpc/client.h"
#include "rpc/server.h"

namespace mc::rpc::route_test {
using namespace std::chrono_literals;

namespace {

struct Who {
  static constexpr const char* kName = "who";
  struct Reply {
    static constexpr const char* kName = "is";
    std::string name;
    static void fields(auto& a, auto& m) { a(m.name); }
  };
  static void fields(auto& a, auto&) { a(); }
};

struct Servers {
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  std::vector<std::unique_ptr<rpc::Server>> all;
  std::string leader;  // the address of the one that answers; empty: none does
  int calls = 0;

  explicit Servers(int n) {
    for (int i = 0; i < n; ++i) add();
    leader = all[0]->address();
  }
  void add() {
    all.push_back(std::move(*rpc::Server::open(loop, "127.0.0.1:0", metrics)));
    rpc::Server* server = all.back().get();
    server->on_later<Who>(
        [this, server](const Who&, const rpc::Call&, const rpc::Reply<Who::Reply>& reply) {
          ++calls;
          if (server->address() == leader) return reply(Who::Reply{server->address()});
          reply.elsewhere(leader, "stands by");
        });
  }
  Result<Who::Reply> ask(rpc::Client& client, Duration budget = 5s) {
    std::optional<Result<Who::Reply>> out;
    client.call(Who{}, budget, [&](Result<Who::Reply> r) { out = std::move(r); });
    for (int i = 0; i < 2000 && !out; ++i) REQUIRE(loop.turn(5ms));
    REQUIRE(out.has_value());
    return *out;
  }
};

}  // namespace

TEST_SUITE("server_list") {
  TEST_CASE("calls start with the first of the list, and a silent server is skipped") {
    auto servers = ServerList::parse("a:1,b:2,a:1,c:3");
    REQUIRE(servers);
    CHECK(servers->size() == 3);
    CHECK(servers->address(servers->current()) == "a:1");
    servers->skip(0);
    CHECK(servers->address(servers->current()) == "b:2");
    servers->skip(0);  // of an older call: that was decided already
    CHECK(servers->address(servers->current()) == "b:2");
    servers->skip(1);
    servers->skip(2);
    CHECK(servers->address(servers->current()) == "a:1");
    CHECK(servers->text() == "a:1,b:2,c:3");
    for (const char* bad : {"", "a:1,", "nonsense", "a:0", "a:1,b:99999"}) {
      CAPTURE(bad);
      CHECK(ServerList::parse(bad).error().code == Code::kInvalid);
    }
  }

  TEST_CASE("a refusal names the next server, and nonsense names none") {
    auto servers = ServerList::parse("a:1,b:2");
    REQUIRE(servers);
    CHECK(servers->refused(0, "x:9"));
    CHECK(servers->address(servers->current()) == "x:9");
    CHECK_FALSE(servers->refused(2, ""));  // it does not know: the first of the list again
    CHECK(servers->current() == 0);
    CHECK_FALSE(servers->refused(0, "a:1"));  // itself
    CHECK_FALSE(servers->refused(0, "not an address"));
    CHECK(servers->current() == 1);
    CHECK(servers->refused(0, "x:9"));  // an answer to an older call changes nothing
    CHECK(servers->current() == 1);
    for (int i = 0; i < 100; ++i)
      CHECK(servers->refused(servers->current(), "y:" + std::to_string(1 + i)));
    CHECK(servers->size() == ServerList::kMax);
    CHECK(servers->address(0) == "a:1");
    CHECK(servers->address(1) == "b:2");
  }

  TEST_CASE("a call that another server answers is made there, once") {
    Servers s(3);
    auto client = rpc::Client::connect(s.loop, s.all[2]->address());
    REQUIRE(client);
    CHECK(s.ask(**client)->name == s.leader);
    CHECK(s.calls == 2);
    CHECK(s.ask(**client)->name == s.leader);  // straight
    CHECK(s.calls == 3);
    s.leader = s.all[1]->address();
    CHECK(s.ask(**client)->name == s.leader);
    s.leader.clear();
    CHECK(s.ask(**client).error().code == Code::kUnavailable);
  }

  TEST_CASE("servers that name each other do not keep a call for ever") {
    Servers s(2);
    const std::string a = s.all[0]->address(), b = s.all[1]->address();
    for (int i = 0; i < 2; ++i)
      s.all[static_cast<size_t>(i)]->on_later<Who>(
          [&, i](const Who&, const rpc::Call&, const rpc::Reply<Who::Reply>& reply) {
            ++s.calls;
            reply.elsewhere(i == 0 ? b : a, "stands by");
          });
    auto client = rpc::Client::connect(s.loop, a);
    REQUIRE(client);
    CHECK(s.ask(**client).error().code == Code::kUnavailable);
    CHECK(s.calls < 10);
  }

  TEST_CASE("when the one that answered is gone, calls go to the others") {
    Servers s(2);
    const std::string list = s.all[0]->address() + "," + s.all[1]->address();
    auto client = rpc::Client::connect(s.loop, list);
    REQUIRE(client);
    CHECK(s.ask(**client)->name == s.leader);
    s.leader = s.all[1]->address();
    s.all[0].reset();
    CHECK(s.ask(**client, 50ms).error().code == Code::kTimeout);
    CHECK(s.ask(**client)->name == s.leader);
    (*client)->skip_server();  // its answer was useless: the next call goes to the next one, which
                               // is gone
    CHECK(s.ask(**client, 50ms).error().code == Code::kTimeout);
    CHECK(s.ask(**client)->name == s.leader);
  }

  TEST_CASE("blocking clients find the one that answers") {
    Servers s(2);
    s.leader = s.all[1]->address();
    auto client = rpc::SyncClient::connect(s.all[0]->address(), s.clock);
    REQUIRE(client);
    std::thread loop([&] { (void)s.loop.run(); });
    for (int i = 0; i < 3; ++i) {
      const auto is = (*client)->call(Who{}, 5s);
      REQUIRE(is);
      CHECK(is->name == s.leader);
    }
    s.loop.stop();
    loop.join();
    CHECK(s.calls == 4);
  }

  TEST_CASE("a blocking client whose server ended between calls goes to one that listens") {
    Servers s(2);
    auto client =
        rpc::SyncClient::connect(s.all[0]->address() + "," + s.all[1]->address(), s.clock);
    REQUIRE(client);
    const auto ask = [&] {
      std::thread loop([&] { (void)s.loop.run(); });
      auto is = (*client)->call(Who{}, 20s);
      s.loop.stop();
      loop.join();
      return is;
    };
    CHECK(ask()->name == s.leader);
    s.leader = s.all[1]->address();
    s.all[0].reset();
    auto is = ask();
    if (!is) {  // the end came behind the call
      CHECK(is.error().code == Code::kUnavailable);
      is = ask();
    }
    REQUIRE(is);
    CHECK(is->name == s.leader);
  }
}

}  // namespace mc::rpc::route_test
