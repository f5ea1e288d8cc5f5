// JSON of others: it is parsed in linear time, within limits that are counted on the way.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/json.h"
#include "base/units.h"

using namespace mc;

namespace json_test {
namespace {

std::string object_of(size_t members) {
  std::string text = "{";
  for (size_t i = 0; i < members; ++i)
    text += (i > 0 ? ",\"key" : "\"key") + std::to_string(i) + "\":1";
  return text + "}";
}
std::string list_of(size_t values) {
  std::string text = "[0";
  for (size_t i = 1; i < values; ++i) text += ",0";
  return text + "]";
}
std::string why(std::string_view text, const JsonLimits& limits = kJsonMessage) {
  const auto json = parse_json(text, limits);
  return json ? "" : json.error().what;
}
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_THREAD, &used);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) / 1e6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

TEST_CASE("F6: members, values and nesting are counted while a text is parsed") {
  CHECK(why(object_of(1024)).empty());
  CHECK(why(object_of(1025)) == "an object has more than 1024 members");
  CHECK(why("[" + object_of(1025) + " and so on") == "an object has more than 1024 members");
  CHECK(why(object_of(1025), kJsonFile).empty());
  const JsonLimits few{.depth = 3, .values = 5};
  CHECK(why("[1,2,3,4]", few).empty());
  CHECK(why("[1,2,3,4,5]", few) == "more than 5 values");
  CHECK(why("{\"a\":1,\"b\":[2,3],\"c\":4}", few) == "more than 5 values");
  CHECK(why("[[[1]]]", few).empty());
  CHECK(why("[[[[", few) == "JSON nested deeper than 3 levels");
  CHECK(why(list_of((1 << 20) + 1000)).empty());  // a prompt of 2^20 tokens
}

TEST_CASE("F6: time is linear in the members of an object") {
  const std::string text = object_of(200'000);
  const double before = cpu_seconds();
  const auto json = parse_json(text, kJsonFile);
  CHECK(cpu_seconds() - before < 10);  // half a minute, were each name compared with all others
  REQUIRE(json);
  CHECK(json->size() == 200'000);
  CHECK(json->begin().key() == "key0");  // in the order of the text
}

TEST_CASE("a member that occurs twice is refused") {
  CHECK(why(R"({"a":1,"b":2,"a":3})") == "'a' occurs twice in an object");
  std::string many = object_of(100);
  many.back() = ',';
  CHECK(why(many + "\"key7\":2}") == "'key7' occurs twice in an object");
  CHECK(why(many + "\"key\":2}").empty());
  CHECK(why(R"([{"a":1},{"a":1,"b":{"a":1}}])").empty());
  CHECK(why(R"({"a":1,"\u0061":2})") == "'a' occurs twice in an object");
}

TEST_CASE("values are what the text says, and an error quotes little of it") {
  const auto json = parse_json(R"({"n":null,"t":true,"i":-7,"u":18446744073709551615,"d":1.5,)"
                               R"("s":"\u00e9\n","a":[[],{},[{"x":[1]}]]})");
  REQUIRE(json);
  CHECK(dump_json(*json) ==
        "{\"n\":null,\"t\":true,\"i\":-7,\"u\":18446744073709551615,\"d\":1.5,"
        "\"s\":\"\u00e9\\n\",\"a\":[[],{},[{\"x\":[1]}]]}");
  CHECK(parse_json("7")->get<int>() == 7);
  CHECK(why("[1e999]").find("number overflow") != std::string::npos);
  const std::string long_error = why("[\"" + std::string(100'000, 'x') + "\x01\"]");
  CHECK(long_error.find("line 1, column 100003") != std::string::npos);
  CHECK(long_error.size() < 300);
}

TEST_CASE("a NUL ends no text: what follows it would be unread") {
  const auto with = [](const std::string& before, const std::string& after) {
    return why(before + std::string(1, '\0') + after);
  };
  CHECK(with("{\"a\":1}", ",\"a\":2} garbage") == "a NUL at byte 8");
  CHECK(with("7", "") == "a NUL at byte 2");
  CHECK_FALSE(with("{\"a\"", ":1}").empty());
  CHECK_FALSE(with("\"x", "y\"").empty());
  CHECK(why("\"\\u0000\"").empty());  // escaped, it is a character as any other
}

TEST_CASE("a file is read up to a limit") {
  char path[] = "/tmp/mc-json-XXXXXX";
  const int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  CHECK(::ftruncate(fd, (256 << 20) + 1) == 0);
  ::close(fd);
  const auto large = read_json_file(path);
  std::remove(path);
  REQUIRE_FALSE(large);
  CHECK(large.error().what == std::string(path) + " has more than 256MiB");
}

}  // namespace json_test
