#include "serve/front.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "conductor_fakes.h"
#include "http/client.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace {

struct Site : Cluster {
  explicit Site(ConductorOptions options = quick()) : Cluster(1, 1, options) {
    front = *Front::open(loop, "127.0.0.1:0", *conductor, metrics);
  }
  http::Client::Id send(const std::string& path, const std::string& body,
                        Result<http::ClientResponse>& answer, bool& done, std::string* stream) {
    http::ClientRequest r;
    r.method = body.empty() ? "GET" : "POST";
    r.url = "http://" + front->http() + path;
    r.headers = {{"x-request-id", "mine"}};
    r.body = body;
    http::ClientCallbacks calls;
    if (stream != nullptr)
      calls.on_chunk = [stream](std::string_view chunk, Time) { stream->append(chunk); };
    calls.on_done = [&answer, &done](Result<http::ClientResponse> a) {
      answer = std::move(a);
      done = true;
    };
    return client.send(std::move(r), std::move(calls));
  }
  http::ClientResponse ask(const std::string& path, const std::string& body = {}) {
    Result<http::ClientResponse> answer;
    bool done = false;
    send(path, body, answer, done, nullptr);
    REQUIRE(until(loop, [&] { return done; }));
    REQUIRE_MESSAGE(answer, answer.error().what);
    return *answer;
  }
  std::string stream(const std::string& path, const std::string& body) {
    Result<http::ClientResponse> answer;
    bool done = false;
    std::string text;
    send(path, body, answer, done, &text);
    REQUIRE(until(loop, [&] { return done; }));
    return text;
  }
  std::unique_ptr<Front> front;
  http::Client client{loop};
};

const char* const kPrompt = R"({"model":"tiny","prompt":"hello there, this is a prompt"})";
const char* const kStream =
    R"({"model":"tiny","prompt":"hello","stream":true,"stream_options":{"include_usage":true}})";

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("a completion answers with text, usage and where it was made") {
  Site s;
  const auto r = s.ask("/v1/completions", kPrompt);
  CHECK(r.status == 200);
  CHECK(r.headers.at("x-request-id") == "mine");
  CHECK(r.headers.at("x-mc-prefill") == "p0");
  CHECK(r.headers.at("x-mc-decode") == "d0");
  CHECK(r.headers.at("x-mc-cached-tokens") == "16");
  const auto j = *parse_json(r.body);
  CHECK(j["choices"][0]["text"] == "AB");
  CHECK(j["choices"][0]["finish_reason"] == "length");
  CHECK(j["usage"]["completion_tokens"] == 2);
  CHECK(j["usage"]["prompt_tokens_details"]["cached_tokens"] == 16);
}

TEST_CASE("a stream has an event a token, the usage, and [DONE]") {
  Site s;
  const auto text = s.stream("/v1/completions", kStream);
  CHECK(count(text, "data: ") == 4);
  CHECK(text.find("\"text\":\"A\"") < text.find("\"text\":\"B\""));
  CHECK(count(text, "\"usage\":null") == 2);
  CHECK(count(text, "\"mc\":{") == 1);
  CHECK(text.ends_with("data: [DONE]\n\n"));
  const auto chat =
      s.stream("/v1/chat/completions",
               R"({"model":"tiny","messages":[{"role":"user","content":"x"}],"stream":true})");
  CHECK(count(chat, "\"role\":\"assistant\"") == 1);
  CHECK(count(chat, "data: ") == 3);
}

TEST_CASE("a stop string ends the stream and frees the decode worker") {
  Site s;
  s.p[0]->then = [&](const std::string& r) { s.d[0]->send(r, {65, 66, 67}, ""); };
  const auto text =
      s.stream("/v1/completions", R"({"model":"tiny","prompt":"x","stream":true,"stop":["B"]})");
  CHECK(count(text, "\"finish_reason\":\"stop\"") == 1);
  CHECK(text.find("\"text\":\"C\"") == std::string::npos);
  CHECK(text.ends_with("data: [DONE]\n\n"));
  REQUIRE(until(s.loop, [&] { return !s.d[0]->aborted.empty(); }));
  CHECK(s.conductor->in_flight() == 0);
}

TEST_CASE("a failure in mid-stream is an error event, and no [DONE]") {
  Site s;
  s.p[0]->then = [&](const std::string& r) {
    s.d[0]->send(r, {65}, "");
    s.d[0]->send(r, {}, "error", "the batch broke");
  };
  const auto text = s.stream("/v1/completions", kStream);
  CHECK(count(text, "\"text\":\"A\"") == 1);
  CHECK(text.find("data: {\"error\":{") != std::string::npos);
  CHECK(text.find("the batch broke") != std::string::npos);
  CHECK(text.find("[DONE]") == std::string::npos);
}

TEST_CASE("a refusal is 429 with what a client needs to come back") {
  ConductorOptions options = quick();
  options.admission.ttft_slo = 1ns;
  Site s(options);
  const auto r = s.ask("/v1/completions", kStream);
  CHECK(r.status == 429);
  CHECK(r.headers.at("x-mc-reject-reason") == "ttft_slo");
  CHECK(r.headers.at("retry-after") == "1");
  CHECK(r.headers.contains("x-mc-predicted-ttft-ms"));
  CHECK((*parse_json(r.body))["error"]["type"] == "rate_limit_error");
}

TEST_CASE("bad requests get OpenAI errors and leave the server serving") {
  Site s;
  CHECK(s.ask("/v1/completions", "{").status == 400);
  const auto r = s.ask("/v1/completions", R"({"model":"other","prompt":"x"})");
  CHECK(r.status == 404);
  CHECK((*parse_json(r.body))["error"]["code"] == "model_not_found");
  CHECK(s.ask("/v1/completions").status == 405);
  CHECK(s.ask("/v1/nothing").status == 404);
  CHECK(s.ask("/v1/completions", kPrompt).status == 200);
}

TEST_CASE("a client that hangs up aborts its request on both sides") {
  Site s;
  s.p[0]->silent = true;
  Result<http::ClientResponse> answer;
  bool done = false;
  const auto id = s.send("/v1/completions", kStream, answer, done, nullptr);
  REQUIRE(until(s.loop, [&] { return s.p[0]->prefills.size() == 1; }));
  s.client.cancel(id);
  REQUIRE(until(s.loop, [&] { return !s.d[0]->aborted.empty() && !s.p[0]->aborted.empty(); }));
  CHECK(s.conductor->in_flight() == 0);
}

TEST_CASE("people see models, state, metrics and what would be decided") {
  Site s;
  CHECK((*parse_json(s.ask("/v1/models").body))["data"][0]["id"] == "tiny");
  CHECK(s.ask("/ready").status == 200);
  CHECK(s.ask("/live").status == 200);
  CHECK(s.ask("/health").status == 200);
  s.ask("/v1/completions", kPrompt);
  const auto state = *parse_json(s.ask("/cluster").body);
  CHECK(state["nodes"].size() == 2);
  CHECK(state["hit_tokens"] == 16);
  CHECK(
      s.ask("/metrics").body.find(R"(mc_conductor_requests_total{code="200",reason="length"} 1)") !=
      std::string::npos);
  CHECK((*parse_json(s.ask("/debug/route?prompt=abc").body))["prefill"] == "p0");
  CHECK(s.ask("/debug/route").status == 400);
  s.conductor->drain();
  CHECK(s.ask("/ready").status == 503);
  CHECK(s.ask("/v1/completions", kPrompt).status == 503);
}
