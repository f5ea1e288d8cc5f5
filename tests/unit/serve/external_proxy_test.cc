// What passes through to external engines, and back: all of it, but for the members that change.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/json.h"
#include "mixed_site.h"
#include "serve/external/answer_model.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace external_proxy_test {
namespace {

std::string renamed(const std::string& text, bool events, size_t piece) {
  AnswerModel m("org/theirs", "ours", events);
  std::string out;
  for (size_t at = 0; at < text.size(); at += piece) out += m.pass(text.substr(at, piece));
  return out + m.rest();
}

}  // namespace

TEST_CASE("F89: requests that own workers cannot do reach the engine as they were sent") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  const std::pair<const char*, const char*> table[] = {
      {"/v1/completions",
       R"({ "model":"tiny","prompt":["a","b"] , "n":2,"x":1e400,"z":{"b":1,"a":2}})"},
      {"/v1/completions", R"({"model":"tiny","prompt":"a","logprobs":3,"echo":true,"best_of":3})"},
      {"/v1/completions", R"({"model":"tiny","prompt":"a","suffix":"b","frequency_penalty":2.0})"},
      {"/v1/completions", R"({"prompt":"it names no model"})"},
      {"/v1/chat/completions", R"({"model":"tiny","messages":[{"role":"user","content":[)"
                               R"({"type":"image_url","image_url":{"url":"data:,"}}]}]})"},
      {"/v1/chat/completions", R"({"model":"tiny","messages":[{"role":"user","content":[)"
                               R"({"type":"input_audio","input_audio":{"data":"UklGRg==","format":)"
                               R"("wav"}},{"type":"text","text":"what?"}]}],)"
                               R"("modalities":["text","audio"],"audio":{"voice":"v"}})"},
      {"/v1/chat/completions",
       R"({"model":"tiny","messages":[{"role":"assistant","content":null,"tool_calls":[{}]}],)"
       R"("tools":[{"type":"function"}],"tool_choice":"auto"})"},
      {"/v1/chat/completions",
       R"({"model":"tiny","messages":[{"role":"user","content":"é"}],"seed":1.5,)"
       R"("response_format":{"type":"json_object"},"top_logprobs":2,"logprobs":true})"},
      {"/v1/responses", R"({"model":"tiny","input":"x","reasoning":{"effort":"low"}})"},
      {"/v1/messages",
       R"({"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"x"}],)"
       R"("thinking":{"type":"adaptive"}})"},
      {"/v1/embeddings", R"({"model":"tiny","input":["x","y"],"encoding_format":"base64"})"},
      {"/v1/rerank", R"({"model":"tiny","query":"x","documents":["y"]})"},
      {"/rerank", R"({"query":"x","documents":["y"]})"},
      {"/score", R"({"model":"tiny","text_1":"x","text_2":"y"})"},
      {"/pooling", R"({"model":"tiny","input":"x"})"},
  };
  e.answer = "{\"model\" : \"tiny\",\"odd\":1e400}\n";
  for (const auto& row : table) {
    const std::string path = row.first, body = row.second;
    CAPTURE(path);
    CAPTURE(body);
    const auto r = m.ask(path, body);
    CHECK(r.status == 200);
    CHECK(r.body == e.answer);
    REQUIRE_FALSE(e.came.empty());
    CHECK(e.came.back().path == path);
    CHECK(e.came.back().body == body);
  }
  // Own workers do not get them, and nothing is found where there are no engines.
  Mixed own(true);
  for (const auto& row : table) {
    const std::string path = row.first, body = row.second;
    CAPTURE(path);
    CAPTURE(body);
    CHECK(own.ask(path, body).status / 100 == 4);
  }
}

