#include "model/tokens/pre_tokenizer.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/tokens/charsmap.h"
#include "model/tokens/normalizer.h"
#include "model/tokens/unicode.h"

using namespace mc;
using namespace mc::model;

namespace {

constexpr const char* kGpt2 = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
const std::string kSpaces = R"(| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
const std::string kWords = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N})";

std::string split_step(const std::string& pattern, const std::string& behavior = "Isolated") {
  return R"({"type":"Split","pattern":{"Regex":")" + pattern + R"("},"behavior":")" + behavior +
         R"(","invert":false})";
}
const std::string kLlama3 = split_step(kWords + "{1,3}" + kSpaces);
const std::string kQwen2 = split_step(kWords + kSpaces);

Result<PreTokenizer> read(const std::string& json) {
  const auto parsed = parse_json(json);
  REQUIRE_MESSAGE(parsed.has_value(), json);
  return PreTokenizer::read(&*parsed);
}

std::string pieces(const std::string& json, std::string_view text, bool first = true) {
  const auto made = read(json);
  if (!made) return made.error().what;
  Pieces all;
  made->split(text, first, all);
  std::string out;
  for (size_t i = 0; i < all.spans.size(); ++i) {
    if (i > 0) out += '|';
    out += all[i];
  }
  return out;
}

std::string normal(const std::string& json, std::string_view text) {
  const auto parsed = parse_json(json);
  REQUIRE_MESSAGE(parsed.has_value(), json);
  const auto made = Normalizer::read(&*parsed);
  return made ? made->apply(text) : made.error().what;
}

}  // namespace

TEST_CASE("the patterns of published tokenizers cut as they should") {
  CHECK(pieces(kGpt2, "I'd've SEEN'S  it, 1234 \n\n x") ==
        "I|'d|'ve| SEEN|'|S| | it|,| 1234| \n\n| x");
  CHECK(pieces(kLlama3, "I'd've SEEN'S  it, 1234 \n\n x") ==
        "I|'d|'ve| SEEN|'S| | it|,| |123|4| \n\n| x");
  CHECK(pieces(kQwen2, "a.b (c)\r\n$12") == "a|.b| (|c|)\r\n|$|1|2");
  CHECK(pieces(kGpt2, "\t\tx   ") == "\t|\t|x|   ");
  CHECK(pieces(kLlama3, "\t\tx   ") == "\t|\tx|   ");
  CHECK(pieces(kLlama3, "caf\u00E9\u3000\u4E2D\u6587\u0661\u0662") ==
        "caf\u00E9|\u3000\u4E2D\u6587|\u0661\u0662");
  CHECK(pieces(kGpt2, "don\u2019t") == "don|\u2019|t");
  CHECK(pieces(kLlama3, "'\u017Fx") == "'\u017F|x");  // a long s, as cases fold
}

TEST_CASE("each pre-tokenizer cuts as HF's does") {
  CHECK(pieces(R"({"type":"Digits","individual_digits":true})", "ab12 3\u0664c") ==
        "ab|1|2| |3|\u0664|c");
  CHECK(pieces(R"({"type":"Digits"})", "ab12 3\u0664c") == "ab|12| |3\u0664|c");
  CHECK(pieces(R"({"type":"Whitespace"})", "a_b, (c)") == "a_b|,|(|c|)");
  CHECK(pieces(R"({"type":"WhitespaceSplit"})", " a_b,\u3000 (c)") == "a_b,|(c)");
  CHECK(pieces(R"({"type":"Punctuation"})", "a--b\u3002$") == "a|-|-|b|\u3002|$");
  CHECK(pieces(R"({"type":"Punctuation","behavior":"Contiguous"})", "a--b") == "a|--|b");
  CHECK(pieces(R"({"type":"BertPreTokenizer"})", "it's a") == "it|'|s|a");
  CHECK(pieces(R"({"type":"CharDelimiterSplit","delimiter":"-"})", "a-b--c") == "a|b|c");
  CHECK(pieces(R"({"type":"FixedLength","length":2})", "ab\u00E9\nc") == "ab|\u00E9\n|c");
  CHECK(pieces(R"({"type":"UnicodeScripts"})", "ab \u0430\u4E2D\u3042\u30FC, c") ==
        "ab |\u0430|\u4E2D\u3042\u30FC|, |c");
  CHECK(pieces(split_step("-", "Removed"), "a-b--c") == "a|b|c");
  CHECK(pieces(split_step("-", "MergedWithPrevious"), "a-b--c") == "a-|b-|-|c");
  CHECK(pieces(split_step("-", "MergedWithNext"), "a-b--c") == "a|-b|-|-c");
  CHECK(pieces(split_step("-", "Contiguous"), "a-b--c") == "a|-|b|--|c");
  CHECK(pieces(split_step(R"((?=(\\d{3})+(?!\\d)))"), "x1234567") == "x1|234|567");
}

