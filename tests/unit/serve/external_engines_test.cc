#include "serve/external/external_engines.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "mixed_site.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace external_engines_test {

namespace {

std::string prompt_of(int first, int n, const char* more = "") {
  Json tokens = Json::array();
  for (int i = 0; i < n; ++i) tokens.push_back(first + i);
  return R"({"model":"tiny","prompt":)" + dump_json(tokens) + more + "}";
}
const char* const kStreamed = R"(,"stream":true,"stream_options":{"include_usage":true})";

}  // namespace

TEST_CASE("an external engine alone makes a conductor ready and answers through it") {
  Mixed m(false);
  CHECK(m.ask("/ready").status == 503);
  MockEngine& e = m.engine("e0");
  CHECK(m.ask("/ready").status == 200);
  const auto r = m.ask("/v1/completions", prompt_of(1, 9));
  CHECK(r.status == 200);
  CHECK((*parse_json(r.body))["choices"][0]["text"] == "abc");
  CHECK(r.headers.at("x-mc-prefill") == "e0");
  CHECK(r.headers.at("x-mc-decode") == "e0");
  CHECK(r.headers.at("x-request-id") == "mine");
  REQUIRE(e.ids.size() == 1);
  CHECK(e.ids[0] == "mine");
  CHECK(e.asked[0]["model"] == "tiny");
  CHECK(m.conductor->in_flight() == 0);
}

TEST_CASE("a stream passes as it is, and its usage is counted") {
  Mixed m(false);
  m.engine("e0");
  m.ask("/v1/completions", prompt_of(1, 8));
  const auto r = m.ask("/v1/completions", prompt_of(1, 9, kStreamed));
  CHECK(r.headers.at("content-type").starts_with("text/event-stream"));
  std::string sent;
  for (const char* const text : {"a", "b", "c"})
    sent += R"(data: {"model":"tiny","choices":[{"text":")" + std::string(text) + "\"}]}\n\n";
  sent += R"(data: {"model":"tiny","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,)"
          R"("prompt_tokens_details":{"cached_tokens":8}}})";
  CHECK(r.body == sent + "\n\ndata: [DONE]\n\n");
  CHECK((*parse_json(m.ask("/cluster").body))["hit_tokens"] == 8);
  CHECK(
      m.ask("/metrics").body.find(R"(mc_conductor_requests_total{code="200",reason="passed"} 2)") !=
      std::string::npos);
}

TEST_CASE("every byte of a stream passes, whatever an engine writes between its events") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  e.answer_type = "text/event-stream; charset=utf-8";
  for (const std::string& sent : {
           std::string(": ping\r\n\r\nevent: x\nid: 7\ndata:{ \"a\" : 1e400}\ndata: more\n\n\n"
                       "retry: 3\n\ndata: [DONE]\n\n"),
           std::string(
               "data: {\"text\":\"\xc3\xa9\\u00e9\"}\n\n\xef\xbb\xbfodd\ndata: [DONE]\n\n: end\n"),
           "data: \"" + std::string(300'000, 'x') + "\"\n\ndata: [DONE]\n\n",
           std::string("data: {\"n\":1}\n\ndata: the last line has no end"),
       }) {
    e.answer = sent;
    const auto r = m.ask("/v1/completions", prompt_of(1, 8, kStreamed));
    CHECK(r.status == 200);
    CHECK(r.headers.at("content-type") == e.answer_type);
    CHECK(r.body == sent);
  }
}