TEST_CASE(
    "a query goes to the engine with whatever stands in it, and is no failure of the engine") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  e.answer = "{}\n";
  for (const char* const query : {"?x={", "?include[]=a|b", "?x=\xc3\xa9", "?x=%zz"}) {
    CAPTURE(query);
    const size_t before = e.came.size();
    const auto r = http::testing::ask_at(
        m.loop, m.api->http(), std::string("/v1/completions") + query,
        R"({"model":"tiny","prompt":"a"})", "Content-Type: application/json\r\n");
    CHECK(r.status == 200);
    CHECK(e.came.size() == before + 1);
  }
  CHECK(m.conductor->external().find("e0")->outliers.failed() == 0);
}

TEST_CASE("F89: own workers and engines side by side: what only engines do goes to these") {
  Mixed m(true);
  const char* const two = R"({"model":"tiny","prompt":"a","n":2})";
  const char* const suffix = R"({"model":"tiny","prompt":"a","suffix":"b"})";
  MockEngine& e = m.engine("e0");
  for (int i = 0; i < 5; ++i)
    for (const char* body : {two, suffix})  // two answers are one request of an engine
      CHECK(m.ask("/v1/completions", body).headers.at("x-mc-prefill") == "e0");
  e.well = false;
  REQUIRE(until(m.loop, [&] { return !m.conductor->external().find("e0")->up; }));
  const auto refused = m.ask("/v1/completions", suffix);
  CHECK(refused.status == 400);
  CHECK((*parse_json(refused.body))["error"]["param"] == "suffix");
  const auto own = m.ask("/v1/completions", two);
  CHECK(own.status == 200);
  CHECK((*parse_json(own.body))["choices"].size() == 2);
  CHECK(m.ask("/v1/embeddings", R"({"model":"tiny","input":"x"})").status == 404);
}

TEST_CASE("F177: answers and each streamed event name the model that was asked for") {
  Mixed m(false);
  MockEngine& e = m.engine("e0", 4, "org/theirs");
  const auto whole = m.ask("/v1/completions", R"({"model":"tiny", "prompt":"x"})");
  CHECK((*parse_json(whole.body))["model"] == "tiny");
  CHECK(e.came.back().body == R"({"model":"org/theirs", "prompt":"x"})");
  const auto stream = m.ask("/v1/completions", R"({"model":"tiny","prompt":"x","stream":true})");
  size_t events = 0;
  for (size_t at = 0; (at = stream.body.find("data: {", at)) != std::string::npos; ++at, ++events) {
    const auto event = *parse_json(stream.body.substr(at + 6, stream.body.find('\n', at) - at - 6));
    CHECK(event["model"] == "tiny");
  }
  CHECK(events == 4);
  CHECK(stream.body.find("theirs") == std::string::npos);
}

TEST_CASE("only the model's name changes in an answer, wherever it is cut") {
  const std::string object =
      R"({"id":"model","x":{"model":"org/theirs"},"choices":[{"text":"\"model\":\"org/theirs\""}],)"
      R"( "model": "org\/theirs" ,"response":{"model":"org/theirs","y":["model","org/theirs"]},)"
      R"("n":1e400})";
  const std::string ours =
      R"({"id":"model","x":{"model":"org/theirs"},"choices":[{"text":"\"model\":\"org/theirs\""}],)"
      R"( "model": "ours" ,"response":{"model":"ours","y":["model","org/theirs"]},"n":1e400})";
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, object.size()}) {
    CHECK(renamed(object, false, piece) == ours);
    CHECK(renamed("event: x\ndata: " + object + "\n\ndata: {\"model\":\"another\"}\n\ndata: " +
                      object + "\r\n\r\ndata: [DONE]\n\n",
                  true, piece) == "event: x\ndata: " + ours +
                                      "\n\ndata: {\"model\":\"another\"}\n\ndata: " + ours +
                                      "\r\n\r\ndata: [DONE]\n\n");
  }
  for (const std::string odd : {"", "{", "}}]]", "{\"model\":\"org/th", "\"model\":\"org/theirs\"",
                                "[\"model\",\"org/theirs\"]", "{\"model\":5}"})
    CHECK(renamed(odd, false, 1) == odd);
  // The data of an event is that of all its lines; other lines and comments are no data.
  const std::string lines =
      ": \"model\":\nevent: {\"\ndata: {\"x\":1,\ndata:\"model\":\r\ndata: \"org/theirs\",\rdata: "
      "\"y\":2}\n\ndata: {\ndata: \"model\"\ndata: :\"org/theirs\"}\n\n";
  std::string ours_in_lines = lines;
  for (size_t at = 0; (at = ours_in_lines.find("org/theirs", at)) != std::string::npos;)
    ours_in_lines.replace(at, 10, "ours");
  for (const size_t piece : {size_t{1}, size_t{5}, lines.size()})
    CHECK(renamed(lines, true, piece) == ours_in_lines);
  const std::string long_name =
      "{\"model\":\"" + std::string(9000, 'x') + "\",\"model\":\"org/theirs\"}";
  CHECK(renamed(long_name, false, 100).ends_with(",\"model\":\"ours\"}"));
}

