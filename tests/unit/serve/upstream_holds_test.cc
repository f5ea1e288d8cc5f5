// Clients that read more slowly than an engine writes: the engine waits, and the conductor holds
// little of its answer meanwhile.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "http/parser.h"
#include "mixed_site.h"
#include "odd_engine.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace upstream_holds_test {
namespace {

constexpr size_t kBody = 64 * kMiB / kSlow;
// What waits for the client, what was read and not yet written, and what few reads bring.
constexpr size_t kBuffered = 3 * kMiB;

// Events of different lengths, as many as make `bytes`.
std::string events(size_t bytes) {
  std::string out;
  out.reserve(bytes);
  for (size_t i = 0; out.size() < bytes; ++i) {
    std::string one = strf("data: {\"n\":%zu,\"x\":\"", i) + std::string(i % 1009, 'x') + "\"}\n\n";
    out += one.substr(0, bytes - out.size());
  }
  return out;
}

std::string chunked(std::string_view body) {
  std::string out;
  for (size_t piece = 1; !body.empty(); piece = piece % 99'991 + 7'919) {
    const auto chunk = body.substr(0, piece);
    out += strf("%zx\r\n", chunk.size());
    out.append(chunk).append("\r\n");
    body.remove_prefix(chunk.size());
  }
  return out + "0\r\n\r\n";
}

// Compares the first answer with what it must be, and keeps nothing of it.
struct SlowClient final : http::Parser::Events {
  explicit SlowClient(const std::string& address)
      : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int small = 65536;
    REQUIRE(::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    const auto where = io::parse_address(address);
    REQUIRE(where);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(where->port);
    REQUIRE(inet_pton(AF_INET, where->host.c_str(), &to.sin_addr) == 1);
    REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  }
  bool on_head(const http::Head& head) override {
    status = head.status;
    return true;
  }
  bool on_body(std::string_view piece) override {
    if (answers > 0) return true;
    equal = equal && piece == std::string_view(*wanted).substr(came, piece.size());
    came += piece.size();
    return true;
  }
  void ask(const std::string& path, const std::string& body) {
    send(strf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              "X-Request-Id: mine\r\nContent-Length: %zu\r\n\r\n",
              path.c_str(), body.size()) +
         body);
  }
  void send(const std::string& bytes) {
    REQUIRE(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void read_some() {
    char buffer[65536];
    for (int i = 0; i < 8; ++i) {
      const auto n = ::recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      closed = closed || n == 0;
      if (n <= 0) return;
      take({buffer, static_cast<size_t>(n)});
    }
  }
  void take(std::string_view rest) {
    while (!rest.empty()) {
      size_t used = 0;
      const auto outcome = parser.feed(rest, used);
      if (outcome == http::Parser::Outcome::kComplete) ++answers;
      if (outcome != http::Parser::Outcome::kComplete && outcome != http::Parser::Outcome::kMore)
        equal = false;
      if (used == 0) return;
      rest.remove_prefix(used);
    }
  }
  io::Fd fd;
  http::Parser parser{http::Parser::Role::kResponse, 65536, *this};
  const std::string* wanted = nullptr;
  int status = 0, answers = 0;
  size_t came = 0;
  bool equal = true, closed = false;
};

struct FloodSite {
  explicit FloodSite(size_t bytes = kBody, const ApiServerOptions& web = {},
                     const ConductorOptions& conductor = options())
      : m(conductor, false, {}, web), odd(m.loop), body(events(bytes)) {
    odd.floods = true;
    REQUIRE(m.administer("/register", odd.registration("odd")).status == 200);
    REQUIRE(until(m.loop, [&] { return m.conductor->external().find("odd")->up; }));
  }
  static ConductorOptions options() {
    ConductorOptions o = patient();
    o.policy.policy = "rr";
    return o;
  }
  void answers(const std::string& type, bool in_chunks) {
    const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: " + type + "\r\n";
    odd.answer = in_chunks ? head + "Transfer-Encoding: chunked\r\n\r\n" + chunked(body)
                           : head + strf("Content-Length: %zu\r\n\r\n", body.size()) + body;
  }
  // Turns until `done`; the engine writes all that is taken of it.
  bool until_so(const std::function<bool()>& done) {
    return http::testing::wait_until(
        m.loop,
        [&] {
          odd.flood();
          most = std::max(most, m.api->unread());
          return done();
        },
        5min);
  }
  size_t flooded() const {
    size_t n = 0;
    for (const auto& [fd, c] : odd.open) n += c.flooded;
    return n;
  }
  Mixed m;
  OddEngine odd;
  const std::string body;
  size_t most = 0;  // bytes that waited for clients
};

const std::string kAsk = R"({"model":"tiny","prompt":[1,2,3],"stream":)";

}  // namespace

TEST_CASE("an answer of any length reaches a client that reads slowly, and is not kept meanwhile") {
  FloodSite f;
  bool stream = true;
  SUBCASE("a stream in chunks") { f.answers("text/event-stream", true); }
  SUBCASE("a body with its length") {
    f.answers("application/json", false);
    stream = false;
  }
  SlowClient c(f.m.api->http());
  c.wanted = &f.body;
  c.ask("/v1/completions", kAsk + (stream ? "true}" : "false}"));
  REQUIRE(f.until_so([&] { return f.m.api->unread() > kMiB / 2; }));
  // Others are answered meanwhile, on other connections and behind it on the same one.
  CHECK(f.m.ask("/live").status == 200);
  c.send("GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(f.until_so([&] {
    c.read_some();
    return c.answers == 2 || c.closed || !c.equal;
  }));
  CHECK(c.answers == 2);
  CHECK(c.status == 200);
  CHECK(c.came == f.body.size());
  CHECK(c.equal);
  CHECK(f.most > kMiB / 2);
  CHECK(f.most <= kBuffered);
  CHECK(f.m.conductor->external().find("odd")->outliers.failed() == 0);
  CHECK(until(f.m.loop, [&] { return f.m.conductor->external().find("odd")->requests == 0; }));
}

