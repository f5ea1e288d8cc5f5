#include "http/client.h"

#include <doctest/doctest.h>

#include <optional>

#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;
using http::testing::RawClient;
using http::testing::wait_until;
using namespace std::chrono_literals;

namespace {

struct Fixture {
  SteadyClock clock;
  io::Loop loop{clock};
  std::vector<Exchange> seen;
  std::unique_ptr<Server> server;
  Client client;

  explicit Fixture(uint32_t connections = 2048) : client(loop, connections) {
    serve("127.0.0.1:0");
  }
  void serve(const std::string& address) {
    auto opened =
        Server::open(loop, address, {}, [this](Exchange x) { seen.push_back(std::move(x)); });
    REQUIRE(opened);
    server = std::move(*opened);
  }
  std::string url(const std::string& path = "/") { return "http://" + server->address() + path; }
  bool arrived(size_t n) {
    return wait_until(loop, [&] { return seen.size() >= n; });
  }
};

// One request and what came of it.
struct Call {
  std::optional<Result<ClientResponse>> result;
  std::vector<std::string> chunks;
  std::string streamed;
  int status = 0;
  Client::Id id = 0;

  void send(Fixture& f, ClientRequest request, bool stream) {
    ClientCallbacks calls;
    calls.on_headers = [this](int s, const auto&, Time) { status = s; };
    if (stream)
      calls.on_chunk = [this](std::string_view chunk, Time) {
        chunks.emplace_back(chunk);
        streamed += chunk;
      };
    calls.on_done = [this](Result<ClientResponse> r) {
      CHECK(!result);
      result = std::move(r);
    };
    id = f.client.send(std::move(request), std::move(calls));
  }
  bool wait(Fixture& f) {
    return wait_until(f.loop, [&] { return result.has_value(); });
  }
  Code error() const { return result && !*result ? result->error().code : Code::kInternal; }
};

ClientRequest get(std::string url) {
  ClientRequest r;
  r.url = std::move(url);
  return r;
}

// A server whose connections the test holds itself.
struct RawServer {
  io::Fd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in at{};

  RawServer() {
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::listen(listener.get(), 4) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(ntohs(at.sin_port)) + "/"; }
  static bool readable(io::Loop& loop, int fd) {
    return wait_until(loop, [fd] {
      pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
      return ::poll(&p, 1, 0) == 1;
    });
  }
  io::Fd accept(io::Loop& loop) const {
    REQUIRE(readable(loop, listener.get()));
    return io::Fd(::accept(listener.get(), nullptr, nullptr));
  }
  // Reads a request without a body.
  static void read_request(io::Loop& loop, const io::Fd& fd) {
    std::string text;
    char c = 0;
    while (!text.ends_with("\r\n\r\n")) {
      REQUIRE(readable(loop, fd.get()));
      REQUIRE(::recv(fd.get(), &c, 1, 0) == 1);
      text += c;
    }
  }
  static void answer(const io::Fd& fd, std::string_view body) {
    const std::string text = "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) +
                             "\r\n\r\n" + std::string(body);
    CHECK(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0);
  }
};

}  // namespace

TEST_CASE("a request and its answer cross whole, a large body included") {
  Fixture f;
  Call call;
  ClientRequest r = get(f.url("/p?q=1"));
  r.method = "POST";
  r.headers = {{"X-Tag", "t"}};
  for (int i = 0; i < 3'000'000; ++i) r.body += static_cast<char>('a' + i % 23);
  const std::string body = r.body;
  call.send(f, r, false);
  CHECK(f.client.in_flight() == 1);
  REQUIRE(f.arrived(1));
  const Request& got = f.seen[0].request();
  CHECK(got.method == "POST");
  CHECK(got.path == "/p");
  CHECK(got.query.at("q") == "1");
  CHECK(got.headers.at("x-tag") == "t");
  CHECK((got.body == body));
  f.seen[0].reply(201, "text/plain", body, {{"X-Reply", "r"}});
  REQUIRE(call.wait(f));
  REQUIRE(call.result->has_value());
  const ClientResponse& answer = **call.result;
  CHECK(answer.status == 201);
  CHECK(answer.headers.at("x-reply") == "r");
  CHECK((answer.body == body));
  CHECK(answer.sent <= answer.first_byte);
  CHECK(answer.first_byte <= answer.done);
  CHECK(f.client.in_flight() == 0);
}

