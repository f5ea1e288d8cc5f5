// A conductor with fake workers behind its API server, and a client.
#pragma once
#include "conductor_fakes.h"
#include "http/client.h"
#include "serve/frontend/api_server.h"

namespace mc::serve::test {

struct Site : Cluster {
  explicit Site(ConductorOptions options = patient(),
                ApiServerOptions serving = {.http = "127.0.0.1:0"},
                const std::string& config = "{}")
      : Cluster(1, 1, options) {
    auto opened = ApiServer::open(loop, serving, *conductor, metrics, config);
    REQUIRE_MESSAGE(opened, opened.error().what);
    api = std::move(*opened);
  }
  http::Client::Id send(const std::string& path, const std::string& body,
                        Result<http::ClientResponse>& answer, bool& done, std::string* stream) {
    http::ClientRequest r;
    r.method = body.empty() ? "GET" : "POST";
    r.url = "http://" + api->http() + path;
    r.headers = headers;
    if (!body.empty()) r.headers.push_back({"content-type", "application/json"});
    r.body = body;
    http::ClientCallbacks calls;
    if (stream != nullptr)
      calls.on_chunk = [stream](std::string_view chunk, Time) { stream->append(chunk); };
    calls.on_done = [&answer, &done](Result<http::ClientResponse> a) {
      answer = std::move(a);
      done = true;
    };
    return client.send(std::move(r), std::move(calls));
  }
  http::ClientResponse ask(const std::string& path, const std::string& body = {}) {
    Result<http::ClientResponse> answer;
    bool done = false;
    send(path, body, answer, done, nullptr);
    REQUIRE(until(loop, [&] { return done; }));
    REQUIRE_MESSAGE(answer, answer.error().what);
    return *answer;
  }
  std::string stream(const std::string& path, const std::string& body) {
    Result<http::ClientResponse> answer;
    bool done = false;
    std::string text;
    send(path, body, answer, done, &text);
    REQUIRE(until(loop, [&] { return done; }));
    return text;
  }
  http::Headers headers = {{"x-request-id", "mine"}};
  std::unique_ptr<ApiServer> api;
  http::Client client{loop};
};

}  // namespace mc::serve::test
