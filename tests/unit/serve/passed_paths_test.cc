// Other paths that go to external engines, and no more than these.
#include "serve/external/passed_paths.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <string>

#include "mixed_site.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace passed_paths_test {

TEST_CASE("a pattern stands for what it says") {
  const auto paths = *PassedPaths::parse({"/v1/audio/*", "/v1/x", "/v1/a*c/*e"});
  for (const char* good : {"/v1/audio/speech", "/v1/audio/a/b", "/v1/audio/", "/v1/x", "/v1/abc/de",
                           "/v1/ac/c/e", "/v1/a/b/c/d/e"})
    CHECK_MESSAGE(paths.match(good), good);
  for (const char* bad : {"/v1/audio", "/v1/xy", "/v1", "/", "", "/v1/ac/", "/v1/audio/../x",
                          "/v1/audio/..", "/v1/audio/./x", "/v1/audio//x", "/v1/audio/a b",
                          "/v1/audio/\n", "/v1/audio/%2e%2e", "/v1/audio/a?b", "/v1/audio/\\x"})
    CHECK_MESSAGE(!paths.match(bad), bad);
  CHECK_FALSE(PassedPaths().match("/v1/x"));
  for (const char* bad : {"/v1/", "/metrics", "v1/x", "*", "/v1/../x", "/v1/a b", ""}) {
    const auto parsed = PassedPaths::parse({bad});
    REQUIRE_FALSE_MESSAGE(parsed, bad);
    CHECK(parsed.error().code == Code::kInvalid);
  }
}

// What hands no KV over is no failure of a half where nobody asked for tokens.
TEST_CASE("other paths go to no pair, and no half is blamed for it") {
  Mixed m(false);
  ApiServerOptions web{.http = "127.0.0.1:0", .admin_socket = "/tmp/mc-pass-{port}.sock"};
  web.pass = {"/v1/audio/*"};
  m.api.reset();
  m.api = *ApiServer::open(m.loop, web, *m.conductor, m.metrics, "{}");
  MockEngine& p = m.engine("p", 4, "tiny", "prefill");
  MockEngine& d = m.engine("d", 4, "tiny", "decode");
  for (int i = 0; i < 12; ++i)
    CHECK(m.ask("/v1/audio/speech", R"({"model":"tiny","input":"x"})").status == 503);
  CHECK(p.asked.empty());
  CHECK(d.asked.empty());
  CHECK(m.conductor->external().ejected(m.loop.now()) == 0);
  MockEngine& both = m.engine("e");
  CHECK(m.ask("/v1/audio/speech", R"({"model":"tiny","input":"x"})").status == 200);
  CHECK(both.asked.size() == 1);
}

TEST_CASE("other paths pass with their query where --pass names them") {
  Mixed m(false);
  ApiServerOptions web{.http = "127.0.0.1:0", .admin_socket = "/tmp/mc-pass-{port}.sock"};
  web.pass = {"/v1/audio/*"};
  m.api.reset();
  m.api = *ApiServer::open(m.loop, web, *m.conductor, m.metrics, "{}");
  const std::string body = R"({ "model":"tiny","input":"x" , "voice":"y"})";
  CHECK(m.ask("/v1/audio/speech", body).status == 404);  // there is no engine
  MockEngine& e = m.engine("e0", 4, "org/theirs");
  e.answer = R"({"model":"org/theirs"})";
  const auto r = m.ask("/v1/audio/speech?a=%20&b=1", body);
  CHECK(r.status == 200);
  CHECK(r.body == R"({"model":"tiny"})");
  CHECK(r.headers.at("x-mc-prefill") == "e0");
  REQUIRE_FALSE(e.came.empty());
  CHECK(e.came.back().path == "/v1/audio/speech");
  CHECK(e.came.back().query.at("a") == " ");
  CHECK(e.came.back().body == R"({ "model":"org/theirs","input":"x" , "voice":"y"})");
  CHECK(m.ask("/v1/videos", body).status == 404);
  CHECK(m.ask("/v1/audio/%2e%2e/secret", body).status == 404);
  // An answer may have no body there; to a request for tokens it is the engine's fault.
  e.mute = true;
  const auto empty = m.ask("/v1/audio/speech", body);
  CHECK(empty.status == 200);
  CHECK(empty.body.empty());
  CHECK(m.conductor->external().find("e0")->outliers.failed() == 0);
  CHECK(m.ask("/v1/completions", R"({"model":"tiny","prompt":"x"})").status == 503);
  e.mute = false;
  // The paths that are known pass with theirs too.
  CHECK(m.ask("/v1/messages?beta=true", body).status == 200);
  CHECK(e.came.back().query.at("beta") == "true");
}

