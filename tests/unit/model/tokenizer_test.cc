#include "model/text/tokenizer.h"

#include "files.h"
#include "shared.h"

using namespace mc;
using model::Tokenizer;

namespace {

// A SentencePiece model by hand: fields of (id, kind, bytes).
std::string varint(uint64_t n) {
  std::string out;
  for (; n >= 0x80; n >>= 7) out += static_cast<char>(0x80 | (n & 0x7f));
  return out + static_cast<char>(n);
}
std::string bytes_field(unsigned id, const std::string& bytes) {
  return varint(id << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string number_field(unsigned id, uint64_t n) { return varint(id << 3) + varint(n); }
std::string piece(const std::string& text, float score, unsigned kind) {
  std::string bits(4, '\0');
  std::memcpy(bits.data(), &score, 4);
  return bytes_field(1, bytes_field(1, text) + varint(2 << 3 | 5) + bits + number_field(3, kind));
}
std::string small_model() {
  std::string m = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
  m += piece("a", -5, 1) + piece("b", -6, 1) + piece("ab", -1, 1) + piece("ba", -2, 1);
  return m + bytes_field(2, number_field(3, 2)) + bytes_field(3, number_field(3, 0));
}

std::vector<int32_t> ids_of(const Json& array) { return array.get<std::vector<int32_t>>(); }

}  // namespace

TEST_CASE("both tokenizers of the small model give the oracle's ids and the text again") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  const std::string folder = shared + "/stories260K/hf-f32";
  std::ifstream in(folder + "/tokenizer.model", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto spm = Tokenizer::sentencepiece(bytes);
  REQUIRE(spm);
  const auto hf = Tokenizer::hugging_face(test::json_at(folder + "/tokenizer.json"));
  REQUIRE(hf);
  const Json cases = test::json_at(shared + "/oracle/stories260K/tokenizer_cases.json");
  REQUIRE(cases["cases"].size() > 100);
  for (const Json& c : cases["cases"]) {
    const std::string text = c["text"];
    CAPTURE(text);
    CHECK(spm->encode(text) == ids_of(c["ids"]));
    CHECK(hf->encode(text) == ids_of(c["ids"]));
    CHECK(spm->decode(spm->encode(text)) == text);
    CHECK(hf->decode(hf->encode(text)) == text);
    for (const auto* t : {&*spm, &*hf})  // F7: a text is refused by its bytes
      if (t->longest() > 0) CHECK(text.size() <= t->longest() * t->encode(text, false).size());
  }
}

TEST_CASE("sentencepiece: the best pair joins first, the leftmost of equal ones") {
  const auto t = Tokenizer::sentencepiece(small_model());
  REQUIRE(t);
  CHECK(t->encode("ab") == std::vector<int32_t>{1, 5});
  CHECK(t->encode("bab") == std::vector<int32_t>{1, 4, 5});
  CHECK(t->encode("abab", false) == std::vector<int32_t>{5, 5});
  CHECK(t->encode("aaa") == std::vector<int32_t>{1, 3, 3, 3});
  CHECK(t->encode("") == std::vector<int32_t>{1});
}

TEST_CASE("without byte pieces a run of unknown characters is one unknown token") {
  const auto t = Tokenizer::sentencepiece(small_model());
  REQUIRE(t);
  CHECK(t->encode("a\xC3\xA9\xFFz b") == std::vector<int32_t>{1, 3, 0, 4});
  CHECK(t->decode(std::vector<int32_t>{1, 3, 0, 4, 99, -7}) == "ab");
  CHECK(t->longest() == 0);  // of any length
}

TEST_CASE("no token of bytes is longer than one") {
  CHECK(Tokenizer::bytes_only(32000).longest() == 1);
  CHECK(Tokenizer::bytes_only(100).longest() == 0);  // the other bytes are left out
}

TEST_CASE("text that spells a special token is text") {
  const auto t = Tokenizer::sentencepiece(small_model());
  REQUIRE(t);
  for (const int32_t id : t->encode("</s>", false)) CHECK(id == 0);
  CHECK(t->special(2));
  CHECK(t->bytes(2).empty());
}

TEST_CASE("a long text of one letter takes no quadratic time, and nothing is lost") {
  const auto t = Tokenizer::sentencepiece(small_model());
  REQUIRE(t);
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "ab";
  CHECK(t->encode(text, false).size() == 100'000);
}

TEST_CASE("a sentencepiece model that is cut off, anywhere, is refused or whole") {
  const std::string whole = small_model();
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto t = Tokenizer::sentencepiece(whole.substr(0, n));
    if (t) CHECK(t->vocab() <= 7);
  }
  CHECK(Tokenizer::sentencepiece("").error().code == Code::kCorrupt);
  CHECK(Tokenizer::sentencepiece(std::string(40, '\xFF')).error().code == Code::kCorrupt);
  const std::string words = piece("a", 0, 1) + bytes_field(2, number_field(3, 3));
  CHECK(Tokenizer::sentencepiece(words).error().code == Code::kUnsupported);
}

TEST_CASE("tokenizer.json of bytes as letters reads any bytes, valid UTF-8 or not") {
  Json vocab = Json::object();
  Json file = {{"model", {{"type", "BPE"}, {"merges", Json::array({"h i"})}}},
               {"pre_tokenizer",
                {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}};
  const std::vector<std::string> pieces = {"h", "i", "hi", "\xC4\xA0", "\xC3\xBF"};  // space, 0xFF
  for (size_t i = 0; i < pieces.size(); ++i) vocab[pieces[i]] = i;
  file["model"]["vocab"] = vocab;
  const auto t = Tokenizer::hugging_face(file);
  REQUIRE(t);
  CHECK(t->encode("hi h\xFF") == std::vector<int32_t>{2, 3, 0, 4});
  CHECK(t->decode(std::vector<int32_t>{2, 3, 0, 4}) == "hi h\xFF");
}

TEST_CASE("a prompt spells user-defined pieces as a whole, and no control pieces") {
  std::vector<Tokenizer::Piece> pieces;
  pieces.push_back({"<unk>", 0, 2});
  pieces.push_back({"<s>", 0, 3});
  for (const char* text : {"a", "\u2581", "\u2581a"}) pieces.push_back({text, -1, 1});
  pieces.push_back({"  ", 0, 4});
  pieces.push_back({"<tool>", 0, 4});
  const auto t = Tokenizer::scored_pieces(pieces, -1, false);
  REQUIRE(t);
  CHECK(t->encode("a   a<tool>") == std::vector<int32_t>{2, 5, 4, 6});
  CHECK(t->encode("a a") == std::vector<int32_t>{2, 4});
  CHECK(t->encode_marked("<s><tool>") == std::vector<int32_t>{1, 6});
  CHECK(t->encode("<s>a") == std::vector<int32_t>{0, 2});
  CHECK(t->decode(t->encode("a   a<tool>")) == "a   a<tool>");
}

TEST_CASE("a unigram model takes the best sum of scores") {
  std::string m = piece("<unk>", 0, 2) + piece("</s>", 0, 3) + piece("\u2581", -2, 1);
  m += piece("\u2581ab", -4, 1) + piece("a", -3, 1) + piece("b", -3, 1) + piece("abc", -3, 1);
  const auto t = Tokenizer::sentencepiece(m + bytes_field(2, number_field(41, uint64_t(-1))));
  REQUIRE_MESSAGE(t.has_value(), t.error().what);
  CHECK(t->encode("ab") == std::vector<int32_t>{3});
  CHECK(t->encode("abc") == std::vector<int32_t>{2, 6});  // -5, where "ab" and an unknown are worse
  CHECK(t->encode("a  xyz b") == std::vector<int32_t>{2, 4, 2, 0, 2, 5});
  CHECK(t->decode(t->encode("ab a")) == "ab a");
}

TEST_CASE("tokenizer.json: what is unsupported or wrong is refused by name") {
  Json file = {{"model", {{"type", "BPE"}, {"merges", Json::array()}}}};
  file["model"]["vocab"]["a"] = 0u;
  const auto plain = Tokenizer::hugging_face(file);
  REQUIRE_MESSAGE(plain.has_value(), plain.error().what);
  const auto refused = [](const Json& wrong, const char* word) {
    const auto made = Tokenizer::hugging_face(wrong);
    REQUIRE_FALSE(made);
    CHECK_MESSAGE(made.error().what.find(word) != std::string::npos, made.error().what);
  };
  const auto with = [&](const char* part, Json what) {
    Json changed = file;
    changed[part] = std::move(what);
    return changed;
  };
  const auto of_model = [&](const char* key, Json what) {
    Json changed = file;
    changed["model"][key] = std::move(what);
    return changed;
  };
  refused(with("normalizer", {{"type", "Rot13"}}), "normalizer Rot13");
  refused(with("decoder", {{"type", "CTC"}}), "decoder CTC");
  refused(with("post_processor", {{"type", "Odd"}}), "post_processor Odd");
  refused(with("post_processor",
               {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "<x>"}}}}}}}),
          "'<x>' is no token");
  refused(
      with("post_processor", {{"type", "BertProcessing"}, {"cls", {"a", 7u}}, {"sep", {"a", 0u}}}),
      "7 is no token");
  Json around = {{"type", "TemplateProcessing"}, {"single", Json::array()}};
  around["special_tokens"]["x"] = {{"ids", std::vector<uint32_t>(600)}};
  around["single"].push_back({{"SpecialToken", {{"id", "x"}}}});
  CHECK(Tokenizer::hugging_face(with("post_processor", around)));
  const Json twice = {{"type", "Sequence"}, {"processors", Json::array({around, around})}};
  refused(with("post_processor", twice), "over 1024 tokens around each text");
  around["single"].push_back({{"SpecialToken", {{"id", "x"}}}});
  refused(with("post_processor", around), "over 1024 tokens around each text");
  refused(of_model("merges", Json::array({"a z"})), "'z' is none");
  refused(of_model("merges", Json::array({{"a", "a"}})), "'aa' is none");
  refused(of_model("merges", Json::array({5})), "merge 5");
  refused(of_model("dropout", 0.1), "dropout");
  refused(of_model("type", "Magic"), "Magic");
  refused(of_model("type", "Unigram"), "a list of pieces and scores");
  refused(of_model("vocab", {{"a", uint64_t{1} << 40}}), "1099511627776");
  refused(of_model("vocab", {{"a", 0u}, {"b", 1u << 19}}), "the ids of 2 pieces go up to 524288");
  refused(of_model("vocab", {{"a", 0u}, {"b", 0u}}), "'a' and 'b'");
  refused(of_model("vocab", {{"a", -1}}), "'a' has no id");
  refused(of_model("vocab", Json::object()), "no pieces");
  refused(with("added_tokens", {{{"id", 1u << 30}, {"content", "x"}}}), "1073741824");
  refused(with("added_tokens", 7), "added_tokens");
  CHECK_FALSE(Tokenizer::hugging_face(Json::array()).has_value());
  Json unigram = {
      {"model",
       {{"type", "Unigram"}, {"unk_id", 3u}, {"vocab", Json::array({Json::array({"a", -1.5})})}}}};
  refused(unigram, "'unk_id' is 3");
  unigram["model"]["vocab"] = Json::array({Json::array({"a", "b"})});
  refused(unigram, "piece 0");
}

