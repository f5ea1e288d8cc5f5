// Requests are routed by the tokens, salts and adapters that an engine's own hashes are made of.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/json.h"
#include "mixed_site.h"
#include "serve/external/text_affinity.h"
#include "serve/frontend/openai_proxied.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace external_tokens_test {
namespace {

std::string chat_of(const std::string& text, const char* more = "") {
  return R"({"model":"tiny","messages":[{"role":"user","content":")" + text + "\"}]" + more + "}";
}

constexpr Duration kGuessesLast = 4s;  // at most, behind an answer

std::string prompt_of(int tokens) {
  Json list = Json::array();
  for (int i = 0; i < tokens; ++i) list.push_back(i);
  return R"({"model":"tiny","prompt":)" + dump_json(list) + "}";
}

std::string keys_file(const char* path) {
  std::ofstream(path) << R"({"tenants":[{"name":"a","keys":["key-of-tenant-a"]},)"
                         R"({"name":"b","keys":["key-of-tenant-b"]},)"
                         R"({"name":"root","keys":["key-of-tenant-root"],"admin":true}]})";
  REQUIRE(::chmod(path, 0600) == 0);
  return path;
}

}  // namespace

TEST_CASE("F87, F175: chats are routed by the engine's own tokens, and it asks for them once") {
  Mixed m(false);
  MockEngine& a = m.engine("a");
  MockEngine& b = m.engine("b");
  const std::string body = chat_of(std::string(200, 'x'));
  m.ask("/v1/chat/completions", body);
  MockEngine& first = a.came.empty() ? b : a;
  const size_t blocks = first.names.size();
  REQUIRE(m.indexed(a.came.empty() ? "b" : "a", blocks));
  CHECK(a.tokenized + b.tokenized == 1);
  m.ask("/v1/chat/completions", body);
  CHECK(a.tokenized + b.tokenized == 1);
  const auto explained = *parse_json(m.ask("/explain/mine").body);
  const auto n = explained["prompt_tokens"].get<size_t>();
  CHECK(n / 4 == blocks);
  CHECK(explained["decisions"][0]["reused_tokens"] == (n - 1) / 4 * 4);
  const auto route = *parse_json(m.ask("/debug/route", body).body);
  CHECK(route["best_tokens"] == (n - 1) / 4 * 4);
}

TEST_CASE("messages and responses are routed by the engine's own tokens, as chats are") {
  const std::string text(200, 'x');
  const std::string messages =
      R"({"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":")" + text + "\"}]}";
  const std::string response = R"({"model":"tiny","input":")" + text + "\"}";
  const std::pair<std::string, std::string> all[] = {{"/v1/messages", messages},
                                                     {"/v1/responses", response}};
  for (const auto& asked : all) {
    const auto& path = asked.first;
    const auto& body = asked.second;
    CAPTURE(path);
    Mixed m(false);
    MockEngine& a = m.engine("a");
    MockEngine& b = m.engine("b");
    m.ask(path, body);
    MockEngine& first = a.came.empty() ? b : a;
    REQUIRE(m.indexed(a.came.empty() ? "b" : "a", first.names.size()));
    CHECK(a.tokenized + b.tokenized == 1);
    m.ask(path, body);
    CHECK(first.came.size() == 2);
    CHECK(first.came[1].body == body);
    const auto explained = *parse_json(m.ask("/explain/mine").body);
    const auto n = explained["prompt_tokens"].get<size_t>();
    CHECK(n / 4 == first.names.size());
    CHECK(explained["decisions"][0]["reused_tokens"] == (n - 1) / 4 * 4);
    // What only the engine knows is a matter of the text.
    const char* const kept = R"({"model":"tiny","input":"x","previous_response_id":"r"})";
    m.ask("/v1/responses", kept);
    CHECK(a.tokenized + b.tokenized == 1);
  }
}

TEST_CASE("equal questions for tokens are one, and an engine that is late is not waited for") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  e.hold_tokens = true;
  std::vector<Mixed::Answer> all(4);
  for (auto& answer : all) m.send("/v1/chat/completions", chat_of("hello"), answer);
  REQUIRE(until(m.loop, [&] {
    return std::all_of(all.begin(), all.end(), [](const auto& a) { return a.done; });
  }));
  CHECK(e.tokenized == 1);
  for (const auto& a : all) CHECK(a.status == 200);
  // The answer that comes later serves the next one.
  REQUIRE(e.held_tokens.size() == 1);
  e.hold_tokens = false;
  e.tokenize(std::exchange(e.held_tokens, {}).front());
  REQUIRE(until(m.loop, [&] {
    return (*parse_json(m.ask("/debug/route", chat_of("hello")).body))["prompt_tokens"] >
           chat_of("hello").size() - 30;
  }));
  CHECK(e.tokenized == 2);  // the one that the test itself asked for
}

