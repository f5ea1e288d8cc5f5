#include "files.h"
#include "model/files/tensors.h"
#include "model/forward/model.h"
#include "shared.h"

using namespace mc;
using model::parse_safetensors;

namespace safetensors_test {

namespace {

std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}
Error refusal(const std::string& header, const std::string& data = std::string(16, 'x')) {
  const std::string file = test::safetensors(header, data);
  const auto parsed = parse_safetensors(bytes_of(file));
  REQUIRE_FALSE(parsed.has_value());
  return parsed.error();
}
bool says(const Error& error, const char* word) {
  CAPTURE(error.what);
  return error.what.find(word) != std::string::npos;
}
constexpr const char* kGood =
    R"({"a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [8, 16]}, "__metadata__": {}})";

}  // namespace

TEST_CASE("safetensors: tensors lie where the header says") {
  const std::string file = test::safetensors(kGood, "01234567abcdefgh");
  const auto parsed = parse_safetensors(bytes_of(file));
  REQUIRE(parsed);
  CHECK(parsed->size() == 2);
  CHECK(static_cast<char>(parsed->at("b").bytes[0]) == 'a');
  CHECK(parsed->at("a").shape == std::vector<uint64_t>{2, 1});
  CHECK(*parsed->at("b").type == model::DType::kBf16);
}

TEST_CASE("safetensors: a file cut at any byte is refused") {
  const std::string file = test::safetensors(kGood, std::string(16, 'x'));
  for (size_t n = 0; n < file.size(); ++n)
    CHECK_FALSE(parse_safetensors(bytes_of(file.substr(0, n))).has_value());
}

TEST_CASE("safetensors: a header that lies is refused, naming the tensor") {
  using std::string;
  const auto entry = [](const string& type, const string& shape, const string& offsets) {
    return R"({"w": {"dtype": ")" + type + R"(", "shape": )" + shape + R"(, "data_offsets": )" +
           offsets + "}}";
  };
  CHECK(says(refusal(entry("F32", "[4]", "[0, 20]")), "16 bytes of data"));
  CHECK(says(refusal(entry("F32", "[4]", "[8, 4]")), "'w'"));
  CHECK(says(refusal(entry("F32", "[3]", "[0, 16]")), "takes 12 bytes"));
  CHECK(says(refusal(entry("F32", "[4294967296, 4294967296, 4]", "[0, 16]")), "too large"));
  CHECK(says(refusal(entry("F32", "[-4]", "[0, 16]")), "whole numbers"));
  CHECK(says(refusal(entry("F32", "[1.5]", "[0, 16]")), "whole numbers"));
  CHECK(says(refusal(entry("F32", "[1,1,1,1,1,1,1,1,1]", "[0, 4]")), "shape"));
  CHECK(says(refusal(entry("F32", "[4]", "[0, 16, 4]")), "data_offsets"));
  CHECK(says(refusal(entry("F32", "[4]", "[0, 18446744073709551615]")), "data"));
  CHECK(says(refusal(R"({"w": 5})"), "not an object"));
  CHECK(says(refusal("[]"), "not a JSON object"));
  CHECK(says(refusal("{"), "header"));
  CHECK(says(refusal(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                         "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})"),
             "overlap"));
  std::string huge = test::safetensors("{}", "");
  std::memset(huge.data(), 0xFF, 8);
  CHECK_FALSE(parse_safetensors(bytes_of(huge)).has_value());
}

TEST_CASE("find names what was expected and what it found") {
  const std::string file = test::safetensors(
      R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
          "q": {"dtype": "I8", "shape": [4], "data_offsets": [16, 20]}})",
      std::string(20, 'x'));
  model::TensorSet set;
  set.tensors = *parse_safetensors(bytes_of(file));
  using Shape = std::vector<uint64_t>;
  CHECK(set.find("w", Shape{2, 2}).has_value());
  CHECK(says(set.find("w", Shape{4, 2}).error(), "[2, 2], the configuration wants [4, 2]"));
  CHECK(says(set.find("x", Shape{1}).error(), "no tensor 'x'"));
  CHECK(set.find("q", Shape{4}).error().code == Code::kUnsupported);
}

TEST_CASE("what is wrong with tensors or a tokenizer's class names the folder or the file") {
  const test::Folder folder;
  folder.write("config.json", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 512,
    "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 1, "num_attention_heads": 8,
    "max_position_embeddings": 512, "hidden_act": "silu", "rms_norm_eps": 1e-5})");
  folder.write(
      "model.safetensors",
      test::safetensors(R"({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})",
                        std::string(16, 'x')));
  const auto files = model::open_model(folder.path());
  REQUIRE_MESSAGE(files.has_value(), files.error().what);
  const auto sources = model::open_sources(*files);
  REQUIRE_FALSE(sources);
  CHECK(sources.error().what.starts_with(folder.path() + ": no tensor '"));
  folder.write("tokenizer.json", R"({"model": {"type": "BPE", "merges": [], "vocab": {"a": 0}}})");
  folder.write("tokenizer_config.json", R"({"tokenizer_class": 5})");
  const auto wrong = model::open_model(folder.path());
  REQUIRE_FALSE(wrong);
  CHECK(
      wrong.error().what.starts_with(folder.path() + "/tokenizer_config.json: 'tokenizer_class'"));
}

TEST_CASE("shards: the index says where each tensor is, and must be right") {
  const test::Folder folder;
  const auto shard = [](const std::string& name) {
    return test::safetensors(
        "{\"" + name + R"(": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}})", "abcd");
  };
  CHECK(says(model::open_safetensors(folder.path()).error(), "neither model.safetensors"));
  folder.write("one.safetensors", shard("a"));
  folder.write("two.safetensors", shard("b"));
  const auto index = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", "{\"weight_map\": " + map + "}");
    return model::open_safetensors(folder.path());
  };
  const auto set = index(R"({"a": "one.safetensors", "b": "two.safetensors"})");
  REQUIRE(set);
  CHECK(set->tensors.size() == 2);
  CHECK(says(index(R"({"b": "one.safetensors"})").error(), "'b' should be in one.safetensors"));
  CHECK(index(R"({"a": "three.safetensors"})").error().code == Code::kNotFound);
  CHECK(says(index(R"({"a": "../one.safetensors"})").error(), "a file beside it"));
  CHECK(says(index("[1]").error(), "weight_map"));
  folder.write("two.safetensors", "short");
  CHECK(says(index(R"({"b": "two.safetensors"})").error(), "two.safetensors"));
}

TEST_CASE("the shards of the small model hold what its single file holds") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  const auto one = model::open_safetensors(shared + "/stories260K/hf-f32");
  const auto many = model::open_safetensors(shared + "/stories260K/hf-f32-sharded");
  REQUIRE(one);
  REQUIRE(many);
  CHECK(many->files.size() == 3);
  REQUIRE(one->tensors.size() == many->tensors.size());
  for (const auto& [name, t] : one->tensors) {
    const auto& other = many->tensors.at(name);
    CHECK(std::equal(t.bytes.begin(), t.bytes.end(), other.bytes.begin(), other.bytes.end()));
  }
}

}  // namespace safetensors_test