TEST_CASE("ids may have gaps: no text is such a token") {
  Json file = {{"model", {{"type", "BPE"}, {"merges", Json::array()}}}};
  file["model"]["vocab"] = {{"a", 0u}, {"b", 3u}};
  const auto t = Tokenizer::hugging_face(file);
  REQUIRE_MESSAGE(t.has_value(), t.error().what);
  CHECK(t->vocab() == 4);
  CHECK(t->encode("ab") == std::vector<int32_t>{0, 3});
  CHECK(t->bytes(1).empty());
  CHECK(t->special(2));
}

TEST_CASE("the tokens around a text are the post-processor's") {
  Json file = {{"model", {{"type", "WordLevel"}, {"unk_token", "?"}}}};
  file["model"]["vocab"] = {{"?", 0u}, {"a", 1u}, {"[C]", 2u}, {"[S]", 3u}};
  file["post_processor"] = {
      {"type", "RobertaProcessing"}, {"cls", {"[C]", 2u}}, {"sep", {"[S]", 3u}}};
  const auto t = Tokenizer::hugging_face(file);
  REQUIRE_MESSAGE(t.has_value(), t.error().what);
  CHECK(t->encode("a") == std::vector<int32_t>{2, 1, 3});
  CHECK(t->encode("b", false) == std::vector<int32_t>{0});
  CHECK(t->bos() == 2);
}

