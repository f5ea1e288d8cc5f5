#include "model/files/quantized_modules.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <deque>

#include "base/json.h"
#include "base/random.h"
#include "model/forward/model.h"

using namespace mc;
using namespace mc::model;

namespace {

// Tensors in memory, as a file would have them.
class Made {
 public:
  template <class T>
  void add(const std::string& name, const char* type, std::vector<uint64_t> shape,
           const std::vector<T>& values) {
    const auto* const from = reinterpret_cast<const std::byte*>(values.data());
    memory_.emplace_back(from, from + values.size() * sizeof(T));
    set.tensors[name] = {dtype_named(type), type, std::move(shape), memory_.back()};
  }
  TensorSet set;

 private:
  std::deque<std::vector<std::byte>> memory_;
};

// A matrix [outputs][inputs] of integers with zero points and scales of groups of inputs.
struct Integers {
  uint64_t inputs, outputs, groups;
  uint32_t bits;
  std::vector<uint32_t> q, zero, group_of;  // [input][output], [group][output], [input]
  std::vector<uint16_t> scale;              // f16, [group][output]

  Integers(uint64_t in, uint64_t out, uint64_t group_count, uint32_t b, bool shuffled)
      : inputs(in), outputs(out), groups(group_count), bits(b) {
    Random random(in + b + (shuffled ? 1 : 0));
    for (uint64_t i = 0; i < inputs * outputs; ++i)
      q.push_back(static_cast<uint32_t>(random.below(1u << bits)));
    for (uint64_t i = 0; i < groups * outputs; ++i) {
      zero.push_back(bits == 8 ? 127 : static_cast<uint32_t>(random.below(16)));
      scale.push_back(to_f16(static_cast<float>(random.uniform(0.001, 1))));
    }
    for (uint64_t i = 0; i < inputs; ++i)
      group_of.push_back(static_cast<uint32_t>(shuffled ? i % groups : i / (inputs / groups)));
  }
  float value(uint64_t output, uint64_t input, int more) const {
    const uint64_t at = group_of[input] * outputs + output;
    const int of_zero = static_cast<int>(q[input * outputs + output]) - static_cast<int>(zero[at]);
    return from_f16(scale[at]) * static_cast<float>(of_zero - more);
  }
};

// Numbers of a [rows][columns] list in words along its columns, number `order[j]` of eight at place
// j.
std::vector<uint32_t> words_along(const std::vector<uint32_t>& numbers, uint32_t bits,
                                  const std::array<uint32_t, 8>& order) {
  std::vector<uint32_t> words;
  const uint32_t each = 32 / bits;
  for (size_t i = 0; i < numbers.size(); i += each) {
    uint32_t word = 0;
    for (uint32_t j = 0; j < each; ++j) word |= numbers[i + order[j]] << (bits * j);
    words.push_back(word);
  }
  return words;
}
constexpr std::array<uint32_t, 8> kInOrder = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::array<uint32_t, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};

void add_gptq(Made& made, const Integers& m, bool listed) {
  const uint32_t each = 32 / m.bits;
  std::vector<uint32_t> words(m.inputs / each * m.outputs);
  for (uint64_t i = 0; i < m.inputs; ++i)
    for (uint64_t o = 0; o < m.outputs; ++o)
      words[i / each * m.outputs + o] |= m.q[i * m.outputs + o] << (i % each * m.bits);
  made.add("a.qweight", "I32", {m.inputs / each, m.outputs}, words);
  made.add("a.qzeros", "I32", {m.groups, m.outputs / each}, words_along(m.zero, m.bits, kInOrder));
  made.add("a.scales", "F16", {m.groups, m.outputs}, m.scale);
  if (listed) made.add("a.g_idx", "I32", {m.inputs}, m.group_of);
}

void check(const TensorSet& set, const Integers& m, int more) {
  const auto found = set.find("a.weight", std::array<uint64_t, 2>{m.outputs, m.inputs});
  REQUIRE_MESSAGE(found.has_value(), found.error().what);
  CHECK(set.tensors.size() == 1);
  std::vector<float> row(m.inputs);
  for (uint64_t o = 0; o < m.outputs; ++o) {
    (*found)->read(o * m.inputs, m.inputs, row.data());
    for (uint64_t i = 0; i < m.inputs; ++i) REQUIRE(row[i] == m.value(o, i, more));
  }
}