TEST_CASE("a path and its query reach the server as they are; they are one line") {
  Fixture f;
  for (const std::string path : {"/p?x={", "/p?include[]=x|y", "/p?x=\xc3\xa9", "/p%zz?x=%zz",
                                 "/p?x=/?a", "/p?q=\"\\^`<>", "?x", ""}) {
    CAPTURE(path);
    Call call;
    call.send(f, get(f.url(path)), false);
    REQUIRE(f.arrived(1));
    CHECK(f.seen[0].request().target == (path.starts_with('/') ? path : "/" + path));
    f.seen[0].reply(200, "text/plain", "ok");
    f.seen.clear();
    REQUIRE(call.wait(f));
    CHECK(call.result->has_value());
  }
  Call fragment;
  fragment.send(f, get(f.url("/p?x#y")), false);
  REQUIRE(f.arrived(1));
  CHECK(f.seen[0].request().target == "/p?x");
  for (const std::string path : {"/a b", "/a\r\nX: y", "/a\x7f", "/\t"}) {
    CAPTURE(path);
    Call call;
    call.send(f, get(f.url(path)), false);
    REQUIRE(call.wait(f));
    CHECK(call.error() == Code::kInvalid);
  }
  CHECK(f.seen.size() == 1);
}

TEST_CASE("a stream arrives chunk by chunk, each before the next is written") {
  Fixture f;
  Call call;
  call.send(f, get(f.url()), true);
  REQUIRE(f.arrived(1));
  const Exchange x = f.seen[0];
  x.start(200, "text/event-stream");
  REQUIRE(wait_until(f.loop, [&] { return call.status == 200; }));
  std::string all;
  for (int i = 0; i < 20; ++i) {
    const std::string event = "data: " + std::to_string(i) + "\n\n";
    x.write(event);
    all += event;
    REQUIRE(wait_until(f.loop, [&] { return call.streamed == all; }));
    CHECK(!call.result);
  }
  CHECK(call.chunks.size() >= 20);
  x.end();
  REQUIRE(call.wait(f));
  REQUIRE(call.result->has_value());
  CHECK((*call.result)->body.empty());
}

TEST_CASE("200 requests in parallel each get their own answer") {
  Fixture f;
  std::vector<Call> calls(200);
  for (size_t i = 0; i < calls.size(); ++i)
    calls[i].send(f, get(f.url("/" + std::to_string(i))), i % 2 == 0);
  REQUIRE(f.arrived(calls.size()));
  for (const Exchange& x : f.seen) {
    x.start(200, "text/plain");
    x.write(x.request().path);
    x.write("!");
    x.end();
  }
  REQUIRE(wait_until(f.loop, [&] { return f.client.in_flight() == 0; }));
  for (size_t i = 0; i < calls.size(); ++i) {
    REQUIRE(calls[i].result->has_value());
    const std::string want = "/" + std::to_string(i) + "!";
    CHECK((i % 2 == 0 ? calls[i].streamed : (*calls[i].result)->body) == want);
  }
}

TEST_CASE("requests one after the other share a connection") {
  Fixture f;
  std::string peer;
  for (int i = 0; i < 5; ++i) {
    Call call;
    call.send(f, get(f.url()), false);
    REQUIRE(f.arrived(1));
    if (i == 0) peer = f.seen[0].request().peer;
    CHECK(f.seen[0].request().peer == peer);
    f.seen[0].reply(200, "text/plain", "ok");
    f.seen.clear();
    REQUIRE(call.wait(f));
  }
}

TEST_CASE("no more connections to a host are opened than allowed; the rest wait their turn") {
  Fixture f(2);
  std::vector<Call> calls(5);
  for (Call& c : calls) c.send(f, get(f.url()), false);
  REQUIRE(f.arrived(2));
  CHECK(!wait_until(
      f.loop, [&] { return f.seen.size() > 2; }, 20ms));
  f.client.cancel(calls[4].id);  // one that waits
  f.client.cancel(calls[0].id);  // one that is under way
  for (size_t done = 0; done < f.seen.size() || f.client.in_flight() > 0;) {
    REQUIRE(wait_until(f.loop, [&] { return f.seen.size() > done || f.client.in_flight() == 0; }));
    for (; done < f.seen.size(); ++done) f.seen[done].reply(200, "text/plain", "ok");
  }
  for (size_t i = 1; i < 4; ++i) CHECK(calls[i].result->has_value());
  CHECK(!calls[0].result);
  CHECK(!calls[4].result);
}

TEST_CASE("a server that is not there is kUnavailable, a bad url kInvalid") {
  Fixture f;
  const std::string url = f.url();
  f.server.reset();
  Call refused, bad, unknown;
  refused.send(f, get(url), false);
  bad.send(f, get("ftp://127.0.0.1/"), false);
  unknown.send(f, get("http://"), false);
  REQUIRE(refused.wait(f));
  REQUIRE(bad.wait(f));
  REQUIRE(unknown.wait(f));
  CHECK(refused.error() == Code::kUnavailable);
  CHECK(refused.result->error().what.find("onnection refused") != std::string::npos);
  CHECK(bad.error() == Code::kInvalid);
  CHECK(unknown.error() == Code::kInvalid);
}