TEST_CASE("Metaspace marks spaces, and puts one before a text as its scheme says") {
  const auto with = [](const char* scheme) {
    return strf(R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"%s"})", scheme);
  };
  CHECK(pieces(with("always"), "a  b") == "\u2581a|\u2581|\u2581b");
  CHECK(pieces(with("always"), " a", false) == "\u2581a");
  CHECK(pieces(with("first"), "a", false) == "a");
  CHECK(pieces(with("first"), "a") == "\u2581a");
  CHECK(pieces(with("never"), "a b") == "a|\u2581b");
  CHECK(pieces(R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},
                   {"type":"Metaspace"}]})",
               "a  b") == "\u2581a|\u2581b");
  CHECK(pieces(R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},
                   {"type":"Digits"}]})",
               "a b1") == "\u0120a|\u0120b|1");
}

TEST_CASE("pieces are all of a text, whatever its bytes are") {
  std::string text;
  uint32_t state = 7;
  for (int i = 0; i < 4000; ++i) {
    state = state * 1664525u + 1013904223u;
    text += (state >> 16) % 3 == 0 ? ' ' : static_cast<char>(state >> 24);
  }
  const std::string steps[] = {kGpt2, kLlama3, kQwen2, split_step("a", "MergedWithNext"),
                               R"({"type":"UnicodeScripts"})"};
  for (const std::string& step : steps) {
    std::string joined;
    const auto made = read(step);
    REQUIRE(made);
    Pieces all;
    made->split(text, true, all);
    for (size_t i = 0; i < all.spans.size(); ++i) {
      CHECK_FALSE(all[i].empty());
      joined += all[i];
    }
    if (step != steps[4]) CHECK(joined == text);  // that one drops spaces at the start
  }
}

TEST_CASE("a step that is unknown or wrong is refused by its name") {
  const auto refused = [](const std::string& json, const char* word) {
    const auto made = read(json);
    REQUIRE_FALSE(made);
    CHECK_MESSAGE(made.error().what.find(word) != std::string::npos, made.error().what);
  };
  refused(R"({"type":"Jieba"})", "pre_tokenizer Jieba");
  refused(R"({"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})", "Split");
  refused(R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Odd"})", "'Odd'");
  refused(R"({"type":"Split","pattern":{"String":""},"behavior":"Isolated"})", "empty");
  refused(split_step("(a+a+)+b"), "backtracks");
  refused(R"({"type":"FixedLength","length":0})", "FixedLength");
  refused(R"({"kind":"x"})", "no 'type'");
  refused(R"({"type":"Sequence"})", "pretokenizers");
  CHECK(normal(R"({"type":"Fold"})", "").find("normalizer Fold") == 0);
  CHECK(normal(R"({"type":"Precompiled","precompiled_charsmap":"!!"})", "").find("Precompiled") !=
        std::string::npos);
  CHECK(normal(R"({"type":"Precompiled","precompiled_charsmap":"/////w=="})", "")
            .find("trie of 4294967295 bytes") != std::string::npos);
}