std::string refusal(const Json& config, TensorSet set) {
  const auto joined = join_quantized_modules(config, set);
  return joined ? "" : joined.error().what;
}
bool mentions(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE(
    "quantized modules: GPTQ's weights are those of its formula, in blocks where they can be") {
  for (const uint32_t bits : {4u, 8u})
    for (const char* form : {"gptq", "gptq_v2"})
      for (const bool shuffled : {false, true}) {
        CAPTURE(bits);
        CAPTURE(form);
        CAPTURE(shuffled);
        const Integers m(128, 24, 2, bits, shuffled);
        Made made;
        add_gptq(made, m, shuffled);
        const auto joined = join_quantized_modules({{"quant_method", "gptq"},
                                                    {"bits", bits},
                                                    {"group_size", 64},
                                                    {"checkpoint_format", form}},
                                                   made.set);
        REQUIRE_MESSAGE(joined.has_value(), joined.error().what);
        const bool v1 = std::string(form) == "gptq";
        check(made.set, m, v1 ? 1 : 0);
        // 8 bits less a zero point other than 128 do not fit.
        CHECK((made.set.tensors["a.weight"].blocks != nullptr) == (!shuffled && (bits == 4 || v1)));
      }
}

TEST_CASE("quantized modules: AWQ's weights are those of its formula") {
  const Integers m(64, 16, 1, 4, false);
  Made made;
  made.add("a.qweight", "I32", {m.inputs, m.outputs / 8}, words_along(m.q, 4, kAwqOrder));
  made.add("a.qzeros", "I32", {m.groups, m.outputs / 8}, words_along(m.zero, 4, kAwqOrder));
  made.add("a.scales", "F16", {m.groups, m.outputs}, m.scale);
  const Json config = {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", -1}, {"version", "gemm"}};
  const auto joined = join_quantized_modules(config, made.set);
  REQUIRE_MESSAGE(joined.has_value(), joined.error().what);
  check(made.set, m, 0);
  CHECK(made.set.tensors["a.weight"].blocks != nullptr);
}

TEST_CASE("quantized modules: numbers of 8 bits, and scales of a matrix, a row or a block") {
  CHECK(from_f8_e4m3(0) == 0);
  CHECK(std::signbit(from_f8_e4m3(0x80)));
  CHECK(from_f8_e4m3(0x01) == 0x1p-9f);
  CHECK(from_f8_e4m3(0x07) == 0x7p-9f);
  CHECK(from_f8_e4m3(0x08) == 0x1p-6f);
  CHECK(from_f8_e4m3(0x38) == 1);
  CHECK(from_f8_e4m3(0xC4) == -3);
  CHECK(from_f8_e4m3(0x7E) == 448);
  CHECK(std::isnan(from_f8_e4m3(0x7F)));
  std::vector<uint8_t> bytes(6 * 10);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(mix64(i) & 0xF7);
  const auto rows = [&](const char* type, const char* name, std::vector<uint64_t> shape, size_t n) {
    Made made;
    made.add("a.weight", type, {6, 10}, bytes);
    std::vector<float> scales;
    for (size_t i = 0; i < n; ++i) scales.push_back(0.25f + static_cast<float>(i));
    made.add(std::string("a.weight_") + name, "F32", std::move(shape), scales);
    const auto joined = join_quantized_modules(
        {{"quant_method", "fp8"}, {"weight_block_size", {4u, 4u}}}, made.set);
    REQUIRE_MESSAGE(joined.has_value(), joined.error().what);
    std::vector<float> all(60);
    for (uint64_t r = 0; r < 6; ++r)
      made.set.tensors["a.weight"].read(r * 10, 10, all.data() + r * 10);
    return all;
  };
  const auto whole = rows("F8_E4M3", "scale", {}, 1), row = rows("F8_E4M3", "scale", {6, 1}, 6),
             block = rows("F8_E4M3", "scale_inv", {2, 3}, 6),
             e5m2 = rows("F8_E5M2", "scale", {1}, 1);
  for (size_t i = 0; i < 60; ++i) {
    const float v = from_f8_e4m3(bytes[i]);
    REQUIRE(whole[i] == v * 0.25f);
    REQUIRE(row[i] == v * (0.25f + static_cast<float>(i / 10)));
    REQUIRE(block[i] == v * (0.25f + static_cast<float>(i / 10 / 4 * 3 + i % 10 / 4)));
    REQUIRE(e5m2[i] == from_f16(static_cast<uint16_t>(bytes[i] << 8)) * 0.25f);
  }
}

TEST_CASE("quantized modules: what is not read, or does not fit together, is refused by name") {
  const Json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 64}};
  const auto with = [&](Json config, const char* key, const Json& value) {
    config[key] = value;
    return refusal(config, {});
  };
  CHECK(mentions(refusal(Json{{"quant_method", "bitsandbytes"}}, {}), "'bitsandbytes'"));
  CHECK(mentions(
      refusal(Json{{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}, {}),
      "'pack-quantized'"));
  CHECK(mentions(refusal(Json::array(), {}), "no object"));
  CHECK(mentions(with(gptq, "bits", 3), "3 bits"));
  CHECK(mentions(with(gptq, "group_size", 0), "group_size"));
  CHECK(mentions(with(gptq, "checkpoint_format", "marlin"), "marlin"));
  CHECK(mentions(
      with({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}}, "version", "gemv"), "gemv"));
  const Integers m(128, 24, 2, 4, true);
  const auto broken = [&](const char* name, std::vector<uint64_t> shape) {
    Made made;
    add_gptq(made, m, true);
    made.set.tensors[name].shape = std::move(shape);
    return refusal(gptq, made.set);
  };
  CHECK(mentions(broken("a.qzeros", {2, 2}), "a.qzeros"));
  CHECK(mentions(broken("a.scales", {3, 24}), "not of one matrix"));
  CHECK(mentions(broken("a.g_idx", {64}), "a.g_idx"));
  Made made;
  add_gptq(made, m, true);
  auto groups = m.group_of;
  groups[5] = 2;
  made.add("a.g_idx", "I32", {128}, groups);
  CHECK(mentions(refusal(gptq, made.set), "group 2 of 2"));
  Made alone;
  alone.add("a.weight", "F8_E4M3", {2, 2}, std::vector<uint8_t>(4));
  CHECK(mentions(refusal(Json{{"quant_method", "fp8"}}, alone.set), "no scales"));
}