TEST_CASE("a stream is one in whatever case its type is written") {
  Mixed m(false);
  MockEngine& e = m.engine("e0", 4, "org/theirs");
  e.answer_type = "Text/Event-Stream; charset=UTF-8";
  e.answer = "data: {\"model\":\"org/theirs\"}\n\ndata: {\"model\":\"org/theirs\"}\n\n";
  const auto r = m.ask("/v1/completions", R"({"model":"tiny","prompt":"x","stream":true})");
  CHECK(r.body == "data: {\"model\":\"tiny\"}\n\ndata: {\"model\":\"tiny\"}\n\n");
  CHECK(r.headers.at("content-type") == e.answer_type);
  e.answer_type = "Application/JSON";
  e.answer = R"({"model":"org/theirs"})";
  CHECK(m.ask("/v1/completions", R"({"model":"tiny","prompt":"x"})").body == R"({"model":"tiny"})");
}

TEST_CASE("F91: an engine that wants a key gets it, and nobody else sees it") {
  const std::string key = "sk-of-the-engine", path = "external_proxy_test.key";
  Mixed m(false);
  m.headers.push_back({"authorization", "Bearer of-the-client"});
  MockEngine& e = m.engine("e0", 4, "tiny", "both", key);
  CHECK(m.ask("/v1/completions", R"({"model":"tiny","prompt":"x"})").status == 200);
  CHECK(e.came.back().headers.at("authorization") == "Bearer " + key);
  CHECK(m.ask("/cluster").body.find(key) == std::string::npos);
  CHECK(m.ask("/metrics").body.find(key) == std::string::npos);
  // In a file of engines the key is in a file of its own.
  std::ofstream(path) << key << "\n";
  std::ofstream(path + ".json") << R"([{"instance_id":"a","url":"http://x","key_file":")" << path
                                << "\"}]";
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  CHECK(read_external(path + ".json")->at(0).api_key == key);
  REQUIRE(::chmod(path.c_str(), 0644) == 0);
  CHECK(read_external(path + ".json").error().what.find(path) != std::string::npos);
  // One that has it itself is as secret.
  std::ofstream(path) << R"([{"instance_id":"a","url":"http://x","api_key":"k"}])";
  CHECK(read_external(path).error().code == Code::kDenied);
  CHECK(read_external(path).error().what.find("chmod 600 it") != std::string::npos);
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  CHECK(read_external(path)->at(0).api_key == "k");
  REQUIRE(::chmod(path.c_str(), 0644) == 0);
  std::ofstream(path) << R"([{"instance_id":"a","url":"http://x","api_key":""}])";
  CHECK(read_external(path).has_value());  // no key
  CHECK(m.administer("/register", R"({"instance_id":"a","url":"http://x","key_file":"/etc/x"})")
            .status == 400);
  CHECK(m.administer("/register",
                     "{\"instance_id\":\"a\",\"url\":\"http://x\",\"api_key\":\"a\\nb\"}")
            .status == 400);
  std::remove(path.c_str());
  std::remove((path + ".json").c_str());
}

TEST_CASE("a client's headers pass to an engine, but not those of its connection or its browser") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  m.headers.insert(m.headers.end(), {{"authorization", "Bearer mine"},
                                     {"traceparent", "00-1-2-01"},
                                     {"x-session-id", "7"},
                                     {"cookie", "a=b"},
                                     {"accept-encoding", "gzip"},
                                     {"te", "trailers"}});
  m.ask("/v1/completions", R"({"model":"tiny","prompt":"x"})");
  const auto& came = e.came.back().headers;
  CHECK(came.at("authorization") == "Bearer mine");
  CHECK(came.at("traceparent") == "00-1-2-01");
  CHECK(came.at("x-session-id") == "7");
  CHECK(came.at("x-request-id") == "mine");
  CHECK(came.at("content-type") == "application/json");
  for (const char* gone : {"cookie", "accept-encoding", "te"}) CHECK_FALSE(came.contains(gone));
}

