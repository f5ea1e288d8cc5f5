#include "base/options.h"

#include <doctest/doctest.h>

#include "base/json.h"

using namespace mc;
using namespace std::chrono_literals;

namespace {
struct Sample {
  std::string listen = "127.0.0.1:1";
  bool fast = false;
  Bytes size{4096};
  Duration ttl = 5s;
  double ratio = 0.5;
  std::vector<std::string> names{"a", "b"};
  std::string mode = "one";
  void describe(OptionList& v) {
    v("listen", listen, "where");
    v("fast", fast, "how");
    v("size", size, "how much");
    v("ttl", ttl, "how long");
    v("ratio", ratio, "what share");
    v("names", names, "who");
    v("mode", mode, "which", {"one", "two"});
  }
};
}  // namespace

TEST_SUITE("base/options") {
  TEST_CASE("a config file that was printed reads back to the same options") {
    Sample a, b;
    a.size = Bytes(3 * kMiB);
    a.ttl = 250ms;
    a.names = {"x", "y"};
    a.fast = true;
    OptionList la, lb;
    a.describe(la);
    b.describe(lb);
    auto json = parse_json(config_text(la, "test"), kJsonFile);
    REQUIRE(json.has_value());
    REQUIRE(apply_json(lb, *json, "file").has_value());
    for (size_t i = 0; i < la.all().size(); ++i) CHECK(la.all()[i].get() == lb.all()[i].get());
    CHECK(lb.all()[0].origin == "file");
  }

  TEST_CASE("an unknown key is refused, with the nearest name") {
    Sample s;
    OptionList list;
    s.describe(list);
    auto bad = apply_json(list, Json{{"lisen", "x"}}, "f.json");
    REQUIRE_FALSE(bad.has_value());
    CHECK(bad.error().what.find("f.json") != std::string::npos);
    CHECK(bad.error().what.find("did you mean 'listen'") != std::string::npos);
  }

  TEST_CASE("values of the wrong type or out of the choices are refused") {
    Sample s;
    OptionList list;
    s.describe(list);
    for (const Json& json : {Json{{"ttl", 5}}, Json{{"ttl", "5"}}, Json{{"fast", "maybe"}},
                             Json{{"size", "4kb"}}, Json{{"mode", "three"}}, Json{{"ratio", "x"}},
                             Json{{"listen", 7}}, Json{{"names", Json::array({1})}}}) {
      CAPTURE(dump_json(json));
      CHECK_FALSE(apply_json(list, json, "f").has_value());
    }
    CHECK_FALSE(apply_json(list, Json::array(), "f").has_value());
    CHECK(s.ttl == 5s);
  }

  TEST_CASE("nearest suggests what is near and nothing that is far") {
    CHECK(nearest("lissten", {"listen", "ttl"}) == "listen");
    CHECK(nearest("zebra", {"listen", "ttl"}).empty());
  }
}
