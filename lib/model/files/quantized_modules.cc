#include "model/files/quantized_modules.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "base/json.h"
#include "base/units.h"

namespace mc::model {
namespace {

using ull = unsigned long long;
constexpr uint32_t kSideMax = 1u << 24;  // rows and columns of a matrix

uint32_t word_at(const Tensor& t, uint64_t i) {
  uint32_t word;
  std::memcpy(&word, t.bytes.data() + 4 * i, 4);
  return word;
}

// ---- GPTQ and AWQ

enum class Packing : uint8_t { kGptq, kAwq };

struct IntegerScheme {
  Packing packing = Packing::kGptq;
  uint32_t bits = 4;
  uint64_t group = 0;      // inputs that share a scale; 0: all
  uint32_t zero_more = 0;  // what is added to stored zero points
};

// A weight of packed integers: [inputs][outputs], in words along the inputs (GPTQ) or the outputs.
struct IntegerModule {
  IntegerScheme scheme;
  Tensor weight, zeros, scales;
  std::vector<uint32_t> groups;  // of each input
  uint64_t inputs = 0, outputs = 0;

  uint32_t per_word() const { return 32 / scheme.bits; }
  uint32_t mask() const { return (1u << scheme.bits) - 1; }
  // Of a word along the outputs, where the integer of an output lies.
  uint32_t shift_of(uint64_t output) const {
    constexpr std::array<uint32_t, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};
    const auto in = static_cast<uint32_t>(output % per_word());
    return (scheme.packing == Packing::kAwq ? kAwqPlace[in] : in) * scheme.bits;
  }
  int32_t zero(uint64_t group, uint64_t output) const {
    const uint32_t word = word_at(zeros, group * (outputs / per_word()) + output / per_word());
    return static_cast<int32_t>((word >> shift_of(output) & mask()) + scheme.zero_more);
  }
  int32_t integer(uint64_t input, uint64_t output) const {
    if (scheme.packing == Packing::kAwq)
      return static_cast<int32_t>(
          word_at(weight, input * (outputs / per_word()) + output / per_word()) >>
              shift_of(output) &
          mask());
    const uint32_t word = word_at(weight, input / per_word() * outputs + output);
    return static_cast<int32_t>(word >> (input % per_word() * scheme.bits) & mask());
  }
  float scale(uint64_t group, uint64_t output) const {
    float value;
    scales.read(group * outputs + output, 1, &value);
    return value;
  }
  // Whether each 32 inputs share a scale of f16, so that they make a block.
  bool in_blocks() const {
    if (scales.type != DType::kF16 || inputs % kGroup != 0) return false;
    for (uint64_t i = 0; i < inputs; ++i)
      if (groups[i] != groups[i / kGroup * kGroup]) return false;
    return true;
  }
  void row_of_floats(uint64_t output, float* out) const {
    for (uint64_t i = 0; i < inputs; ++i)
      out[i] = scale(groups[i], output) *
               static_cast<float>(integer(i, output) - zero(groups[i], output));
  }
  void row_of_blocks(uint64_t output, std::byte* out) const {
    for (uint64_t i = 0; i < inputs; i += kGroup) {
      const uint32_t group = groups[i];
      const int32_t zero_point = zero(group, output);
      std::memcpy(out, scales.bytes.data() + 2 * (group * outputs + output), 2);
      out += 2;
      std::array<uint8_t, kGroup> q{};
      const int32_t offset = scheme.bits == 4 ? 16 : 0;
      for (uint32_t e = 0; e < kGroup; ++e)
        q[e] = static_cast<uint8_t>(integer(i + e, output) - zero_point + offset);
      if (scheme.bits == 8) {
        std::memcpy(out, q.data(), kGroup);
        out += kGroup;
        continue;
      }
      uint32_t fifth = 0;
      for (uint32_t e = 0; e < kGroup; ++e) fifth |= uint32_t{q[e]} >> 4 << e;
      std::memcpy(out, &fifth, 4);
      for (uint32_t e = 0; e < 16; ++e)
        out[4 + e] = static_cast<std::byte>((q[e] & 15) | (q[e + 16] & 15) << 4);
      out += 4 + 16;
    }
  }
  // Whether integers less their zero points have 5 bits, or 8.
  bool fits() const {
    if (scheme.bits == 4) return true;  // -16 to 15
    for (uint64_t i = 0; i < zeros.bytes.size() / 4; ++i)
      for (uint32_t shift = 0; shift < 32; shift += 8)
        if ((word_at(zeros, i) >> shift & 255) + scheme.zero_more != 128) return false;
    return true;
  }
};

Result<Tensor> part_of(const TensorSet& set, const std::string& name, const char* type,
                       size_t rank) {
  const auto it = set.tensors.find(name);
  if (it == set.tensors.end()) return fail(Code::kNotFound, "no tensor '%s'", name.c_str());
  const Tensor& t = it->second;
  const bool right = type == nullptr ? t.type.has_value() : t.type_text == type;
  if (t.shape.size() != rank || !right)
    return fail(Code::kInvalid, "tensor '%s' is %s %s, want %s of %zu dimensions", name.c_str(),
                escape(t.type_text).c_str(), shape_text(t.shape).c_str(),
                type == nullptr ? "floats" : type, rank);
  const auto elements = element_count(t.shape);
  if (!elements || (type != nullptr && t.bytes.size() != *elements * 4))
    return fail(Code::kCorrupt, "tensor '%s' of %s has %zu bytes", name.c_str(),
                shape_text(t.shape).c_str(), t.bytes.size());
  return t;
}

Result<> read_groups(const TensorSet& set, const std::string& base, IntegerModule& m) {
  const uint64_t size = m.scheme.group == 0 ? m.inputs : m.scheme.group;
  m.groups.resize(m.inputs);
  const bool listed = set.tensors.contains(base + ".g_idx");
  Tensor list;
  if (listed) {
    MC_TRY(list, part_of(set, base + ".g_idx", "I32", 1));
    if (list.shape[0] != m.inputs)
      return fail(Code::kInvalid, "tensor '%s.g_idx' has %llu groups, want %llu", base.c_str(),
                  static_cast<ull>(list.shape[0]), static_cast<ull>(m.inputs));
  }
  for (uint64_t i = 0; i < m.inputs; ++i) {
    m.groups[i] = listed ? word_at(list, i) : static_cast<uint32_t>(i / size);
    if (m.groups[i] >= m.scales.shape[0])
      return fail(Code::kInvalid, "'%s': input %llu is in group %u of %llu", base.c_str(),
                  static_cast<ull>(i), m.groups[i], static_cast<ull>(m.scales.shape[0]));
  }
  return {};
}

Result<Tensor> integer_weight(const TensorSet& set, const std::string& base,
                              const IntegerScheme& scheme) {
  auto m = std::make_shared<IntegerModule>();
  m->scheme = scheme;
  MC_TRY(m->weight, part_of(set, base + ".qweight", "I32", 2));
  MC_TRY(m->zeros, part_of(set, base + ".qzeros", "I32", 2));
  MC_TRY(m->scales, part_of(set, base + ".scales", nullptr, 2));
  const bool awq = scheme.packing == Packing::kAwq;
  const uint64_t a = m->weight.shape[0], b = m->weight.shape[1];
  if (a == 0 || b == 0 || a > kSideMax || b > kSideMax)
    return fail(Code::kInvalid, "tensor '%s.qweight' has shape %s", base.c_str(),
                shape_text(m->weight.shape).c_str());
  m->inputs = awq ? a : a * m->per_word();
  m->outputs = awq ? b * m->per_word() : b;
  const std::vector<uint64_t> zeros = {m->scales.shape[0], m->outputs / m->per_word()};
  if (m->outputs % m->per_word() != 0 || m->scales.shape[1] != m->outputs ||
      m->zeros.shape != zeros)
    return fail(Code::kInvalid, "'%s': qweight %s, qzeros %s and scales %s are not of one matrix",
                base.c_str(), shape_text(m->weight.shape).c_str(),
                shape_text(m->zeros.shape).c_str(), shape_text(m->scales.shape).c_str());
  MC_TRY_(read_groups(set, base, *m));
  Tensor joined;
  joined.type_text = strf("%s of %u bits", awq ? "AWQ" : "GPTQ", scheme.bits);
  joined.shape = {m->outputs, m->inputs};
  joined.bytes = m->weight.bytes;
  if (m->in_blocks() && m->fits()) {
    joined.blocks = block_format_numbered(scheme.bits == 4 ? 6 : 8);  // Q5_0, Q8_0
    joined.make_row = [m](uint64_t n, std::byte* out) { m->row_of_blocks(n, out); };
  } else {
    joined.type = DType::kF32;
    joined.make_row = [m](uint64_t n, std::byte* out) {
      m->row_of_floats(n, reinterpret_cast<float*>(out));
    };
  }
  return joined;
}

Result<IntegerScheme> integer_scheme(const Json& q, const std::string& method) {
  IntegerScheme s;
  const bool awq = method == "awq";
  s.packing = awq ? Packing::kAwq : Packing::kGptq;
  MC_TRY(const uint64_t bits, get_uint(q, "bits"));
  if (bits != 4 && (awq || bits != 8))
    return fail(Code::kUnsupported, "%s of %llu bits: want 4%s", method.c_str(),
                static_cast<ull>(bits), awq ? "" : " or 8");
  s.bits = static_cast<uint32_t>(bits);
  MC_TRY(const double group, get_number(q, "group_size"));
  if (group != -1 && !(group >= 1 && group <= kSideMax && group == std::floor(group)))
    return fail(Code::kInvalid, "'group_size' is %g, want -1 or more than 0", group);
  s.group = group < 0 ? 0 : static_cast<uint64_t>(group);
  const char* const key = awq ? "version" : "checkpoint_format";
  MC_TRY(std::string form, get_string_or(q, key, awq ? "gemm" : "gptq"));
  for (char& c : form) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  if (awq ? form != "gemm" : form != "gptq" && form != "gptq_v2")
    return fail(Code::kUnsupported, "%s with %s \"%s\": want %s", method.c_str(), key,
                escape(form).c_str(), awq ? "\"gemm\"" : "\"gptq\" or \"gptq_v2\"");
  s.zero_more = awq || form == "gptq_v2" ? 0 : 1;
  return s;
}

// What a joined weight depends on beside the bytes of `.qweight`.
uint64_t parts_digest(const TensorSet& set, const std::string& base, const IntegerScheme& s) {
  uint64_t digest = xxh3(strf("%u %u %llu", s.bits, s.zero_more, static_cast<ull>(s.group)));
  for (const char* part : {".qzeros", ".scales", ".g_idx"})
    if (const auto it = set.tensors.find(base + part); it != set.tensors.end())
      digest = digest_of(part, it->second, digest);
  return digest;
}

Result<> join_integers(const Json& q, const std::string& method, TensorSet& set) {
  MC_TRY(const IntegerScheme scheme, integer_scheme(q, method));
  std::vector<std::string> bases;
  constexpr std::string_view kEnd = ".qweight";
  for (const auto& [name, t] : set.tensors)
    if (name.ends_with(kEnd)) bases.push_back(name.substr(0, name.size() - kEnd.size()));
  for (const std::string& base : bases) {
    MC_TRY(Tensor joined, integer_weight(set, base, scheme));
    joined.made_of = parts_digest(set, base, scheme);
    set.tensors[base + ".weight"] = std::move(joined);
    for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"})
      set.tensors.erase(base + part);
  }
  return {};
}

// ---- FP8

struct Fp8Module {
  Tensor weight, scales;
  bool e5m2 = false;
  uint64_t rows = 0, columns = 0;
  uint64_t scale_rows = 1, scale_columns = 1;  // that share a scale

