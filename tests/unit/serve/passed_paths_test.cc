// Other paths that go to external engines, and no more than these.
#include "serve/external/passed_paths.h"

#include <doctest/doctest.h>

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
  CHECK(m.ask("/v1/audio/speech").status == 405);
  CHECK(m.ask("/v1/videos", body).status == 404);
  CHECK(m.ask("/v1/audio/%2e%2e/secret", body).status == 404);
  // The paths that are known pass with theirs too.
  CHECK(m.ask("/v1/messages?beta=true", body).status == 200);
  CHECK(e.came.back().query.at("beta") == "true");
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