TEST_CASE("prompts go to the engine whose events say that it holds them") {
  Mixed m(false);
  MockEngine& a = m.engine("a");
  MockEngine& b = m.engine("b", 8);  // another block size
  a.compute({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  std::vector<int32_t> other;
  for (int i = 100; i < 116; ++i) other.push_back(i);
  b.compute(other);
  REQUIRE(m.indexed("a", 4));
  REQUIRE(m.indexed("b", 2));
  for (int i = 0; i < 3; ++i) {
    m.ask("/v1/completions", prompt_of(1, 17));
    m.ask("/v1/completions", prompt_of(100, 17));
  }
  CHECK(a.asked.size() == 3);
  CHECK(b.asked.size() == 3);
  const auto route = *parse_json(m.ask("/debug/route", prompt_of(1, 17)).body);
  CHECK(route["best_tokens"] == 16);
}

TEST_CASE("external engines and own workers are chosen among by one policy") {
  Mixed m(true);
  MockEngine& e = m.engine("e0");
  std::vector<int32_t> prompt;
  for (int i = 1; i <= 64; ++i) prompt.push_back(i);
  e.compute(prompt);
  REQUIRE(m.indexed("e0", 16));
  CHECK(m.ask("/v1/completions", prompt_of(1, 65)).headers.at("x-mc-prefill") == "e0");
  // Busy ones are left to others: three hang on the engine's warm prompt, then it costs too much.
  e.hang = true;
  std::vector<Mixed::Answer> waiting(40);
  for (int i = 0; i < 40; ++i)
    m.send("/v1/completions", prompt_of(100 + i, 300, kStreamed), waiting[static_cast<size_t>(i)]);
  REQUIRE(until(m.loop, [&] { return !m.prefill->prefills.empty() && !e.held.empty(); }));
  REQUIRE(until(m.loop, [&] {
    return std::any_of(waiting.begin(), waiting.end(), [](const auto& w) { return w.done; });
  }));
}

TEST_CASE("a pair: one computes the prompt, the other answers with what the first handed over") {
  Mixed m(false);
  MockEngine& p = m.engine("p", 4, "tiny", "prefill");
  CHECK(m.ask("/ready").status == 503);  // half a pair answers nothing
  MockEngine& d = m.engine("d", 4, "org/tiny", "decode");
  CHECK(m.ask("/ready").status == 200);
  m.ask("/v1/completions", prompt_of(1, 8));
  REQUIRE(m.indexed("p", 2));
  const auto r = m.ask(
      "/v1/completions",
      prompt_of(1, 9, R"(,"stream":true,"stream_options":{"include_usage":true},"max_tokens":7)"));
  CHECK(r.status == 200);
  CHECK(r.body.ends_with("data: [DONE]\n\n"));
  CHECK(r.headers.at("x-mc-prefill") == "p");
  CHECK(r.headers.at("x-mc-decode") == "d");
  CHECK(r.headers.at("x-mc-cached-tokens") == "8");  // what p had, not what d was handed
  REQUIRE(p.asked.size() == 2);
  REQUIRE(d.asked.size() == 2);
  CHECK(p.ids == d.ids);
  const Json &first = p.asked[1], &second = d.asked[1];
  CHECK(first["max_tokens"] == 1);
  CHECK_FALSE(first["stream"].get<bool>());
  CHECK_FALSE(first.contains("stream_options"));
  CHECK(first["kv_transfer_params"]["do_remote_decode"] == true);
  CHECK(second["max_tokens"] == 7);
  CHECK(second["stream"] == true);
  CHECK(second["model"] == "org/tiny");
  CHECK(second["kv_transfer_params"]["do_remote_prefill"] == true);
  CHECK(second["kv_transfer_params"]["remote_engine_id"] == p.url());
  CHECK(second["kv_transfer_params"]["remote_block_ids"] == Json({2, 3}));
  for (const char* name : {"p", "d"}) {
    CHECK(m.conductor->external().find(name)->requests == 0);
    CHECK(m.conductor->external().find(name)->context_tokens == 0);
  }
}

TEST_CASE("a pair's halves are chosen each by its own load, within their group") {
  Mixed m(false);
  m.engine("p", 4, "tiny", "prefill");
  MockEngine& d0 = m.engine("d0", 4, "tiny", "decode");
  MockEngine& d1 = m.engine("d1", 4, "tiny", "decode");
  auto other = *parse_json(m.engine("far", 4, "tiny", "decode").registration("far", "decode"));
  other["kv_group"] = "another";
  REQUIRE(m.administer("/register", dump_json(other)).status == 200);
  REQUIRE(until(m.loop, [&] { return m.conductor->external().find("far")->up; }));
  d0.hang = d1.hang = true;
  std::vector<Mixed::Answer> waiting(4);
  for (int i = 0; i < 4; ++i)
    m.send("/v1/completions", prompt_of(100 * i, 8, kStreamed), waiting[static_cast<size_t>(i)]);
  REQUIRE(until(m.loop, [&] { return d0.held.size() + d1.held.size() == 4; }));
  CHECK(d0.held.size() == 2);
  CHECK(m.engines[3]->asked.empty());
}

TEST_CASE("a pair's half that fails is left for another, and one without a connector is named") {
  Mixed m(false);
  MockEngine& p = m.engine("p", 4, "tiny", "prefill");
  MockEngine& d0 = m.engine("d0", 4, "tiny", "decode");
  MockEngine& d1 = m.engine("d1", 4, "tiny", "decode");
  for (const int status : {500, 503}) {
    d0.status = status;
    const auto r = m.ask("/v1/completions", prompt_of(status, 9));
    CHECK(r.status == 200);
    CHECK(r.headers.at("x-mc-decode") == "d1");
  }
  CHECK(d0.asked.size() == 2);
  CHECK(d1.asked.size() == 2);
  d0.status = 200;
  p.connector = false;
  const auto r = m.ask("/v1/completions", prompt_of(1, 9));
  CHECK(r.status == 503);
  CHECK(r.body.find("hands no KV over") != std::string::npos);
  CHECK(r.body.find("role both") != std::string::npos);
  p.connector = true;
  p.status = 400;
  const auto wrong = m.ask("/v1/completions", prompt_of(1, 9));
  CHECK(wrong.status == 400);
  CHECK(wrong.body.find("the mock says no") != std::string::npos);
  CHECK(m.conductor->external().find("d0")->context_tokens == 0);
  CHECK(m.conductor->external().find("d1")->context_tokens == 0);
}

TEST_CASE("a client does not say where KV comes from") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  m.ask("/v1/completions", prompt_of(1, 9, R"(,"kv_transfer_params":{"remote_host":"x"})"));
  REQUIRE(e.asked.size() == 1);
  CHECK_FALSE(e.asked[0].contains("kv_transfer_params"));
}

TEST_CASE("registrations outlive the conductor, where there is a file for them") {
  const std::string path = "external_state_test.json";
  std::remove(path.c_str());
  {
    Mixed m(false, path);
    m.engine("e0");
    m.engine("e1", 8, "org/tiny", "prefill");
    m.engine("gone");
    CHECK(m.administer("/unregister", R"({"instance_id":"gone"})").status == 200);
  }
  {
    Mixed m(false, path);
    const auto& all = m.conductor->external().all();
    REQUIRE(all.size() == 2);
    CHECK(all.at("e0")->options.block_tokens == 4);
    CHECK(all.at("e0")->cache != nullptr);
    CHECK(all.at("e1")->options.role == "prefill");
    CHECK(all.at("e1")->options.model == "org/tiny");
    CHECK(m.administer("/unregister", R"({"instance_id":"e1"})").status == 200);
    SteadyClock clock;
    io::Loop loop(clock);
    Metrics metrics;
    ConductorOptions o = quick();
    o.external_state = path;
    const auto second = Conductor::open(loop, o, 42, metrics);
    REQUIRE_FALSE(second);
    CHECK(second.error().what.find(path + " is of another mc-conductor") != std::string::npos);
  }
  CHECK(read_external(path)->size() == 1);
  std::FILE* f = std::fopen(path.c_str(), "w");
  std::fputs("[{}]", f);
  std::fclose(f);
  SteadyClock clock;
  io::Loop loop(clock);
  Metrics metrics;
  ConductorOptions o = quick();
  o.external_state = path;
  const auto damaged = Conductor::open(loop, o, 42, metrics);
  REQUIRE_FALSE(damaged);
  CHECK(damaged.error().what.find("--foreign-state: " + path) != std::string::npos);
  CHECK(damaged.error().what.find("register again") != std::string::npos);
  std::remove(path.c_str());
  std::remove((path + ".lock").c_str());
}

TEST_CASE("a client that hangs up ends its request on the engine") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  e.hang = true;
  Mixed::Answer a;
  const auto id = m.send("/v1/completions", prompt_of(1, 9, kStreamed), a);
  REQUIRE(until(m.loop, [&] { return !e.held.empty(); }));
  m.client.cancel(id);
  REQUIRE(until(m.loop, [&] { return e.gone == 1; }));
  CHECK(m.conductor->in_flight() == 0);
  CHECK(m.conductor->external().find("e0")->requests == 0);
}

