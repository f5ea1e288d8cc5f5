#include "model/gguf.h"

#include "files.h"
#include "model/model.h"
#include "shared.h"

using namespace mc;
using namespace mc::model;

namespace {

std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}
std::string fixed(uint64_t n, size_t bytes) {
  std::string out(bytes, '\0');
  std::memcpy(out.data(), &n, bytes);
  return out;
}
std::string text(const std::string& s) { return fixed(s.size(), 8) + s; }
std::string key(const std::string& name, uint32_t kind, const std::string& value) {
  return text(name) + fixed(kind, 4) + value;
}
// One tensor of two floats, three keys.
std::string small_file(uint64_t rows = 2, uint64_t offset = 0, const std::string& more = "") {
  std::string f = "GGUF" + fixed(3, 4) + fixed(1, 8) + fixed(more.empty() ? 3 : 4, 8);
  f += key("general.architecture", 8, text("llama")) + key("a.number", 4, fixed(7, 4));
  f += key("a.list", 9, fixed(8, 4) + fixed(2, 8) + text("x") + text("yz")) + more;
  f += text("w") + fixed(1, 4) + fixed(rows, 8) + fixed(0, 4) + fixed(offset, 8);
  f.resize((f.size() + 31) / 32 * 32);
  return f + std::string(8, 'z');
}

}  // namespace

TEST_CASE("gguf: metadata and tensors are where the file says") {
  const std::string file = small_file();
  const auto g = parse_gguf(bytes_of(file));
  REQUIRE_MESSAGE(g.has_value(), g.error().what);
  CHECK(std::get<int64_t>(g->metadata.at("a.number")) == 7);
  CHECK(std::get<std::vector<std::string>>(g->metadata.at("a.list"))[1] == "yz");
  CHECK(g->tensors.at("w").bytes.size() == 8);
}

TEST_CASE("gguf: a file that is cut anywhere, or lies, is refused") {
  const std::string file = small_file();
  for (size_t n = 0; n < file.size(); ++n)
    CHECK_FALSE(parse_gguf(bytes_of(file.substr(0, n))).has_value());
  for (const std::string& bad :
       {small_file(3), small_file(2, 4), small_file(2, UINT64_MAX), small_file(UINT64_MAX),
        small_file(2, 0, key("l", 9, fixed(8, 4) + fixed(UINT64_MAX, 8))),
        small_file(2, 0, key("l", 9, fixed(9, 4) + fixed(1, 8))),
        small_file(2, 0, key("l", 8, fixed(UINT64_MAX, 8))),
        small_file(2, 0, key("general.alignment", 4, fixed(0, 4))),
        small_file(2, 0, key("l", 99, "")),
        std::string("GGUF") + fixed(1, 4) + fixed(0, 8) + fixed(0, 8)})
    CHECK_FALSE(parse_gguf(bytes_of(bad)).has_value());
}

TEST_CASE("gguf: the small model's files are its HF folder's model") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  Threads threads(1);
  const auto hf = open_model(shared + "/stories260K/hf-f32");
  REQUIRE(hf);
  const auto want = load(*hf, threads);
  REQUIRE(want);
  for (const char* type : {"f32", "f16", "bf16"}) {
    CAPTURE(type);
    const auto files = open_model(shared + "/stories260K/gguf/stories260K-" + type + ".gguf");
    REQUIRE_MESSAGE(files.has_value(), files.error().what);
    CHECK(files->config.tied);
    CHECK(files->config.context_max == 512);
    CHECK(files->config.eos == std::vector<int32_t>{2});
    const auto got = load(*files, threads);
    REQUIRE_MESSAGE(got.has_value(), got.error().what);
    const double within = std::string(type) == "f32" ? 0 : std::string(type) == "f16" ? 1e-3 : 1e-2;
    for (const uint32_t row : {0u, 1u, 5u, 8u, 63u, 64u, 70u, 100u, 127u}) {
      std::vector<float> a(64), b(64);
      want->layers[2].qkv.row(row, a.data());
      got->layers[2].qkv.row(row, b.data());
      for (size_t i = 0; i < 64; ++i)
        if (!(std::abs(a[i] - b[i]) <= within * (1 + std::abs(a[i])))) FAIL(row);
    }
    const Json cases = test::json_at(shared + "/oracle/stories260K/tokenizer_cases.json");
    for (const Json& c : cases["cases"])
      CHECK(files->tokenizer.encode(c["text"].get<std::string>()) ==
            c["ids"].get<std::vector<int32_t>>());
  }
}