TEST_CASE("each normalizer rewrites as HF's does") {
  CHECK(normal(R"({"type":"Lowercase"})", "A\u0130") == "ai\u0307");
  CHECK(normal(R"({"type":"Strip"})", "\u3000 a b\n") == "a b");
  CHECK(normal(R"({"type":"Strip","strip_left":false})", " a ") == " a");
  CHECK(normal(R"({"type":"StripAccents"})", "e\u0301\u00E9") == "e\u00E9");
  CHECK(normal(R"({"type":"Nmt"})", "a\u200Bb\u0001\tc") == "a b c");
  CHECK(normal(R"({"type":"Prepend","prepend":"_"})", "a") == "_a");
  CHECK(normal(R"({"type":"Prepend","prepend":"_"})", "").empty());
  CHECK(normal(R"({"type":"Replace","pattern":{"String":"aa"},"content":"b"})", "aaa") == "ba");
  CHECK(normal(R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "})", "a   b\xFF  ") ==
        "a b\xFF ");
  CHECK(normal(R"({"type":"ByteLevel"})", "a \xFF") == "a\u0120\u00FF");
  CHECK(normal(R"({"type":"BertNormalizer"})", "\u00C9a\u4E2Db\u0007\t") == "ea \u4E2D b ");
  CHECK(normal(R"({"type":"BertNormalizer","lowercase":false})", "\u00C9") == "\u00C9");
  CHECK(normal(R"({"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"}]})",
               "\u00E9") == "e");
}

TEST_CASE("characters have the class of their category") {
  CHECK(is_letter('a'));
  CHECK_FALSE((is_letter('_') || is_number('_') || is_white_space('_')));
  CHECK(is_white_space(0x85));
  CHECK_FALSE(is_white_space(0x1C));    // a separator of files, no White_Space
  CHECK_FALSE(is_white_space(0x180E));  // nor is the Mongolian vowel separator
  CHECK(is_number(0xBD));
  CHECK(is_mark(0x0301));
  CHECK(is_nonspacing_mark(0x0301));
  CHECK_FALSE(is_letter(0x0301));
  CHECK(is_letter(0x20000));
  CHECK(is_punctuation(0x2019));
  CHECK(is_other(0xAD));
  CHECK_FALSE(is_letter(0x10FFFF));
  CHECK(first_character("\xFFz").size == 1);
  CHECK_FALSE(is_letter(first_character("\xFFz").code));
  CHECK(last_character("a\u00E9").code == 0xE9);
  CHECK(last_character("a\xA9").size == 1);
}

TEST_CASE("text is normalized in each form, and what is not UTF-8 stays") {
  const auto nfc = [](std::string_view text) { return normalized(text, NormalForm::kNfc); };
  CHECK(nfc("e\u0301 plain") == "\u00E9 plain");
  CHECK(nfc("\u1112\u1161\u11AB") == "\uD55C");
  CHECK(nfc("a\u0323\u0302") == "\u1EAD");
  CHECK(nfc("a\u0302\u0323") == "\u1EAD");  // marks in the order of their classes
  CHECK(nfc("\u212B") == "\u00C5");         // a singleton
  CHECK(nfc("\u0958") == "\u0915\u093C");   // excluded from composition
  CHECK(nfc("\xCC\xFF\x80") == "\xCC\xFF\x80");
  CHECK(nfc("e\u0301\xFF\u0301") == "\u00E9\xFF\u0301");  // none is composed across such a byte
  CHECK(normalized("\u00E9\uFB01", NormalForm::kNfd) == "e\u0301\uFB01");
  CHECK(normalized("e\u0301\uFB01\u2460", NormalForm::kNfkc) == "\u00E9fi1");
  CHECK(normalized("\u00E9\uFF21", NormalForm::kNfkd) == "e\u0301A");
}