TEST_CASE("a failed engine is left for another; a client's error gets the engine's answer") {
  Mixed m(true);
  MockEngine& e = m.engine("e0");
  int first = 1;
  const auto warm = [&](const char* more = "") {  // a prompt that only the engine holds
    first += 100;
    std::vector<int32_t> prompt;
    for (int i = 0; i < 64; ++i) prompt.push_back(first + i);
    const size_t known = m.conductor->external().find("e0")->cache->blocks();
    e.compute(prompt);
    REQUIRE(m.indexed("e0", known + 16));
    return prompt_of(first, 65, more);
  };
  for (const int status : {500, 503, 429}) {
    e.status = status;
    const auto r = m.ask("/v1/completions", warm());
    CHECK(r.status == 200);
    CHECK(r.headers.at("x-mc-prefill") == "p0");
  }
  CHECK(e.asked.size() == 3);
  e.status = 400;
  const auto wrong = m.ask("/v1/completions", warm());
  CHECK(wrong.status == 400);
  CHECK(wrong.body.find("the mock says no") != std::string::npos);
  e.status = 200;
  e.cut = true;
  e.held.clear();
  Mixed::Answer half;
  m.send("/v1/completions", warm(kStreamed), half);
  REQUIRE(until(m.loop, [&] { return half.body.find("\"text\":\"a\"") != std::string::npos; }));
  e.held.clear();
  REQUIRE(until(m.loop, [&] { return half.done; }));
  CHECK(half.body.find("data: {\"error\":{") != std::string::npos);
  CHECK(half.body.find("[DONE]") == std::string::npos);
}