TEST_CASE("F26: a byte piece of tokenizer.json is one of two digits, and others are ordinary") {
  const char* const no_bytes[] = {"<0x-1>", "<0x+A>", "<0x 1>", "<0x0a>",
                                  "<0x0A ", "<0xG0>", "<0x1>"};
  Json vocab = Json::object();
  size_t n = 0;
  for (const char* piece : no_bytes) vocab[piece] = n++;
  vocab["<0x0A>"] = n;
  Json file = {{"model", {{"type", "BPE"}, {"byte_fallback", true}, {"merges", Json::array()}}}};
  file["model"]["vocab"] = vocab;
  const auto t = Tokenizer::hugging_face(file);
  REQUIRE_MESSAGE(t.has_value(), t.error().what);
  for (size_t i = 0; i < n; ++i) {
    CHECK(t->bytes(static_cast<int32_t>(i)) == no_bytes[i]);
    CHECK_FALSE(t->special(static_cast<int32_t>(i)));
  }
  CHECK(t->bytes(static_cast<int32_t>(n)) == "\n");
  CHECK(t->special(static_cast<int32_t>(n)));
}

TEST_CASE("a token for beginnings that has no text is the usual one") {
  const test::Folder folder;
  folder.write("tokenizer.json", R"({"model":{"type":"BPE","merges":[],"vocab":{"<s>":0,"a":1}}})");
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":true,"bos_token":{}})");
  const auto t = Tokenizer::open(folder.path(), 2);
  REQUIRE_MESSAGE(t.has_value(), t.error().what);
  CHECK(t->encode("a", true) == std::vector<int32_t>{0, 1});
}