TEST_CASE("forms and GETs pass where --pass names them, byte for byte") {
  Mixed m(false);
  ApiServerOptions web{.http = "127.0.0.1:0", .admin_socket = "/tmp/mc-form-{port}.sock"};
  web.pass = {"/v1/audio/*"};
  m.api.reset();
  m.api = *ApiServer::open(m.loop, web, *m.conductor, m.metrics, "{}");
  MockEngine& e = m.engine("e0", 4, "org/theirs");
  e.answer = std::string("ID3\0\xff", 5);
  e.answer_type = "audio/mpeg";
  std::string file;  // of all bytes, lines and what looks like a boundary
  for (int i = 0; i < 300'000; ++i) file += static_cast<char>(i * 7 % 256);
  file += "\r\n--X\r\n\r\n--x--\r\n";
  const std::string type = "multipart/form-data; boundary=\"Xy z\"";
  const auto form = [&](const std::string& model) {
    const std::string head = "--Xy z\r\nContent-Disposition: form-data; name=";
    return head + "\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n" + file +
           "\r\n" + head + "\"model\"\r\n\r\n" + model + "\r\n--Xy z--\r\n";
  };
  m.headers.push_back({"content-type", type});
  const auto r = m.ask("/v1/audio/transcriptions", form("tiny"));
  CHECK(r.status == 200);
  CHECK(r.body == e.answer);
  CHECK(r.headers.at("content-type") == "audio/mpeg");
  REQUIRE(e.came.size() == 1);
  CHECK(e.came[0].headers.at("content-type") == type);
  CHECK(e.came[0].body == form("org/theirs"));  // the engine's name, and nothing else
  CHECK(m.ask("/v1/audio/transcriptions", form("unknown")).status == 404);
  CHECK(m.ask("/v1/audio/transcriptions", form("a").substr(0, 900)).status == 400);
  std::string salted = form("tiny");
  salted.replace(salted.find("name=\"file\""), 11, "name=\"cache_salt\"");
  CHECK(m.ask("/v1/audio/transcriptions", salted).status == 400);
  CHECK(m.ask("/v1/completions", form("tiny")).status == 415);  // no path of --pass
  CHECK(e.came.size() == 1);
  m.headers.pop_back();
  const auto got = m.ask("/v1/audio/voices?model=tiny&x=1");
  CHECK(got.status == 200);
  CHECK(got.body == e.answer);
  REQUIRE(e.came.size() == 2);
  CHECK(e.came[1].path == "/v1/audio/voices");
  CHECK(e.came[1].query.at("x") == "1");
  CHECK(e.came[1].method == "GET");
  CHECK(e.came[1].body.empty());
  CHECK_FALSE(e.came[1].headers.contains("content-type"));
  CHECK(m.ask("/v1/audio/voices?model=unknown").status == 404);
  m.headers.push_back({"content-type", "text/plain"});
  CHECK(m.ask("/v1/audio/speech", "x").status == 415);
}

TEST_CASE("a GET may have an empty answer; a request for tokens may not") {
  Mixed m(false);
  ApiServerOptions web{.http = "127.0.0.1:0", .admin_socket = "/tmp/mc-none-{port}.sock"};
  web.pass = {"/v1/audio/*"};
  m.api.reset();
  m.api = *ApiServer::open(m.loop, web, *m.conductor, m.metrics, "{}");
  MockEngine& e = m.engine("e0");
  e.mute = true;
  const auto r = m.ask("/v1/audio/voices?model=tiny");
  CHECK(r.status == 200);
  CHECK(r.body.empty());
  CHECK(e.came.size() == 1);
  CHECK(m.ask("/v1/completions", R"({"model":"tiny","prompt":"x"})").status == 503);
}

TEST_CASE("a tenant's salt goes with its forms") {
  const std::string keys = "passed_paths_test.keys";
  std::ofstream(keys) << R"({"tenants":[{"name":"a","keys":["key-of-tenant-a"]},)"
                      << R"({"name":"b","keys":["key-of-tenant-b"]}]})";
  REQUIRE(::chmod(keys.c_str(), 0600) == 0);
  Mixed m(false);
  ApiServerOptions web{.http = "127.0.0.1:0", .admin_socket = "/tmp/mc-salt-{port}.sock"};
  web.pass = {"/v1/audio/*"};
  web.api_keys = keys;
  m.api.reset();
  m.api = *ApiServer::open(m.loop, web, *m.conductor, m.metrics, "{}");
  std::remove(keys.c_str());
  MockEngine& e = m.engine("e0", 4, "org/theirs");
  e.answer = "{}";
  const std::string type = "multipart/form-data; boundary=XX";
  m.headers.push_back({"content-type", type});
  m.headers.push_back({"authorization", "Bearer key-of-tenant-a"});
  const std::string form =
      "--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--XX--\r\n";
  std::set<std::string> salts;
  for (const char* const key : {"Bearer key-of-tenant-a", "Bearer key-of-tenant-b"}) {
    m.headers.back().second = key;
    CHECK(m.ask("/v1/audio/transcriptions", form).status == 200);
    const auto came = FormText::parse(e.came.back().body, type);
    REQUIRE(came);
    CHECK(came->find("model") == "org/theirs");
    const auto salt = came->find("cache_salt");
    REQUIRE(salt);
    CHECK(salt->size() == 64);
    salts.emplace(*salt);
  }
  CHECK(salts.size() == 2);
}

TEST_CASE("patterns and sites that cannot be are refused at the start") {
  Mixed m(false);
  const auto opens = [&m](ApiServerOptions web) {
    web.http = "127.0.0.1:0";
    web.admin_socket = "none";
    const auto api = ApiServer::open(m.loop, web, *m.conductor, m.metrics, "{}");
    return api ? std::string() : api.error().what;
  };
  CHECK(opens({.pass = {"/x"}}).find("--pass '/x'") != std::string::npos);
  CHECK(opens({.cors_origins = {"chat"}}).find("--cors-origins: 'chat'") != std::string::npos);
  CHECK(opens({.cors_origins = {"*"}}).find("without --api-keys") != std::string::npos);
  CHECK(opens({.http_without_keys = true, .cors_origins = {"*"}}).empty());
}

}  // namespace passed_paths_test
