#include "model/text/pre_tokenizer.h"

#include <doctest/doctest.h>

#include <string>

#include "model/text/unicode.h"

using namespace mc::model;

namespace {

std::string pieces(Split how, std::string_view text) {
  std::string out;
  for (const std::string_view p : split(how, text)) {
    if (!out.empty()) out += '|';
    out += p;
  }
  return out;
}

}  // namespace

TEST_CASE("the patterns cut as their regular expressions do") {
  CHECK(pieces(Split::kGpt2, "I'd've SEEN'S  it, 1234 \n\n x") ==
        "I|'d|'ve| SEEN|'|S| | it|,| 1234| \n\n| x");
  CHECK(pieces(Split::kLlama3, "I'd've SEEN'S  it, 1234 \n\n x") ==
        "I|'d|'ve| SEEN|'S| | it|,| |123|4| \n\n| x");
  CHECK(pieces(Split::kQwen2, "a.b (c)\r\n$12") == "a|.b| (|c|)\r\n|$|1|2");
  CHECK(pieces(Split::kGpt2, "\t\tx   ") == "\t|\t|x|   ");
  CHECK(pieces(Split::kLlama3, "\t\tx   ") == "\t|\tx|   ");
  CHECK(pieces(Split::kLlama3, "caf\u00E9\u3000\u4E2D\u6587\u0661\u0662") ==
        "caf\u00E9|\u3000\u4E2D\u6587|\u0661\u0662");
  CHECK(pieces(Split::kGpt2, "don\u2019t") == "don|\u2019|t");
  CHECK(pieces(Split::kLlama3, "'\u017Fx") == "'\u017F|x");  // a long s, as cases fold
}

TEST_CASE("digits alone or in runs, and words that begin with their mark") {
  CHECK(pieces(Split::kDigits, "ab12 3\u0664c") == "ab|1|2| |3|\u0664|c");
  CHECK(pieces(Split::kDigitRuns, "ab12 3\u0664c") == "ab|12| |3\u0664|c");
  CHECK(pieces(Split::kMarkedWords, "a\u2581b\u2581\u2581c") == "a|\u2581b|\u2581|\u2581c");
}

TEST_CASE("pieces are all of a text, whatever its bytes are") {
  std::string text;
  uint32_t state = 7;
  for (int i = 0; i < 4000; ++i) {
    state = state * 1664525u + 1013904223u;
    text += (state >> 16) % 3 == 0 ? ' ' : static_cast<char>(state >> 24);
  }
  for (const Split how : {Split::kGpt2, Split::kLlama3, Split::kQwen2, Split::kDigits,
                          Split::kDigitRuns, Split::kMarkedWords}) {
    std::string joined;
    for (const std::string_view p : split(how, text)) {
      CHECK_FALSE(p.empty());
      joined += p;
    }
    CHECK(joined == text);
  }
}

TEST_CASE("characters have the class of their category") {
  CHECK(class_of('a') == CharClass::kLetter);
  CHECK(class_of('_') == CharClass::kOther);
  CHECK(class_of(0x85) == CharClass::kSpace);
  CHECK(class_of(0x1C) == CharClass::kOther);  // a separator of files, no White_Space
  CHECK(class_of(0xBD) == CharClass::kNumber);
  CHECK(class_of(0x0301) == CharClass::kOther);
  CHECK(class_of(0x20000) == CharClass::kLetter);
  CHECK(class_of(0x10FFFF) == CharClass::kOther);
  CHECK(first_character("\xFFz").size == 1);
}

TEST_CASE("text is composed as NFC, and what is not UTF-8 stays") {
  CHECK(composed("e\u0301 plain") == "\u00E9 plain");
  CHECK(composed("\u1112\u1161\u11AB") == "\uD55C");
  CHECK(composed("a\u0323\u0302") == "\u1EAD");
  CHECK(composed("a\u0302\u0323") == "\u1EAD");  // marks in the order of their classes
  CHECK(composed("\u212B") == "\u00C5");         // a singleton
  CHECK(composed("\u0958") == "\u0915\u093C");   // excluded from composition
  CHECK(composed("\xCC\xFF\x80") == "\xCC\xFF\x80");
}
