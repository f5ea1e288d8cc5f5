// Several models behind one conductor: their names, aliases and adapters, and where requests go.
#include <doctest/doctest.h>

#include <fstream>

#include "base/json.h"
#include "mixed_site.h"
#include "serve/external/model_names.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace external_models_test {
namespace {

struct File {
  explicit File(const std::string& text) { std::ofstream(path) << text; }
  ~File() { std::remove(path.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string path = "external_models_test.json";
};

std::string asks(const std::string& model, const char* more = "") {
  return R"({"model":")" + model + R"(","prompt":"x")" + more + "}";
}

const char* const kTwo = R"({"models":[
  {"name":"tiny","aliases":["gpt-x"]},
  {"name":"chat","engines":["a","b"],"aliases":["claude-x"],"adapters":{"sql":"a","law":["b"]}}]})";

ConductorOptions with_models(const File& file) {
  ConductorOptions o = quick();
  o.models = file.path;
  return o;
}

}  // namespace

TEST_CASE("F92: two engines with a model each behind one conductor; aliases mean their model") {
  const File file(kTwo);
  Mixed m(with_models(file), false);
  MockEngine& tiny = m.engine("t", 4, "tiny");
  MockEngine& a = m.engine("a", 4, "org/chat");
  for (const char* name : {"tiny", "gpt-x"}) {
    const auto r = m.ask("/v1/completions", asks(name));
    CHECK(r.headers.at("x-mc-prefill") == "t");
    CHECK((*parse_json(r.body))["model"] == name);
    CHECK(tiny.asked.back()["model"] == "tiny");
  }
  for (const char* name : {"chat", "claude-x"}) {
    const auto r = m.ask("/v1/completions", asks(name));
    CHECK(r.headers.at("x-mc-prefill") == "a");
    CHECK((*parse_json(r.body))["model"] == name);
    CHECK(a.asked.back()["model"] == "org/chat");
    const auto stream = m.ask("/v1/completions", asks(name, R"(,"stream":true)"));
    CHECK(stream.body.find("org/chat") == std::string::npos);
    CHECK(stream.body.find(std::string("\"model\":\"") + name) != std::string::npos);
  }
  CHECK(tiny.asked.size() == 2);
  CHECK(a.asked.size() == 4);
  const auto unknown = m.ask("/v1/completions", asks("none"));
  CHECK(unknown.status == 404);
  CHECK(unknown.body.find("'tiny', 'gpt-x', 'chat', 'claude-x'") != std::string::npos);
  // Without its engine the other model's requests have nowhere to go.
  CHECK(m.administer("/unregister", R"({"instance_id":"a"})").status == 200);
  CHECK(m.ask("/v1/completions", asks("chat")).status == 503);
  CHECK(m.ask("/v1/completions", asks("gpt-x")).status == 200);
}

TEST_CASE("names of models are of any characters that print") {
  const std::string model = "\xc3\xa9t\xc3\xa9",
                    alias = "\xe6\xa8\xa1\xe5\x9e\x8b-\xf0\x9f\x90\xa6";
  const File file("{\"models\":[{\"name\":\"" + model + "\",\"engines\":[\"a\"],\"aliases\":[\"" +
                  alias + "\"],\"adapters\":{\"\xc3\xbc\":\"a\"}}]}");
  Mixed m(with_models(file), false);
  MockEngine& a = m.engine("a", 4, "org/\xc3\xb1");
  for (const std::string& name : {model, alias}) {
    CAPTURE(name);
    const auto r = m.ask("/v1/completions", asks(name));
    CHECK(r.status == 200);
    CHECK((*parse_json(r.body))["model"] == name);
    CHECK(a.asked.back()["model"] == a.model);
    const auto stream = m.ask("/v1/completions", asks(name, R"(,"stream":true)"));
    CHECK(stream.body.find(a.model) == std::string::npos);
    CHECK(stream.body.find("\"model\":\"" + name + "\"") != std::string::npos);
  }
  a.answer = R"({"model":"org\/\u00f1"})";  // another way to write it
  CHECK(m.ask("/v1/completions", asks("\\u00e9t\\u00e9")).body == "{\"model\":\"" + model + "\"}");
  const Json listed = *parse_json(m.ask("/v1/models").body);
  std::set<std::string> ids;
  for (const Json& j : listed["data"]) ids.insert(j["id"].get<std::string>());
  CHECK(ids.contains(model));
  CHECK(ids.contains(alias));
  const auto unknown = m.ask("/v1/completions", asks("\xc3\xb6"));
  CHECK(unknown.status == 404);
  CHECK(parse_json(unknown.body));
  for (const char* const bad : {" ", "a b", "\\u0007"})
    CHECK(read_models(File(std::string(R"({"models":[{"name":")") + bad + "\"}]}").path)
              .error()
              .code == Code::kInvalid);
}

