// Pages of other sites that the owner named may ask, and read the answers; others may not.
#include "http/cross_origin.h"

#include <doctest/doctest.h>

#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;

namespace cross_origin_test {
namespace {

constexpr const char* kSite = "https://chat.example";

struct Sites {
  explicit Sites(std::vector<std::string> origins) {
    ServerOptions options;
    options.origins = std::move(origins);
    options.body_max = Bytes{100};
    server = *Server::open(loop, "127.0.0.1:0", options, [this](const Exchange& x) {
      ++handled;
      x.reply(401, "text/plain", "no key\n");
    });
  }
  std::string ask(const std::string& head) {
    http::testing::RawClient c(loop, server->address());
    c.send(head);
    REQUIRE(c.wait_for("\r\n\r\n"));
    return c.received();
  }
  SteadyClock clock;
  io::Loop loop{clock};
  size_t handled = 0;
  std::unique_ptr<Server> server;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string preflight(const std::string& origin) {
  return "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
         "\r\nAccess-Control-Request-Method: POST\r\n"
         "Access-Control-Request-Headers: authorization,content-type\r\n\r\n";
}

}  // namespace

TEST_CASE("a preflight is answered before anyone asks for keys, and answers can be read") {
  Sites s({kSite});
  const std::string may = s.ask(preflight(kSite));
  CHECK(may.starts_with("HTTP/1.1 200 "));
  CHECK(has(may, "access-control-allow-origin: https://chat.example\r\n"));
  CHECK(has(may, "access-control-allow-headers: authorization,content-type\r\n"));
  CHECK(has(may, "access-control-allow-methods: GET, HEAD, POST\r\n"));
  CHECK(s.handled == 0);
  const std::string answer = s.ask(
      "GET /x HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n"
      "Sec-Fetch-Site: cross-site\r\n\r\n");
  CHECK(answer.starts_with("HTTP/1.1 401 "));  // the page has to see why
  CHECK(has(answer, "access-control-allow-origin: https://chat.example\r\n"));
  CHECK(has(answer, "vary: Origin\r\n"));
  CHECK(s.handled == 1);
  const std::string refused = s.ask(
      "POST /x HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n"
      "Content-Length: 101\r\n\r\n");
  CHECK(refused.starts_with("HTTP/1.1 413 "));
  CHECK(has(refused, "access-control-allow-origin: https://chat.example\r\n"));
}

TEST_CASE("sites that are not named are refused as before, and so is a Host that is not ours") {
  Sites s({kSite});
  for (const char* other : {"https://evil.example", "http://chat.example", "null",
                            "https://chat.example.evil.example", "https://chat.example:444"}) {
    CAPTURE(std::string(other));
    const std::string no = s.ask(preflight(other));
    CHECK(no.starts_with("HTTP/1.1 403 "));
    CHECK_FALSE(has(no, "access-control"));
  }
  const std::string odd =
      s.ask("GET / HTTP/1.1\r\nHost: evil.example\r\nOrigin: " + std::string(kSite) + "\r\n\r\n");
  CHECK(odd.starts_with("HTTP/1.1 421 "));
  CHECK(s.handled == 0);
  Sites none({});
  CHECK(none.ask(preflight(kSite)).starts_with("HTTP/1.1 403 "));
  Sites all({"*"});
  CHECK(all.ask(preflight("https://any.example")).starts_with("HTTP/1.1 200 "));
  CHECK(all.ask("OPTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 401 "));
  CHECK(all.handled == 1);  // it is no preflight
}

TEST_CASE("names of headers in a preflight are passed back only where they are names") {
  const HeaderMap asked = {{"origin", kSite},
                           {"access-control-request-method", "POST"},
                           {"access-control-request-headers", "x-a, x\"b"},
                           {"access-control-request-private-network", "true"}};
  const auto answer = preflight_answer("OPTIONS", asked, {kSite});
  REQUIRE(answer);
  const HeaderMap lines(answer->begin(), answer->end());
  CHECK_FALSE(lines.contains("access-control-allow-headers"));
  CHECK(lines.at("access-control-allow-private-network") == "true");
  CHECK_FALSE(preflight_answer("GET", asked, {kSite}));
}

TEST_CASE("what is no origin is refused") {
  for (const char* good : {"*", "https://a.example", "http://localhost:3000", "app://x"})
    CHECK(check_origins({good}));
  for (const char* bad : {"a.example", "https://", "https://a.example/", "https://*.example", ""}) {
    const auto checked = check_origins({bad});
    REQUIRE_FALSE(checked);
    CHECK(checked.error().code == Code::kInvalid);
  }
}

}  // namespace cross_origin_test