TEST_CASE("headers that Connection names stay here: these, in any case, and no others") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  const std::string body = R"({"model":"tiny","prompt":"x"})";
  const auto r = http::testing::ask_at(
      m.loop, m.api->http(), "/v1/completions", body,
      "Connection: X-Hop-Secret ,keep-alive\r\nX-Hop-Secret: 1\r\nx-hop: 2\r\nalive: 3\r\n"
      "Keep: 4\r\nContent-Type: application/json\r\n");
  CHECK(r.status == 200);
  const auto& came = e.came.back().headers;
  CHECK_FALSE(came.contains("x-hop-secret"));
  CHECK(came.at("x-hop") == "2");
  CHECK(came.at("alive") == "3");
  CHECK(came.at("keep") == "4");
}

TEST_CASE("a request that comes back to the conductor that sent it is refused there") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  m.headers.push_back({"via", "1.1 a-proxy"});
  const std::string body = R"({"model":"tiny","prompt":"x"})";
  CHECK(m.ask("/v1/completions", body).status == 200);
  const std::string via = e.came.back().headers.at("via");
  CHECK(via.starts_with("1.1 a-proxy, 1.1 mc-"));
  m.headers.back().second = via + ", 1.1 another";
  const auto back = m.ask("/v1/completions", body);
  CHECK(back.status == 508);
  CHECK((*parse_json(back.body))["error"]["code"] == "loop_detected");
  CHECK(e.came.size() == 1);
  // So an engine that is this conductor itself never gets a request.
  const std::string self = "http://" + m.api->http();
  CHECK(m.administer("/register",
                     R"({"instance_id":"self","modelname":"tiny","url":")" + self + "\"}")
            .status == 200);
  REQUIRE(until(m.loop, [&] {
    return m.conductor->external().find("self")->why == "its url leads back to this conductor";
  }));
  m.headers.pop_back();
  CHECK(m.ask("/v1/completions", body).headers.at("x-mc-prefill") == "e0");
}

TEST_CASE("an answer that no client could read is the engine's fault, and named") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  const std::string ask = R"({"model":"tiny","prompt":"x"})";
  SUBCASE("compressed") {
    e.answer = "\x1f\x8b";
    e.answer_headers = {{"Content-Encoding", "gzip"}};
    const auto r = m.ask("/v1/completions", ask);
    CHECK(r.status == 503);
    CHECK(r.body.find("external engine e0: it answers with content-encoding 'gzip'") !=
          std::string::npos);
  }
  SUBCASE("a page for people") {
    e.answer = "<html>Welcome to the proxy</html>";
    e.answer_type = "text/html; charset=utf-8";
    const auto r = m.ask("/v1/completions", ask);
    CHECK(r.status == 503);
    CHECK(r.body.find("external engine e0: it answers with a page") != std::string::npos);
  }
  SUBCASE("but not a proxy's page about the request, which is the client's") {
    e.answer_status = 413;
    e.answer = "<html>413 Request Entity Too Large</html>";
    e.answer_type = "text/html";
    const auto r = m.ask("/v1/completions", ask);
    CHECK(r.status == 413);
    CHECK(r.body == e.answer);
  }
  SUBCASE("not compressed, and said so") {
    e.answer = "{}";
    e.answer_headers = {{"Content-Encoding", "identity"}};
    CHECK(m.ask("/v1/completions", ask).body == "{}");
  }
}