TEST_CASE("an engine that is unwell gets nothing, and its cache is forgotten until it is back") {
  Mixed m(true);
  MockEngine& e = m.engine("e0");
  e.compute({1, 2, 3, 4});
  REQUIRE(m.indexed("e0", 1));
  e.well = false;
  REQUIRE(until(m.loop, [&] { return !m.conductor->external().find("e0")->up; }));
  REQUIRE(m.indexed("e0", 1));  // asked for again, from its publisher
  CHECK(m.conductor->external().find("e0")->stream->order().clears() == 1);
  CHECK(m.ask("/v1/completions", prompt_of(1, 65)).headers.at("x-mc-prefill") == "p0");
  e.well = true;
  REQUIRE(until(m.loop, [&] { return m.conductor->external().find("e0")->up; }));
}

TEST_CASE("an engine's own name of the model is used towards it, a wrong one is not served") {
  Mixed m(false);
  MockEngine& e = m.engine("e0", 4, "org/tiny-chat");
  m.ask("/v1/completions", prompt_of(1, 9));
  CHECK(e.asked[0]["model"] == "org/tiny-chat");
  auto j = *parse_json(e.registration("e1"));
  j["modelname"] = "another";
  CHECK(m.administer("/register", dump_json(j)).status == 200);
  REQUIRE(until(m.loop, [&] {
    return m.conductor->external().find("e1")->why.find("does not serve 'another'") !=
           std::string::npos;
  }));
}

