// F11, F12: whose requests a server on loopback takes.
#include "http/web_check.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace mc::http;

namespace web_check_test {
namespace {

using Lines = std::map<std::string, std::string>;

int status_of(const char* method, const Lines& lines, const WebRules& rules) {
  Head head;
  head.method = method;
  head.target = "/";
  head.headers = lines;
  const auto length = lines.find("content-length");
  if (length != lines.end()) head.content_length = std::stoull(length->second);
  const auto refusal = check_web(head, rules);
  return refusal ? refusal->status : 200;
}

}  // namespace

TEST_CASE("F11: a Host that is not ours is misdirected on loopback") {
  struct Row {
    const char* host;
    int loopback, anywhere;
  };
  const Row rows[] = {
      {"127.0.0.1:8000", 200, 200},
      {"127.0.0.1", 200, 200},
      {"127.1.2.3", 200, 200},
      {"localhost:1", 200, 200},
      {"LocalHost", 200, 200},
      {"[::1]:8000", 200, 200},
      {"chat.example", 200, 200},
      {"CHAT.example:443", 200, 200},
      {"evil.example", 421, 200},
      {"localhost.evil.example", 421, 200},
      {"10.0.0.1", 421, 200},
      {"", 421, 200},
      {"127.0.0.1.evil.example", 421, 200},
      {"[::2]", 421, 200},
      {"[", 421, 200},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.host));
    const Lines lines = {{"host", row.host}};
    CHECK(status_of("GET", lines, {.names = {"chat.example"}}) == row.loopback);
    CHECK(status_of("GET", lines, {.loopback = false}) == row.anywhere);
  }
  CHECK(status_of("GET", {}, {}) == 200);  // HTTP/1.0
}

TEST_CASE("F12: another site's page is refused, our own is not") {
  const std::string host = "127.0.0.1:8000";
  struct Row {
    const char* method;
    Lines lines;
    int status;
  };
  const Row rows[] = {
      {"POST", {{"origin", "http://evil.example"}}, 403},
      {"GET", {{"origin", "http://evil.example"}}, 403},
      {"GET", {{"origin", "null"}}, 403},
      {"GET", {{"origin", "http://127.0.0.1:9000"}}, 403},
      {"GET", {{"origin", "http://localhost:8000"}}, 403},
      {"POST", {{"origin", "http://127.0.0.1:8000"}}, 200},
      {"POST", {{"origin", "https://chat.example"}}, 200},  // a proxy's name
      {"POST", {{"sec-fetch-site", "cross-site"}}, 403},
      {"GET", {{"sec-fetch-site", "cross-site"}}, 403},
      {"GET", {{"sec-fetch-site", "cross-site"}, {"sec-fetch-mode", "navigate"}}, 200},   // a link
      {"POST", {{"sec-fetch-site", "cross-site"}, {"sec-fetch-mode", "navigate"}}, 403},  // a form
      {"POST", {{"sec-fetch-site", "same-origin"}, {"origin", "http://127.0.0.1:8000"}}, 200},
      {"GET", {{"sec-fetch-site", "none"}}, 200},
  };
  for (Row row : rows) {
    CAPTURE(row.lines);
    row.lines["host"] = host;
    CHECK(status_of(row.method, row.lines, {.names = {"chat.example"}}) == row.status);
  }
  CHECK(status_of("GET", {{"host", "here"}, {"origin", "http://here"}}, {.names = {"here"}}) ==
        200);
  // A name of the page's own that leads to our address.
  CHECK(status_of("POST", {{"host", "evil.example"}, {"origin", "http://evil.example"}}, {}) ==
        403);
  const WebRules wide{.loopback = false};
  CHECK(status_of("GET", {{"host", "here:80"}, {"origin", "http://here"}}, wide) == 200);
  CHECK(status_of("GET", {{"host", "here:80"}, {"origin", "https://here"}}, wide) == 403);
}

TEST_CASE("a form is taken at the paths that take forms, and nowhere else") {
  WebRules rules{.json_only = true};
  const auto status = [&](const char* type, const std::string& at) {
    rules.forms = [at](std::string_view path) { return path == at; };
    return status_of("POST", {{"content-type", type}, {"content-length", "2"}}, rules);
  };
  const std::string path = "/";
  CHECK(status("multipart/form-data; boundary=x", path) == 200);
  CHECK(status("multipart/form-data; boundary=x", path + "x") == 415);
  CHECK(status("text/plain", path) == 415);
  CHECK(status("application/json", "") == 200);
}

TEST_CASE("F12: a body is JSON and says so") {
  const WebRules rules{.json_only = true};
  struct Row {
    const char* type;
    int status;
  };
  const Row rows[] = {{"application/json", 200},
                      {"Application/JSON; charset=utf-8", 200},
                      {"application/json ;x", 200},
                      {"text/plain", 415},
                      {"text/plain; application/json", 415},
                      {"application/x-www-form-urlencoded", 415},
                      {"", 415}};
  for (const Row& row : rows) {
    CAPTURE(std::string(row.type));
    CHECK(status_of("POST", {{"content-type", row.type}, {"content-length", "2"}}, rules) ==
          row.status);
    CHECK(status_of("POST", {{"content-type", row.type}, {"transfer-encoding", "chunked"}},
                    rules) == row.status);
    CHECK(status_of("POST", {{"content-type", row.type}, {"content-length", "0"}}, rules) == 200);
    CHECK(status_of("GET", {{"content-type", row.type}}, rules) == 200);
  }
}

}  // namespace web_check_test