TEST_CASE("F92: models, aliases and adapters are listed and described") {
  const File file(kTwo);
  Mixed m(with_models(file), false);
  m.engine("t", 4, "tiny");
  MockEngine& a = m.engine("a", 4, "org/chat");
  const auto ids = [&] {
    std::set<std::string> all;
    const Json listed = *parse_json(m.ask("/v1/models").body);
    for (const Json& j : listed["data"]) all.insert(j["id"].get<std::string>());
    return all;
  };
  CHECK(ids() == std::set<std::string>{"tiny", "gpt-x", "chat", "claude-x", "sql", "law"});
  CHECK((*parse_json(m.ask("/v1/models/claude-x").body))["root"] == "chat");
  CHECK((*parse_json(m.ask("/v1/models/sql").body))["parent"] == "chat");
  CHECK((*parse_json(m.ask("/v1/models/gpt-x").body))["max_model_len"] > 0);
  CHECK_FALSE(parse_json(m.ask("/v1/models/chat").body)->contains("max_model_len"));
  // An engine names another.
  a.adapter = "poems";
  CHECK(m.administer("/register", a.registration("a")).status == 200);
  REQUIRE(until(m.loop, [&] { return ids().contains("poems"); }));
  CHECK((*parse_json(m.ask("/v1/models/poems").body))["parent"] == "chat");
}

TEST_CASE("an adapter goes to engines that list it, else to those that would load it") {
  const File file(kTwo);
  Mixed m(with_models(file), false);
  MockEngine& a = m.engine("a", 4, "org/chat");
  MockEngine& b = m.engine("b", 4, "org/chat");
  for (int i = 0; i < 3; ++i) {
    CHECK(m.ask("/v1/completions", asks("sql")).headers.at("x-mc-prefill") == "a");
    CHECK(m.ask("/v1/completions", asks("law")).headers.at("x-mc-prefill") == "b");
  }
  CHECK(a.asked.back()["model"] == "sql");
  b.adapter = "sql";  // it is loaded there
  CHECK(m.administer("/register", b.registration("b")).status == 200);
  REQUIRE(until(m.loop, [&] { return !m.conductor->external().find("b")->adapters.empty(); }));
  CHECK(m.ask("/v1/completions", asks("sql")).headers.at("x-mc-prefill") == "b");
}

TEST_CASE("adapters of an engine that is down are not unknown: nobody serves them for a while") {
  for (const bool workers : {false, true}) {
    Mixed m(workers);
    MockEngine& e = m.engine("e");
    e.adapter = "sql";
    CHECK(m.administer("/register", e.registration("e")).status == 200);
    const auto up = [&] { return m.conductor->external().find("e")->up; };
    REQUIRE(until(m.loop, up));
    CHECK(m.ask("/v1/completions", asks("sql")).headers.at("x-mc-prefill") == "e");
    e.well = false;
    REQUIRE(until(m.loop, [&] { return !up(); }));
    CHECK(m.ask("/v1/completions", asks("sql")).status == 503);
    CHECK(m.ask("/v1/models/sql").status == 200);
    CHECK(m.ask("/v1/completions", asks("other")).status == 404);
    CHECK(m.administer("/register", e.registration("e")).status == 200);  // as it starts again
    CHECK(m.ask("/v1/completions", asks("sql")).status == 503);
    e.well = true;
    e.adapter = "law";
    CHECK(m.administer("/register", e.registration("e")).status == 200);
    REQUIRE(until(m.loop, up));
    CHECK(m.ask("/v1/completions", asks("sql")).status == 404);
  }
}

