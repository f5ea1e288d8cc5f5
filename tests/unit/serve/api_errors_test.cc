// Every status that the API server answers with: its body, code and headers.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "api_site.h"
#include "base/json.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace api_errors_test {
namespace {

// What an answer must be.
struct Want {
  int status;
  const char* type;
  const char* code;  // nullptr: JSON null
  const char* says;  // a part of the message
};

void check(const http::ClientResponse& r, const Want& want) {
  CAPTURE(r.body);
  CHECK(r.status == want.status);
  CHECK(r.headers.at("content-type") == "application/json");
  CHECK(r.headers.contains("x-request-id"));
  const auto parsed = parse_json(r.body);
  REQUIRE(parsed);
  const Json e = (*parsed)["error"];
  CHECK(e["type"] == want.type);
  CHECK(e["code"] == (want.code == nullptr ? Json() : Json(want.code)));
  CHECK(e.contains("param"));
  CHECK_MESSAGE(e["message"].get<std::string>().find(want.says) != std::string::npos, e.dump());
}

uint64_t counted(const Site& s, const std::string& code, const std::string& reason) {
  const std::string name =
      "mc_conductor_requests_total{code=\"" + code + "\",reason=\"" + reason + "\"} ";
  const std::string text = s.metrics.text();
  const size_t at = text.find(name);
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size()));
}

const char* const kAsk = R"({"model":"tiny","prompt":"hello there, this is a prompt"})";

struct KeyFile {
  explicit KeyFile(const std::string& json) {
    char path[] = "/tmp/mc-keys-XXXXXX";
    const int fd = ::mkstemp(path);
    REQUIRE(fd >= 0);
    ::close(fd);
    name = path;
    std::ofstream(name) << json;
  }
  ~KeyFile() { std::remove(name.c_str()); }
  ApiServerOptions options() const { return {.http = "127.0.0.1:0", .api_keys = name}; }
  std::string name;
};

const char* const kKeys = R"({"tenants":[{"name":"a","keys":["key-of-a"],"requests-per-minute":1},)"
                          R"({"name":"b","keys":["key-of-b"],"admin":true,"cache":"shared"}]})";

}  // namespace

TEST_CASE("F6: a body of 120,000 members is refused by the limit, wherever JSON is taken") {
  std::string body = R"({"model":"tiny","prompt":"x")";
  for (int i = 0; i < 120'000; ++i) body += ",\"k" + std::to_string(i) + "\":1";
  body += "}";
  Site s(patient(), {.http = "127.0.0.1:0", .admin_socket = "/tmp/mc-members-{port}.sock"});
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/register",
                           "/query", "/admin/scale-in"}) {
    CAPTURE(path);
    const auto r = http::testing::ask_at(s.loop, s.api->admin_socket(), path, body);
    CHECK(r.status == 400);
    CHECK(r.body.find("more than 1024 members") != std::string::npos);
  }
}

TEST_CASE("400 and 404: what is wrong with a request is named") {
  struct Row {
    const char* path;
    const char* body;
    Want want;
    const char* param;
  };
  const std::string kBad = "invalid_request_error";
  const char* const c = "/v1/completions";
  const char* const chat = "/v1/chat/completions";
  const char* const bad = kBad.c_str();
  const Row rows[] = {
      {c, "{", {400, bad, "invalid_json", "not taken: parse error at line 1"}, nullptr},
      {c, "[]", {400, bad, nullptr, "not a JSON object"}, nullptr},
      {c, R"({"prompt":"x"})", {400, bad, nullptr, "'model' is missing"}, "model"},
      {c, R"({"model":"gpt","prompt":"x"})", {404, bad, "model_not_found", "'gpt'"}, "model"},
      {c, R"({"model":"tiny"})", {400, bad, nullptr, "'prompt' is missing"}, "prompt"},
      {c, R"({"model":"tiny","prompt":[]})", {400, bad, nullptr, "empty"}, "prompt"},
      {c, R"({"model":"tiny","prompt":[9999999]})", {400, bad, nullptr, "token id"}, "prompt"},
      {c, R"({"model":"tiny","prompt":"x","n":17})", {400, bad, nullptr, "1 to 16"}, "n"},
      {c,
       R"({"model":"tiny","prompt":"x","priority":"high"})",
       {400, bad, nullptr, "want an integer"},
       "priority"},
      {c,
       R"({"model":"tiny","prompt":"x","stop":[""]})",
       {400, bad, nullptr, "stop string of 0 bytes"},
       "stop"},
      {c,
       R"({"model":"tiny","prompt":"x","stream_options":{}})",
       {400, bad, nullptr, "without 'stream'"},
       "stream_options"},
      {c,
       R"({"model":"tiny","prompt":"x","max_tokens":300000})",
       {400, bad, "context_length_exceeded", "262144"},
       "prompt"},
      {chat,
       R"({"model":"tiny","messages":[{"role":"user"}]})",
       {400, bad, nullptr, "without a 'content'"},
       "messages"},
      {"/tokenize", R"({"tokens":[1]})", {400, bad, nullptr, "either 'prompt'"}, "prompt"},
      {"/v1/embeddings", "{}", {404, bad, nullptr, "external engines"}, nullptr},
      {"/v1/embeddings", "", {405, bad, nullptr, "wants POST"}, nullptr},
      {"/v1/nothing", "{}", {404, bad, nullptr, "no such page"}, nullptr},
      {c, "", {405, bad, nullptr, "wants POST"}, nullptr},
      {"/explain/nobody", "", {404, bad, "unknown_request", "--explain-last"}, nullptr},
  };
  Site s;
  for (const Row& row : rows) {
    CAPTURE(row.path);
    CAPTURE(row.body);
    const auto r = s.ask(row.path, row.body);
    check(r, row.want);
    CHECK((*parse_json(r.body))["error"]["param"] ==
          (row.param == nullptr ? Json() : Json(row.param)));
    CHECK(r.headers.at("x-request-id") == "mine");
    CHECK(!r.headers.contains("retry-after"));
  }
  CHECK(counted(s, "404", "invalid") == 1);
  CHECK(s.d[0]->reserved.empty());  // no worker was asked
  CHECK(s.ask(c, kAsk).status == 200);
}