TEST_CASE("the question for a chat's tokens has what reasoning_effort makes of its template") {
  const std::map<std::string, Json> all = {
      {R"(,"reasoning_effort":"low")", {{"enable_thinking", true}, {"reasoning_effort", "low"}}},
      {R"(,"reasoning_effort":"none","chat_template_kwargs":{"x":1})",
       {{"x", 1}, {"enable_thinking", false}, {"reasoning_effort", "none"}}},
      {R"(,"reasoning_effort":"max","chat_template_kwargs":{"enable_thinking":false})",
       {{"enable_thinking", false}, {"reasoning_effort", "max"}}},
      {R"(,"chat_template_kwargs":{"x":1})", {{"x", 1}}},
      {R"(,"reasoning_effort":null)", Json()}};
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  for (const auto& row : all) {
    const std::string members = row.first;
    CAPTURE(members);
    e.hold_tokens = true;
    Mixed::Answer answer;
    m.send("/v1/chat/completions", chat_of("hello", members.c_str()), answer);
    REQUIRE(until(m.loop, [&] { return !e.held_tokens.empty(); }));
    const auto x = std::exchange(e.held_tokens, {}).front();
    const auto asked = *parse_json(x.request().body);
    CHECK(asked.value("chat_template_kwargs", Json()) == row.second);
    CHECK_FALSE(asked.contains("reasoning_effort"));
    e.hold_tokens = false;
    e.tokenize(x);
    REQUIRE(until(m.loop, [&] { return answer.done; }));
    CHECK(e.asked.back().value("reasoning_effort", Json()) ==
          parse_json(chat_of("hello", members.c_str()))->value("reasoning_effort", Json()));
  }
}

TEST_CASE("the tokens that an engine told hold until it starts again") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  const std::string body = chat_of("hello");
  const auto told = [&] {
    m.ask("/v1/chat/completions", body);
    return e.tokenized;
  };
  const auto up = [&] { return m.conductor->external().find("e0")->up; };
  CHECK(told() == 1);
  CHECK(told() == 1);
  e.well = false;
  REQUIRE(until(m.loop, [&] { return !up(); }));
  e.well = true;
  REQUIRE(until(m.loop, up));
  CHECK(told() == 2);
  CHECK(told() == 2);
  CHECK(m.administer("/register", e.registration("e0")).status == 200);
  REQUIRE(until(m.loop, up));
  CHECK(told() == 3);
}

TEST_CASE("an engine without /tokenize is left alone, and our own template or the text serves") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  MockEngine& f = m.engine("f0");
  e.tokenizes = f.tokenizes = false;
  for (int i = 0; i < 6; ++i) CHECK(m.ask("/v1/chat/completions", chat_of("hi")).status == 200);
  CHECK(e.tokenized + f.tokenized == 2);
  // Pictures have no tokens of ours: the text alone decides, and equal texts go the same way.
  const std::string picture = R"({"model":"tiny","messages":[{"role":"user","content":[)"
                              R"({"type":"image_url","image_url":{"url":"data:,)" +
                              std::string(700, 'p') + "\"}}]}]}";
  const std::string first = m.ask("/v1/chat/completions", picture).headers.at("x-mc-prefill");
  for (int i = 0; i < 10; ++i)
    CHECK(m.ask("/v1/chat/completions", picture).headers.at("x-mc-prefill") == first);
}