TEST_CASE("other routers ask what is held where, by tokens and by hashes") {
  Mixed m(true);
  MockEngine& e = m.engine("e0");
  e.compute({1, 2, 3, 4, 5, 6, 7, 8, 9});
  REQUIRE(m.indexed("e0", 2));
  const auto held = [&](const std::string& body) {
    return *parse_json(m.ask("/query", body).body);
  };
  const auto all = held(R"({"model":"tiny","token_ids":[1,2,3,4,5,6,7,8,9],"block_size":4})");
  CHECK(all["default"]["e0"]["longest_matched"] == 8);
  CHECK(all["default"]["e0"]["GPU"] == 8);
  CHECK(all["default"]["e0"]["CPU"] == 0);
  CHECK(all["default"]["e0"]["DP"]["0"] == 8);
  CHECK_FALSE(all["default"].contains("p0"));  // its blocks have 16 tokens
  CHECK(held(R"({"token_ids":[1,2,3,4]})")["default"].contains("p0"));
  CHECK_FALSE(held(R"({"token_ids":[1,2,3,4],"tenant_id":"x"})")["default"].contains("e0"));
  const Json names = {{"seq_hashes", {e.names[{1, 2, 3, 4}], 12345}}};
  const auto by_hash = *parse_json(m.ask("/query_by_hash", dump_json(names)).body);
  CHECK(by_hash["default"]["e0"]["longest_matched"] == 4);
  CHECK(m.ask("/query", R"({"model":"none","token_ids":[1]})").status == 404);
  for (const char* bad : {"{", "[]", R"({"token_ids":"x"})", R"({"token_ids":[1.5]})"})
    CHECK(m.ask("/query", bad).status == 400);
  CHECK(m.ask("/query_by_hash", R"({"seq_hashes":["xyz"]})").status == 400);
  CHECK(m.ask("/query").status == 405);
}

