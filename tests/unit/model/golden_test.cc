// Small tokenizers of each published layout, with what the `tokenizers` package makes of texts.
// tests/nightly/tokenizer_compare.py --golden wrote them.
#include <algorithm>
#include <filesystem>

#include "model/text/tokenizer.h"
#include "shared.h"

using namespace mc;

TEST_CASE("tokens are those of the tokenizers package") {
  const char* source = std::getenv("MC_SOURCE");
  const std::string folder =
      std::string(source == nullptr ? "." : source) + "/tests/unit/model/tokenizers";
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const Json golden = test::json_at(entry.path());
    const std::string name = entry.path().filename();
    CAPTURE(name);
    const auto t = model::Tokenizer::hugging_face(golden["tokenizer"]);
    REQUIRE_MESSAGE(t.has_value(), t.error().what);
    ++files;
    for (const Json& c : golden["cases"]) {
      const std::string text = c["text"];
      CAPTURE(text);
      const auto marked = c["marked"].get<std::vector<int32_t>>();
      CHECK(t->encode_marked(text) == marked);
      CHECK(t->decode(marked) == c["decoded"].get<std::string>());
      if (t->longest() > 0 && !c["spells"].get<bool>())  // F7: a text is refused by its bytes
        CHECK(text.size() <= t->longest() * t->encode(text, false).size());
      if (c["spells"].get<bool>()) continue;  // here a prompt never spells a special token
      CHECK(t->encode(text, false) == c["plain"].get<std::vector<int32_t>>());
      CHECK(t->encode(text) == c["prompt"].get<std::vector<int32_t>>());
    }
  }
  CHECK(files >= 15);
}