// Sorting a run of marks step by step takes their number squared: twenty minutes for this one.
TEST_CASE("a megabyte of combining marks is normalized in each form") {
  const auto times = [](size_t n, std::string_view text) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += text;
    return out;
  };
  constexpr size_t kMarks = 250'000;
  const std::string acute = times(kMarks, "\u0301"), below = times(kMarks, "\u0323");
  CHECK((normalized("e" + acute + below, NormalForm::kNfd) == "e" + below + acute));
  CHECK((normalized("e" + acute + below, NormalForm::kNfkd) == "e" + below + acute));
  const std::string composed = "\u1EB9" + below.substr(2) + acute;
  CHECK((normalized("e" + acute + below, NormalForm::kNfc) == composed));
  CHECK((normalized("e" + acute + below, NormalForm::kNfkc) == composed));
  // A mark that is two of other classes.
  const std::string two = times(kMarks, "\u0F73");
  const std::string sorted = times(kMarks, "\u0F71") + times(kMarks, "\u0F72");
  CHECK((normalized(two, NormalForm::kNfd) == sorted));
  CHECK((normalized(two, NormalForm::kNfc) == sorted));
}

// Lines of the Unicode Character Database's NormalizationTest.txt.
TEST_CASE("marks are sorted by class, and those of one class keep their order") {
  struct Line {
    std::string_view source, nfc, nfd;
  };
  for (const Line& line : {
           Line{"a\u0315\u0300\u05AE\u0300b", "\u00E0\u05AE\u0300\u0315b",
                "a\u05AE\u0300\u0300\u0315b"},
           Line{"a\u0300\u0315\u0300\u05AEb", "\u00E0\u05AE\u0300\u0315b",
                "a\u05AE\u0300\u0300\u0315b"},
           Line{"a\u05B0\u094D\u3099\u0334b", "a\u0334\u3099\u094D\u05B0b",
                "a\u0334\u3099\u094D\u05B0b"},
           Line{"\u1E0A\u0323", "\u1E0C\u0307", "D\u0323\u0307"},
           Line{"\u0592\u05B7\u05BC\u05A5\u05B0\u05C0\u05C4\u05AD",
                "\u05B0\u05B7\u05BC\u05A5\u0592\u05C0\u05AD\u05C4",
                "\u05B0\u05B7\u05BC\u05A5\u0592\u05C0\u05AD\u05C4"},
           Line{"\uAC00\u11A8", "\uAC01", "\u1100\u1161\u11A8"},
       }) {
    CAPTURE(line.source);
    CHECK(normalized(line.source, NormalForm::kNfc) == line.nfc);
    CHECK(normalized(line.source, NormalForm::kNfd) == line.nfd);
    CHECK(normalized(line.nfc, NormalForm::kNfd) == line.nfd);
    CHECK(normalized(line.nfd, NormalForm::kNfc) == line.nfc);
  }
}

TEST_CASE("cases are lowered a character at a time") {
  CHECK(lower_case("ABC\u00C9\u03A3 \u0130") == "abc\u00E9\u03C3 i\u0307");
  CHECK(lower_case("A\xFFZ") == "a\xFFz");
}

TEST_CASE("a table of characters may make a text 1024 times as long, and no more") {
  // A trie of one entry, "a"; then the text that it stands for.
  const auto table = [](size_t length) {
    std::vector<uint32_t> units(256);
    units[0] = 2u << 10;                        // the root: what follows lies at 2 ^ byte
    units[2 ^ 'a'] = 'a' | 1u << 8 | 4u << 10;  // a leaf, 4 further
    const std::string text = std::string(length, 'x') + '\0';
    const auto bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
    std::string blob(sizeof bytes + bytes, '\0');
    std::memcpy(blob.data(), &bytes, sizeof bytes);
    std::memcpy(blob.data() + sizeof bytes, units.data(), bytes);
    return blob + text;
  };
  const auto most = Charsmap::read(table(1024));
  REQUIRE_MESSAGE(most.has_value(), most.error().what);
  CHECK(most->replace("a").size() == 1024);
  CHECK(most->grows() == 1024);
  const auto over = Charsmap::read(table(1025));
  REQUIRE_FALSE(over);
  CHECK(over.error().what ==
        "the table of characters may make a text more than 1024 times as long");
}