TEST_CASE("a client that leaves while its answer is held closes the engine's connection") {
  FloodSite f;
  f.answers("text/event-stream", true);
  SlowClient c(f.m.api->http());
  c.wanted = &f.body;
  c.ask("/v1/completions", kAsk + "true}");
  REQUIRE(f.until_so([&] { return f.m.api->unread() > kMiB / 2; }));
  c.fd.reset();
  CHECK(f.until_so(
      [&] { return f.m.conductor->external().find("odd")->requests == 0 && f.flooded() == 0; }));
  CHECK(f.most <= kBuffered);
  CHECK(f.m.conductor->external().find("odd")->outliers.failed() == 0);
}

TEST_CASE("a long refusal reaches a client that reads slowly, too") {
  FloodSite f;
  f.odd.answer = strf(
                     "HTTP/1.1 422 No\r\nContent-Type: application/json\r\nContent-Length: %zu"
                     "\r\n\r\n",
                     f.body.size()) +
                 f.body;
  SlowClient c(f.m.api->http());
  c.wanted = &f.body;
  c.ask("/v1/completions", kAsk + "false}");
  REQUIRE(f.until_so([&] { return f.m.api->unread() > kMiB / 2; }));
  REQUIRE(f.until_so([&] {
    c.read_some();
    return c.answers == 1 || c.closed || !c.equal;
  }));
  CHECK(c.status == 422);
  CHECK(c.came == f.body.size());
  CHECK(c.equal);
  CHECK(f.most > kMiB / 2);
  CHECK(f.most <= kBuffered);
}

