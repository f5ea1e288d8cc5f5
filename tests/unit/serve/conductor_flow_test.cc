#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/json.h"
#include "conductor_fakes.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

TEST_CASE("a request goes reserve, allocate, prefill, tokens, commit, and ends") {
  Cluster c;
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.tokens == std::vector<int32_t>{65, 66});
  CHECK(heard.progress.finish == "length");
  CHECK(heard.progress.prefill == "p0");
  CHECK(heard.progress.decode == "d0");
  CHECK(*heard.progress.cached_tokens == 16);
  REQUIRE(until(c.loop, [&] { return c.p[0]->committed.size() == 1; }));
  CHECK(c.p[0]->allocated[0].target.guard == 7);
  CHECK(c.p[0]->aborted.empty());
  CHECK(c.d[0]->aborted.empty());
  CHECK(c.conductor->in_flight() == 0);
  CHECK(c.metrics.text().find("mc_conductor_hit_tokens_total 16") != std::string::npos);
}

TEST_CASE("tokens may overtake the answer of TxAllocate: none is lost, and they are committed") {
  Cluster c;
  c.p[0]->late = true;
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.tokens == std::vector<int32_t>{65, 66});
  REQUIRE(until(c.loop, [&] { return c.p[0]->committed.size() == 1; }));
  c.p[0]->answers_late[0](TxAllocated{});  // it is nobody's any more
  c.p[0]->late = false;
  Heard next;
  c.submit(next);
  REQUIRE(c.finish(next));
  CHECK(!next.failed);
}

// Sums of metrics were nan from then on, and the client's timings null.
TEST_CASE("times of a worker that are none are left out") {
  Cluster c;
  const double none = std::nan(""), endless = std::numeric_limits<double>::infinity();
  PrefillDone& d = c.p[0]->done;
  d.queue_ms = d.load_ms = d.fetch_ms = none;
  d.prefill_ms = d.transfer_ms = endless;
  d.peer_ms = -1e308;
  c.p[0]->then = [&](const std::string& request) {
    TokenUpdate u;
    u.request = request;
    u.tokens = {65, 66};
    u.finish = "length";
    u.load_ms = none;
    u.decode_ms = endless;
    c.d[0]->client->call(TokenBatch{"d0", {u}}, 1s, [](const Result<rpc::Empty>&) {});
  };
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.progress.load_ms == 0);
  CHECK(heard.progress.decode_ms == 0);
  CHECK(c.metrics.text().find("nan\n") == std::string::npos);
}

TEST_CASE("a worker that ends and comes back fails a request once, not twice") {
  Cluster c;
  FakePrefill& p = *c.p[0];
  p.ends = true;
  Heard heard;
  c.submit(heard);
  REQUIRE(until(c.loop, [&] { return p.prefills.size() == 1; }));
  p.ends = false;
  p.silent = true;  // there is no other: the retry comes here
  REQUIRE(until(c.loop, [&] { return p.prefills.size() == 2; }));
  p.silent = false;
  p.me.epoch = 2;
  p.beat();
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.tokens == std::vector<int32_t>{65, 66});
}

TEST_CASE("a prefill worker without room rolls back, and the request goes to another") {
  Cluster c(2);
  c.p[0]->full = true;  // p0 is first choice when both are idle
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.progress.prefill == "p1");
  CHECK(c.p[0]->allocated.size() == 1);
  const std::string first = c.p[0]->allocated[0].request;
  REQUIRE(until(c.loop, [&] { return c.d[0]->aborted.contains(first); }));
  CHECK(c.p[1]->allocated[0].request != first);  // a late answer cannot be mistaken
}

TEST_CASE("without room anywhere a request waits, and gets its place when there is one") {
  Cluster c;
  c.d[0]->full = true;
  Heard heard;
  c.submit(heard);
  REQUIRE(until(c.loop, [&] { return c.d[0]->reserved.size() >= 2; }));
  CHECK(!heard.done);
  c.d[0]->full = false;
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
}

