#include "model/tokens/regex.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace mc;
using model::Regex;

namespace {

// The matches in a text, each in brackets.
std::string matches(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::compile(pattern);
  if (!regex) return regex.error().what;
  std::string out;
  for (size_t at = 0; at <= text.size();) {
    const Regex::Match m = regex->find(text, at);
    if (!m.found) return out + (m.failed ? "failed" : "");
    out += "[" + std::string(text.substr(m.begin, m.end - m.begin)) + "]";
    at = m.end > at ? m.end : at + 1;
  }
  return out;
}

}  // namespace

TEST_CASE("a pattern means what it means in Oniguruma") {
  CHECK(matches(R"(\s+)", "a \u0085\u3000b\u180Ec") == "[ \u0085\u3000]");
  CHECK(matches(R"(\w+)", "a\u0301_1 \u00BD-") == "[a\u0301_1]");
  CHECK(matches(R"([\w-]+)", "a-b c") == "[a-b][c]");
  CHECK(matches(R"(\h+)", "xaF9 g") == "[aF9]");
  CHECK(matches(R"(\d{,2})", "123") == "[12][3][]");
  CHECK(matches(R"(\p{N}{1,3}+)", "12345") == "[12345]");  // repeated, not possessive
  CHECK(matches(R"((?:ab){1,1}+c)", "ababc") == "[ababc]");
  CHECK(matches(R"(\p{Letter}+|\p{^Number})", "ab1;") == "[ab][;]");
  CHECK(matches(R"([^\p{L}\]]+)", "ab]1;") == "[1;]");
  CHECK(matches(R"(^b$)", "a\nb\nc") == "[b]");
  CHECK(matches(R"((?i:'s))", "'\u017F") == "['\u017F]");
  CHECK(matches("[\u4E00-\u9FA5]+", "a\u4E2D\u6587") == "[\u4E2D\u6587]");
}

TEST_CASE("a pattern that cannot be read is refused, with the place") {
  for (const char* pattern :
       {"(", "a)", "[a", "\\", "[a&&b]", "[a[b]]", R"(\p{Nonsense})", R"(\p{L)", "a{2,1}"}) {
    const auto made = Regex::compile(pattern);
    CAPTURE(pattern);
    REQUIRE_FALSE(made);
    CHECK(made.error().code == Code::kInvalid);
    CHECK(made.error().what.find("pattern '") != std::string::npos);
  }
  CHECK_FALSE(Regex::compile(std::string(100'000, 'a')));
  CHECK_FALSE(Regex::compile(std::string(5000, '(') + std::string(5000, ')')));
}

TEST_CASE("a pattern that backtracks without end is refused, and a search is given up") {
  const auto refused = Regex::compile("(a+a+)+b");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().what.find("'(a+a+)+b' backtracks") != std::string::npos);
  const auto native = Regex::compile_native("(a+a+)+b");
  REQUIRE(native);
  CHECK(native->find(std::string(200, 'a') + "-b", 0).failed);
  CHECK_FALSE(native->find(std::string(20, 'c'), 0).failed);
  // Not on the characters that are tried.
  CHECK(matches("(x+x+)+y", std::string(200, 'x') + "-y") == "failed");
}
