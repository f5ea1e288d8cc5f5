// Pairs of external engines that get a request at once, as MooncakeConnector and SGLang want it.
#include "mixed_site.h"
#include "serve/conductor/pair_bodies.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace external_pairs_test {
namespace {

std::string prompt_with(const std::string& more) {
  return R"({"model":"tiny","prompt":[1,2,3,4,5,6,7,8,9])" + more + "}";
}

std::string pair_registration(const MockEngine& e, const char* name, const char* role,
                              const char* pair, const std::string& bootstrap) {
  Json j = *parse_json(e.registration(name, role));
  j["pair"] = pair;
  if (!bootstrap.empty()) j["bootstrap"] = bootstrap;
  return dump_json(j);
}

struct PairSite : Mixed {
  explicit PairSite(const char* kind, const ConductorOptions& o = options()) : Mixed(o, false) {
    for (auto* e : {&p, &d})
      *e = engines.emplace_back(std::make_unique<MockEngine>(loop, "tiny", 4)).get();
    d->partner = p;
    add("p", "prefill", kind, kind[0] == 's' && kind[1] == 'e' ? "" : p->url());
    add("d", "decode", kind, {});
    REQUIRE(until(loop, [&] { return ask("/ready").status == 200; }));
  }
  static ConductorOptions options() {
    ConductorOptions o = quick();
    o.pair_wait = 300ms;
    return o;
  }
  void add(const char* name, const char* role, const char* kind, const std::string& bootstrap) {
    const MockEngine& e = *(role[0] == 'p' ? p : d);
    const auto r = administer("/register", pair_registration(e, name, role, kind, bootstrap));
    REQUIRE_MESSAGE(r.status == 200, r.body);
  }
  void check_idle() {
    for (const char* name : {"p", "d"}) {
      CHECK(conductor->external().find(name)->requests == 0);
      CHECK(conductor->external().find(name)->context_tokens == 0);
    }
  }
  MockEngine *p = nullptr, *d = nullptr;
};

TEST_CASE("a concurrent pair: both get the request at once, and meet by a transfer's name") {
  PairSite m("concurrent");
  const std::string more = R"(,"stream":true,"max_tokens":7,"kv_transfer_params":{"x":1})";
  for (int i = 0; i < 2; ++i) {
    const auto r = m.ask("/v1/completions", prompt_with(more));
    CHECK(r.status == 200);
    CHECK(r.body.ends_with("data: [DONE]\n\n"));
    CHECK(r.headers.at("x-mc-prefill") == "p");
    CHECK(r.headers.at("x-mc-decode") == "d");
  }
  REQUIRE(m.p->asked.size() == 2);
  REQUIRE(m.d->asked.size() == 2);
  const Json &first = m.p->asked[0], &second = m.d->asked[0];
  CHECK(first["max_tokens"] == 1);
  CHECK(first["stream"] == false);
  CHECK(second["max_tokens"] == 7);
  CHECK(second["stream"] == true);
  const std::string transfer = first["kv_transfer_params"]["transfer_id"];
  CHECK(transfer.starts_with("xfer-"));
  CHECK(transfer.size() == 5 + 32);
  CHECK(
      first["kv_transfer_params"] ==
      Json({{"do_remote_decode", true}, {"do_remote_prefill", false}, {"transfer_id", transfer}}));
  CHECK(second["kv_transfer_params"] == Json({{"do_remote_decode", false},
                                              {"do_remote_prefill", true},
                                              {"remote_bootstrap_addr", m.p->url()},
                                              {"remote_engine_id", "e-0"},
                                              {"transfer_id", transfer}}));
  CHECK(m.p->asked[1]["kv_transfer_params"]["transfer_id"] != transfer);  // none is used again
  CHECK(m.p->ids == m.d->ids);
  m.check_idle();
}

TEST_CASE("a refusal by a pair's first half comes whole up to 1 MiB, else an error says so") {
  PairSite m("sequential");
  m.p->answer_status = 422;
  m.p->answer = "{\"error\":\"" + std::string(200'000, 'x') + "\"}";
  const auto whole = m.ask("/v1/completions", prompt_with(""));
  CHECK(whole.status == 422);
  CHECK(whole.body == m.p->answer);
  m.p->answer = "{\"error\":\"" + std::string(1'100'000, 'x') + "\"}";
  const auto over = m.ask("/v1/completions", prompt_with(""));
  CHECK(over.status == 422);
  CHECK(over.body.find("external engine p: its answer, with status 422, is over 1MiB") !=
        std::string::npos);
  CHECK(m.conductor->external().find("p")->outliers.failed() == 0);
  m.check_idle();
}

TEST_CASE("a pair's first answer of over 8 MiB fails where it hands KV over, and says why") {
  PairSite m("sequential");
  m.p->answer = "{\"text\":\"" + std::string(9 << 20, 'x') + "\"}";
  const auto r = m.ask("/v1/completions", prompt_with(""));
  CHECK(r.status == 503);
  CHECK(r.body.find("external engine p: its answer is over 8MiB") != std::string::npos);
  CHECK(m.d->asked.empty());
  m.check_idle();
}

TEST_CASE("a pair's first answer of any length is read to its end where it hands over nothing") {
  PairSite m("concurrent", patient());
  m.p->connector = false;
  m.p->padding = 32 << 20;
  m.d->hang = true;
  Mixed::Answer r;
  m.send("/v1/completions", prompt_with(R"(,"stream":true)"), r);
  REQUIRE(until(m.loop, [&] { return m.p->held.size() == 1 && m.d->held.size() == 1; }));
  CHECK(until(m.loop, [&] { return m.p->held[0].unsent() == 0; }));
  CHECK(m.p->gone == 0);
  m.d->held[0].write("data: [DONE]\n\n");
  m.d->held[0].end();
  CHECK(until(m.loop, [&] { return r.done; }));
  CHECK(r.status == 200);
  CHECK(m.conductor->external().find("p")->outliers.failed() == 0);
  m.check_idle();
}

TEST_CASE("the end of a pair's first answer of over 8 MiB is not taken for all of it") {
  PairSite m("concurrent", patient());
  m.p->connector = false;
  m.p->padding = 12 << 20;
  m.d->hang = true;
  Mixed::Answer r;
  m.send("/v1/completions", prompt_with(R"(,"stream":true)"), r);
  REQUIRE(until(m.loop, [&] { return m.p->held.size() == 1 && m.d->held.size() == 1; }));
  CHECK(m.conductor->external().find("p")->ledger.tokens() > 0);
  m.p->held[0].write(R"({"usage":{"prompt_tokens_details":{"cached_tokens":5}}})");
  m.p->held[0].end();
  REQUIRE(until(m.loop, [&] { return m.conductor->external().find("p")->ledger.tokens() == 0; }));
  m.d->held[0].write("data: [DONE]\n\n");
  m.d->held[0].end();
  REQUIRE(until(m.loop, [&] { return r.done; }));
  CHECK(r.status == 200);
  CHECK(r.headers.at("x-mc-cached-tokens") == "0");
  m.check_idle();
}

TEST_CASE("the first half of a pair computes one token, whatever the API calls them") {
  PairSite m("sequential");
  const std::string rest = R"(,"max_output_tokens":7})";
  CHECK(m.ask("/v1/responses", R"({"model":"tiny","input":"hello")" + rest).status == 200);
  REQUIRE(m.p->asked.size() == 1);
  CHECK(m.p->asked[0]["max_output_tokens"] == 1);
  CHECK_FALSE(m.p->asked[0].contains("max_tokens"));
  REQUIRE(m.d->asked.size() == 1);
  CHECK(m.d->asked[0]["max_output_tokens"] == 7);
  CHECK(m.d->asked[0]["kv_transfer_params"]["do_remote_prefill"] == true);
}

// A NixlConnector's blocks are one prompt's, and free once they were read.
TEST_CASE("a sequential pair: KV of named blocks is for one answer to one prompt") {
  PairSite m("sequential");
  const std::string texts = R"({"model":"tiny","prompt":["abcd","efghijkl"]})";
  for (const std::string& several : {prompt_with(R"(,"n":2)"), prompt_with(R"(,"best_of":3)"),
                                     prompt_with(R"(,"use_beam_search":true)"), texts}) {
    CAPTURE(several);
    const auto r = m.ask("/v1/completions", several);
    CHECK(r.status == 200);
    CHECK(m.d->asked.back() == *parse_json(several));
    // Only the first shows how KV is handed over. Then the first half computes no more for nobody.
    REQUIRE(m.p->asked.size() == 1);
    CHECK_FALSE(m.p->asked[0].contains("n"));  // its KV is the same for all
    CHECK(r.headers.at("x-mc-decode") == "d");
  }
  for (const char* more : {R"(,"n":1)", R"(,"n":null,"use_beam_search":false)"}) {
    CAPTURE(more);
    CHECK(m.ask("/v1/completions", prompt_with(more)).status == 200);
    CHECK(m.d->asked.back()["kv_transfer_params"]["do_remote_prefill"] == true);
  }
  CHECK(m.ask("/v1/completions", R"({"model":"tiny","prompt":["abcd"]})").status == 200);
  CHECK(m.d->asked.back().contains("kv_transfer_params"));
  CHECK(m.p->asked.size() == 4);
  CHECK(m.conductor->external().ejected(m.loop.now()) == 0);
  m.check_idle();
}

TEST_CASE("a sequential pair: KV that is found by its tokens is for all answers and prompts") {
  ProxiedRequest request;
  request.path = "/v1/completions";
  request.body = *JsonText::parse(prompt_with(R"(,"n":2)"));
  std::vector<JsonText::Change> changes;
  drop_pair_members(changes);
  change_for_second(PairKind::kSequential, {}, {}, request,
                    R"({"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":null}})",
                    changes);
  REQUIRE(changes[0].name == "kv_transfer_params");
  CHECK(changes[0].value == R"({"do_remote_prefill":true,"remote_block_ids":null})");
}

TEST_CASE("several answers are the second half's alone where a pair's transfer is for one") {
  PairSite m("concurrent");
  const std::string several = prompt_with(R"(,"n":2,"kv_transfer_params":{"x":1})");
  const auto r = m.ask("/v1/completions", several);
  CHECK(r.status == 200);
  CHECK(r.headers.at("x-mc-prefill") == "d");
  CHECK(m.p->asked.empty());
  REQUIRE(m.d->asked.size() == 1);
  CHECK(m.d->asked[0] == *parse_json(prompt_with(R"(,"n":2)")));
  CHECK(m.conductor->external().ejected(m.loop.now()) == 0);
  m.check_idle();
}

TEST_CASE("what the second half of a pair does alone it does while its first half is down") {
  const char* kind = "concurrent";
  SUBCASE("concurrent") {}
  SUBCASE("sequential, whose first half has named blocks") { kind = "sequential"; }
  PairSite m(kind);
  CHECK(m.ask("/v1/completions", prompt_with("")).status == 200);
  m.d->asked.clear();
  m.p->http.reset();
  m.conductor->external().find("p")->up = false;  // as its next check finds
  CHECK(m.ask("/ready").status == 503);
  const std::string texts = R"({"model":"tiny","prompt":["abcd","efghijkl"]})";
  for (const std::string& several : {prompt_with(R"(,"n":2)"), texts}) {
    CAPTURE(several);
    const auto r = m.ask("/v1/completions", several);
    CHECK_MESSAGE(r.status == 200, r.body);
    CHECK(r.headers.at("x-mc-prefill") == "d");
    CHECK(m.d->asked.back() == *parse_json(several));
  }
  const auto r = m.ask("/v1/completions", prompt_with(""));
  CHECK_MESSAGE(r.status == 503, r.body);
  CHECK(m.d->asked.size() == 2);
  m.check_idle();
}

TEST_CASE("what gives no tokens goes to no pair, and no half is blamed for it") {
  for (const char* kind : {"sequential", "concurrent", "sglang"}) {
    CAPTURE(kind);
    PairSite m(kind);
    for (int i = 0; i < 12; ++i)
      CHECK(m.ask("/v1/embeddings", R"({"model":"tiny","input":"x"})").status == 503);
    CHECK(m.p->asked.empty());
    CHECK(m.d->asked.empty());
    CHECK(m.conductor->external().ejected(m.loop.now()) == 0);
  }
}

TEST_CASE("a pair for SGLang: the same request for both, and a room at the first's bootstrap") {
  PairSite m("sglang");
  const auto r = m.ask("/v1/completions",
                       prompt_with(R"(,"stream":true,"max_tokens":7,"bootstrap_host":"evil")"));
  CHECK(r.status == 200);
  CHECK(r.body.ends_with("data: [DONE]\n\n"));
  REQUIRE(m.p->asked.size() == 1);
  REQUIRE(m.d->asked.size() == 1);
  CHECK(m.p->asked[0] == m.d->asked[0]);
  const Json& body = m.p->asked[0];
  CHECK(body["max_tokens"] == 7);
  CHECK(body["bootstrap_host"] == "127.0.0.1");
  CHECK("http://127.0.0.1:" + dump_json(body["bootstrap_port"]) == m.p->url());
  CHECK(body["bootstrap_room"].get<uint64_t>() < uint64_t{1} << 63);
  CHECK_FALSE(body.contains("kv_transfer_params"));
  m.ask("/v1/completions", R"({"model":"tiny","prompt":["ab","cd"]})");
  REQUIRE(m.p->asked.size() == 2);
  const Json& two = m.p->asked[1];
  CHECK(two["bootstrap_host"] == Json({"127.0.0.1", "127.0.0.1"}));
  CHECK(two["bootstrap_room"].size() == 2);
  CHECK(two["bootstrap_room"][0] != two["bootstrap_room"][1]);
  m.check_idle();
}

TEST_CASE("a half of a pair asked at once that fails ends the other") {
  PairSite m("concurrent");
  SUBCASE("the first") {
    m.p->status = 500;
    const auto r = m.ask("/v1/completions", prompt_with(""));
    CHECK(r.status == 503);
    CHECK(r.body.find("external engine p answers with status 500") != std::string::npos);
  }
  SUBCASE("the second") {
    m.d->status = 500;
    const auto r = m.ask("/v1/completions", prompt_with(""));
    CHECK(r.status == 503);
    CHECK(r.body.find("external engine d answers with status 500") != std::string::npos);
  }
  SUBCASE("the second never answers") {
    m.d->hang = true;
    const auto r = m.ask("/v1/completions", prompt_with(R"(,"stream":true)"));
    CHECK(r.status == 504);
    CHECK(r.body.find("no token from d within 300ms") != std::string::npos);
    REQUIRE(until(m.loop, [&] { return m.d->gone == static_cast<int>(m.d->held.size()); }));
  }
  SUBCASE("the client's mistake is passed on") {
    m.p->status = m.d->status = 422;
    const auto r = m.ask("/v1/completions", prompt_with(""));
    CHECK(r.status == 422);
    CHECK(r.body.find("the mock says no") != std::string::npos);
  }
  m.check_idle();
}

TEST_CASE("the first half of a concurrent pair is up when its bootstrap server names it") {
  PairSite m("concurrent");
  m.p->engine_id.clear();
  m.add("p", "prefill", "concurrent", m.p->url());
  const ExternalEngine& e = *m.conductor->external().find("p");
  REQUIRE(until(m.loop, [&] { return e.why.find("bootstrap server") != std::string::npos; }));
  CHECK_FALSE(e.up);
  CHECK(e.why.find("engine of rank 0") != std::string::npos);
}

TEST_CASE("halves pair up with their own kind only") {
  PairSite m("concurrent");
  m.add("d", "decode", "sequential", {});
  REQUIRE(until(m.loop, [&] { return m.conductor->external().find("d")->up; }));
  CHECK(m.ask("/ready").status == 503);
}

TEST_CASE("a registration says what is wrong with its pair") {
  const auto why = [](const std::string& more) {
    auto o = parse_external(*parse_json(R"({"instance_id":"a","url":"http://x:1")" + more + "}"));
    return o ? "" : o.error().what;
  };
  CHECK(why(R"(,"role":"prefill","pair":"concurrent","bootstrap":"http://[::1]:8998/")") == "");
  CHECK(why(R"(,"role":"decode","pair":"sglang")") == "");
  CHECK(why(R"(,"pair":"twice")").find("sequential, concurrent or sglang") != std::string::npos);
  CHECK(why(R"(,"pair":"sglang")").find("role prefill or decode") != std::string::npos);
  for (const char* url : {"", "x:1", "https://x:1", "http://x", "http://:1"})
    CHECK(why(std::string(R"(,"role":"prefill","pair":"sglang","bootstrap":")") + url + "\"")
              .find("http://host:port") != std::string::npos);
  CHECK(why(R"(,"bootstrap":"http://x:1")").find("of role prefill") != std::string::npos);
}

TEST_CASE("what a bootstrap server answers is checked") {
  CHECK(*engine_at_bootstrap(R"({"0":{"engine_id":"a"},"1":{"engine_id":"b"}})", 1) == "b");
  const std::string long_id(300, 'x');
  for (const std::string& wrong :
       {std::string("["), std::string("[]"), std::string(R"({"0":1})"),
        std::string(R"({"0":{"engine_id":7}})"), R"({"0":{"engine_id":")" + long_id + "\"}}"})
    CHECK(!engine_at_bootstrap(wrong, 0));
}

}  // namespace
}  // namespace external_pairs_test