TEST_CASE("a chat with a picture is routed by the picture's name in the engine's hashes") {
  Mixed m(false);
  ApiServerOptions web{.http = "127.0.0.1:0", .admin_socket = "/tmp/mc-media-{port}.sock"};
  web.tokenize_wait = std::chrono::seconds(10);  // however slow the machine is
  m.api.reset();
  m.api = *ApiServer::open(m.loop, web, *m.conductor, m.metrics, "{}");
  MockEngine& a = m.engine("e0");
  MockEngine& b = m.engine("e1");
  const auto rendering = [](const char* name, int begin, int length) {
    return strf(R"({"token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13],"features":{"mm_hashes":)"
                R"({"image":["%s"]},"mm_placeholders":{"image":[{"offset":%d,"length":%d}]}}})",
                name, begin, length);
  };
  const auto chat = [](const std::string& url) {
    return R"({"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url",)"
           R"("image_url":{"url":")" +
           url + "\"}}]}]}";
  };
  // What e1 has, as vLLM tells it: the picture lies on tokens 2 to 6.
  const auto block = [](uint64_t hash, uint64_t first, const std::string& keys) {
    Pack p;
    p.map(6).text("type").text("BlockStored").text("block_hashes").array(1).integer(hash);
    p.text("parent_block_hash");
    if (hash == 1001)
      p.nil();
    else
      p.integer(hash - 1);
    p.text("token_ids").array(4);
    for (uint64_t t = first; t < first + 4; ++t) p.integer(t);
    return p.text("block_size").integer(4).text("extra_keys").array(1).out + keys;
  };
  b.publisher.publish({block(1001, 1, Pack().array(1).array(2).text("cat").integer(2).out),
                       block(1002, 5, Pack().array(1).array(2).text("cat").negative(-2).out),
                       block(1003, 9, Pack().nil().out)});
  REQUIRE(m.indexed("e1", 3));
  const auto best = [&](const std::string& body) {
    return (*parse_json(m.ask("/debug/route", body).body))["best_tokens"].get<int>();
  };

  a.rendering = b.rendering = rendering("cat", 2, 5);
  for (int i = 0; i < 3; ++i)
    CHECK(m.ask("/v1/chat/completions", chat("data:,cat")).headers.at("x-mc-prefill") == "e1");
  CHECK(best(chat("data:,cat")) == 12);
  REQUIRE(a.rendered.size() + b.rendered.size() == 1);
  CHECK(a.tokenized + b.tokenized == 0);
  const Json& asked = a.rendered.empty() ? b.rendered[0] : a.rendered[0];
  CHECK(asked["mm_payload"] == "none");
  CHECK(asked["messages"] == (*parse_json(chat("data:,cat")))["messages"]);
  a.rendering = b.rendering = rendering("dog", 2, 5);
  CHECK(best(chat("data:,dog")) == 0);
  a.rendering = b.rendering = rendering("cat", 6, 5);  // elsewhere
  CHECK(best(chat("data:,later")) == 0);

  // A rendering that contradicts itself is none: the text alone decides.
  for (const std::string& wrong :
       {rendering("cat", 14, 5), rendering("cat", 2, 1000), std::string("[]"),
        std::string(R"({"token_ids":[1,2,3,4,5],"features":{"mm_hashes":{"image":["cat"]}}})"),
        std::string(R"({"token_ids":[1,2,3,4,5],"features":{"mm_hashes":{"image":["cat"]},)"
                    R"("mm_placeholders":{"image":[]}}})")}) {
    CAPTURE(wrong);
    a.rendering = b.rendering = wrong;
    const size_t before = a.rendered.size() + b.rendered.size();
    CHECK(best(chat("data:,wrong")) == 0);
    CHECK(a.rendered.size() + b.rendered.size() == before + 1);
  }
  // Nor is an engine without it asked again at once.
  a.rendering.clear();
  b.rendering.clear();
  const size_t before = a.rendered.size() + b.rendered.size();
  for (int i = 0; i < 5; ++i)
    CHECK(m.ask("/v1/chat/completions", chat("data:,none")).status == 200);
  CHECK(a.rendered.size() + b.rendered.size() == before + 2);
  CHECK(a.tokenized + b.tokenized == 0);
}

TEST_CASE("the bytes of pictures, sound and documents count as no text") {
  const ApiLimits limits{.model = "tiny"};
  const auto tokens = [&](const std::string& content) {
    const auto r = parse_proxied(
        "/v1/chat/completions",
        R"({"model":"tiny","messages":[{"role":"user","content":)" + content + "}]}", limits);
    REQUIRE_MESSAGE(r, r.error().message);
    return r->tokens_about;
  };
  const std::string bytes(400'000, 'A'), text(400'000, ' ');
  for (const std::string& part : {
           R"({"type":"image_url","image_url":{"url":"data:image/png;base64,)" + bytes + "\"}}",
           R"({"type":"image_url","image_url":{"url":"data:image\/png;base64,\/9j\/)" + bytes +
               "\"}}",
           R"({"type":"input_audio","input_audio":{"data" : ")" + bytes + R"(","format":"wav"}})",
           R"({"type":"image","source":{"type":"base64","data":")" + bytes + "=\"}}",
           R"({"type":"file","file":{"file_data":"data:application/pdf;base64,)" + bytes + "\"}}",
       }) {
    const uint64_t one = tokens("[" + part + "]"), two = tokens("[" + part + "," + part + "]");
    CHECK(one > 1000);
    CHECK(one < 1200);
    CHECK(two > 2 * one - 100);
    CHECK(two < 2 * one);
  }
  for (const std::string& said :
       {"\"" + bytes + "\"", "\"data:text/plain;base64," + text + "\"",
        R"([{"type":"text","text":"data:;base64,)" + bytes + "\"}]",
        R"([{"type":"text","text":")" + bytes + "\"}]", "[{\"data\":\"" + text + "\"}]",
        R"([{"type":"text","text":"\"data\":)" + text + "\"}]"})
    CHECK(tokens(said) > 100'000);
  CHECK(tokens(R"("hello")") > 0);
}

