#include "wire/value.h"

#include <doctest/doctest.h>

#include <string>

using namespace mc;
using namespace mc::wire;

namespace value_test {

TEST_CASE("a document of another's design is walked by kind, and nothing is there that is not") {
  // {"a": [1, -2, 1.5, nil, true], "b": "text", "c": bin 01 02}
  const std::string in(
      "\x83\xa1"
      "a\x95\x01\xfe\xcb\x3f\xf8\0\0\0\0\0\0\xc0\xc3\xa1"
      "b\xa4text\xa1"
      "c\xc4\x02\x01\x02",
      30);
  const auto doc = Document::parse(in, 100);
  REQUIRE_MESSAGE(doc, doc.error().what);
  const Value root = doc->root();
  CHECK(root.kind() == Value::Kind::kMap);
  CHECK(root.size() == 3);
  const Value a = root["a"];
  REQUIRE(a.size() == 5);
  CHECK(a.at(0).unsigned_integer() == 1u);
  CHECK(a.at(0).integer() == 1);
  CHECK(a.at(1).integer() == -2);
  CHECK_FALSE(a.at(1).unsigned_integer());
  CHECK(a.at(1).number() == -2.0);
  CHECK(a.at(2).number() == 1.5);
  CHECK_FALSE(a.at(2).integer());
  CHECK(a.at(3).nil());
  CHECK(a.at(4).kind() == Value::Kind::kBool);
  CHECK(a.at(5).nil());
  CHECK(a["b"].nil());
  CHECK(root["b"].text() == "text");
  CHECK(root["b"].at(0).nil());
  CHECK(root["c"].text().empty());
  CHECK(root["c"].bytes() == "\x01\x02");
  CHECK(root["d"].nil());
  for (size_t n = 0; n < in.size(); ++n) CHECK_FALSE(Document::parse(in.substr(0, n), 100));
  CHECK_FALSE(Document::parse(in, 29));
  CHECK_FALSE(Document::parse(in + "x", 100));
  // F22: values are counted before any is allocated.
  const auto lists = [](uint32_t n) {  // each of n nils
    const std::string head = {'\xdd', 0, static_cast<char>(n >> 16), static_cast<char>(n >> 8),
                              static_cast<char>(n)};
    const std::string one = head + std::string(n, '\xc0');
    return "\x94" + one + one + one + one;
  };
  CHECK(Document::parse(lists((1 << 17) - 1), 1 << 20));
  CHECK(Document::parse(lists(1 << 17), 1 << 20).error().what.find("more than 524288 values") !=
        std::string::npos);
}

}  // namespace value_test