TEST_CASE("without room for the whole queue timeout it is 503 no_capacity") {
  Cluster c(1, 1, quick());
  c.d[0]->full = true;
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  REQUIRE(heard.failed);
  CHECK(heard.failed->status == 503);
  CHECK(heard.failed->code == "no_capacity");
  CHECK(heard.failed->retry_after_s > 0);
}

TEST_CASE("a prefill that fails before the first token is tried again on another worker") {
  Cluster c(2, 2);
  c.p[0]->broken = true;
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.progress.prefill == "p1");
  CHECK(heard.progress.decode == "d1");  // it might have been the decode worker's fault
  REQUIRE(until(c.loop, [&] { return !c.d[0]->aborted.empty(); }));
  CHECK(c.d[0]->aborted.begin()->second.find("the engine broke") != std::string::npos);
}

TEST_CASE("when the retry fails too the client gets the reason") {
  Cluster c(2);
  c.p[0]->broken = c.p[1]->broken = true;
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  REQUIRE(heard.failed);
  CHECK(heard.failed->status == 503);
  CHECK(heard.failed->what.find("the engine broke") != std::string::npos);
  CHECK(c.p[0]->prefills.size() + c.p[1]->prefills.size() == 2);
}

TEST_CASE("a prefill worker that dies before the first token does not take its request along") {
  Cluster c(2);
  c.p[0]->silent = true;
  Heard heard;
  c.submit(heard);
  REQUIRE(until(c.loop, [&] { return c.p[0]->prefills.size() == 1; }));
  c.p[0].reset();
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.progress.prefill == "p1");
}

TEST_CASE("a prefill worker that dies after the KV arrived fails no request") {
  Cluster c(1, 1, quick());
  std::string request;
  c.p[0]->then = [&](const std::string& r) { request = r; };
  Heard heard;
  c.submit(heard);
  REQUIRE(until(c.loop, [&] { return !request.empty(); }));
  c.d[0]->send(request, {65}, "");
  REQUIRE(until(c.loop, [&] { return heard.tokens.size() == 1; }));
  c.p[0].reset();
  REQUIRE(until(c.loop, [&] { return c.conductor->not_ready() == "no prefill worker"; }));
  c.d[0]->send(request, {66}, "stop");
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.tokens.size() == 2);
}

// F95
TEST_CASE("a decode worker that dies after the first token: another goes on with the answer") {
  Cluster c(1, 2, quick());
  std::string request;
  c.p[0]->then = [&](const std::string& r) { request = r; };
  Heard heard;
  c.submit(heard);
  REQUIRE(until(c.loop, [&] { return !request.empty(); }));
  c.d[0]->send(std::exchange(request, ""), {65}, "");
  REQUIRE(until(c.loop, [&] { return heard.tokens.size() == 1; }));
  c.d[0].reset();
  REQUIRE(until(c.loop, [&] { return !request.empty(); }));
  REQUIRE(c.d[1]->reserved.size() == 1);
  const Reserve& again = c.d[1]->reserved[0];
  CHECK(again.prompt.size() == 41);
  CHECK(again.prompt.back() == 65);
  CHECK(again.answered == 1);
  CHECK(again.max_tokens == 3);
  CHECK(c.p[0]->allocated.back().prompt == again.prompt);
  c.d[1]->send(request, {66, 67}, "");
  c.d[1]->send(request, {68}, "length");
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.tokens == std::vector<int32_t>{65, 66, 67, 68});
  CHECK(heard.progress.output_tokens == 4);
  CHECK(heard.progress.decode == "d1");
}