TEST_CASE("401 and 403: routes need keys, and a key opens only its own") {
  const KeyFile keys(kKeys);
  Site s(patient(), keys.options());
  const Want none{401, "invalid_request_error", "invalid_api_key", "Authorization: Bearer KEY"};
  const Want wrong{401, "invalid_request_error", "invalid_api_key", "not known"};
  for (const char* path : {"/v1/models", "/config", "/explain/x", "/debug/route?prompt=a", "/what"})
    check(s.ask(path), none);
  check(s.ask("/v1/completions", kAsk), none);
  CHECK(s.ask("/v1/models").headers.at("www-authenticate") == "Bearer");
  for (const char* path : {"/live", "/ready", "/health", "/metrics", "/cluster"})
    CHECK(s.ask(path).status == 200);
  s.headers = {{"authorization", "Bearer key-of-nobody"}};
  check(s.ask("/v1/completions", kAsk), wrong);
  CHECK(counted(s, "401", "invalid_api_key") == 8);
  s.headers = {{"authorization", "Bearer key-of-a"}};
  CHECK(s.ask("/v1/models").status == 200);
  check(s.ask("/config"), {403, "permission_error", "not_admin", "for admin keys"});
  s.headers = {{"authorization", "Bearer key-of-b"}};
  CHECK(s.ask("/config").status == 200);
  CHECK(s.ask("/v1/completions", kAsk).status == 200);
  CHECK(s.d[0]->reserved[0].cache_salt == "");  // it shares
}

TEST_CASE("429 of a tenant's own limit; its caches are its own") {
  const KeyFile keys(kKeys);
  Site s(patient(), keys.options());
  s.headers = {{"authorization", "Bearer key-of-a"}};
  CHECK(s.ask("/v1/completions", kAsk).status == 200);
  CHECK(s.d[0]->reserved[0].cache_salt.size() == 64);
  const auto r = s.ask("/v1/completions", kAsk);
  check(r, {429, "rate_limit_error", "rate_limit_exceeded", "1 requests per minute"});
  CHECK(r.headers.at("retry-after") == "30");  // a minute, told as the most we say
  CHECK(r.headers.at("x-mc-reject-reason") == "rate_limit_exceeded");
  CHECK(counted(s, "429", "rate_limit_exceeded") == 1);
  CHECK(s.metrics.text().find(R"(mc_conductor_tenant_tokens_total{tenant="a",kind="output"} 2)") !=
        std::string::npos);
}

TEST_CASE("F123: tenants are named to monitors only") {
  const KeyFile keys(kKeys), monitor("key-of-the-monitor\n");
  ApiServerOptions options = keys.options();
  const std::string named = "tenant=\"a\"";
  const auto shows = [&](Site& s, const char* key) {
    s.headers.clear();
    if (*key != '\0') s.headers = {{"authorization", std::string("Bearer ") + key}};
    return s.ask("/metrics").body.find(named) != std::string::npos;
  };
  Site s(patient(), options);
  s.headers = {{"authorization", "Bearer key-of-a"}};
  CHECK(s.ask("/v1/completions", kAsk).status == 200);
  REQUIRE(s.metrics.text().find(named) != std::string::npos);
  CHECK(!shows(s, ""));
  CHECK(!shows(s, "key-of-a"));
  CHECK(shows(s, "key-of-b"));  // an admin's
  CHECK(s.ask("/metrics").body.find("mc_conductor_requests_total{") != std::string::npos);

  options.monitor_key = monitor.name;
  Site closed(patient(), options);
  for (const char* path : {"/metrics", "/cluster"}) {
    closed.headers.clear();
    CHECK(closed.ask(path).status == 401);
    closed.headers = {{"authorization", "Bearer key-of-a"}};
    CHECK(closed.ask(path).status == 401);
    closed.headers = {{"authorization", "Bearer key-of-the-monitor"}};
    CHECK(closed.ask(path).status == 200);
    CHECK(closed.ask("/v1/models").status == 401);  // it opens nothing else
    closed.headers = {{"authorization", "Bearer key-of-b"}};
    CHECK(closed.ask(path).status == 200);
  }
}

