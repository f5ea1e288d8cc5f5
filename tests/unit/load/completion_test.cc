#include "load/completion.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace std::chrono_literals;
using load::Completion;
using trace::Status;

namespace {

const Time t0{};

struct Fixture {
  Completion c{{}, t0 + 1s};
  Fixture() {
    c.head(200,
           {{"content-type", "text/event-stream"},
            {"x-mc-prefill", "p0"},
            {"x-mc-decode", "d1"},
            {"x-mc-cached-tokens", "64"}},
           t0 + 1s);
  }
  void event(const std::string& data, Time at) { c.body("data: " + data + "\n\n", at); }
  void token(Time at, const std::string& extra = "") {
    event(R"({"choices":[{"text":"x","finish_reason":null}])" + extra + "}", at);
  }
  void usage(int n) {
    event(R"({"choices":[],"usage":{"completion_tokens":)" + std::to_string(n) + "}}", t0 + 9s);
  }
  trace::RequestResult& end() {
    event("[DONE]", t0 + 9s);
    c.done();
    return c.result();
  }
};

}  // namespace

TEST_CASE("times count from the intended send, and every gap is kept") {
  Fixture f;
  f.token(t0 + 1250ms);
  f.token(t0 + 1300ms);
  f.token(t0 + 1400ms);
  f.usage(3);
  const auto& r = f.end();
  CHECK(r.status == Status::kOk);
  CHECK(r.http == 200);
  CHECK(r.output == 3);
  CHECK(*r.ttft_ms == doctest::Approx(250));
  CHECK(*r.e2e_ms == doctest::Approx(400));
  REQUIRE(r.gaps_ms.size() == 2);
  CHECK(r.gaps_ms[0] == doctest::Approx(50));
  CHECK(r.gaps_ms[1] == doctest::Approx(100));
  CHECK(r.prefill == "p0");
  CHECK(r.decode == "d1");
  CHECK(*r.cached == 64);
  CHECK(!r.queue_ms);
  CHECK(!r.kv_errors);
  CHECK(!f.c.gaps_are_chunks());
}

TEST_CASE("an event of several tokens, counted by its usage, is spread over its gap") {
  Fixture f;
  f.token(t0 + 1100ms, R"(,"usage":{"completion_tokens":1})");
  f.token(t0 + 1400ms, R"(,"usage":{"completion_tokens":4})");
  const auto& r = f.end();
  CHECK(r.output == 4);
  REQUIRE(r.gaps_ms.size() == 3);
  for (const double gap : r.gaps_ms) CHECK(gap == doctest::Approx(100));
  CHECK(!f.c.gaps_are_chunks());
}

TEST_CASE("a usage that no answer can have counts nothing") {
  Fixture f;
  f.token(t0 + 1100ms, R"(,"usage":{"completion_tokens":500000000000})");
  f.token(t0 + 1400ms, R"(,"usage":{"completion_tokens":18446744073709551615})");
  const auto& r = f.end();
  CHECK(r.output == 2);
  CHECK(r.gaps_ms.size() == 1);
}

TEST_CASE("events of several tokens, told only by the last usage, are known to be chunks") {
  Fixture f;
  f.token(t0 + 1100ms);
  f.token(t0 + 1400ms);
  f.usage(8);
  CHECK(f.end().output == 8);
  CHECK(f.c.gaps_are_chunks());
}

TEST_CASE("an event that only says why the answer ended is no token") {
  Fixture f;
  f.token(t0 + 1100ms);
  f.token(t0 + 1200ms);
  f.event(R"({"choices":[{"text":"","finish_reason":"length"}]})", t0 + 1500ms);
  f.usage(2);
  const auto& r = f.end();
  CHECK(r.output == 2);
  CHECK(*r.e2e_ms == doctest::Approx(200));
  CHECK(!f.c.gaps_are_chunks());
}

TEST_CASE("an empty text is still a token: a piece of a character") {
  Fixture f;
  f.token(t0 + 1100ms);
  f.event(R"({"choices":[{"text":"","finish_reason":null}]})", t0 + 1200ms);
  f.usage(2);
  CHECK(f.end().output == 2);
}