TEST_CASE("an answer with penalties goes on only at a worker that knows where it began") {
  for (const bool knows : {false, true}) {
    CAPTURE(knows);
    Cluster c(1, 2, quick());
    c.d[1]->continues = knows;
    std::string request;
    c.p[0]->then = [&](const std::string& r) { request = r; };
    Heard heard;
    GenerateRequest g = asking({1, 2, 3});
    g.id = "r";
    g.max_tokens = 2;
    g.controls.frequency_penalty = 1;
    c.conductor->submit(std::move(g), heard.sink());
    REQUIRE(until(c.loop, [&] { return !request.empty(); }));
    c.d[0]->send(std::exchange(request, ""), {65}, "");
    REQUIRE(until(c.loop, [&] { return heard.tokens.size() == 1; }));
    c.d[0].reset();
    REQUIRE(until(c.loop, [&] { return !request.empty() || heard.done; }));
    if (knows) c.d[1]->send(request, {66}, "length");
    REQUIRE(c.finish(heard));
    CHECK(heard.failed.has_value() == !knows);
    if (!knows) CHECK(heard.failed->what.find("cannot go on") != std::string::npos);
  }
}

TEST_CASE("without tries left a decode worker that dies after the first token ends the request") {
  ConductorOptions options = quick();
  options.retries = 0;
  Cluster c(1, 2, options);
  std::string request;
  c.p[0]->then = [&](const std::string& r) { request = r; };
  Heard heard;
  c.submit(heard);
  REQUIRE(until(c.loop, [&] { return !request.empty(); }));
  c.d[0]->send(request, {65}, "");
  REQUIRE(until(c.loop, [&] { return heard.tokens.size() == 1; }));
  c.d[0].reset();
  REQUIRE(c.finish(heard));
  REQUIRE(heard.failed);
  CHECK(heard.failed->what.find("d0") != std::string::npos);
  CHECK(c.d[1]->reserved.empty());
}

TEST_CASE("an error of the decode worker before the first token is tried again") {
  Cluster c(1, 2);
  c.p[0]->then = [&](const std::string& r) {
    if (&c.decode_of(r) == c.d[0].get())
      c.d[0]->send(r, {}, "error", "block 0 does not verify");
    else
      c.answer(r);
  };
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.progress.decode == "d1");
}

TEST_CASE("penalties go to a worker whose release knows them, or are refused with the reason") {
  Cluster c(1, 2);
  c.d[0]->sampling = 0;
  const auto submit = [&](Heard& heard, double penalty) {
    GenerateRequest g;
    g.id = "r";
    g.prompt = {1, 2, 3};
    g.max_tokens = 4;
    g.controls = {.frequency_penalty = penalty, .bias_tokens = {5}, .bias = {-1}};
    if (penalty == 0) g.controls = {};
    c.conductor->submit(std::move(g), heard.sink());
    REQUIRE(c.finish(heard));
  };
  Heard first, second;
  submit(first, 1.5);
  CHECK(!first.failed);
  CHECK(first.progress.decode == "d1");
  CHECK(c.d[1]->reserved.at(0).controls.frequency_penalty == 1.5);
  CHECK(c.d[1]->reserved.at(0).controls.bias_tokens == std::vector<int32_t>{5});
  c.d[1]->sampling = 0;
  submit(second, 1.5);
  REQUIRE(second.failed);
  CHECK(second.failed->what.find("release knows no penalties") != std::string::npos);
  Heard plain;
  submit(plain, 0);
  CHECK(!plain.failed);
}

TEST_CASE("a constraint goes to a worker whose release knows it, or is refused with the reason") {
  Cluster c(1, 2);
  c.d[0]->sampling = kControls;
  const auto submit = [&](Heard& heard) {
    GenerateRequest g;
    g.id = "r";
    g.prompt = {1, 2, 3};
    g.max_tokens = 4;
    g.constraint = {static_cast<uint32_t>(model::grammar::Form::kRegex), "a+"};
    c.conductor->submit(std::move(g), heard.sink());
    REQUIRE(c.finish(heard));
  };
  Heard first, second;
  submit(first);
  CHECK(!first.failed);
  CHECK(first.progress.decode == "d1");
  CHECK(c.d[1]->reserved.at(0).constraint.text == "a+");
  c.d[1]->sampling = kControls;
  submit(second);
  REQUIRE(second.failed);
  CHECK(second.failed->what.find("knows no constrained output") != std::string::npos);
}

