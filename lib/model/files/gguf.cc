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
  const std::string_view known = ggml_type_name(type);
  e.tensor.blocks = block_format_numbered(type);
  e.tensor.type_text = strf("ggml type %u", type);
  if (type == 0) e.tensor.type = DType::kF32;
  if (type == 1) e.tensor.type = DType::kF16;
  if (type == 30) e.tensor.type = DType::kBf16;
  if (!e.tensor.type && !known.empty()) e.tensor.type_text = known;
  MC_TRY(e.offset, in.number<uint64_t>());
  return e;
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
    const auto bytes = bytes_of(e.tensor);
    if (!bytes)
      return fail(bytes.error().code, "tensor '%s': %s", escape(e.name).c_str(),
                  bytes.error().what.c_str());
    if (e.offset % alignment != 0)
      return fail(Code::kCorrupt, "tensor '%s' lies at %llu, no multiple of the alignment %llu",
                  escape(e.name).c_str(), static_cast<ull>(e.offset), static_cast<ull>(alignment));
    if (e.offset > data.size() || *bytes > data.size() - e.offset)
      return fail(Code::kCorrupt, "tensor '%s' of %s lies at %llu of %zu bytes of data: cut off?",
                  escape(e.name).c_str(), shape_text(e.tensor.shape).c_str(),
                  static_cast<ull>(e.offset), data.size());
    e.tensor.bytes = data.subspan(e.offset, *bytes);
    const auto [it, first] = tensors.emplace(std::move(e.name), std::move(e.tensor));
    if (!first)
      return fail(Code::kCorrupt, "there are two tensors '%s'", escape(it->first).c_str());
  }
  MC_TRY_(check_overlap(tensors));
  return tensors;
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
    if (!g.metadata.emplace(key, std::move(*value)).second)
      return fail(Code::kCorrupt, "'%s' is there twice", escape(key).c_str());
  }
  MC_TRY(const uint64_t alignment, gguf_number(g, "general.alignment", 32, 1u << 20));
  MC_TRY(g.tensors, read_tensors(in, file, tensors, alignment));
  return g;
}

Result<uint64_t> gguf_number(const Gguf& file, const std::string& key, uint64_t fallback,
                             uint64_t most) {
  const int64_t* found = gguf_value<int64_t>(file, key);
  if (found == nullptr && (fallback == 0 || file.metadata.contains(key)))
    return fail(Code::kInvalid, "'%s' is missing, or no whole number", key.c_str());
  const int64_t n = found == nullptr ? static_cast<int64_t>(fallback) : *found;
  if (n < 1 || static_cast<uint64_t>(n) > most)
    return fail(Code::kInvalid, "'%s' is %lld, want 1 to %llu", key.c_str(),
                static_cast<long long>(n), static_cast<ull>(most));
  return static_cast<uint64_t>(n);
}

}  // namespace mc::model
