// Several answers to one request: choices, prompts, the best of some.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "api_site.h"
#include "base/json.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace {

std::string body(const std::string& members) { return R"({"model":"tiny",)" + members + "}"; }
const std::string kLong = R"("prompt":"a prompt of more than one block of sixteen tokens")";

// A site whose decode worker says what `says` makes of each reservation, in its order.
struct Choices : Site {
  Choices() {
    p[0]->then = [this](const std::string& request) {
      for (size_t i = 0; i < d[0]->reserved.size(); ++i)
        if (d[0]->reserved[i].request == request) says(i, d[0]->reserved[i]);
    };
  }
  // Tokens with a logprob each, where they are wanted.
  void say(const Reserve& m, std::vector<int32_t> tokens, const std::string& finish,
           double logprob = -1) {
    TokenUpdate u;
    u.request = m.request;
    u.finish = finish;
    if (m.controls.logprobs > 0) u.logprobs.assign(tokens.size(), {.logprob = logprob});
    u.tokens = std::move(tokens);
    d[0]->client->call(TokenBatch{"d0", {u}}, 1s, [](const Result<rpc::Empty>&) {});
  }
  std::function<void(size_t, const Reserve&)> says = [this](size_t i, const Reserve& m) {
    say(m, {static_cast<int32_t>('A' + i), '.'}, "length");
  };
  bool idle() {
    return until(loop, [&] { return conductor->in_flight() == 0; });
  }
};

}  // namespace

TEST_CASE("F89: n choices have their index and own seeds, and the first is that of n 1") {
  Choices s;
  const auto r = s.ask("/v1/completions", body(kLong + R"(,"n":3,"seed":5)"));
  REQUIRE(r.status == 200);
  const auto j = *parse_json(r.body);
  REQUIRE(j["choices"].size() == 3);
  std::set<std::string> texts;
  for (size_t i = 0; i < 3; ++i) {
    CHECK(j["choices"][i]["index"] == i);
    CHECK(j["choices"][i]["finish_reason"] == "length");
    texts.insert(j["choices"][i]["text"]);
  }
  CHECK(texts == std::set<std::string>{"A.", "B.", "C."});
  CHECK(j["choices"][0]["text"] == "A.");
  CHECK(j["usage"]["prompt_tokens"] == 49);
  CHECK(j["usage"]["completion_tokens"] == 6);
  CHECK(j["usage"]["prompt_tokens_details"]["cached_tokens"] == 16);  // of the first
  REQUIRE(j["mc"]["choices"].size() == 3);
  REQUIRE(s.d[0]->reserved.size() == 3);
  std::vector<uint64_t> seeds;
  for (const Reserve& m : s.d[0]->reserved) {
    CHECK(m.prompt == s.d[0]->reserved[0].prompt);
    seeds.push_back(m.seed);
  }
  CHECK(seeds[0] == 5);
  CHECK(std::set<uint64_t>(seeds.begin(), seeds.end()).size() == 3);
  (void)s.ask("/v1/completions", body(kLong + R"(,"n":3,"seed":5)"));
  for (size_t i = 0; i < 3; ++i) CHECK(s.d[0]->reserved[3 + i].seed == seeds[i]);
  CHECK(s.ask("/explain/mine.2").status == 200);
}

TEST_CASE("F89: the others begin when the first has its blocks cached, and not before") {
  Choices s;
  std::vector<Reserve> all;
  s.says = [&](size_t, const Reserve& m) { all.push_back(m); };
  Result<http::ClientResponse> answer;
  bool done = false;
  s.send("/v1/completions", body(kLong + R"(,"n":3)"), answer, done, nullptr);
  REQUIRE(until(s.loop, [&] { return all.size() == 1; }));
  CHECK(s.d[0]->reserved.size() == 1);
  CHECK(s.p[0]->committed.empty());
  s.say(all[0], {'x'}, "");
  REQUIRE(until(s.loop, [&] { return all.size() == 3; }));
  CHECK(s.p[0]->committed.size() == 1);  // before the others were allocated
  for (const Reserve& m : all) s.say(m, {'y'}, "length");
  REQUIRE(until(s.loop, [&] { return done; }));
  REQUIRE(answer);
  const auto j = *parse_json(answer->body);
  CHECK(j["choices"][0]["text"] == "xy");
  CHECK(j["choices"][1]["text"] == "y");
  // A prompt that fills no block has none to wait for.
  all.clear();
  done = false;
  s.send("/v1/completions", body(R"("prompt":"x","n":2)"), answer, done, nullptr);
  REQUIRE(until(s.loop, [&] { return all.size() == 2; }));
  for (const Reserve& m : all) s.say(m, {'z'}, "stop");
  REQUIRE(until(s.loop, [&] { return done; }));
}