TEST_CASE("logprobs come with their tokens, once, and a worker that leaves them out fails") {
  Cluster c(1, 1);
  const auto ask = [&](Heard& heard) {
    GenerateRequest g;
    g.id = "r";
    g.prompt = {1, 2, 3};
    g.max_tokens = 4;
    g.controls.logprobs = 2;
    c.conductor->submit(std::move(g), heard.sink());
    REQUIRE(c.finish(heard));
  };
  const auto update = [&](const std::string& request, std::vector<int32_t> tokens, uint32_t first,
                          const std::string& finish) {
    TokenUpdate u;
    u.request = request;
    u.first = first;
    u.finish = finish;
    for (const int32_t t : tokens)
      u.logprobs.push_back({.logprob = -1.0 * t, .top = {t}, .top_logprobs = {-1.0 * t}});
    u.tokens = std::move(tokens);
    c.d[0]->client->call(TokenBatch{"d0", {u}}, 1s, [](const Result<rpc::Empty>&) {});
  };
  c.p[0]->then = [&](const std::string& r) {
    update(r, {65, 66}, 1, "");
    update(r, {65, 66, 67}, 1, "length");  // two again, as after a lost answer
  };
  Heard heard;
  ask(heard);
  CHECK(!heard.failed);
  CHECK(heard.tokens == std::vector<int32_t>{65, 66, 67});
  REQUIRE(heard.said.size() == 3);
  CHECK(heard.said[2].logprob == -67);
  CHECK(heard.said[2].top == std::vector<int32_t>{67});
  const auto fails = [&] {
    Heard without;
    ask(without);
    REQUIRE(without.failed);
    CHECK(without.failed->what.find("without logprobs") != std::string::npos);
    CHECK(without.tokens.empty());
  };
  c.p[0]->then = [&](const std::string& r) { c.d[0]->send(r, {65}, "length"); };
  fails();
  for (const size_t tops : {0u, 2u})  // one is wanted; a list too short for its twin
    for (const size_t numbers : {0u, 1u}) {
      c.p[0]->then = [&, tops, numbers](const std::string& r) {
        TokenUpdate u;
        u.request = r;
        u.finish = "length";
        u.tokens = {65};
        u.logprobs.push_back({.top = std::vector<int32_t>(tops, 1),
                              .top_logprobs = std::vector<double>(numbers, -1)});
        c.d[0]->client->call(TokenBatch{"d0", {u}}, 1s, [](const Result<rpc::Empty>&) {});
      };
      fails();
    }
}

TEST_CASE("a decode worker that says nothing more runs into the token timeout") {
  ConductorOptions options = quick();
  options.retries = 0;
  Cluster c(1, 1, options);
  c.p[0]->then = nullptr;
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  REQUIRE(heard.failed);
  CHECK(heard.failed->status == 504);
  REQUIRE(until(c.loop, [&] { return c.d[0]->aborted.size() + c.p[0]->aborted.size() == 2; }));
}

TEST_CASE("a client that goes away aborts both sides and gets nothing more") {
  Cluster c;
  c.p[0]->silent = true;
  Heard heard;
  const auto id = c.submit(heard);
  REQUIRE(until(c.loop, [&] { return c.p[0]->prefills.size() == 1; }));
  c.conductor->cancel(id, "the client is gone");
  REQUIRE(until(c.loop, [&] { return !c.d[0]->aborted.empty() && !c.p[0]->aborted.empty(); }));
  CHECK(c.d[0]->aborted.begin()->second == "the client is gone");
  CHECK(c.conductor->in_flight() == 0);
  CHECK(!heard.done);
  c.conductor->cancel(id, "again");  // unknown by now
}