TEST_CASE("an answer that is held again has its last bytes, though its engine left meanwhile") {
  constexpr size_t kPiece = 8 * kKiB, kChunk = kPiece + 8;  // "2000\r\n", the piece, "\r\n"
  FloodSite f(32 * kMiB);
  f.odd.floods_to_end = true;
  f.odd.flood_most = kPiece;  // so its socket has room while it is held
  f.odd.answer =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  const size_t head = f.odd.answer.size();
  for (size_t at = 0; at < f.body.size(); at += kPiece)
    f.odd.answer.append("2000\r\n").append(f.body, at, kPiece).append("\r\n");
  std::string wanted = f.body;
  SlowClient c(f.m.api->http());
  c.wanted = &wanted;
  c.ask("/v1/completions", kAsk + "true}");
  const auto reads = [&](const std::function<bool()>& done) {
    return f.until_so([&] {
      c.read_some();
      return c.answers == 1 || c.closed || !c.equal || done();
    });
  };
  const auto is_held = [&] {  // little comes after it
    size_t unread = 0;
    int same = 0;
    return f.until_so([&] {
      const size_t now = f.m.api->unread();
      same = now == std::exchange(unread, now) ? same + 1 : 0;
      return now > kMiB / 2 && same >= 24;
    });
  };
  REQUIRE(is_held());
  REQUIRE(reads([&] { return c.came >= f.body.size() / 4; }));
  REQUIRE(c.came > kBuffered + 2 * kMiB);  // so it was read on: no more had come, nor is in sockets
  REQUIRE(is_held());
  // The answer ends with the chunk that is being written.
  const auto& conn = std::find_if(f.odd.open.begin(), f.odd.open.end(), [](const auto& one) {
                       return one.second.floods;
                     })->second;
  const size_t chunks = (conn.flooded - head + kChunk - 1) / kChunk;
  REQUIRE(head + chunks * kChunk < f.odd.answer.size());
  wanted.resize(chunks * kPiece);
  f.odd.answer.resize(head + chunks * kChunk);
  f.odd.answer += "0\r\n\r\n";
  REQUIRE(f.until_so([&] { return f.odd.left > 0; }));
  CHECK(is_held());  // with its end in the socket
  CHECK(f.most <= kBuffered);
  CHECK(c.came < wanted.size());
  REQUIRE(reads([] { return false; }));
  CHECK(c.answers == 1);
  CHECK(c.came == wanted.size());
  CHECK(c.equal);
  CHECK(f.m.conductor->external().find("odd")->outliers.failed() == 0);
}

TEST_CASE("a client that takes nothing of a held answer for long is cut, and its engine aborted") {
  ConductorOptions o = FloodSite::options();
  o.held_timeout = 1s;
  FloodSite f(kBody, {}, o);
  f.answers("text/event-stream", true);
  SlowClient c(f.m.api->http());
  c.wanted = &f.body;
  c.ask("/v1/completions", kAsk + "true}");
  REQUIRE(f.until_so([&] { return f.odd.asked == 1; }));
  REQUIRE(f.until_so([&] { return f.m.api->open_exchanges() == 0; }));
  CHECK(f.most > kMiB / 2);
  REQUIRE(f.until_so([&] {  // its connection is closed
    return std::none_of(f.odd.open.begin(), f.odd.open.end(),
                        [](const auto& one) { return one.second.floods; });
  }));
  const auto outcome = (*parse_json(f.m.ask("/explain/mine").body))["outcome"];
  CHECK(outcome["status"] == 499);
  CHECK(outcome.dump().find("reads too slowly") != std::string::npos);
  CHECK(f.m.conductor->external().find("odd")->outliers.failed() == 0);
}

TEST_CASE("where many clients read slowly each is left less, and none is closed for it") {
  ApiServerOptions web;
  web.answers_max = Bytes{16 * kMiB};
  FloodSite f(2 * kMiB, web);
  f.odd.flood_most = 64 * kKiB;  // else much is under way to the conductor when it holds an answer
  f.answers("text/event-stream", true);
  std::vector<std::unique_ptr<SlowClient>> clients;
  for (int i = 0; i < 20; ++i) {
    auto& c = *clients.emplace_back(std::make_unique<SlowClient>(f.m.api->http()));
    c.wanted = &f.body;
    c.ask("/v1/completions", kAsk + "true}");
    REQUIRE(f.until_so([&] { return f.odd.asked == i + 1; }));
    size_t unread = 0;
    int same = 0;
    REQUIRE(f.until_so([&] {  // until nothing more comes
      const size_t now = f.m.api->unread();
      same = now == std::exchange(unread, now) ? same + 1 : 0;
      return same == 20;
    }));
  }
  f.odd.flood_most = SIZE_MAX;  // from here on one reads at a time
  for (const auto& c : clients) {
    REQUIRE(f.until_so([&] {
      c->read_some();
      return c->answers == 1 || c->closed || !c->equal;
    }));
    CHECK(c->came == f.body.size());
    CHECK(c->equal);
  }
  CHECK(f.most <= 16 * kMiB);
}

}  // namespace upstream_holds_test