TEST_CASE("a server that dies before the answer is kUnavailable, in the middle of it kCorrupt") {
  Fixture f;
  Call before, middle;
  before.send(f, get(f.url("/before")), true);
  middle.send(f, get(f.url("/middle")), true);
  REQUIRE(f.arrived(2));
  for (const Exchange& x : f.seen)
    if (x.request().path == "/middle") {
      x.start(200, "text/plain");
      x.write("half");
    }
  REQUIRE(wait_until(f.loop, [&] { return middle.streamed == "half"; }));
  f.server.reset();
  REQUIRE(before.wait(f));
  REQUIRE(middle.wait(f));
  CHECK(before.error() == Code::kUnavailable);
  CHECK(middle.error() == Code::kCorrupt);
}

TEST_CASE("a connection that went stale while idle is replaced without the caller noticing") {
  Fixture f;
  const std::string address = f.server->address();
  Call first, second;
  first.send(f, get(f.url()), false);
  REQUIRE(f.arrived(1));
  f.seen[0].reply(200, "text/plain", "ok");
  REQUIRE(first.wait(f));
  f.seen.clear();
  f.server.reset();
  f.serve(address);
  second.send(f, get(f.url()), false);
  REQUIRE(f.arrived(1));
  f.seen[0].reply(200, "text/plain", "again");
  REQUIRE(second.wait(f));
  CHECK((*second.result)->body == "again");
}

TEST_CASE("a request that is tried again gets a new connection where no more are allowed") {
  Fixture f(1);
  const RawServer server;
  Call before, again, other;
  before.send(f, get(server.url()), false);
  io::Fd first = server.accept(f.loop);
  RawServer::read_request(f.loop, first);
  RawServer::answer(first, "before");
  REQUIRE(before.wait(f));
  again.send(f, get(server.url()), false);
  other.send(f, get(server.url()), false);
  RawServer::read_request(f.loop, first);
  first.reset();
  for (Call* const call : {&again, &other}) {  // it keeps its place
    const io::Fd fd = server.accept(f.loop);
    RawServer::read_request(f.loop, fd);
    RawServer::answer(fd, "whole");
    REQUIRE(call->wait(f));
    CHECK((*call->result)->body == "whole");
  }
}

TEST_CASE("an answer that takes too long is kTimeout, and its connection is closed") {
  Fixture f;
  Call call;
  ClientRequest r = get(f.url());
  r.timeout = 50ms;
  call.send(f, r, false);
  REQUIRE(f.arrived(1));
  REQUIRE(call.wait(f));
  CHECK(call.error() == Code::kTimeout);
  CHECK(wait_until(f.loop, [&] { return f.seen[0].gone(); }));
}

TEST_CASE("interim answers are passed over, but not without end") {
  Fixture f;
  RawServer server;
  for (const int interims : {3, 100}) {
    Call call;
    call.send(f, get(server.url()), false);
    const io::Fd fd = server.accept(f.loop);
    std::string answer;
    for (int i = 0; i < interims; ++i) answer += "HTTP/1.1 103 Early Hints\r\n\r\n";
    if (interims == 3) answer += "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    CHECK(::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL) > 0);
    REQUIRE(call.wait(f));
    if (interims == 3) {
      CHECK((*call.result)->body == "ok");
    } else {
      CHECK(call.error() == Code::kCorrupt);
      CHECK(call.result->error().what.find("interim") != std::string::npos);
    }
  }
}

TEST_CASE("F8: an answer larger than its request allows is refused, and its connection closed") {
  Fixture f;
  Call call;
  ClientRequest r = get(f.url());
  r.answer_max = Bytes(1000);
  call.send(f, r, false);
  REQUIRE(f.arrived(1));
  f.seen[0].start(200, "text/plain");
  f.seen[0].write(std::string(1000, 'x'));
  f.seen[0].write("y");
  REQUIRE(call.wait(f));
  CHECK(call.error() == Code::kCorrupt);
  CHECK(call.result->error().what.find("the body is over 1000") != std::string::npos);
  CHECK(wait_until(f.loop, [&] { return f.seen[0].gone(); }));

  Call streamed;  // what is passed on as it comes has no limit
  streamed.send(f, r, true);
  REQUIRE(f.arrived(2));
  f.seen[1].reply(200, "text/plain", std::string(2000, 'x'));
  REQUIRE(streamed.wait(f));
  CHECK(streamed.streamed.size() == 2000);
}