TEST_CASE("tokens of an unknown request are aborted at their worker") {
  Cluster c;
  c.d[0]->send("of-an-earlier-conductor", {65}, "");
  REQUIRE(until(c.loop, [&] { return c.d[0]->aborted.contains("of-an-earlier-conductor"); }));
}

TEST_CASE("a request that cannot meet its promise is refused with 429 and the time of a retry") {
  ConductorOptions options = patient();
  options.admission.ttft_slo = 1ns;
  Cluster c(1, 1, options);
  Heard heard;
  c.submit(heard);
  REQUIRE(heard.done);  // at once: nothing was sent to a worker
  REQUIRE(heard.failed);
  CHECK(heard.failed->status == 429);
  CHECK(heard.failed->code == "ttft_slo");
  CHECK(heard.failed->retry_after_s >= 1);
  CHECK(heard.progress.predicted_ttft_ms > 0);
  CHECK(c.d[0]->reserved.empty());
}

TEST_CASE("a burst of equal prompts follows the first one's guess before any event came") {
  Cluster c(2);
  c.p[0]->silent = c.p[1]->silent = true;
  Heard heard[2];
  const uint32_t n = 16 * 1024;  // long enough that computing twice costs more than queueing
  c.submit(heard[0], n);
  std::vector<int32_t> prompt;
  for (uint32_t i = 0; i < n; ++i) prompt.push_back(static_cast<int32_t>(i));
  const auto d = c.conductor->dry_run(asking(prompt));
  CHECK(d.best_tokens == n - 16);
  CHECK(d.candidates[0].local_tokens == n - 16);
  CHECK(d.candidates[0].queue_ms > 0);
  CHECK(d.candidates[1].local_tokens == 0);
}

TEST_CASE("a request cancelled by the end of another, when both end, tells how far it was") {
  Cluster c;
  c.p[0]->silent = true;
  Conductor::Id second = 0;
  ResponseSink sink;
  sink.on_done = [&](const Progress&, const std::optional<RequestError>&) {
    c.conductor->cancel(second, "its sibling ended");
  };
  GenerateRequest g;
  g.id = "first";
  g.prompt.assign(40, 1);
  c.conductor->submit(g, std::move(sink));
  Heard heard;
  g.id = "second";
  second = c.conductor->submit(g, heard.sink());
  REQUIRE(until(c.loop, [&] { return c.p[0]->prefills.size() == 2; }));
  c.conductor->cancel_all("the service ends");
  CHECK(!heard.done);
  const Json outcome = c.conductor->explain("second")["outcome"];
  CHECK(outcome["prefill"] == "p0");
  CHECK(outcome["decode"] == "d0");
  CHECK(outcome["predicted_ttft_ms"] > 0);
}

TEST_CASE("draining refuses what is new and lets the rest finish") {
  Cluster c;
  std::string request;
  c.p[0]->then = [&](const std::string& r) { request = r; };
  Heard old, fresh;
  c.submit(old);
  REQUIRE(until(c.loop, [&] { return !request.empty(); }));
  c.conductor->drain();
  CHECK(c.conductor->not_ready() == "draining");
  c.submit(fresh);
  REQUIRE(fresh.done);
  CHECK(fresh.failed->code == "draining");
  c.answer(request);
  REQUIRE(c.finish(old));
  CHECK(!old.failed);
}

TEST_CASE("a request larger than every pool is the client's error, and no worker hears of it") {
  Cluster c;
  c.d[0]->me.load.blocks_total = c.d[0]->me.load.blocks_free = 2;  // 32 tokens
  REQUIRE(c.d[0]->tells());
  Heard large, fits;
  c.submit(large, 40);
  REQUIRE(large.failed);
  CHECK(large.failed->status == 400);
  CHECK(large.failed->code == "context_length_exceeded");
  CHECK(large.failed->what.find("need 3 blocks of a decode worker; the largest has 2") !=
        std::string::npos);
  c.submit(fits, 28);  // and 4 of output: both blocks, to the last token
  REQUIRE(c.finish(fits));
  CHECK(!fits.failed);
  CHECK(c.d[0]->reserved.size() == 1);
}