TEST_CASE("F120: files of keys that others may read are refused") {
  const KeyFile keys(kKeys), monitor("key-of-the-monitor\n");
  ApiServerOptions options = keys.options();
  options.monitor_key = monitor.name;
  Site s;
  for (const std::string& name : {keys.name, monitor.name}) {
    REQUIRE(::chmod(name.c_str(), 0644) == 0);
    const auto opened = ApiServer::open(s.loop, options, *s.conductor, s.metrics);
    REQUIRE(!opened);
    CHECK(opened.error().code == Code::kDenied);
    CHECK(opened.error().what.find(name) != std::string::npos);
    REQUIRE(::chmod(name.c_str(), 0600) == 0);
  }
  CHECK(ApiServer::open(s.loop, options, *s.conductor, s.metrics));
}

TEST_CASE("F118: beyond loopback only with keys, or by a flag that says so") {
  const KeyFile keys(kKeys);
  Site s;
  const auto opens = [&](const ApiServerOptions& o) {
    const auto opened = ApiServer::open(s.loop, o, *s.conductor, s.metrics);
    if (!opened) CHECK(opened.error().code == Code::kInvalid);
    return opened.has_value();
  };
  CHECK(!opens({.http = "0.0.0.0:0"}));
  CHECK(!opens({.http = "[::]:0"}));
  CHECK(!opens({.http = "*:0"}));
  CHECK(opens({.http = "0.0.0.0:0", .api_keys = keys.name}));
  CHECK(opens({.http = "0.0.0.0:0", .http_without_keys = true}));
}

TEST_CASE("keys that change are in force within a second; a file that is wrong changes nothing") {
  const KeyFile keys(kKeys);
  Site s(patient(), keys.options());
  const auto status = [&](const char* key) {
    s.headers = {{"authorization", std::string("Bearer ") + key}};
    return s.ask("/v1/models").status;
  };
  CHECK(status("key-of-a") == 200);
  std::ofstream(keys.name) << R"({"tenants":[{"name":"b","keys":["new-key-of-b"]}]})";
  REQUIRE(until(s.loop, [&] { return status("new-key-of-b") == 200; }));
  CHECK(status("key-of-a") == 401);
  CHECK(status("key-of-b") == 401);
  std::ofstream(keys.name) << R"({"tenants":[{"name":"b"}]})";
  s.api->reread_keys();  // as SIGHUP has it
  CHECK(status("new-key-of-b") == 200);
  const std::string text = s.metrics.text();
  CHECK(text.find(R"(mc_conductor_keys_reads_total{result="ok"} 1)") != std::string::npos);
  CHECK(text.find(R"(mc_conductor_keys_reads_total{result="failed"} 1)") != std::string::npos);
}

TEST_CASE("429 of a broken promise: which, by how much, and when to retry") {
  ConductorOptions options = patient();
  SUBCASE("ttft") {
    options.admission.ttft_slo = 1ns;
    Site s(options);
    const auto r = s.ask("/v1/completions", kAsk);
    check(r, {429, "rate_limit_error", "ttft_slo", "predicted TTFT"});
    CHECK(r.headers.at("x-mc-reject-reason") == "ttft_slo");
    CHECK(std::stod(r.headers.at("x-mc-predicted-ttft-ms")) > 0);
    CHECK(r.headers.at("retry-after") == "1");
    CHECK(r.headers.at("x-request-id") == "mine");
    CHECK(counted(s, "429", "ttft_slo") == 1);
  }
  SUBCASE("tbt") {
    options.admission.tbt_slo = 1ns;
    Site s(options);
    const auto r = s.ask("/v1/completions", kAsk);
    check(r, {429, "rate_limit_error", "tbt_slo", "predicted TBT"});
    CHECK(r.headers.at("x-mc-reject-reason") == "tbt_slo");
    CHECK(r.headers.at("retry-after") == "30");  // not within what is forecast
    CHECK(counted(s, "429", "tbt_slo") == 1);
  }
  SUBCASE("the queue") {
    options.queue_max = 0;
    Site s(options);
    s.d[0]->full = true;
    const auto r = s.ask("/v1/completions", kAsk);
    check(r, {429, "rate_limit_error", "queue_full", "wait for room"});
    CHECK(r.headers.at("x-mc-reject-reason") == "queue_full");
    CHECK(r.headers.contains("retry-after"));
  }
}