TEST_CASE("a cancelled request never calls back, and the server sees it leave") {
  Fixture f;
  Call call;
  call.send(f, get(f.url()), true);
  REQUIRE(f.arrived(1));
  f.seen[0].start(200, "text/plain");
  f.seen[0].write("x");
  REQUIRE(wait_until(f.loop, [&] { return call.streamed == "x"; }));
  f.client.cancel(call.id);
  CHECK(f.client.in_flight() == 0);
  CHECK(wait_until(f.loop, [&] { return f.seen[0].gone(); }));
  CHECK(!call.result);
}

TEST_CASE("a callback may cancel its own request or destroy the client") {
  Fixture f;
  auto client = std::make_unique<Client>(f.loop);
  bool chunk = false;
  ClientCallbacks calls;
  Client::Id id = 0;
  SUBCASE("cancel") {
    calls.on_chunk = [&](std::string_view, Time) {
      chunk = true;
      client->cancel(id);
    };
  }
  SUBCASE("destroy") {
    calls.on_chunk = [&](std::string_view, Time) {
      chunk = true;
      client.reset();
    };
  }
  calls.on_done = [](Result<ClientResponse>) { FAIL("called back"); };
  id = client->send(get(f.url()), calls);
  REQUIRE(f.arrived(1));
  f.seen[0].start(200, "text/plain");
  f.seen[0].write("x");
  REQUIRE(wait_until(f.loop, [&] { return chunk; }));
  CHECK(wait_until(f.loop, [&] { return f.seen[0].gone(); }));
}

TEST_CASE("an owner that does not turn its loop makes the client stop reading, and loses nothing") {
  Fixture f;
  Call call;
  call.send(f, get(f.url()), true);
  REQUIRE(f.arrived(1));
  const Exchange x = f.seen[0];
  x.start(200, "text/plain");
  constexpr size_t kPieces = 96;
  for (size_t i = 0; i < kPieces; ++i)
    x.write(std::string(1 << 20, static_cast<char>('a' + i % 26)));
  x.end();
  // The loop stands still. What is written leaves until the client holds its fill; then no more
  // does.
  const Time end = f.clock.now() + 20s;
  Time changed = f.clock.now();
  for (size_t unsent = x.unsent(); f.clock.now() < std::min(end, changed + 500ms);)
    if (x.unsent() != unsent) unsent = x.unsent(), changed = f.clock.now();
  CHECK(x.unsent() > 16 << 20);
  REQUIRE(call.wait(f));
  REQUIRE(call.result->has_value());
  REQUIRE(call.streamed.size() == kPieces << 20);
  for (size_t i = 0; i < kPieces; ++i)
    CHECK(call.streamed[i << 20] == static_cast<char>('a' + i % 26));
}

TEST_CASE("HEAD has an answer without a body and keeps the connection") {
  Fixture f;
  for (int i = 0; i < 2; ++i) {
    Call call;
    ClientRequest r = get(f.url());
    r.method = "HEAD";
    call.send(f, r, false);
    REQUIRE(f.arrived(1));
    f.seen[0].reply(200, "text/plain", "not sent");
    f.seen.clear();
    REQUIRE(call.wait(f));
    REQUIRE(call.result->has_value());
    CHECK((*call.result)->body.empty());
  }
}

TEST_CASE("server-sent events come out whole wherever the stream is cut") {
  const std::string text =
      "data: one\n\n: a comment\n\nevent: x\r\ndata: two\r\ndata:three\r\n\r\nid: 7\n\n"
      "data\n\ndatabase: no\n\ndata: [DONE]\n\ndata: unfinished\n";
  const std::vector<std::string> want = {"one", "two\nthree", "", "[DONE]"};
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    CAPTURE(cut);
    SseParser parser;
    std::vector<std::string> got;
    const auto take = [&](std::string_view data) { got.emplace_back(data); };
    CHECK(parser.feed(text.substr(0, cut), take));
    CHECK(parser.feed(text.substr(cut), take));
    CHECK(got == want);
  }
  SseParser bytewise;
  std::vector<std::string> got;
  for (const char c : text)
    CHECK(bytewise.feed({&c, 1}, [&](std::string_view data) { got.emplace_back(data); }));
  CHECK(got == want);
}

TEST_CASE("an event without end is refused at 1 MiB") {
  SseParser parser;
  bool good = true;
  int fed = 0;
  for (; good && fed < 100; ++fed)
    good = parser.feed("data: " + std::string(64 * 1024, 'x'), [](std::string_view) {});
  CHECK(!good);
  CHECK(fed <= 17);
}