  float value(uint64_t i) const {
    const auto bits = std::to_integer<uint8_t>(weight.bytes[i]);
    return e5m2 ? from_f16(static_cast<uint16_t>(bits << 8)) : from_f8_e4m3(bits);
  }
  void row(uint64_t n, float* out) const {
    const uint64_t wide = (columns + scale_columns - 1) / scale_columns;
    float scale = 0;
    for (uint64_t i = 0; i < columns; ++i) {
      if (i % scale_columns == 0) scales.read(n / scale_rows * wide + i / scale_columns, 1, &scale);
      out[i] = value(n * columns + i) * scale;
    }
  }
};

// Scales of a whole matrix, of a row each, or of blocks.
Result<> place_scales(const Json& q, const std::string& name, Fp8Module& m) {
  const auto elements = element_count(m.scales.shape);
  if (elements == 1u) {
    m.scale_rows = m.rows, m.scale_columns = m.columns;
    return {};
  }
  if (elements == m.rows && m.scales.shape[0] == m.rows) {
    m.scale_columns = m.columns;
    return {};
  }
  const auto size = q.find("weight_block_size");
  if (size != q.end() && size->is_array() && size->size() == 2 && (*size)[0].is_number_unsigned() &&
      (*size)[1].is_number_unsigned()) {
    m.scale_rows = (*size)[0].get<uint64_t>(), m.scale_columns = (*size)[1].get<uint64_t>();
    if (m.scale_rows > 0 && m.scale_columns > 0 && m.scale_rows <= kSideMax &&
        m.scale_columns <= kSideMax &&
        m.scales.shape ==
            std::vector<uint64_t>{(m.rows + m.scale_rows - 1) / m.scale_rows,
                                  (m.columns + m.scale_columns - 1) / m.scale_columns})
      return {};
  }
  return fail(Code::kInvalid,
              "tensor '%s' has shape %s: want one scale, one a row, or one for each "
              "'weight_block_size' of %llu x %llu",
              name.c_str(), shape_text(m.scales.shape).c_str(), static_cast<ull>(m.rows),
              static_cast<ull>(m.columns));
}

Result<> join_fp8(const Json& q, TensorSet& set) {
  for (auto& [name, t] : set.tensors) {
    const bool e5m2 = t.type_text == "F8_E5M2";
    if (!e5m2 && t.type_text != "F8_E4M3") continue;
    auto m = std::make_shared<Fp8Module>();
    const auto elements = element_count(t.shape);
    if (t.shape.size() != 2 || t.bytes.size() != elements || t.bytes.empty())
      return fail(Code::kUnsupported, "tensor '%s' of %s has shape %s: want a matrix", name.c_str(),
                  t.type_text.c_str(), shape_text(t.shape).c_str());
    m->weight = t;
    m->e5m2 = e5m2;
    m->rows = t.shape[0], m->columns = t.shape[1];
    auto scales = set.tensors.find(name + "_scale_inv");
    if (scales == set.tensors.end()) scales = set.tensors.find(name + "_scale");
    if (scales == set.tensors.end() || !scales->second.type)
      return fail(Code::kNotFound,
                  "tensor '%s' of %s has no scales of floats, '%s_scale' or '%s_scale_inv'",
                  name.c_str(), t.type_text.c_str(), name.c_str(), name.c_str());
    m->scales = scales->second;
    MC_TRY_(place_scales(q, scales->first, *m));
    t.type = DType::kF32;
    t.type_text += " with scales";
    t.make_row = [m](uint64_t n, std::byte* out) { m->row(n, reinterpret_cast<float*>(out)); };
  }
  return {};
}

}  // namespace

float from_f8_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  float value = std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction + 8),
                           (exponent == 0 ? 1 : exponent) - 10);
  if (exponent == 15 && fraction == 7) value = std::nanf("");
  return bits >= 128 ? -value : value;
}

Result<> join_quantized_modules(const Json& q, TensorSet& set) {
  if (!q.is_object()) return fail(Code::kInvalid, "'quantization_config' is no object");
  MC_TRY(const std::string method, get_string(q, "quant_method"));
  if (method == "gptq" || method == "awq") return join_integers(q, method, set);
  if (method == "fp8") return join_fp8(q, set);
  if (method == "compressed-tensors") {
    MC_TRY(const std::string format, get_string_or(q, "format", ""));
    if (format == "float-quantized") return join_fp8(q, set);
    return fail(Code::kUnsupported, "compressed-tensors of format '%s': want float-quantized (FP8)",
                escape(format).c_str());
  }
  return fail(Code::kUnsupported,
              "weights quantized by '%s': want gptq, awq or fp8. Take the model without "
              "quantization, or as a GGUF file",
              escape(method).c_str());
}

}  // namespace mc::model
