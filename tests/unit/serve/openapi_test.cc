// The OpenAPI document has the routes that the server has, and the members that it reads.
#include "serve/openapi/openapi.h"

#include <doctest/doctest.h>

#include <set>

#include "api_site.h"
#include "base/json.h"
#include "serve/request/openai.h"
#include "serve/request/request_members.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace openapi_test {
namespace {

// "/a, /b/*" as the document has them.
std::set<std::string> paths_in(std::string list) {
  std::set<std::string> paths;
  list += ',';
  for (size_t at = 0, end = 0; (end = list.find(',', at)) != list.npos; at = end + 1) {
    std::string path = list.substr(at, end - at);
    path.erase(0, path.find('/'));
    if (path.ends_with("/*")) path.replace(path.size() - 1, 1, "{id}");
    paths.insert(path);
  }
  return paths;
}

int status_of(Site& s, const std::string& method, std::string path) {
  if (const size_t id = path.find("{id}"); id != path.npos) path.replace(id, 4, "x");
  http::testing::RawClient c(s.loop, s.api->http());
  c.send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  REQUIRE(c.wait_for("\r\n\r\n"));
  return std::stoi(c.received().substr(9, 3));
}

// What the front says to one member with that value, in a request that is right otherwise.
std::string refused_for(bool chat, const std::string& name, const Json& value,
                        const ApiLimits& limits) {
  Json body = {{"model", "tiny"}};
  if (chat)
    body["messages"] = Json::array({{{"role", "user"}, {"content", "x"}}});
  else
    body["prompt"] = "x";
  if (name == "stream_options") body["stream"] = true;
  body[name] = value;
  const auto parsed = parse_completion(dump_json(body), chat, limits);
  return parsed ? "" : parsed.error().param;
}

}  // namespace

TEST_CASE("each route of the server is in the document, by each of its methods, and no other") {
  Site s;
  const auto served = s.ask("/openapi.json");
  CHECK(served.status == 200);
  CHECK(served.body == openapi_json());
  const Json document = *parse_json(served.body);
  CHECK(document["openapi"] == "3.1.0");
  CHECK(document["info"]["version"] == MC_VERSION);
  CHECK((*parse_json(s.ask("/version").body))["version"] == MC_VERSION);
  const std::string said = (*parse_json(s.ask("/nothing").body))["error"]["message"];
  const auto routes = paths_in(said.substr(said.find("try ") + 4));
  std::set<std::string> documented;
  for (const auto& [path, operations] : document["paths"].items()) {
    documented.insert(path);
    for (const char* method : {"get", "post", "put", "delete"}) {
      const std::string at = path;  // clang captures no binding
      CAPTURE(at);
      CAPTURE(std::string(method));
      const std::string upper = method[0] == 'g'                       ? "GET"
                                : method[0] == 'p' && method[1] == 'o' ? "POST"
                                : method[0] == 'p'                     ? "PUT"
                                                                       : "DELETE";
      const int status = status_of(s, upper, path);
      if (!operations.contains(method)) {  // without engines theirs are not found
        CHECK((status == 405 || status == 404 || status == 403));
        continue;
      }
      CHECK(status != 405);
      CHECK(operations[method]["responses"].contains(std::to_string(status)));
    }
  }
  CHECK(routes == documented);
}

TEST_CASE("each member of a request in the document is one that the front reads") {
  Site s;
  const ApiLimits limits = limits_of(s.conductor->tokenizer(), "tiny", 4096, 300, {});
  const Json schemas = (*parse_json(openapi_json()))["components"]["schemas"];
  for (const bool chat : {false, true})
    for (const auto& [name, schema] :
         schemas[chat ? "ChatRequest" : "CompletionRequest"]["properties"].items()) {
      CAPTURE(chat);
      const std::string member = name;  // clang captures no binding
      CAPTURE(member);
      if (fate_of(name, chat ? Api::kChats : Api::kCompletions) == MemberFate::kNoEffect) continue;
      const bool typed = schema.contains("type") || schema.contains("anyOf");
      const bool templated = schema.value("description", "").starts_with("Given to");
      const Json wrong = Json::array({Json::object({{"no", "such"}})});
      CHECK(refused_for(chat, name, wrong, limits) == name);
      if (typed && name != "model" && name != "prompt" && name != "messages")
        CHECK(refused_for(chat, name, nullptr, limits).empty());
      if (!typed && !templated) CHECK(schema["description"] == "External engines only.");
    }
}

}  // namespace openapi_test