TEST_CASE("a tenant pays for the tokens that an engine counted") {
  const std::string keys = keys_file("external_tokens_counted.json");
  Mixed m(false, "", keys);
  m.headers.push_back({"authorization", "Bearer key-of-tenant-a"});
  MockEngine& e = m.engine("e");
  e.tokenizes = false;
  e.answer = R"({"choices":[{"text":"x"}],"usage":{"prompt_tokens":70,"completion_tokens":5}})";
  CHECK(m.ask("/v1/chat/completions", chat_of(std::string(40'000, 'x'))).status == 200);
  const std::string text = m.metrics.text();
  const std::string counter = R"(mc_conductor_tenant_tokens_total{tenant="a",kind=)";
  CHECK(text.find(counter + "\"input\"} 70\n") != text.npos);
  CHECK(text.find(counter + "\"output\"} 5\n") != text.npos);
  // Anthropic's input_tokens are without what a cache had.
  e.answer = R"({"content":[{"type":"text","text":"x"}],"usage":{"input_tokens":30,
    "cache_creation_input_tokens":0,"cache_read_input_tokens":900,"output_tokens":5}})";
  CHECK(m.ask("/v1/messages", chat_of("hello")).status == 200);
  CHECK(m.metrics.text().find(counter + "\"input\"} 1000\n") != text.npos);
  // Wherever it stands in the answer.
  e.answer = R"({"usage":{"prompt_tokens":1000,"completion_tokens":5},"choices":[{"text":")" +
             std::string(200'000, 'x') + "\"}]}";
  CHECK(m.ask("/v1/chat/completions", chat_of("hello")).status == 200);
  CHECK(m.metrics.text().find(counter + "\"input\"} 2000\n") != text.npos);
  CHECK(m.metrics.text().find(counter + "\"output\"} 15\n") != text.npos);
  // Within what can be: eight times our own count and 64 Ki, and what the request asks for.
  e.answer = R"({"usage":{"prompt_tokens":4294967295,"completion_tokens":4294967295}})";
  CHECK(
      m.ask("/v1/completions", R"({"model":"tiny","prompt":[1,2],"max_tokens":9,"n":3})").status ==
      200);
  CHECK(m.metrics.text().find(counter + "\"input\"} " + std::to_string(2000 + 8 * 1 + 65536) +
                              "\n") != text.npos);
  CHECK(m.metrics.text().find(counter + "\"output\"} 42\n") != text.npos);
  std::remove(keys.c_str());
}

TEST_CASE("what no event confirms of an engine's cache is forgotten") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  e.silent = true;
  m.ask("/v1/completions", prompt_of(300));
  const auto best = [&] {
    const auto route = m.ask("/debug/route", prompt_of(300));
    return (*parse_json(route.body))["best_tokens"].get<int>();
  };
  CHECK(best() == 296);
  m.skip(kGuessesLast);
  CHECK(best() == 0);
}

TEST_CASE("F85: a keyed tenant's prompt finds its engine 100 of 100 times, by events alone") {
  for (const bool tells : {true, false}) {
    CAPTURE(tells);
    const std::string keys = keys_file("external_tokens_test.keys");
    Mixed m(false, {}, keys);
    m.headers.push_back({"authorization", "Bearer key-of-tenant-a"});
    MockEngine& a = m.engine("e0");
    MockEngine& b = m.engine("e1");
    a.tells_extras = b.tells_extras = tells;
    const std::string body = prompt_of(300);
    const std::string first = m.ask("/v1/completions", body).headers.at("x-mc-prefill");
    REQUIRE(m.indexed(first, 75));
    int found = 0;
    for (int i = 0; i < 100; ++i) {
      m.skip(kGuessesLast);  // of the request before
      const auto answer = m.ask("/v1/completions", body);
      const auto explained = *parse_json(m.administer("/explain/mine", "").body);
      const bool known = explained["decisions"][0]["best_tokens"] == 296;
      found += known && answer.headers.at("x-mc-prefill") == first ? 1 : 0;
    }
    CHECK(found == 100);
    const Json& asked = (a.asked.empty() ? b : a).asked.back();
    CHECK(asked["cache_salt"].get<std::string>().size() == 64);
    CHECK(asked["prompt"] == (*parse_json(body))["prompt"]);
    std::remove(keys.c_str());
  }
}

