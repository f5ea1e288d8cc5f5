#include "model/files/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/units.h"

namespace mc::model {
namespace {

using ull = unsigned long long;
constexpr uint64_t kNameMax = 65536, kTextMax = 16u << 20, kGgufRankMax = 4;
// What is read into memory: entries of the metadata, the elements of all arrays in it, tensors.
constexpr uint64_t kKeysMax = 65536, kElementsMax = 1u << 23, kGgufTensorsMax = 1u << 18;
enum Kind : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64
};

class GgufReader {
 public:
  explicit GgufReader(std::span<const std::byte> in) : in_(in) {}
  size_t at() const { return at_; }
  uint64_t left() const { return in_.size() - at_; }
  bool take_elements(uint64_t n) {  // false: arrays have too many
    const bool fit = n <= elements_left_;
    if (fit) elements_left_ -= n;
    return fit;
  }

  template <class T>
  Result<T> number() {
    T value;
    if (left() < sizeof value) return fail(Code::kCorrupt, "the file ends at byte %zu", at_);
    std::memcpy(&value, in_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  Result<std::string> text(uint64_t most) {
    MC_TRY(const uint64_t size, number<uint64_t>());
    if (size > most || size > left())
      return fail(Code::kCorrupt, "a text of %llu bytes at byte %zu: %llu are left",
                  static_cast<ull>(size), at_, static_cast<ull>(left()));
    const char* from = reinterpret_cast<const char*>(in_.data()) + at_;
    at_ += size;
    return std::string(from, size);
  }
  Result<int64_t> whole(uint32_t kind) {
    switch (kind) {
      case kU8: return as<uint8_t>();
      case kI8: return as<int8_t>();
      case kU16: return as<uint16_t>();
      case kI16: return as<int16_t>();
      case kU32: return as<uint32_t>();
      case kI32: return as<int32_t>();
      case kU64: return as<uint64_t>();
      default: return as<int64_t>();
    }
  }
  Result<double> floating(uint32_t kind) {
    if (kind == kF64) return number<double>();
    MC_TRY(const float f, number<float>());
    return double{f};
  }

 private:
  template <class T>
  Result<int64_t> as() {
    MC_TRY(const T value, number<T>());
    return static_cast<int64_t>(value);
  }
  std::span<const std::byte> in_;
  size_t at_ = 0;
  uint64_t elements_left_ = kElementsMax;
};

bool is_floating(uint32_t kind) { return kind == kF32 || kind == kF64; }
bool is_whole(uint32_t kind) {
  return kind <= kI32 || kind == kBool || kind == kU64 || kind == kI64;
}

// The least bytes an element takes: an array cannot have more of them than fit in the file.
uint64_t least_bytes(uint32_t kind) {
  switch (kind) {
    case kU8:
    case kI8:
    case kBool: return 1;
    case kU16:
    case kI16: return 2;
    case kU32:
    case kI32:
    case kF32: return 4;
    default: return 8;
  }
}

template <class T, class Read>
Result<GgufValue> read_array(uint64_t count, const Read& read) {
  std::vector<T> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    MC_TRY(T value, read());
    values.push_back(std::move(value));
  }
  return GgufValue(std::move(values));
}

Result<GgufValue> read_value(GgufReader& in, uint32_t kind) {
  if (is_floating(kind)) return in.floating(kind).map([](double v) { return GgufValue(v); });
  if (kind == kText) return in.text(kTextMax).map([](std::string v) { return GgufValue(v); });
  if (kind == kBool) return in.number<uint8_t>().map([](uint8_t v) { return GgufValue(v != 0); });
  if (is_whole(kind)) return in.whole(kind).map([](int64_t v) { return GgufValue(v); });
  if (kind != kArray) return fail(Code::kCorrupt, "a value of unknown kind %u", kind);
  MC_TRY(const uint32_t inner, in.number<uint32_t>());
  MC_TRY(const uint64_t count, in.number<uint64_t>());
  if (inner == kArray || inner > kF64 || count > in.left() / least_bytes(inner))
    return fail(Code::kCorrupt, "an array of %llu elements of kind %u in %llu bytes",
                static_cast<ull>(count), inner, static_cast<ull>(in.left()));
  if (!in.take_elements(count))
    return fail(Code::kCorrupt, "an array of %llu elements: all arrays have %llu at most",
                static_cast<ull>(count), static_cast<ull>(kElementsMax));
  if (inner == kText) return read_array<std::string>(count, [&] { return in.text(kNameMax); });
  if (is_floating(inner)) return read_array<double>(count, [&] { return in.floating(inner); });
  const uint32_t stored = inner == kBool ? uint32_t{kU8} : inner;
  return read_array<int64_t>(count, [&] { return in.whole(stored); });
}

struct GgufTensor {
  std::string name;
  Tensor tensor;
  uint64_t offset = 0;
};

Result<GgufTensor> read_tensor(GgufReader& in) {
  GgufTensor e;
  MC_TRY(e.name, in.text(kNameMax));
  MC_TRY(const uint32_t rank, in.number<uint32_t>());
  if (rank > kGgufRankMax)
    return fail(Code::kCorrupt, "tensor '%s' has %u dimensions: want at most %llu",
                escape(e.name).c_str(), rank, static_cast<ull>(kGgufRankMax));
  for (uint32_t i = 0; i < rank; ++i) {
    MC_TRY(const uint64_t n, in.number<uint64_t>());
    e.tensor.shape.insert(e.tensor.shape.begin(), n);  // the file has columns first
  }
  MC_TRY(const uint32_t type, in.number<uint32_t>());
  e.tensor.type_text = strf("ggml type %u", type);
  if (type == 0) e.tensor.type = DType::kF32;
  if (type == 1) e.tensor.type = DType::kF16;
  if (type == 30) e.tensor.type = DType::kBf16;
  MC_TRY(e.offset, in.number<uint64_t>());
  return e;
}

Result<uint64_t> whole(const Gguf& file, const std::string& key, uint64_t fallback, uint64_t most) {
  const int64_t* found = gguf_value<int64_t>(file, key);
  if (found == nullptr && (fallback == 0 || file.metadata.contains(key)))
    return fail(Code::kInvalid, "'%s' is missing, or no whole number", key.c_str());
  const int64_t n = found == nullptr ? static_cast<int64_t>(fallback) : *found;
  if (n < 1 || static_cast<uint64_t>(n) > most)
    return fail(Code::kInvalid, "'%s' is %lld, want 1 to %llu", key.c_str(),
                static_cast<long long>(n), static_cast<ull>(most));
  return static_cast<uint64_t>(n);
}

Result<> small(const Gguf& file, const std::string& key, uint64_t fallback, uint64_t most,
               uint32_t& out) {
  MC_TRY(const uint64_t n, whole(file, key, fallback, most));
  out = static_cast<uint32_t>(n);
  return {};
}

Result<Tensors> read_tensors(GgufReader& in, std::span<const std::byte> file, uint64_t count,
                             uint64_t alignment) {
  std::vector<GgufTensor> entries;
  for (uint64_t i = 0; i < count; ++i) {
    MC_TRY(GgufTensor e, read_tensor(in));
    entries.push_back(std::move(e));
  }
  const uint64_t start = (in.at() + alignment - 1) / alignment * alignment;
  const auto data = file.subspan(std::min<uint64_t>(start, file.size()));
  Tensors tensors;
  for (GgufTensor& e : entries) {
    const auto elements = element_count(e.tensor.shape);
    const uint64_t bytes = e.tensor.type && elements ? *elements * size_of(*e.tensor.type) : 0;
    if (!elements || e.offset > data.size() || bytes > data.size() - e.offset)
      return fail(Code::kCorrupt, "tensor '%s' of %s lies at %llu of %zu bytes of data: cut off?",
                  escape(e.name).c_str(), shape_text(e.tensor.shape).c_str(),
                  static_cast<ull>(e.offset), data.size());
    e.tensor.bytes = data.subspan(e.offset, bytes);
    tensors.emplace(std::move(e.name), std::move(e.tensor));
  }
  return tensors;
}

// How positions turn: all of a head's dimensions, with divisors in a tensor where there is one.
Result<> scaling(const Gguf& g, const std::string& of, uint64_t turned, ModelConfig& c) {
  const std::string* kind = gguf_value<std::string>(g, of + "rope.scaling.type");
  const bool linear = kind != nullptr && *kind == "linear";
  if (turned != c.head_dim || (kind != nullptr && *kind != "none" && !linear))
    return fail(Code::kUnsupported,
                "RoPE over %llu of %u dimensions, scaling '%s': want all, none "
                "or linear",
                static_cast<ull>(turned), c.head_dim,
                kind == nullptr ? "none" : escape(*kind).c_str());
  if (linear) {
    const double* factor = gguf_value<double>(g, of + "rope.scaling.factor");
    if (factor == nullptr || !(*factor > 0))
      return fail(Code::kInvalid, "'%srope.scaling.factor' is missing, or not above 0", of.c_str());
    c.rope.scaling = RopeScaling::kLinear;
    c.rope.factor = *factor;
  }
  const auto it = g.tensors.find("rope_freqs.weight");
  if (it == g.tensors.end()) return {};
  const Tensor& t = it->second;
  if (t.type != DType::kF32 || t.shape != std::vector<uint64_t>{c.head_dim / 2})
    return fail(Code::kInvalid, "tensor 'rope_freqs.weight' is %s %s, want f32 [%u]",
                t.type_text.c_str(), shape_text(t.shape).c_str(), c.head_dim / 2);
  std::vector<float> divisors(c.head_dim / 2);
  to_floats(DType::kF32, t.bytes.data(), divisors.data(), divisors.size());
  for (const float d : divisors)
    if (!(d > 0))
      return fail(Code::kInvalid, "tensor 'rope_freqs.weight' holds %g, want numbers above 0",
                  double{d});
  c.rope.divisors.assign(divisors.begin(), divisors.end());
  return {};
}

}  // namespace

Result<Gguf> parse_gguf(std::span<const std::byte> file) {
  GgufReader in(file);
  MC_TRY(const uint32_t magic, in.number<uint32_t>());
  MC_TRY(const uint32_t version, in.number<uint32_t>());
  if (magic != 0x46554747u) return fail(Code::kCorrupt, "not a GGUF file");
  if (version != 2 && version != 3)
    return fail(Code::kUnsupported, "GGUF version %u: want 2 or 3", version);
  MC_TRY(const uint64_t tensors, in.number<uint64_t>());
  MC_TRY(const uint64_t keys, in.number<uint64_t>());
  if (tensors > kGgufTensorsMax || keys > kKeysMax)
    return fail(Code::kCorrupt, "%llu tensors and %llu keys: want at most %llu and %llu",
                static_cast<ull>(tensors), static_cast<ull>(keys),
                static_cast<ull>(kGgufTensorsMax), static_cast<ull>(kKeysMax));
  Gguf g;
  for (uint64_t i = 0; i < keys; ++i) {
    MC_TRY(const std::string key, in.text(kNameMax));
    MC_TRY(const uint32_t kind, in.number<uint32_t>());
    auto value = read_value(in, kind);
    if (!value)
      return fail(Code::kCorrupt, "'%s': %s", escape(key).c_str(), value.error().what.c_str());
    g.metadata.emplace(key, std::move(*value));
  }
  MC_TRY(const uint64_t alignment, whole(g, "general.alignment", 32, 1u << 20));
  MC_TRY(g.tensors, read_tensors(in, file, tensors, alignment));
  return g;
}

Result<ModelConfig> gguf_config(const Gguf& g) {
  const std::string* kind = gguf_value<std::string>(g, "general.architecture");
  if (kind == nullptr || (*kind != "llama" && *kind != "qwen2"))
    return fail(Code::kUnsupported, "architecture '%s': want llama or qwen2",
                kind == nullptr ? "" : escape(*kind).c_str());
  const std::string of = *kind + ".";
  const auto key = [&](const char* name) { return of + name; };
  ModelConfig c;
  c.family = *kind == "qwen2" ? Family::kQwen2 : Family::kLlama;
  const auto* pieces = gguf_value<std::vector<std::string>>(g, "tokenizer.ggml.tokens");
  MC_TRY_(small(g, key("vocab_size"), pieces == nullptr ? 0 : pieces->size(), 1u << 24, c.vocab));
  MC_TRY_(small(g, key("embedding_length"), 0, 1u << 20, c.hidden));
  MC_TRY_(small(g, key("feed_forward_length"), 0, 1u << 22, c.intermediate));
  MC_TRY_(small(g, key("block_count"), 0, 1000, c.layers));
  MC_TRY_(small(g, key("attention.head_count"), 0, 1024, c.heads));
  MC_TRY_(small(g, key("attention.head_count_kv"), c.heads, 1024, c.kv_heads));
  MC_TRY_(
      small(g, key("attention.key_length"), std::max(1u, c.hidden / c.heads), 1024, c.head_dim));
  MC_TRY(c.context_max, whole(g, key("context_length"), 0, uint64_t{1} << 30));
  MC_TRY(const uint64_t turned, whole(g, key("rope.dimension_count"), c.head_dim, 1024));
  MC_TRY_(scaling(g, of, turned, c));
  if (const double* theta = gguf_value<double>(g, key("rope.freq_base"))) c.rope.theta = *theta;
  if (const double* eps = gguf_value<double>(g, key("attention.layer_norm_rms_epsilon")))
    c.norm_eps = *eps;
  if (!(c.rope.theta > 0) || !(c.norm_eps > 0))
    return fail(Code::kInvalid, "RoPE base %g and epsilon %g: want both above 0", c.rope.theta,
                c.norm_eps);
  c.tied = !g.tensors.contains("output.weight");
  const auto token = [&](const char* name) -> int32_t {
    const int64_t* id = gguf_value<int64_t>(g, std::string("tokenizer.ggml.") + name);
    return id != nullptr && *id >= 0 && *id < c.vocab ? static_cast<int32_t>(*id) : -1;
  };
  c.bos = token("bos_token_id");
  for (const char* name : {"eos_token_id", "eot_token_id"})
    if (const int32_t id = token(name); id >= 0) c.eos.push_back(id);
  MC_TRY_(check_config(c));
  return c;
}

}  // namespace mc::model
