// F11: requests that RFC 9112 refuses, one a row; and what a parser makes of them.
#include "http/strict.h"

#include <doctest/doctest.h>

#include "http/parser.h"

using namespace mc;
using namespace mc::http;

namespace strict_test {
namespace {

struct Seen final : Parser::Events {
  Head head;
  std::string body;
  bool on_head(const Head& h) override {
    head = h;
    return true;
  }
  bool on_body(std::string_view piece) override {
    body += piece;
    return true;
  }
};

// Feeds it in pieces until it is complete or refused.
Parser::Outcome parse(Parser::Role role, std::string_view bytes, size_t piece, Seen& seen,
                      std::string& what) {
  Parser parser(role, 4096, seen);
  auto outcome = Parser::Outcome::kMore;
  while (!bytes.empty() && outcome == Parser::Outcome::kMore) {
    size_t consumed = 0;
    outcome = parser.feed(bytes.substr(0, piece), consumed);
    bytes.remove_prefix(consumed);
  }
  what = parser.what();
  return outcome;
}

}  // namespace

TEST_CASE("F11: requests that RFC 9112 forbids are refused, whole and byte by byte") {
  struct Row {
    const char* says;
    const char* bytes;
  };
  const Row rows[] = {
      {"name has", "GET / HTTP/1.1\r\nHost : x\r\n\r\n"},
      {"name has", "GET / HTTP/1.1\r\nHost: x\r\nContent-Length : 4\r\n\r\nabcd"},
      {"name has", "GET / HTTP/1.1\r\nHost: x\r\nX y: 1\r\n\r\n"},
      {"name has", "GET / HTTP/1.1\r\nHost: x\r\n: 1\r\n\r\n"},
      {"carriage return", "GET / HTTP/1.1\nHost: x\n\n"},
      {"carriage return", "GET / HTTP/1.1\r\nHost: x\nX: 1\r\n\r\n"},
      {"carriage return", "GET / HTTP/1.1\r\nHost: x\r\n\n"},
      {"carriage return", "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"carriage return", "GET / HTTP/1.1\r\nHost: x\rX: 1\r\n\r\n"},
      {"", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"},
      {"folded", "GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n\tb\r\n\r\n"},
      {"folded", "GET / HTTP/1.1\r\n Host: x\r\n\r\n"},
      {"without a colon", "GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n"},
      {"second Host", "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"},
      {"second Host", "GET / HTTP/1.0\r\nHost: x\r\nhost: y\r\n\r\n"},
      {"no Host", "GET / HTTP/1.1\r\n\r\n"},
      {"Host is no", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"},
      {"Host is no", "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n"},
      {"Host is no", "GET / HTTP/1.1\r\nHost: me@x\r\n\r\n"},
      {"host is no", "GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"host is no", "GET http://me@x/ HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"neither", "GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"no Host", "GET http://x/ HTTP/1.1\r\n\r\n"},
      {"both",
       "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {"both",
       "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n"},
      {"second Content-Length",
       "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"},
      {"no number", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4, 5\r\n\r\nabcd"},
      {"no number", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\nabcd"},
      {"no number", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"},
      {"no number", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x4\r\n\r\nabcd"},
      {"no number", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n"},
      {"", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n"},
      {"other than chunked",
       "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n"},
      {"other than chunked", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n"},
      {"other than chunked", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n"},
      {"second Transfer",
       "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
       "chunked\r\n\r\n"},
      {"HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {"control", "GET / HTTP/1.1\r\nHost: x\r\nX: a\x01\r\n\r\n"},
      {"control", "GET / HTTP/1.1\r\nHost: x\r\nX\x7f: a\r\n\r\n"},
      {"control", "\x16\x03\x01\x02"},
      {"neither a path", "GET x HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"neither a path", "CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"", "GET / HTTP/9.9\r\nHost: x\r\n\r\n"},
      {"", "GET / HTTP/2.0\r\nHost: x\r\n\r\n"},
      {"", "GET  / HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"", "GET / HTTP/1.1 \r\nHost: x\r\n\r\n"},
      {"", "GET\r\nHost: x\r\n\r\n"},
  };
  for (const Row& row : rows)
    for (const size_t piece : {size_t{1} << 20, size_t{1}}) {
      CAPTURE(std::string(row.bytes));
      CAPTURE(piece);
      Seen seen;
      std::string what;
      CHECK(parse(Parser::Role::kRequest, row.bytes, piece, seen, what) == Parser::Outcome::kBad);
      CHECK_MESSAGE(what.find(row.says) != std::string::npos, what);
      CHECK(seen.head.method.empty());  // nobody saw it
    }
}

TEST_CASE("F11: chunks that RFC 9112 forbids are refused, whole and byte by byte") {
  const char* const rows[] = {
      "zz\r\n",
      "-1\r\nabc\r\n0\r\n\r\n",
      "0x3\r\nabc\r\n0\r\n\r\n",
      "3 \r\nabc\r\n0\r\n\r\n",
      " 3\r\nabc\r\n0\r\n\r\n",
      "3\nabc\r\n0\r\n\r\n",
      "3\r\nabc\n0\r\n\r\n",
      "3\r\nabcd\r\n0\r\n\r\n",
      "3;a\nb\r\nabc\r\n0\r\n\r\n",
      "3;a=\"\n\"\r\nabc\r\n0\r\n\r\n",
      "3;a\x01\r\nabc\r\n0\r\n\r\n",
      "10000000000000003\r\nabc\r\n0\r\n\r\n",
      "3\r\nabc\r\n0\r\nX\nY: 1\r\n\r\n",
  };
  for (const char* const row : rows)
    for (const size_t piece : {size_t{1} << 20, size_t{1}}) {
      CAPTURE(std::string(row));
      CAPTURE(piece);
      Seen seen;
      std::string what;
      const std::string bytes =
          std::string("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n") + row;
      CHECK(parse(Parser::Role::kRequest, bytes, piece, seen, what) == Parser::Outcome::kBad);
    }
}

TEST_CASE("of a target that is a whole URL the host counts, and what is behind it") {
  struct Row {
    const char *target, *host, *left;
  };
  const Row rows[] = {
      {"http://x:80/a/b?c=http://d/", "x:80", "/a/b?c=http://d/"},
      {"HTTPS://[::1]:80/a", "[::1]:80", "/a"},
      {"http://x", "x", "/"},
      {"http://x?q", "x", "/?q"},
      {"/http://x/", "other", "/http://x/"},
      {"*", "other", "*"},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.target));
    Seen seen;
    std::string what;
    const std::string bytes = std::string("GET ") + row.target + " HTTP/1.1\r\nHost: other\r\n\r\n";
    const auto outcome = parse(Parser::Role::kRequest, bytes, bytes.size(), seen, what);
    CHECK_MESSAGE(outcome == Parser::Outcome::kComplete, what);
    CHECK(seen.head.target == row.left);
    CHECK(seen.head.headers.at("host") == row.host);
  }
}

TEST_CASE("what RFC 9112 allows is read, whole and byte by byte") {
  struct Row {
    const char* bytes;
    const char* body;
  };
  const Row rows[] = {
      {"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", ""},
      {"GET / HTTP/1.0\r\n\r\n", ""},
      {"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", ""},
      {"OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n", ""},
      {"POST / HTTP/1.1\r\nHOST:[::1]:80\r\nContent-Length: 4\t\r\nX:\xc3\xa4\r\n\r\nabcd", "abcd"},
      {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", ""},
      {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
       "3;a=b;c=\"d\"\r\nabc\r\n02\r\nde\r\n0;x\r\nA: 1\r\n\r\n",
       "abcde"},
  };
  for (const Row& row : rows)
    for (const size_t piece : {size_t{1} << 20, size_t{1}}) {
      CAPTURE(std::string(row.bytes));
      CAPTURE(piece);
      Seen seen;
      std::string what;
      const auto outcome = parse(Parser::Role::kRequest, row.bytes, piece, seen, what);
      CHECK_MESSAGE(outcome == Parser::Outcome::kComplete, what);
      CHECK(seen.body == row.body);
    }
}

TEST_CASE("answers are read as strictly, and end with their connection when nothing else says") {
  const char* const bad[] = {
      "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
      "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
      "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
      "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
      "ICY 200 OK\r\n\r\n",
  };
  for (const char* const row : bad) {
    CAPTURE(std::string(row));
    Seen seen;
    std::string what;
    CHECK(parse(Parser::Role::kResponse, row, 1 << 20, seen, what) == Parser::Outcome::kBad);
  }
  Seen seen;
  Parser parser(Parser::Role::kResponse, 4096, seen);
  const std::string interim = "HTTP/1.1 100 Continue\r\n\r\n";
  const std::string answer = "HTTP/1.1 200 OK\r\nX: 1\r\n\r\nuntil the end";
  size_t consumed = 0;
  CHECK(parser.feed(interim + answer, consumed) == Parser::Outcome::kComplete);
  CHECK(consumed == interim.size());
  CHECK(seen.head.status == 100);
  CHECK(parser.feed(answer, consumed) == Parser::Outcome::kMore);
  CHECK(consumed == answer.size());
  CHECK(parser.feed_end() == Parser::Outcome::kComplete);
  CHECK(seen.head.status == 200);
  CHECK(seen.body == "until the end");
  CHECK(!parser.head().keep_alive);
  CHECK(parser.feed_end() == Parser::Outcome::kMore);
}

TEST_CASE("a message ends where it ends: what follows is the next one's") {
  Seen seen;
  Parser parser(Parser::Role::kRequest, 4096, seen);
  const std::string first =
      "POST /1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  const std::string second = "GET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  for (size_t cut = 1; cut < first.size(); ++cut) {
    CAPTURE(cut);
    size_t consumed = 0;
    seen.body.clear();
    REQUIRE(parser.feed(first.substr(0, cut), consumed) == Parser::Outcome::kMore);
    CHECK(consumed == cut);
    CHECK(parser.started());
    REQUIRE(parser.feed(first.substr(cut) + second, consumed) == Parser::Outcome::kComplete);
    CHECK(consumed == first.size() - cut);
    CHECK(seen.body == "abc");
    CHECK(!parser.started());
    REQUIRE(parser.feed(second, consumed) == Parser::Outcome::kComplete);
    CHECK(seen.head.target == "/2");
    CHECK(!parser.head().keep_alive);
  }
  size_t consumed = 0;
  CHECK(parser.feed("\r\n\r\n", consumed) == Parser::Outcome::kMore);
  CHECK(!parser.started());  // F10: empty lines begin no request
}

TEST_CASE("a chunk's line and trailers without end are refused at the limit of a header") {
  for (const char* const line : {"3;", "0\r\nX: "}) {
    CAPTURE(line);
    Seen seen;
    Parser parser(Parser::Role::kRequest, 4096, seen);
    size_t consumed = 0;
    REQUIRE(parser.feed("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                        consumed) == Parser::Outcome::kMore);
    REQUIRE(parser.feed(line, consumed) == Parser::Outcome::kMore);
    auto outcome = Parser::Outcome::kMore;
    for (int i = 0; i < 100 && outcome == Parser::Outcome::kMore; ++i)
      outcome = parser.feed(std::string(100, 'x'), consumed);
    CHECK(outcome == Parser::Outcome::kHeaderTooLarge);
  }
}

}  // namespace strict_test
