// The client asks servers by names whose addresses change, or that nobody finds.
#include "http/name_lookups.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "http/client.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;
using namespace std::chrono_literals;

namespace name_lookups_test {

namespace {

constexpr const char* kName = "engine.test";
// A connection to the one fails before connect() returns, and the other has no sockets here.
constexpr int kUnreachable = 255, kUnspoken = 254;

SocketAddress address_of(int last, uint16_t port) {
  const bool far = last == kUnreachable;
  auto all = look_up_number({far ? "255.255.255.255" : "127.0.0." + std::to_string(last), port});
  if (last == kUnspoken) all.at(0).at.ss_family = AF_MAX;
  return all.at(0);
}

// Stands still but for what a test lets pass.
struct Standing final : Clock {
  std::atomic<int64_t> at{0};  // ns
  Time now() const override { return Time(Duration(at.load())); }
  void pass(Duration d) { at += d.count(); }
};

// What every client of a test knows as kName.
struct Names {
  std::atomic<int> last{1};  // of 127.0.0.x; 0: the name is not found
  std::atomic<int> next{0};  // of the address behind that one; 0: there is none
  std::atomic<int> once{0};  // in place of `last` in the next answer
  std::atomic<int> asked{0}, told{0};
  std::atomic<bool> silent{false};
  std::promise<void> speaks;
  std::shared_future<void> spoke = speaks.get_future().share();
};

struct Fixture {
  Standing clock;
  io::Loop loop{clock};
  const std::shared_ptr<Names> names = std::make_shared<Names>();
  std::map<int, std::unique_ptr<Server>> servers;  // by the last part of their address
  std::string port;
  std::optional<Client> client;
  std::string came;  // the queries of requests, in the order in which servers saw them