TEST_CASE("a registration says what is wrong with it, and can be taken back") {
  Mixed m(false);
  const auto why = [&](const char* body) {
    const auto r = m.administer("/admin/register", body);
    CHECK(r.status == 400);
    return (*parse_json(r.body))["error"]["message"].get<std::string>();
  };
  CHECK(why("{").find("line 1") != std::string::npos);
  CHECK(why("{}").find("instance_id") != std::string::npos);
  CHECK(why(R"({"instance_id":"a"})").find("neither url nor endpoint") != std::string::npos);
  CHECK(why(R"({"instance_id":"a","url":"ftp://x"})").find("http://host:port") !=
        std::string::npos);
  CHECK(why(R"({"instance_id":"a","endpoint":"tcp://*:1"})").find("publisher") !=
        std::string::npos);
  CHECK(why(R"({"instance_id":"a b","url":"http://x"})").find("printable") != std::string::npos);
  CHECK(why(R"({"instance_id":"a","url":"http://x","block_size":99999})").find("block_size") !=
        std::string::npos);
  CHECK(why(R"({"instance_id":"a","url":"http://x","role":"x"})").find("prefill or decode") !=
        std::string::npos);
  CHECK(
      why(R"({"instance_id":"a","endpoint":"tcp://127.0.0.1:1","role":"decode"})").find("no url") !=
      std::string::npos);
  CHECK(why(R"({"instance_id":"a","url":"http://x","lora_name":"l"})").find("lora_name") !=
        std::string::npos);
  m.engine("e0").compute({1, 2, 3, 4});
  REQUIRE(m.indexed("e0", 1));
  CHECK(m.administer("/unregister", R"({"instance_id":"e0"})").status == 200);
  CHECK(m.administer("/unregister", R"({"instance_id":"e0"})").status == 404);
  CHECK((*parse_json(m.ask("/cluster").body))["index_blocks"] == 0);
  CHECK(m.ask("/ready").status == 503);
}

TEST_CASE("an answer to an older registration of the same name does not count") {
  Mixed m(false);
  std::vector<http::Exchange> held;
  const auto slow = *http::Server::open(m.loop, "127.0.0.1:0", {},
                                        [&](const http::Exchange& x) { held.push_back(x); });
  const std::string first = R"({"instance_id":"e0","url":"http://)" + slow->address() + "\"}";
  REQUIRE(m.administer("/register", first).status == 200);
  REQUIRE(until(m.loop, [&] { return held.size() == 1; }));
  // One that will not do leaves the one that is there as it is.
  CHECK(m.administer("/register", R"({"instance_id":"e0","url":"ftp://x"})").status == 400);
  CHECK(m.conductor->external().find("e0")->options.url == "http://" + slow->address());
  MockEngine other(m.loop, "another model", 4);
  REQUIRE(
      m.administer("/register", R"({"instance_id":"e0","url":")" + other.url() + "\"}").status ==
      200);
  held[0].reply(200, "application/json", R"({"data":[{"id":"tiny"}]})");
  REQUIRE(until(m.loop, [&] {
    return m.conductor->external().find("e0")->why.find("does not serve 'tiny'") !=
           std::string::npos;
  }));
  CHECK(m.conductor->external().up() == 0);
}

TEST_CASE("what a registration has beyond what is read is named in its answer") {
  Mixed m(false);
  const auto said = [&](const char* more) {
    const auto r = m.administer(
        "/register", std::string(R"({"instance_id":"a","url":"http://127.0.0.1:1")") + more + "}");
    CHECK(r.status == 200);
    return *parse_json(r.body);
  };
  CHECK_FALSE(said(R"(,"type":"vLLM","modelname":"m")").contains("ignored"));
  CHECK(said(R"(,"block_sise":4)")["ignored"] ==
        "unknown member 'block_sise': did you mean block_size?");
  CHECK(said(R"(,"zebra":{}, "xx":0)")["ignored"] == "unknown member 'zebra'; unknown member 'xx'");
  Json many = {{"k0", 0}, {"k1", 0}, {"k2", 0}, {"k3", 0}, {"k4", 0}};
  CHECK(unknown_members(many).find("'k3'; ...") != std::string::npos);
}

TEST_CASE("a file of engines is read like registrations") {
  const std::string path = "external_engines_test.json";
  const auto write = [&](const std::string& text) {
    std::FILE* f = std::fopen(path.c_str(), "w");
    std::fwrite(text.data(), 1, text.size(), f);
    std::fclose(f);
  };
  write(R"([{"instance_id":"a","url":"http://127.0.0.1:1/","block_size":16}])");
  const auto list = read_external(path);
  REQUIRE(list);
  CHECK(list->at(0).url == "http://127.0.0.1:1");
  CHECK(list->at(0).block_tokens == 16);
  write(R"([{"instance_id":"a","url":"http://x"},{}])");
  CHECK(read_external(path).error().what.find("engine 1: ") != std::string::npos);
  write("{}");
  CHECK(read_external(path).error().what.find("want a list") != std::string::npos);
  write(R"([{"instance_id":"a","url":"http://x","modelnam":"m","zebra":1}])");
  const std::string what = read_external(path).error().what;
  CHECK(what.find("engine 0: ") != std::string::npos);
  CHECK(what.find("unknown member 'modelnam': did you mean modelname?") != std::string::npos);
  CHECK(what.find("; unknown member 'zebra'") != std::string::npos);
  CHECK(read_external(path, true).has_value());  // a newer conductor's
  write(R"([{"instanceid":"a","url":"http://x"}])");
  CHECK(read_external(path).error().what.find("did you mean instance_id?") != std::string::npos);
  std::remove(path.c_str());
}

}  // namespace external_engines_test
