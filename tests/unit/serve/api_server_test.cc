#include "serve/frontend/api_server.h"

#include <doctest/doctest.h>

#include "api_site.h"
#include "base/json.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace {

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
  CHECK(count(text, "\"text\":\"A\"") ==
        2);  // one of the worker that goes on with it, and fails too
  CHECK(text.find("data: {\"error\":{") != std::string::npos);
  CHECK(text.find("the batch broke") != std::string::npos);
  CHECK(text.find("[DONE]") == std::string::npos);
}

TEST_CASE("a refusal is 429 with what a client needs to come back") {
  ConductorOptions options = patient();
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
  const auto health = *parse_json(s.ask("/health").body);
  CHECK(health["status"] == "ok");
  CHECK(health["prefill_workers"] == 1);
  CHECK(health["unsynced_workers"] == 0);
  s.ask("/v1/completions", kPrompt);
  const auto state = *parse_json(s.ask("/cluster").body);
  CHECK(state["nodes"].size() == 2);
  CHECK(state["hit_tokens"] == 16);
  CHECK(
      s.ask("/metrics").body.find(R"(mc_conductor_requests_total{code="200",reason="length"} 1)") !=
      std::string::npos);
  const auto route = *parse_json(s.ask("/debug/route?prompt=abc").body);
  CHECK(route["prefill"] == "p0");
  CHECK(route["decode"] == "d0");
  CHECK(route["candidates"].size() == 1);
  CHECK(route["decode_candidates"][0]["usable"] == true);
  CHECK(s.ask("/debug/route").status == 400);
  s.conductor->drain();
  CHECK(s.ask("/ready").status == 503);
  CHECK(s.ask("/v1/completions", kPrompt).status == 503);
}

TEST_CASE("a request can be explained afterwards: its candidates, what was predicted, what came") {
  Site s;
  CHECK(s.ask("/v1/completions", kPrompt).status == 200);
  const auto j = *parse_json(s.ask("/explain/mine").body);
  CHECK(j["prompt_tokens"] == 29);
  REQUIRE(j["decisions"].size() == 1);
  CHECK(j["decisions"][0]["prefill"] == "p0");
  CHECK(j["decisions"][0]["decode"] == "d0");
  CHECK(j["decisions"][0]["candidates"][0]["name"] == "p0");
  CHECK(j["outcome"]["status"] == 200);
  CHECK(j["outcome"]["cached_tokens"] == 16);
  CHECK(j["outcome"]["predicted_ttft_ms"] > 0.0);
  const auto unknown = s.ask("/explain/other");
  CHECK(unknown.status == 404);
  CHECK((*parse_json(unknown.body))["error"]["code"] == "unknown_request");
}

TEST_CASE("the settings are shown as they were given") {
  Site s(patient(), {.http = "127.0.0.1:0"}, R"({"policy": {"value": "rr", "origin": "flag"}})");
  CHECK((*parse_json(s.ask("/config").body))["policy"]["origin"] == "flag");
}

TEST_CASE("text is turned to tokens and back") {
  Site s;
  const auto j = *parse_json(s.ask("/tokenize", R"({"prompt":"abc"})").body);
  CHECK(j["count"] == 3);
  CHECK(j["tokens"] == Json({97, 98, 99}));
  CHECK(j["max_model_len"] == 262144);
  const auto back = *parse_json(s.ask("/detokenize", R"({"tokens":[97,98,99]})").body);
  CHECK(back["prompt"] == "abc");
  const auto chat = *parse_json(
      s.ask("/tokenize", R"({"model":"tiny","messages":[{"role":"user","content":"x"}]})").body);
  CHECK(chat["count"] > 1);
  CHECK(s.ask("/tokenize", R"({"prompt":7})").status == 400);
  CHECK(s.ask("/tokenize", R"({"prompt":"a","messages":[]})").status == 400);
  CHECK(s.ask("/tokenize", R"({"prompt":"a","model":"other"})").status == 404);
  CHECK(s.ask("/detokenize", R"({"tokens":[99999999]})").status == 400);
  CHECK(s.ask("/detokenize", R"({"tokens":"abc"})").status == 400);
}

TEST_CASE("tokens that come together are one event where that is wanted") {
  Site s(patient(), {.http = "127.0.0.1:0", .coalesce = true});
  const auto text = s.stream("/v1/completions", kStream);
  CHECK(count(text, "data: ") == 3);  // the text, the usage, [DONE]
  CHECK(text.find(R"("text":"AB")") != std::string::npos);
  CHECK(text.find(R"("completion_tokens":2)") != std::string::npos);
}

TEST_CASE("every chunk has the usage so far where that is wanted") {
  Site s;
  const auto text =
      s.stream("/v1/completions",
               R"({"model":"tiny","prompt":"hello","stream":true,"max_completion_tokens":9,)"
               R"("stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
  CHECK(count(text, "\"usage\":{") == 3);
  CHECK(text.find(R"("completion_tokens":1,)") != std::string::npos);
  REQUIRE(!s.d[0]->reserved.empty());
  CHECK(s.d[0]->reserved[0].max_tokens == 9);
}

TEST_CASE("a client that does not read its stream is given up, and its worker told") {
  Site s;
  s.p[0]->then = nullptr;
  http::testing::RawClient client(s.loop, s.api->http());
  const std::string body = R"({"model":"tiny","prompt":"hello","stream":true,"max_tokens":100000})";
  client.send(strf("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\n"
                   "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                   body.size()) +
              body);
  REQUIRE(until(s.loop, [&] { return s.p[0]->prefills.size() == 1; }));
  const std::string request = s.p[0]->prefills[0];
  const std::vector<int32_t> some(1000, 65);
  size_t sent = 0;
  REQUIRE(until(s.loop, [&] {
    if (s.conductor->in_flight() > 0) s.d[0]->send(request, some, "");
    ++sent;
    return !s.d[0]->aborted.empty();
  }));
  CHECK(sent > 2);  // what sockets hold comes first
  CHECK(s.conductor->in_flight() == 0);
  CHECK(s.conductor->explain("mine")["outcome"]["reason"] == "the client reads too slowly");
}