TEST_CASE("quantized modules: the digest is of all tensors that make a weight") {
  const Integers m(128, 24, 2, 4, true);
  const auto digest = [&](const char* form, int64_t group, auto change) {
    Made made;
    add_gptq(made, m, true);
    change(made);
    const auto joined = join_quantized_modules(
        {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", group}, {"checkpoint_format", form}},
        made.set);
    REQUIRE_MESSAGE(joined.has_value(), joined.error().what);
    const ModelConfig c = tiny_config();
    return ModelFiles{c, Tokenizer::bytes_only(c.vocab), made.set, {}, {}}.digest();
  };
  const auto nothing = [](Made&) {};
  const uint64_t same = digest("gptq", 64, nothing);
  CHECK(digest("gptq", 64, nothing) == same);
  CHECK(digest("gptq_v2", 64, nothing) != same);
  CHECK(digest("gptq", 64, [](Made& made) { made.set.tensors.erase("a.g_idx"); }) != same);
  Integers other = m;
  other.scale[0] ^= 1;
  other.zero[0] ^= 1;
  CHECK(digest("gptq", 64, [&](Made& made) {
          made.add("a.scales", "F16", {m.groups, m.outputs}, other.scale);
        }) != same);
  CHECK(digest("gptq", 64, [&](Made& made) {
          made.add("a.qzeros", "I32", {m.groups, m.outputs / 8},
                   words_along(other.zero, m.bits, kInOrder));
        }) != same);
}

TEST_CASE("quantized modules: numbers read as floats stay f32 beside any amount of bf16") {
  Made made;
  made.add("a.weight", "F8_E4M3", {2, 4}, std::vector<uint8_t>(8));
  made.add("a.weight_scale", "F32", {1}, std::vector<float>(1));
  made.add("embedding.weight", "BF16", {100, 4}, std::vector<uint16_t>(400));
  CHECK(join_quantized_modules({{"quant_method", "fp8"}}, made.set));
  CHECK(memory_type(made.set) == DType::kF32);
}