  explicit Fixture(uint32_t connections_max = 2048) {
    const auto found = [n = names](const io::Address& a) -> Result<SocketAddresses> {
      ++n->asked;
      if (n->silent) n->spoke.wait();
      const int once = n->once.exchange(0);
      const int last = once != 0 ? once : n->last.load(), next = n->next;
      ++n->told;
      if (a.host != kName || last == 0)
        return fail(Code::kUnavailable, "look up '%s': not there", a.host.c_str());
      SocketAddresses all = {address_of(last, a.port)};
      if (next != 0) all.push_back(address_of(next, a.port));
      return all;
    };
    client.emplace(loop, connections_max, nullptr, found);
    serve(1);
  }
  void serve(int last) {
    ServerOptions options;
    options.names = {kName};
    const std::string body = std::to_string(last);
    auto opened = Server::open(loop, "127.0.0." + body + ":" + (port.empty() ? "0" : port), options,
                               [this, body](const Exchange& x) {
                                 for (const auto& [name, value] : x.request().query) came += name;
                                 x.reply(200, "text/plain", body);
                               });
    REQUIRE_MESSAGE(opened, opened.error().what);
    port = (*opened)->address().substr((*opened)->address().rfind(':') + 1);
    servers[last] = std::move(*opened);
  }
  struct Call {
    std::optional<Result<ClientResponse>> result;
  };
  Client::Id send(Call& call, const std::string& host = kName, Duration timeout = 600s,
                  const std::string& query = "") {
    ClientRequest r;
    r.timeout = timeout;
    r.url = "http://" + host + ":" + port + "/" + query;
    ClientCallbacks calls;
    calls.on_done = [&call](Result<ClientResponse> a) { call.result = std::move(a); };
    return client->send(std::move(r), std::move(calls));
  }
  // A listener whose queue is full: no connection to it is made, nor refused.
  io::Fd says_nothing(int last) {
    io::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const auto at =
        look_up_number({"127.0.0." + std::to_string(last), static_cast<uint16_t>(std::stoi(port))});
    const auto* const to = reinterpret_cast<const sockaddr*>(&at[0].at);
    REQUIRE(::bind(fd.get(), to, at[0].size) == 0);
    REQUIRE(::listen(fd.get(), 0) == 0);
    for (bool full = false; !full;) {
      auto& one = *fill.emplace(fill.end(), ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      ::fcntl(one.get(), F_SETFL, O_NONBLOCK);
      ::connect(one.get(), to, at[0].size);
      pollfd p{.fd = one.get(), .events = POLLOUT, .revents = 0};
      full = ::poll(&p, 1, 100) == 0;
    }
    return fd;
  }
  std::vector<io::Fd> fill;
  bool until(const std::function<bool()>& done) {
    const SteadyClock steady;
    const Time end = steady.now() + 20s * kSlow;
    while (!done())
      if (steady.now() > end || !loop.turn(5ms)) return false;
    return true;
  }
  bool wait(const Call& call) {
    return until([&] { return call.result.has_value(); });
  }
  // Who answers; "": nobody.
  std::string ask(const std::string& host = kName) {
    Call call;
    send(call, host);
    REQUIRE(wait(call));
    return *call.result ? (*call.result)->body : "";
  }
  bool asked(int times) {
    return until([&] { return names->asked >= times; });
  }
  bool answers(int last) {  // soon
    return until([&] { return ask() == std::to_string(last); });
  }
};

}  // namespace

TEST_CASE("a name that nobody answers for holds up no other server") {
  Fixture f;
  f.names->silent = true;
  Fixture::Call waits;
  f.send(waits);
  REQUIRE(f.asked(1));
  CHECK(f.ask("127.0.0.1") == "1");
  CHECK(!waits.result);
  SUBCASE("its requests go on once it is known") {
    f.names->speaks.set_value();
    REQUIRE(f.wait(waits));
    REQUIRE(*waits.result);
    CHECK((*waits.result)->body == "1");
  }
  SUBCASE("the client ends, and calls nobody back") {
    std::thread later([&] { f.names->speaks.set_value(); });
    f.client.reset();
    later.join();
    CHECK(!waits.result);
  }
}

TEST_CASE("a server that is not there is looked for under its name again") {
  Fixture f;
  CHECK(f.ask() == "1");
  CHECK(f.ask() == "1");
  CHECK(f.names->asked == 1);
  f.servers.clear();
  f.serve(2);
  CHECK(f.ask().empty());
  CHECK(f.names->asked == 1);  // a moment ago
  f.clock.pass(2s);
  f.names->last = 0;
  CHECK(f.ask().empty());
  REQUIRE(f.asked(2));  // not found: it keeps the address that it had
  f.serve(1);
  CHECK(f.answers(1));
  f.servers.erase(1);
  f.names->last = 2;
  CHECK(f.until([&] {
    f.clock.pass(2s);
    return f.ask() == "2";
  }));
}

TEST_CASE("a server whose name has moved is found by the request that does not find it") {
  Fixture f;
  f.serve(2);
  CHECK(f.ask() == "1");
  f.servers.erase(1);
  f.clock.pass(2s);
  SUBCASE("it is where its name stands for now") {
    f.names->last = 2;
    Fixture::Call one, two;
    f.send(one);
    f.send(two);
    for (const auto* call : {&one, &two}) {
      REQUIRE(f.wait(*call));
      REQUIRE_MESSAGE(*call->result, (*call->result).error().what);
      CHECK((*call->result)->body == "2");
    }
    CHECK(f.names->asked == 2);
  }
  SUBCASE("it is nowhere, and the error is that of its address") {
    SUBCASE("the name stands for the same") {}
    SUBCASE("the name is not found any more") { f.names->last = 0; }
    SUBCASE("the name server says nothing") { f.names->silent = true; }
    Fixture::Call call;
    f.send(call);
    const bool failed = f.wait(call);
    f.names->speaks.set_value();
    REQUIRE(failed);
    REQUIRE_FALSE(*call.result);
    CHECK((*call.result).error().what.find("Connection refused") != std::string::npos);
    CHECK(f.names->asked == 2);
  }
  SUBCASE("the request is given up meanwhile") {
    f.names->silent = true;
    Fixture::Call call;
    const auto id = f.send(call);
    REQUIRE(f.asked(2));
    f.client->cancel(id);
    f.names->last = 2;
    f.names->speaks.set_value();
    CHECK(f.answers(2));
    CHECK(!call.result);
  }
}

TEST_CASE("an address that cannot be reached is as one whose server is not there") {
  Fixture f;
  f.names->last = kUnreachable;
  SUBCASE("the name's next address is tried") {
    SUBCASE("from here") {}
    SUBCASE("by sockets of this system") { f.names->last = kUnspoken; }
    f.names->next = 1;
    CHECK(f.ask() == "1");
    CHECK(f.names->asked == 1);
  }
  SUBCASE("the request goes where its name stands for now") {
    CHECK(f.ask().empty());
    CHECK(f.names->asked == 1);
    f.clock.pass(2s);
    f.names->last = 1;
    CHECK(f.ask() == "1");
    CHECK(f.names->asked == 2);
  }
  SUBCASE("the name stands for nothing else: the error says why") {
    f.names->next = kUnreachable;
    Fixture::Call call;
    f.send(call);
    REQUIRE(f.wait(call));
    REQUIRE_FALSE(*call.result);
    CHECK((*call.result).error().code == Code::kUnavailable);
    CHECK((*call.result).error().what ==
          "connect to engine.test:" + f.port + ": Network is unreachable");
  }
}

TEST_CASE("a request that connects to where a server was goes where its name stands for now") {
  Fixture f;
  f.serve(2);
  CHECK(f.ask() == "1");
  f.servers.erase(1);
  const io::Fd silent = f.says_nothing(1);
  f.clock.pass(2s);
  f.names->last = 2;
  Fixture::Call one, late;
  f.send(one);
  f.send(late, kName, 100ms);  // after it the name is in doubt
  REQUIRE(f.wait(one));
  REQUIRE_MESSAGE(*one.result, (*one.result).error().what);
  CHECK((*one.result)->body == "2");
  CHECK(f.wait(late));
}

TEST_CASE("a connection that is being made is kept while its address comes and goes") {
  Fixture f;
  f.serve(2);
  CHECK(f.ask() == "1");
  f.servers.erase(1);
  const io::Fd slow = f.says_nothing(1);
  f.clock.pass(61s);
  f.names->once = 2;
  Fixture::Call call;
  SUBCASE("among others of its name") {
    f.names->last = 2;
    f.names->next = 1;
    f.send(call);
    REQUIRE(f.until([&] { return f.names->told >= 2; }));
    CHECK(f.ask("127.0.0.2") == "2");
  }
  SUBCASE("and one answer of the name server leaves it out") {
    f.send(call);
    REQUIRE(f.until([&] { return f.names->told >= 3 || call.result; }));
  }
  REQUIRE_FALSE(call.result);
  std::vector<io::Fd> accepted;
  CHECK(f.until([&] {
    io::Fd one(::accept4(slow.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (one) accepted.push_back(std::move(one));
    char byte = 0;
    for (const io::Fd& fd : accepted)
      if (::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) return true;
    return false;
  }));
}

TEST_CASE("requests that go elsewhere keep their order, and go before those that wait") {
  bool there = false;
  SUBCASE("while they connect") { there = true; }
  SUBCASE("when their server is not there") {}
  for (bool late = true; late;) {  // the requests wait 3 s for an answer of the name server
    Fixture f(1);
    f.serve(2);
    CHECK(f.ask() == "1");
    f.servers.erase(1);
    const io::Fd silent = there ? f.says_nothing(1) : io::Fd();
    f.clock.pass(61s);
    f.names->last = 2;
    f.names->silent = true;
    Fixture::Call first, second, third;
    const SteadyClock wall;
    const Time since = wall.now();
    f.send(first, kName, 600s, "?a=1");
    REQUIRE(f.asked(2));
    f.send(second, kName, 600s, "?b=1");
    f.send(third, kName, 600s, "?c=1");
    CHECK(f.ask("127.0.0.2") == "2");  // they have come to the client's thread before
    f.names->speaks.set_value();
    for (const auto* call : {&first, &second, &third}) REQUIRE(f.wait(*call));
    late = wall.now() - since > 2s;
    if (late) continue;
    for (const auto* call : {&first, &second, &third})
      REQUIRE_MESSAGE(*call->result, (*call->result).error().what);
    CHECK(f.came == "abc");
  }
}

TEST_CASE("each request that finds no server waits its own time for another address") {
  bool cancelled = false;
  SUBCASE("behind one that waits") {}
  SUBCASE("behind one that was cancelled") { cancelled = true; }
  for (bool late = true; late;) {  // a request waits 3 s
    Fixture f;
    f.serve(2);
    CHECK(f.ask() == "1");
    f.servers.erase(1);
    f.clock.pass(2s);
    f.names->last = 2;
    f.names->silent = true;
    Fixture::Call first, a_while, second, then;
    const SteadyClock wall;
    const Time since = wall.now();
    const auto id = f.send(first);
    f.send(a_while, kName, 1500ms);
    REQUIRE(f.wait(a_while));
    if (cancelled) f.client->cancel(id);
    f.send(second);
    f.send(then, kName, 2s);
    REQUIRE(f.wait(then));  // after the first, and before the second would
    late = wall.now() - since > 4s;
    CHECK(first.result.has_value() == !cancelled);
    CHECK((late || !second.result));
    f.names->speaks.set_value();
    REQUIRE(f.wait(second));
    if (!late) CHECK(second.result->has_value());
  }
}

TEST_CASE("a name is looked up once a minute: it may have come to mean another server") {
  Fixture f;
  f.serve(2);
  CHECK(f.ask() == "1");
  f.names->last = 2;
  f.clock.pass(50s);
  CHECK(f.ask() == "1");
  CHECK(f.names->asked == 1);
  f.clock.pass(11s);
  CHECK(f.answers(2));
  CHECK(f.names->asked == 2);
}

TEST_CASE("an idle connection is kept while its address is among those that the name has") {
  Fixture f;
  f.serve(3);
  f.names->next = 2;
  CHECK(f.ask() == "1");
  f.names->last = 3;  // whom a new connection goes to
  f.names->next = 1;
  f.names->silent = true;
  f.clock.pass(61s);
  CHECK(f.ask() == "1");
  REQUIRE(f.asked(2));
  f.names->speaks.set_value();  // now that the connection is idle
  CHECK(f.until([&] {           // the third lookup begins when the second has had its effect
    f.clock.pass(61s);
    CHECK(f.ask() == "1");
    return f.names->asked >= 3;
  }));
  CHECK(f.ask() == "1");
  f.names->next = 0;
  CHECK(f.until([&] {
    f.clock.pass(61s);
    return f.ask() == "3";
  }));
}

TEST_CASE("requests to a name that is not found fail together, and the next one looks again") {
  Fixture f;
  f.names->silent = true;
  f.names->last = 0;
  Fixture::Call one, two;
  f.send(one);
  REQUIRE(f.asked(1));
  f.send(two);
  CHECK(f.ask("127.0.0.1") == "1");  // two has come to the client's thread before
  f.names->speaks.set_value();
  for (const auto* call : {&one, &two}) {
    REQUIRE(f.wait(*call));
    REQUIRE_FALSE(*call->result);
    CHECK((*call->result).error().code == Code::kUnavailable);
    CHECK((*call->result).error().what == "look up 'engine.test': not there");
  }
  CHECK(f.names->asked == 1);
  f.names->last = 1;
  CHECK(f.ask() == "1");
  CHECK(f.names->asked == 2);
}

TEST_CASE("addresses by number are no names") {
  CHECK(look_up_number({"127.0.0.1", 80}).size() == 1);
  CHECK(look_up_number({"::1", 80}).size() == 1);
  CHECK(look_up_number({"localhost", 80}).empty());
  CHECK(look_up({"127.0.0.1", 80})->at(0) == look_up_number({"127.0.0.1", 80}).at(0));
  CHECK_FALSE(look_up_number({"127.0.0.1", 80}).at(0) == look_up_number({"127.0.0.2", 80}).at(0));
}

}  // namespace name_lookups_test