TEST_CASE("F86: /debug/route answers for the asker, or for the tenant that is named") {
  const std::string keys = keys_file("external_tokens_test2.keys");
  Mixed m(false, {}, keys);
  MockEngine& e = m.engine("e0");
  e.tells_extras = true;
  Json tokens = Json::array();
  for (int i = 0; i < 64; ++i) tokens.push_back(i);
  const std::string body = R"({"model":"tiny","prompt":)" + dump_json(tokens) + "}";
  const auto as = [&](const char* key) {
    m.headers = {{"x-request-id", "mine"}, {"authorization", std::string("Bearer ") + key}};
  };
  as("key-of-tenant-a");
  m.ask("/v1/completions", body);
  REQUIRE(m.indexed("e0", 16));
  as("key-of-tenant-root");
  const auto best = [&](const char* path) {
    return (*parse_json(m.ask(path, body).body))["best_tokens"].get<int>();
  };
  CHECK(best("/debug/route") == 0);
  CHECK(best("/debug/route?tenant=a") == 60);
  CHECK(best("/debug/route?tenant=b") == 0);
  CHECK(m.ask("/debug/route?tenant=none", body).status == 404);
  as("key-of-tenant-a");
  m.ask("/v1/completions", body);
  as("key-of-tenant-root");
  CHECK((*parse_json(m.ask("/explain/mine").body))["decisions"][0]["best_tokens"] == 60);
  std::remove(keys.c_str());
}

TEST_CASE("F92: adapters that an engine lists are models, and their blocks are their own") {
  Mixed m(false);
  MockEngine& plain = m.engine("plain");
  auto owned = std::make_unique<MockEngine>(m.loop, "tiny", 4);
  MockEngine& e = *owned;
  m.engines.push_back(std::move(owned));
  e.adapter = "sql";
  e.tells_extras = true;
  REQUIRE(m.administer("/register", e.registration("lora")).status == 200);
  REQUIRE(until(m.loop, [&] { return m.conductor->external().find("lora")->up; }));
  Json tokens = Json::array();
  for (int i = 0; i < 64; ++i) tokens.push_back(i);
  const auto body = [&](const char* model) {
    return R"({"model":")" + std::string(model) + R"(","prompt":)" + dump_json(tokens) + "}";
  };
  for (int i = 0; i < 4; ++i)
    CHECK(m.ask("/v1/completions", body("sql")).headers.at("x-mc-prefill") == "lora");
  CHECK(plain.came.empty());
  CHECK(e.came.back().body == body("sql"));
  REQUIRE(m.indexed("lora", 16));
  const auto best = [&](const char* model) {
    return (*parse_json(m.ask("/debug/route", body(model)).body))["best_tokens"].get<int>();
  };
  CHECK(best("sql") == 60);
  CHECK(best("tiny") == 0);  // not of the model itself
  const auto models = *parse_json(m.ask("/v1/models").body);
  REQUIRE(models["data"].size() == 2);
  CHECK(models["data"][1]["id"] == "sql");
  CHECK(models["data"][1]["parent"] == "tiny");
  CHECK(m.ask("/v1/models/sql").status == 200);
  CHECK(m.ask("/v1/completions", body("none")).status == 404);
}

TEST_CASE("texts are known by their beginnings, and the oldest are forgotten") {
  TextAffinity a(10);
  const std::string text(1600, 'x');
  const auto pieces = TextAffinity::pieces(text, 1);
  REQUIRE(pieces.size() == 4);
  CHECK(TextAffinity::pieces(text, 2) != pieces);
  a.sent(pieces, 7);
  CHECK(a.match(pieces, 7) == 4);
  CHECK(a.match(pieces, 8) == 0);
  CHECK(a.match(TextAffinity::pieces(text + "more", 1), 7) == 3);
  CHECK(a.match(TextAffinity::pieces("other" + text, 1), 7) == 0);
  for (uint64_t engine = 10; engine < 14; ++engine) a.sent(pieces, engine);
  CHECK(a.match(pieces, 7) == 0);  // four engines each
  CHECK(a.match(pieces, 13) == 4);
  a.sent(TextAffinity::pieces(std::string(5000, 'y'), 1), 7);
  CHECK(a.size() == 10);
  CHECK(a.match(pieces, 13) == 0);
}

}  // namespace external_tokens_test
