// Fields of forms: found, replaced, and nothing else touched; what is no form is refused.
#include "serve/protocol/form_text.h"

#include <doctest/doctest.h>

#include <string>

#include "base/random.h"

using namespace mc;
using namespace mc::serve;

namespace form_text_test {
namespace {

const std::string kType = "multipart/form-data; boundary=XX";

std::string part(const std::string& disposition, const std::string& value) {
  return "--XX\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + value + "\r\n";
}

}  // namespace

TEST_CASE("fields are found and replaced, and all other bytes stay") {
  const std::string file("RIFF\0\r\n--X\r\n\xff--XX \r\n-", 22);
  const std::string text = part("name=\"file\"; filename=\"a;b\\\".wav\"", file) +
                           part("name=model", "tiny") + part("name=\"x y\"", "") + "--XX--\r\n";
  const auto form = FormText::parse(text, "Multipart/Form-Data ; a=b; Boundary=\"XX\"");
  REQUIRE_MESSAGE(form, form.error().what);
  CHECK(form->text() == text);
  CHECK(form->find("model") == "tiny");
  CHECK(form->find("x y") == "");
  CHECK(form->has("file"));
  CHECK_FALSE(form->find("file"));
  CHECK_FALSE(form->find("other"));
  std::string wanted = text;
  wanted.replace(wanted.find("tiny"), 4, "org/theirs");
  const FormText::Field renamed{"model", "org/theirs"}, salt{"cache_salt", "ab"};
  const FormText::Field no_field{"file", "x"};
  CHECK(form->with({&renamed, 1}) == wanted);
  CHECK(form->with({&no_field, 1}) == text);
  const FormText::Field both[] = {salt, renamed};
  CHECK(form->with(both) == part("name=\"cache_salt\"", "ab") + wanted);
  const auto again = FormText::parse(form->with(both), kType);
  REQUIRE(again);
  CHECK(again->find("cache_salt") == "ab");
  CHECK(again->find("model") == "org/theirs");
}

TEST_CASE("a field that stands twice, or is a file, has no value") {
  const auto twice =
      FormText::parse(part("name=model", "a") + part("name=model", "b") + "--XX--", kType);
  REQUIRE(twice);
  CHECK(twice->has("model"));
  CHECK_FALSE(twice->find("model"));
  const auto file = FormText::parse(part("name=model; filename*=UTF-8''x", "a") + "--XX--", kType);
  REQUIRE(file);
  CHECK_FALSE(file->find("model"));
}

TEST_CASE("a name or a boundary that readers may take differently is refused") {
  const std::string end = "a\r\n--XX--";
  for (const char* disposition :
       {"name=x; name=model", "name=x; name*=utf-8''model", "name*=utf-8''model; name=x"}) {
    CAPTURE(disposition);
    CHECK_FALSE(FormText::parse(part(disposition, "a") + "--XX--", kType));
  }
  const std::string line = "Content-Disposition: form-data; name=";
  CHECK_FALSE(FormText::parse("--XX\r\n" + line + "x\r\n" + line + "model\r\n\r\n" + end, kType));
  CHECK(FormText::parse("--XX\r\n" + line + "x\r\n\r\n" + end, kType));
  CHECK_FALSE(FormText::parse(part("name=a", "b") + "--XX--", kType + "; boundary=YY"));
}

TEST_CASE("what is no form is refused by what is wrong") {
  struct Row {
    std::string text, type, what;
  };
  const std::string good = part("name=a", "b") + "--XX--";
  std::string many;
  for (int i = 0; i < 257; ++i) many += part("name=a", "b");
  const Row rows[] = {
      {good, "application/json", "no multipart/form-data"},
      {good, "multipart/form-data", "no multipart/form-data"},
      {good, "multipart/form-data; boundary=", "no multipart/form-data"},
      {good, "multipart/form-data; boundary=" + std::string(71, 'X'), "no multipart/form-data"},
      {"", kType, "does not begin"},
      {"--XXY\r\n", kType, "something behind it"},
      {"--XY\r\n", kType, "does not begin"},
      {"--XX", kType, "something behind it"},
      {part("name=a", "b"), kType, "does not end"},
      {"--XX\r\nA: b\r\n\r\nx\r\n--XX--", kType, "part 1 of the form has no name"},
      {"--XX\r\n\r\nx\r\n--XX--", kType, "part 1 of the form has no name"},
      {"--XX\r\n" + std::string(5000, 'a') + "\r\n\r\n\r\n--XX--", kType, "no end of its headers"},
      {many + "--XX--", kType, "over 256 parts"}};
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const auto form = FormText::parse(row.text, row.type);
    REQUIRE_FALSE(form);
    CHECK(form.error().what.find(row.what) != std::string::npos);
  }
}

TEST_CASE("forms with random damage are taken or refused, and taken ones are as they came") {
  Random random(3);
  const std::string good = part("name=\"file\"; filename=\"a\"", std::string(40, '\n')) +
                           part("name=model", "tiny") + "--XX--\r\n";
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good, type = kType;
    for (uint64_t n = random.below(4); n > 0; --n)
      text[random.below(text.size())] = "\r\n-X\";="[random.below(7)];
    if (random.chance(0.3)) text.resize(random.below(text.size()));
    if (random.chance(0.2)) type[random.below(type.size())] = '"';
    const auto form = FormText::parse(text, type);
    if (!form) continue;
    CHECK(form->text() == text);
    const FormText::Field same{"model", form->find("model").value_or("")};
    if (form->find("model")) CHECK(form->with({&same, 1}) == text);
  }
}

}  // namespace form_text_test