TEST_CASE("499: a client that leaves is counted, and may be explained") {
  Site s;
  s.p[0]->silent = true;
  Result<http::ClientResponse> answer;
  bool done = false;
  const auto id = s.send("/v1/completions", kAsk, answer, done, nullptr);
  REQUIRE(until(s.loop, [&] { return s.p[0]->prefills.size() == 1; }));
  s.client.cancel(id);
  REQUIRE(until(s.loop, [&] { return s.conductor->in_flight() == 0; }));
  CHECK(counted(s, "499", "client_gone") == 1);
  const auto j = *parse_json(s.ask("/explain/mine").body);
  CHECK(j["outcome"]["status"] == 499);
  CHECK(j["outcome"]["reason"] == "the client is gone");
}

TEST_CASE("503: no worker, no room in time, a worker that fails, draining") {
  SUBCASE("a worker is missing") {
    Site s(quick());
    s.d[0].reset();
    REQUIRE(until(s.loop, [&] { return s.conductor->not_ready() == "no decode worker"; }));
    const auto r = s.ask("/v1/completions", kAsk);
    check(r, {503, "server_error", "no_capacity", "decode"});
    CHECK(r.headers.at("retry-after") == "1");
    const auto ready = s.ask("/ready");
    CHECK(ready.status == 503);
    CHECK((*parse_json(ready.body))["reason"] == "no decode worker");
    const auto health = s.ask("/health");
    CHECK(health.status == 503);
    CHECK((*parse_json(health.body))["status"] == "no decode worker");
    CHECK(s.ask("/live").status == 200);
  }
  SUBCASE("all are full for too long") {
    Site s(quick());
    s.d[0]->full = true;
    const auto r = s.ask("/v1/completions", kAsk);
    check(r, {503, "server_error", "no_capacity", "no worker had room"});
    CHECK(r.headers.at("retry-after") == "1");
  }
  SUBCASE("a worker fails, and so does the next one asked") {
    Site s;
    s.p[0]->broken = true;
    const auto r = s.ask("/v1/completions", kAsk);
    check(r, {503, "server_error", "worker_failed", "prefill on p0: the engine broke"});
    CHECK(r.headers.at("retry-after") == "1");
    CHECK(s.p[0]->prefills.size() == 2);
    CHECK(counted(s, "503", "worker_failed") == 1);
  }
  SUBCASE("draining") {
    Site s;
    s.conductor->drain();
    const auto r = s.ask("/v1/completions", kAsk);
    check(r, {503, "server_error", "draining", "draining"});
    CHECK(r.headers.at("retry-after") == "1");
  }
}

TEST_CASE("504: no token in time") {
  ConductorOptions options = quick();
  options.retries = 0;
  Site s(options);
  s.p[0]->then = nullptr;
  const auto r = s.ask("/v1/completions", kAsk);
  check(r, {504, "server_error", "upstream_timeout", "no token from d0"});
  CHECK(counted(s, "504", "upstream_timeout") == 1);
}

TEST_CASE("413, 431, 415 and 400 before a request is whole: errors of its API all the same") {
  struct Row {
    std::string bytes;
    const char* status;
    const char* says;
  };
  const Row rows[] = {
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
       "Content-Length: 33554433\r\n\r\n",
       "413", "larger than this server accepts"},
      {"GET / HTTP/1.1\r\nX: " + std::string(70'000, 'x') + "\r\n", "431", "header is larger"},
      {"hello\r\n\r\n", "400", "not an HTTP/1.1 request"},
      {"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", "415",
       "send JSON"},
  };
  Site s;
  for (const Row& row : rows) {
    CAPTURE(row.status);
    http::testing::RawClient client(s.loop, s.api->http());
    client.send(row.bytes);
    REQUIRE(client.wait_closed());
    const std::string& got = client.received();
    CHECK(got.starts_with(std::string("HTTP/1.1 ") + row.status + " "));
    CHECK(got.find("Content-Type: application/json\r\n") != std::string::npos);
    const auto body = parse_json(got.substr(got.find("\r\n\r\n") + 4));
    REQUIRE(body);
    CHECK((*body)["error"]["type"] == "invalid_request_error");
    CHECK(body->contains("type") == row.bytes.starts_with("POST /v1/messages"));  // Anthropic's
    CHECK((*body)["error"]["message"].get<std::string>().find(row.says) != std::string::npos);
    CHECK(counted(s, row.status, "http") == 1);
  }
}

}  // namespace api_errors_test