TEST_CASE("an answer of megabytes, as of many embeddings, comes whole") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  e.answer = "{\"data\":\"" + std::string(6'000'000, 'x') + "\"}";
  const auto r = m.ask("/v1/embeddings", R"({"model":"tiny","input":"x"})");
  CHECK(r.status == 200);
  CHECK(r.body.size() == e.answer.size());
  CHECK(r.body == e.answer);
}

TEST_CASE("an answer with another status than 200 comes whole too") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  for (const int status : {201, 206, 400, 404, 422})
    for (const size_t size : {200'000u, 3'000'000u}) {
      CAPTURE(status);
      e.answer_status = status;
      e.answer = "{\"error\":\"" + std::string(size, 'x') + "\"}";
      const auto r = m.ask("/v1/embeddings", R"({"model":"tiny","input":"x"})");
      CHECK(r.status == status);
      CHECK(r.body.size() == e.answer.size());
      CHECK(r.body == e.answer);
      CHECK_FALSE(r.error);
    }
  CHECK(m.conductor->external().find("e0")->outliers.failed() == 0);
  CHECK(m.conductor->external().find("e0")->requests == 0);
  CHECK((*parse_json(m.ask("/explain/mine").body))["outcome"]["status"] == 422);
}

TEST_CASE("the words of an engine that is full come whole up to 1 MiB, else an error says so") {
  Mixed m(false);
  MockEngine& e = m.engine("e0");
  for (const int status : {429, 503}) {
    CAPTURE(status);
    e.answer_status = status;
    e.answer = "{\"error\":\"" + std::string(1'000'000, 'x') + "\"}";
    const auto whole = m.ask("/v1/embeddings", R"({"model":"tiny","input":"x"})");
    CHECK(whole.status == status);
    CHECK(whole.body == e.answer);
    e.answer = "{\"error\":\"" + std::string(1'100'000, 'x') + "\"}";
    const auto over = m.ask("/v1/embeddings", R"({"model":"tiny","input":"x"})");
    CHECK(over.status == status);
    const auto said = parse_json(over.body);
    REQUIRE(said);
    CHECK((*said)["error"]["message"] ==
          strf("external engine e0: its answer, with status %d, is over 1MiB", status));
  }
}

TEST_CASE("F90: a request to an external engine leaves a decision and its outcome") {
  Mixed m(false);
  m.engine("e0");
  m.ask("/v1/completions", R"({"model":"tiny","prompt":"x"})");
  const auto r = m.ask("/explain/mine");
  REQUIRE(r.status == 200);
  const auto j = *parse_json(r.body);
  CHECK(j["decisions"][0]["prefill"] == "e0");
  CHECK(j["decisions"][0]["decode"] == "e0");
  CHECK(j["decisions"][0]["candidates"].size() == 1);
  CHECK(j["outcome"]["status"] == 200);
  CHECK(j["outcome"]["output_tokens"] == 3);
}

TEST_CASE("F93: one model is described by its name") {
  Mixed m(false);
  const auto one = m.ask("/v1/models/tiny");
  CHECK(one.status == 200);
  CHECK((*parse_json(one.body))["id"] == "tiny");
  CHECK(m.ask("/v1/models/none").status == 404);
}

}  // namespace external_proxy_test