TEST_CASE("many added tokens are sorted once") {
  constexpr size_t kMany = 100'000;  // a sort for each would take minutes
  Json added = Json::array();
  for (size_t i = 0; i < kMany; ++i)
    added.push_back({{"id", i + 1}, {"content", "x" + std::to_string(i)}});
  Json file = {{"model", {{"type", "BPE"}, {"merges", Json::array()}}}};
  file["model"]["vocab"]["a"] = 0u;
  file["added_tokens"] = std::move(added);
  const auto t = Tokenizer::hugging_face(file);
  REQUIRE_MESSAGE(t.has_value(), t.error().what);
  CHECK(t->encode("ax99999x1") == std::vector<int32_t>{0, kMany, 2});
}

TEST_CASE("bytes alone: each byte is its token, and other ids have words of their own") {
  const Tokenizer t = Tokenizer::bytes_only(1000);
  CHECK(t.encode("a\xFF") == std::vector<int32_t>{97, 255});
  CHECK(t.decode(t.encode("caf\xC3\xA9")) == "caf\xC3\xA9");
  CHECK(t.bytes(999) != t.bytes(998));
  CHECK(t.bytes(1000).empty());
}

namespace {

// Steps of a tokenizer.json with the parts that are given, each a list of steps.
Result<Tokenizer> of_steps(const Json& normalizers, const Json& cutters, const Json& decoders) {
  Json file = {{"model", {{"type", "BPE"}, {"merges", Json::array()}}}};
  file["model"]["vocab"] = {{"a", 0u}, {"e", 1u}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", cutters}};
  if (!decoders.empty()) file["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  return Tokenizer::hugging_face(file);
}
Json step(const char* text) { return *parse_json(text); }
Json times(int count, const Json& one, Json last = Json::array()) {
  Json all = Json::array();
  for (int i = 0; i < count; ++i) all.push_back(one);
  for (Json& l : last) all.push_back(std::move(l));
  return all;
}
Json replace(const std::string& what, const std::string& by) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", by}};
}
const char* const kTooLong = "more than 1024 times as long";
const char* const kLetters = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})";
const char* const kSpaced = R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false})";
const char* const kEach = R"({"type":"Split","pattern":{"Regex":"."},"behavior":"Isolated"})";
const char* const kRuns = R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "})";

void too_long(const Result<Tokenizer>& made, const std::string& part) {
  REQUIRE_FALSE(made);
  CHECK(made.error().code == Code::kUnsupported);
  CHECK_MESSAGE(made.error().what.starts_with(part), made.error().what);
  CHECK_MESSAGE(made.error().what.find(kTooLong) != std::string::npos, made.error().what);
}

}  // namespace

