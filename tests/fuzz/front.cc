// What clients may send to the API server, fuzzed: an input that begins with '{' or '[' is a body,
// asked of every page that takes one; any other is a conversation of raw HTTP, sent in pieces. A
// body gets one whole answer of JSON a page; a conversation ends, its parser does not mind where
// the pieces part; and the server serves on, with nothing left open.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "http/client.h"
#include "http/parser.h"
#include "io/address.h"
#include "io/fd.h"
#include "serve/frontend/api_server.h"
#include "serve/frontend/tenants.h"
#include "telemetry/trace_context.h"
#include "tests/fuzz/target.h"

using namespace mc;

namespace {

constexpr Duration kTurn = std::chrono::milliseconds(1);
constexpr Duration kLongest = std::chrono::seconds(10);

// An API server with nothing behind it: every request is refused, by what it says or for want of
// workers.
struct Site {
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  std::unique_ptr<serve::Conductor> conductor;
  std::unique_ptr<serve::ApiServer> api;
  Site() {
    (void)set_up_logs("front", "error", "text");
    serve::ConductorOptions o;
    o.listen = "127.0.0.1:0";
    o.block_size = 16;
    auto opened = serve::Conductor::open(loop, o, 1, metrics);
    MC_CHECK(opened.has_value());
    conductor = std::move(*opened);
    serve::ApiServerOptions web;
    web.http = "127.0.0.1:0";
    web.connections = 64;
    auto served = serve::ApiServer::open(loop, web, *conductor, metrics);
    MC_CHECK(served.has_value());
    api = std::move(*served);
  }
  void until(const std::function<bool()>& done) {
    const Time end = clock.now() + kLongest;
    while (!done()) {
      MC_CHECK(clock.now() < end);  // it hangs
      MC_CHECK(loop.turn(kTurn).has_value());
    }
  }
};

Site& site() {
  static Site s;
  return s;
}

// Sends it all, says that it is done where it should, and reads to the end: what came.
std::string converse(const std::string& text, size_t piece, bool done) {
  Site& s = site();
  const auto where = io::parse_address(s.api->http());
  const io::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(where->port);
  ::inet_pton(AF_INET, where->host.c_str(), &to.sin_addr);
  MC_CHECK(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  std::string_view rest = text;
  std::string answer;
  s.until([&] {
    char buffer[16384];
    while (!rest.empty()) {
      const auto n =
          ::send(fd.get(), rest.data(), std::min(piece, rest.size()), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) break;
      rest = n < 0 ? std::string_view() : rest.substr(static_cast<size_t>(n));  // it hung up
      if (rest.empty() && done) ::shutdown(fd.get(), SHUT_WR);
    }
    for (;;) {
      const auto n = ::recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) return false;
      if (n <= 0) return true;
      answer.append(buffer, static_cast<size_t>(n));
    }
  });
  return answer;
}

// What a parser makes of it, a piece at a time.
struct Reading final : http::Parser::Events {
  std::string seen;
  bool on_head(const http::Head& head) override {
    seen += strf("%s %s %d %d;", head.method.c_str(), head.target.c_str(), head.status,
                 head.keep_alive ? 1 : 0);
    for (const auto& [name, value] : head.headers) seen += name + "=" + value + ";";
    return true;
  }
  bool on_body(std::string_view bytes) override {
    seen += bytes;
    return true;
  }
  static std::string of(http::Parser::Role role, std::string_view input, size_t piece) {
    Reading r;
    http::Parser parser(role, 4096, r);
    while (!input.empty()) {
      size_t consumed = 0;
      const auto outcome = parser.feed(input.substr(0, piece), consumed);
      MC_CHECK(consumed <= std::min(piece, input.size()));
      input.remove_prefix(consumed);
      if (outcome == http::Parser::Outcome::kComplete) r.seen += "|";
      if (outcome == http::Parser::Outcome::kComplete || outcome == http::Parser::Outcome::kMore)
        continue;
      // Where a header grows too large is seen a piece sooner or later.
      return r.seen + (outcome == http::Parser::Outcome::kBad ? "bad" : "stopped");
    }
    return r.seen + (parser.started() ? "open" : "");
  }
};

void read_raw(std::string_view input) {
  for (const auto role : {http::Parser::Role::kRequest, http::Parser::Role::kResponse}) {
    const std::string whole = Reading::of(role, input, input.size());
    const std::string pieces = Reading::of(role, input, 7);
    MC_CHECK(whole == pieces || whole.ends_with("stopped") || pieces.ends_with("stopped"));
  }
  std::vector<std::string> at_once, one_by_one;
  http::SseParser all, bytes;
  bool good = all.feed(input, [&](std::string_view d) { at_once.emplace_back(d); });
  for (const char& c : input)
    good = good && bytes.feed({&c, 1}, [&](std::string_view d) { one_by_one.emplace_back(d); });
  MC_CHECK(!good || at_once == one_by_one);
}

// A model's answer, in which calls of tools are looked for: the same however it is cut.
std::string called(model::ToolCallFormat format, std::string_view text, size_t piece) {
  static const serve::ToolUse tools{
      {"f"},
      true,
      {{"f", serve::parameter_types({{"properties", {{"i", {{"type", "integer"}}}}}})}}};
  serve::ToolStream stream(format, tools, 1);
  std::vector<serve::ToolPiece> pieces;
  for (size_t at = 0; at < text.size(); at += piece) stream.push(text.substr(at, piece), pieces);
  stream.flush(pieces);
  std::string all;
  for (const serve::ToolPiece& p : pieces)
    all += (p.kind == serve::ToolPiece::Kind::kCall ? "\x01" + p.id : "") + p.text;
  return all;
}

void read_calls(std::string_view input) {
  for (const model::ToolCallFormat f : model::kToolCallFormats)
    MC_CHECK(called(f, input, input.size()) == called(f, input, 1));
}

void ask_pages(const std::string& body) {
  const char* const pages[] = {"/v1/completions", "/v1/chat/completions",
                               "/v1/responses",   "/v1/messages",
                               "/tokenize",       "/v1/messages/render",
                               "/detokenize",     "/v1/responses/render",
                               "/debug/route",    "/query",
                               "/query_by_hash",  "/unregister"};
  for (const char* const page : pages) {
    const std::string head = strf(
        "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Connection: close\r\nContent-Length: %zu\r\n\r\n",
        page, body.size());
    const std::string answer = converse(head + body, body.size() + 300, false);
    const size_t blank = answer.find("\r\n\r\n");
    MC_CHECK(answer.starts_with("HTTP/1.1 ") && blank != std::string::npos);
    const std::string status = answer.substr(9, 3);
    // 503: there is nobody to compute it.
    MC_CHECK(status == "200" || status[0] == '4' || status == "503");
    MC_CHECK(parse_json(answer.substr(blank + 4)).has_value());
  }
  const auto json = parse_json(body);
  if (!json) return;
  const auto engine = serve::parse_external(*json);
  if (engine) MC_CHECK(serve::parse_external(serve::registration_json(*engine)).has_value());
  const auto tenants = serve::Tenants::parse(*json, "input");
  MC_CHECK(tenants || !tenants.error().what.empty());
}

}  // namespace