TEST_CASE("F92: a model's blocks are its own, and so are an adapter's") {
  const File file(kTwo);
  Mixed m(with_models(file), false);
  MockEngine& tiny = m.engine("t", 4, "tiny");
  MockEngine& a = m.engine("a", 4, "org/chat");
  MockEngine& b = m.engine("b", 4, "org/chat");
  a.tells_extras = b.tells_extras = tiny.tells_extras = true;
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  tiny.compute(prompt);
  b.compute(prompt);
  a.compute(prompt, {}, "sql");
  REQUIRE(m.indexed("t", 2));
  REQUIRE(m.indexed("a", 2));
  REQUIRE(m.indexed("b", 2));
  const auto goes = [&](const char* model) {
    return m.ask("/v1/completions",
                 std::string(R"({"model":")") + model + R"(","prompt":[1,2,3,4,5,6,7,8,9]})");
  };
  for (int i = 0; i < 3; ++i) {
    CHECK(goes("chat").headers.at("x-mc-prefill") == "b");
    CHECK(goes("tiny").headers.at("x-mc-prefill") == "t");
  }
}

TEST_CASE("own workers answer to aliases, and other models go past them") {
  const File file(kTwo);
  Mixed m(with_models(file), true);
  const auto r = m.ask("/v1/completions", asks("gpt-x", R"(,"max_tokens":2)"));
  CHECK(r.headers.at("x-mc-prefill") == "p0");
  CHECK((*parse_json(r.body))["model"] == "gpt-x");
  CHECK(m.ask("/v1/completions", asks("chat")).status == 503);
  MockEngine& a = m.engine("a", 4, "org/chat");
  CHECK(m.ask("/v1/completions", asks("chat")).headers.at("x-mc-prefill") == "a");
  CHECK(m.ask("/v1/completions", asks("tiny", R"(,"max_tokens":2)")).headers.at("x-mc-prefill") ==
        "p0");
  // The tokens of the other model are the engine's to say.
  const auto tokens = m.ask("/tokenize", asks("chat"));
  CHECK(tokens.status == 200);
  CHECK(a.came.size() == 1);
  CHECK(a.tokenized > 0);
  CHECK(m.ask("/tokenize", asks("tiny")).status == 200);
}

TEST_CASE("a registration names its model, with a file or without") {
  Mixed m(false);
  MockEngine e(m.loop, "org/other", 4);
  auto j = *parse_json(e.registration("e"));
  j["model"] = "other";
  REQUIRE(m.administer("/register", dump_json(j)).status == 200);
  REQUIRE(until(m.loop, [&] { return m.conductor->external().find("e")->up; }));
  CHECK(m.ask("/v1/completions", asks("other")).headers.at("x-mc-prefill") == "e");
  CHECK(m.ask("/v1/completions", asks("tiny")).status == 503);
  const auto again = *parse_external(registration_json(m.conductor->external().find("e")->options));
  CHECK(again.serves == "other");

  const File file(kTwo);
  Mixed two(with_models(file), false);
  j["instance_id"] = "a";
  const auto wrong = two.administer("/register", dump_json(j));
  CHECK(wrong.status == 400);
  CHECK(wrong.body.find("by --models") != std::string::npos);
}

TEST_CASE("a file of models is refused by the member that is wrong") {
  const std::pair<const char*, const char*> table[] = {
      {"", "external_models_test.json"},
      {"[]", "want {\"models\": [..]}"},
      {R"({"models":[{}]})", "model 0: name: want a name"},
      {R"({"models":[{"name":"a b"}]})", "printable"},
      {R"({"models":[{"name":"a"},{"name":"a"}]})", "'a' stands twice"},
      {R"({"models":[{"name":"a","aliases":["b"]},{"name":"b"}]})", "'b' stands twice"},
      {R"({"models":[{"name":"a","adapters":{"a":"e"}}]})", "'a' stands twice"},
      {R"({"models":[{"name":"a","engines":["e"]},{"name":"b","engines":["e"]}]})",
       "engine 'e' is in two models"},
      {R"({"models":[{"name":"a","template":"x"}]})", "member 'template' is not known"},
      {R"({"models":[{"name":"a","engines":"e"}]})", "engines: want a list"},
      {R"({"models":[{"name":"a","adapters":["x"]}]})", "adapters: want an object"},
      {R"({"models":[{"name":"a","adapters":{"x":5}}]})", "adapters: want a list"},
  };
  for (const auto& row : table) {
    const File file(row.first);
    const auto models = read_models(file.path);
    REQUIRE_FALSE(models);
    const std::string what = models.error().what, want = row.second;
    CAPTURE(what);
    CHECK(what.find(want) != std::string::npos);
    CHECK(what.find(file.path) != std::string::npos);
  }
  CHECK(read_models("not/there.json").error().what.find("not/there.json") != std::string::npos);
}

}  // namespace external_models_test