TEST_CASE("the parts of the time and the KV errors come from the mc extension") {
  Fixture f;
  f.token(t0 + 1100ms);
  f.event(R"({"choices":[],"usage":{"completion_tokens":1,)"
          R"("prompt_tokens_details":{"cached_tokens":96}},)"
          R"("mc":{"sched_ms":1,"queue_ms":2,"prefill_ms":3,"transfer_ms":4,)"
          R"("load_ms":5,"decode_ms":6,"kv_errors":0}})",
          t0 + 1200ms);
  const auto& r = f.end();
  REQUIRE(r.status == Status::kOk);
  CHECK(*r.cached == 96);
  CHECK(*r.queue_ms == 3);
  CHECK(*r.prefill_ms == 3);
  CHECK(*r.transfer_ms == 9);
  CHECK(*r.kv_errors == 0);
}

TEST_CASE("an error in mid-stream fails the request with its reason") {
  Fixture f;
  f.token(t0 + 1100ms);
  f.event(R"({"error":{"message":"decode worker d1 was lost","type":"server_error","code":null}})",
          t0 + 1200ms);
  const auto& r = f.end();
  CHECK(r.status == Status::kFailed);
  CHECK(r.reason == "decode worker d1 was lost");
  CHECK(r.output == 1);
}

TEST_CASE("the server's name for a request stands in place of the client's") {
  trace::RequestResult sent;
  sent.request_id = "ours";
  Completion named(sent, t0), silent(sent, t0);
  named.head(200, {{"x-request-id", "theirs"}}, t0);
  silent.head(200, {}, t0);
  CHECK(named.result().request_id == "theirs");
  CHECK(silent.result().request_id == "ours");
}

TEST_CASE("a refusal names its reason from the header, else from the body") {
  Completion header({}, t0), body({}, t0), neither({}, t0);
  header.head(429, {{"x-mc-reject-reason", "ttft_slo"}}, t0);
  header.body(R"({"error":{"code":"other"}})", t0);
  header.done();
  CHECK(header.result().status == Status::kRejected);
  CHECK(header.result().reason == "ttft_slo");
  body.head(429, {}, t0);
  body.body(R"({"error":{"message":"long text","code":"queue_full"}})", t0);
  body.done();
  CHECK(body.result().reason == "queue_full");
  neither.head(429, {}, t0);
  neither.done();
  CHECK(neither.result().reason == "429");
}

TEST_CASE("other answers fail with their status and message") {
  Completion c({}, t0);
  c.head(404, {{"content-type", "application/json"}}, t0);
  c.body(R"({"error":{"message":"no such model",)", t0);
  c.body(R"("code":"model_not_found"}})", t0);
  c.done();
  CHECK(c.result().status == Status::kFailed);
  CHECK(c.result().http == 404);
  CHECK(c.result().reason == "HTTP 404: model_not_found");
}

TEST_CASE("what is no stream, ends early or is not JSON fails; nothing is measured that was not") {
  Fixture early;
  early.token(t0 + 1100ms);
  early.c.done();
  CHECK(early.c.result().reason == "the stream ended before [DONE]");
  Fixture empty;
  CHECK(empty.end().reason == "no token came");
  CHECK(!empty.c.result().ttft_ms);
  Fixture garbage;
  garbage.event("{not json", t0 + 1100ms);
  CHECK(garbage.end().status == Status::kFailed);
  Completion plain({}, t0);
  plain.head(200, {{"content-type", "application/json"}}, t0);
  plain.body("{}", t0);
  plain.done();
  CHECK(plain.result().status == Status::kFailed);
  Completion odd({}, t0);
  odd.head(200, {{"content-type", "text/event-stream"}}, t0);
  for (const char* data :
       {"[]", "7", R"({"choices":7})", R"({"choices":[7],"usage":[1]})",
        R"({"choices":[{"text":7}],"usage":{"completion_tokens":-1},"mc":{"queue_ms":"x"}})"})
    odd.body("data: " + std::string(data) + "\n\n", t0);
  odd.done();
  CHECK(odd.result().status == Status::kFailed);
}

TEST_CASE("a timeout, a lost connection and a cancel are told apart") {
  Completion a({}, t0), b({}, t0), c({}, t0);
  a.failed({Code::kTimeout, "no answer"});
  b.failed({Code::kCorrupt, "answer of x cut off"});
  c.cancelled("interrupted");
  CHECK(a.result().status == Status::kTimeout);
  CHECK(b.result().status == Status::kFailed);
  CHECK(b.result().reason == "answer of x cut off");
  CHECK(c.result().status == Status::kCancelled);
}