namespace mc::fuzz {

// The headers of a trace: what is read is written so that it is read the same.
void read_trace(std::string_view text) {
  const auto context = telemetry::read_traceparent(text, text);
  (void)telemetry::read_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                    text);
  (void)telemetry::from_wire(text);
  if (!context) return;
  const auto again = telemetry::read_traceparent(telemetry::traceparent(*context));
  MC_CHECK(again && again->trace == context->trace && again->span == context->span);
}

void run_front(std::string_view text) {
  const std::string input(text);
  read_trace(text);
  if (input.starts_with('{') || input.starts_with('[')) {
    ask_pages(input);
    read_calls(input);
  } else if (!input.empty()) {
    read_raw(input);
    read_calls(input);
    (void)converse(input, 1 + xxh3(input.data(), input.size()) % input.size(), true);
  }
  Site& s = site();
  s.until([&] { return s.api->open_exchanges() == 0 && s.conductor->in_flight() == 0; });
}

std::vector<std::string_view> words_front() {
  return {"GET / HTTP/1.1\r\n\r\n",
          "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
          "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
          "POST /v1/completions HTTP/1.1\r\n",
          "HTTP/1.0",
          "HTTP/2.0",
          "Content-Length: 5\r\n",
          "Content-Length: 18446744073709551616\r\n",
          "Content-Length: -1\r\n",
          "Transfer-Encoding: chunked\r\n",
          "Transfer-Encoding: chunked, identity\r\n",
          "Connection: close\r\n",
          "Connection: upgrade\r\nUpgrade: h2c\r\n",
          "Expect: 100-continue\r\n",
          "ffffffffffffffff\r\n",
          "0\r\n\r\n",
          "\r\n",
          "\n",
          "\r",
          "%00",
          "%2e%2e/",
          "?a=b&a=c",
          "\"model\":\"tiny\"",
          "\"prompt\":\"x\"",
          "\"prompt\":[1,2]",
          "\"prompt\":[[1]]",
          "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]",
          "\"tokens\":[1]",
          "\"max_tokens\":1",
          "\"stream\":true",
          "\"stop\":[\"a\"]",
          "\"input\":[{\"role\":\"user\",\"content\":\"x\"}]",
          "\"type\":\"function_call_output\"",
          "\"type\":\"tool_result\"",
          "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]",
          "<tool_call>{\"name\":\"f\",\"arguments\":{",
          "{\"name\":\"f\",\"parameters\":{}}",
          "[TOOL_CALLS][{",
          "</tool_call>",
          "<tool_call><function=f><parameter=i>",
          "</parameter></function>",
          "<tool_call>f<arg_key>i</arg_key><arg_value>",
          "</arg_value>",
          "\"seq_hashes\":[1]",
          "\"token_ids\":[1]",
          "\"instance_id\":\"a\"",
          "\"keys\":[\"12345678\"]",
          "null",
          "true",
          "-1",
          "1e999",
          "18446744073709551616",
          "\"\\ud800\"",
          "\"\xff\"",
          "[[[[[[[[[[[[[[[[",
          "{}",
          "[]"};
}

}  // namespace mc::fuzz