TEST_CASE("a request too large for one worker goes to a larger one, and waits while that is full") {
  Cluster c(2);
  c.p[0]->me.load.blocks_total = 2;  // p0 is first choice when both are idle
  REQUIRE(c.p[0]->tells());
  c.p[1]->full = true;
  Heard heard;
  c.submit(heard, 40);
  REQUIRE(until(c.loop, [&] { return c.p[1]->allocated.size() >= 2; }));
  CHECK(!heard.done);
  c.p[1]->full = false;
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.progress.prefill == "p1");
  CHECK(c.p[0]->allocated.empty());
}

TEST_CASE("a finish that the protocol does not know is a failure of its worker") {
  Cluster c;
  c.p[0]->then = [&](const std::string& r) { c.d[0]->send(r, {65}, "bored"); };
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  REQUIRE(heard.failed);
  CHECK(heard.failed->what.find("unknown finish 'bored'") != std::string::npos);
}

TEST_CASE("what goes wrong on one side reaches the other, and the client, before any deadline") {
  ConductorOptions options = patient();
  options.retries = 0;
  options.worker_ttl = options.step_timeout = options.prefill_timeout = options.token_timeout = 1h;
  SUBCASE("the prefill worker fails") {
    Cluster c(1, 1, options);
    c.p[0]->broken = true;
    Heard heard;
    c.submit(heard);
    CHECK(until(c.loop, [&] { return heard.done && !c.d[0]->aborted.empty(); }));
    CHECK(heard.failed->what.find("the engine broke") != std::string::npos);
    CHECK(c.d[0]->aborted.begin()->second.find("the engine broke") != std::string::npos);
  }
  SUBCASE("the decode worker fails") {
    Cluster c(1, 1, options);
    c.p[0]->silent = true;
    Heard heard;
    c.submit(heard);
    REQUIRE(until(c.loop, [&] { return c.p[0]->prefills.size() == 1; }));
    c.d[0]->send(c.p[0]->prefills[0], {}, "error", "block 3 does not verify");
    CHECK(until(c.loop, [&] { return heard.done && !c.p[0]->aborted.empty(); }));
    CHECK(heard.failed->what.find("block 3") != std::string::npos);
    CHECK(c.p[0]->aborted.begin()->second.find("block 3") != std::string::npos);
  }
  SUBCASE("the client leaves while tokens come") {
    Cluster c(1, 1, options);
    c.p[0]->then = [&](const std::string& r) { c.d[0]->send(r, {65}, ""); };
    Heard heard;
    const auto id = c.submit(heard);
    REQUIRE(until(c.loop, [&] { return heard.tokens.size() == 1; }));
    c.conductor->cancel(id, "the client is gone");
    CHECK(until(c.loop, [&] { return !c.d[0]->aborted.empty(); }));
    CHECK(until(c.loop, [&] { return c.p[0]->committed.size() == 1; }));
    CHECK(c.p[0]->aborted.empty());
  }
}

TEST_CASE("a request's turn, and how it is to be cached, reach the prefill worker's queue") {
  Cluster c;
  Heard heard;
  GenerateRequest g;
  g.id = "r";
  for (int32_t i = 0; i < 40; ++i) g.prompt.push_back(i);
  g.max_tokens = 4;
  g.priority = 3;
  g.cache.context_tokens = 33;  // two blocks are whole
  g.cache.ttl = 90s;
  g.cache.ephemeral = true;
  c.conductor->submit(std::move(g), heard.sink());
  REQUIRE(c.finish(heard));
  CHECK(c.p[0]->allocated[0].priority == 3);
  CHECK(c.p[0]->allocated[0].context_blocks == 2);
  CHECK(c.p[0]->allocated[0].keep_ms == 90'000);
  CHECK(c.p[0]->allocated[0].ephemeral);
}