TEST_CASE("a text may grow 1024 times in all steps before the model, and no more") {
  const Json none = Json::array(), letters = step(kLetters),
             plain = step(R"({"type":"ByteLevel"})");
  too_long(of_steps(times(40, replace(" ", "  ")), none, none), "normalizer Replace");
  too_long(of_steps(times(11, plain), none, none), "normalizer ByteLevel");
  CHECK(of_steps(times(10, plain), none, none));
  // The last one writes no letters: the model reads bytes.
  too_long(of_steps(none, times(12, letters), none), "pre_tokenizer ByteLevel");
  CHECK(of_steps(none, times(11, letters), none));
  too_long(of_steps(times(5, plain), times(7, letters), none), "pre_tokenizer ByteLevel");
  CHECK(of_steps(times(5, plain), times(6, letters), none));
  Json cut = Json::array();
  for (int i = 0; i < 7; ++i) cut.insert(cut.end(), {step(kEach), step(kSpaced)});
  too_long(of_steps(none, cut, none), "pre_tokenizer ByteLevel");
  too_long(of_steps(none, times(6, step(R"({"type":"Metaspace"})")), none),
           "pre_tokenizer Metaspace");
  const Json before = {{"type", "Prepend"}, {"prepend", std::string(600, 'x')}};
  CHECK(of_steps(times(1, before), none, none));
  too_long(of_steps(times(2, before), none, none), "normalizer Prepend");
  Json forms = Json::array();  // each makes five of one U+FDFA
  for (int i = 0; i < 10; ++i)
    forms.insert(forms.end(), {step(R"({"type":"NFKD"})"), replace("\u0644", "\uFDFA")});
  too_long(of_steps(forms, none, none), "normalizer NFKD");
}

TEST_CASE("what published tokenizers do to a text is far from making it 1024 times as long") {
  Json albert = {replace("``", "\""),
                 replace("''", "\""),
                 step(R"({"type":"NFKD"})"),
                 step(R"({"type":"StripAccents"})"),
                 step(R"({"type":"Lowercase"})"),
                 step(kRuns)};
  CHECK(of_steps(albert, {step(R"({"type":"WhitespaceSplit"})"), step(R"({"type":"Metaspace"})")},
                 Json::array()));
  // Forms of what has a form already add nothing.
  CHECK(of_steps(times(100, step(R"({"type":"NFKC"})")), Json::array(), Json::array()));
  const auto bert = of_steps(times(1, step(R"({"type":"BertNormalizer"})")),
                             times(1, step(R"({"type":"BertPreTokenizer"})")),
                             times(1, step(R"({"type":"WordPiece","prefix":"##"})")));
  CHECK_MESSAGE(bert.has_value(), bert.error().what);
}

TEST_CASE("a decoder that may make a piece 1024 times as long is refused before it is used") {
  const Json none = Json::array(), fuse = Json::array({step(R"({"type":"Fuse"})")});
  too_long(of_steps(none, none, times(34, replace("e", "ee"), fuse)), "decoder Replace");
  too_long(of_steps(none, none, times(2, replace("e", std::string(10'000, 'e')), fuse)),
           "decoder Replace");
  Json after = times(30, replace("e", "ee"));
  after.insert(after.begin(), fuse[0]);
  too_long(of_steps(none, none, after), "decoder Replace");
  const auto t = of_steps(none, none, times(10, replace("e", "ee"), fuse));
  REQUIRE_MESSAGE(t.has_value(), t.error().what);
  CHECK(t->bytes(1).size() == 1024);
}

TEST_CASE("pieces of tokenizer.json are 64 KiB at most, and 256 MiB as texts have them") {
  Json file = {{"model", {{"type", "BPE"}, {"merges", Json::array()}}}};
  file["model"]["vocab"] = {{std::string(65'537, 'a'), 0u}};
  auto made = Tokenizer::hugging_face(file);
  REQUIRE_FALSE(made);
  CHECK(made.error().what == "piece 0 has 65537 bytes: want 65536 at most");
  file["model"]["vocab"] = Json::object();
  for (unsigned i = 0; i < 5; ++i)
    file["model"]["vocab"][std::string(65'535, 'e') + std::to_string(i)] = i;
  file["decoder"] = replace("e", std::string(1024, 'e'));
  made = Tokenizer::hugging_face(file);
  REQUIRE_FALSE(made);
  CHECK_MESSAGE(made.error().what.find("268435456") != std::string::npos, made.error().what);
}

TEST_CASE("a tokenizer.json that is refused is named, and no tokenizer.model stands in for it") {
  const test::Folder folder;
  folder.write("tokenizer.model", small_model());
  REQUIRE(Tokenizer::open(folder.path(), 100));
  folder.write("tokenizer.json", R"({"model":{"type":"BPE","merges":[],"vocab":{"a":0}},
                                     "decoder":{"type":"CTC"}})");
  const auto made = Tokenizer::open(folder.path(), 100);
  REQUIRE_FALSE(made);
  CHECK_MESSAGE(made.error().what.starts_with(folder.path() + "/tokenizer.json: decoder CTC"),
                made.error().what);
}