TEST_CASE("F89: several prompts are answered in their order, with what each begins with") {
  Choices s;
  s.says = [&](size_t, const Reserve& m) { s.say(m, {m.prompt[0]}, "stop"); };
  const auto r =
      s.ask("/v1/completions", body(R"("prompt":["pq",[114,115],"t"],"n":2,"echo":true)"));
  REQUIRE(r.status == 200);
  const auto j = *parse_json(r.body);
  const std::vector<std::string> want = {"pqp", "pqp", "rsr", "rsr", "tt", "tt"};
  REQUIRE(j["choices"].size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    CHECK(j["choices"][i]["index"] == i);
    CHECK(j["choices"][i]["text"] == want[i]);
  }
  CHECK(j["usage"]["prompt_tokens"] == 5);
  CHECK(j["usage"]["completion_tokens"] == 6);
}

TEST_CASE("F89: choices stream side by side, each with its end, and one usage") {
  Choices s;
  const auto text = s.stream(
      "/v1/chat/completions",
      body(R"("messages":[{"role":"user","content":"long enough for a block"}],"n":2,"stream":true,
              "logprobs":true,"stream_options":{"include_usage":true})"));
  std::map<size_t, std::string> said, ends;
  std::map<size_t, size_t> roles, logprobs;
  size_t usages = 0, at = 0;
  while ((at = text.find("data: {", at)) != std::string::npos) {
    at += 6;
    const auto j = *parse_json(text.substr(at, text.find('\n', at) - at));
    if (j["choices"].empty()) {
      ++usages;
      CHECK(j["usage"]["completion_tokens"] == 4);
      CHECK(j["mc"]["choices"].size() == 2);
      continue;
    }
    const Json& c = j["choices"][0];
    const size_t i = c["index"];
    said[i] += c["delta"]["content"];
    roles[i] += c["delta"].contains("role");
    logprobs[i] += c["logprobs"]["content"].size();
    if (!c["finish_reason"].is_null()) ends[i] += c["finish_reason"];
  }
  CHECK(said == std::map<size_t, std::string>{{0, "A."}, {1, "B."}});
  CHECK(ends == std::map<size_t, std::string>{{0, "length"}, {1, "length"}});
  CHECK(roles == std::map<size_t, size_t>{{0, 1}, {1, 1}});
  CHECK(logprobs == std::map<size_t, size_t>{{0, 2}, {1, 2}});
  CHECK(usages == 1);
  CHECK(text.ends_with("data: [DONE]\n\n"));
}

TEST_CASE("a form that only the empty text has is answered at once, and by no worker") {
  Choices s;
  for (const char* const form :
       {R"("guided_regex":"")", R"("guided_regex":"^$")", R"s("guided_regex":"()")s",
        R"("guided_grammar":"root ::= \"\"")"}) {
    CAPTURE(std::string(form));
    const std::string members = kLong + R"(,"n":2,)" + form;
    const auto r = s.ask("/v1/completions", body(members));
    REQUIRE(r.status == 200);
    const auto j = *parse_json(r.body);
    REQUIRE(j["choices"].size() == 2);
    for (const Json& choice : j["choices"]) {
      CHECK(choice["text"] == "");
      CHECK(choice["finish_reason"] == "stop");
    }
    CHECK(j["usage"]["completion_tokens"] == 0);
    CHECK(j["usage"]["prompt_tokens"] > 16);
    const std::string stream = s.stream("/v1/completions", body(members + R"(,"stream":true)"));
    CHECK(stream.find(R"("finish_reason":"stop")") != std::string::npos);
    CHECK(stream.ends_with("data: [DONE]\n\n"));
  }
  CHECK(s.d[0]->reserved.empty());
}

TEST_CASE("F89: best_of gives the answers with the greatest mean logprob, and counts all") {
  Choices s;
  const double logprobs[] = {-3, -1, -2, -0.5};
  s.says = [&](size_t i, const Reserve& m) {
    CHECK(m.controls.logprobs == 1);
    // The sum is no measure: the best has most tokens.
    s.say(m, std::vector<int32_t>(i == 3 ? 9 : 1, static_cast<int32_t>('A' + i)), "stop",
          logprobs[i]);
  };
  const auto r = s.ask("/v1/completions", body(R"("prompt":"x","n":2,"best_of":4)"));
  REQUIRE(r.status == 200);
  const auto j = *parse_json(r.body);
  REQUIRE(j["choices"].size() == 2);
  CHECK(j["choices"][0]["text"] == "DDDDDDDDD");
  CHECK(j["choices"][0]["index"] == 0);
  CHECK(j["choices"][1]["text"] == "B");
  CHECK(j["choices"][1]["index"] == 1);
  CHECK(j["choices"][0]["logprobs"].is_null());  // not asked for
  CHECK(j["usage"]["completion_tokens"] == 12);
}

TEST_CASE("F89: a stop string ends its choice, not the others") {
  Choices s;
  s.says = [&](size_t i, const Reserve& m) {
    s.say(m, {'u', i == 0 ? '!' : 'v', 'w'}, i == 0 ? "" : "length");
  };
  const auto r = s.ask("/v1/completions", body(R"("prompt":"x","n":2,"stop":"!")"));
  const auto j = *parse_json(r.body);
  CHECK(j["choices"][0]["text"] == "u");
  CHECK(j["choices"][0]["finish_reason"] == "stop");
  CHECK(j["choices"][1]["text"] == "uvw");
  CHECK(s.idle());
}

TEST_CASE("F89: one choice's failure ends the request, and the workers hear of the others") {
  for (const bool stream : {false, true}) {
    Choices s;
    s.says = [&](size_t i, const Reserve& m) {
      if (i > 2)  // nor can the worker that goes on with it
        s.d[0]->send(m.request, {}, "error", "it broke");
      else if (i == 1)
        s.d[0]->send(m.request, {'b'}, "");
      else
        s.say(m, {'a'}, "");
      if (i == 2) {
        s.d[0]->send(s.d[0]->reserved[1].request, {}, "error", "it broke");
        for (const Reserve& other : s.d[0]->reserved) CHECK(other.max_tokens == 16);
      }
    };
    const std::string asked =
        body(kLong + R"(,"n":3)" + std::string(stream ? R"(,"stream":true)" : ""));
    if (stream) {
      const auto text = s.stream("/v1/completions", asked);
      CHECK(text.find("it broke") != std::string::npos);
      CHECK(text.find("[DONE]") == std::string::npos);
    } else {
      const auto r = s.ask("/v1/completions", asked);
      CHECK(r.status == 503);
      CHECK(r.body.find("it broke") != std::string::npos);
    }
    CHECK(s.idle());
    const auto aborted = [&](size_t i) {  // besides these the tries of the second may be aborted
      return s.d[0]->aborted.count(s.d[0]->reserved[i].request) == 1;
    };
    REQUIRE(until(s.loop, [&] { return aborted(0) && aborted(2); }));
    const std::string metrics = s.metrics.text();  // nobody left
    CHECK(metrics.find(R"(code="499")") == std::string::npos);
    CHECK(metrics.find(R"(mc_conductor_requests_total{code="503",reason="worker_failed"} 3)") !=
          std::string::npos);
  }
}

TEST_CASE("F89: a client that leaves aborts all choices of its request") {
  Choices s;
  size_t begun = 0;
  s.says = [&](size_t, const Reserve& m) {
    ++begun;
    s.say(m, {'a'}, "");
  };
  Result<http::ClientResponse> answer;
  bool done = false;
  std::string text;
  const auto id =
      s.send("/v1/completions", body(kLong + R"(,"n":4,"stream":true)"), answer, done, &text);
  REQUIRE(until(s.loop, [&] { return begun == 4; }));
  s.client.cancel(id);
  CHECK(s.idle());
  REQUIRE(until(s.loop, [&] { return s.d[0]->aborted.size() == 4; }));
}
