#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/hash.h"
#include "base/json.h"
#include "base/units.h"
#include "model/files/tensors.h"

namespace mc::model {
namespace {

constexpr uint64_t kHeaderMax = 64u << 20;
constexpr size_t kRankMax = 8, kShardsMax = 4096;
constexpr JsonLimits kHeaderLimits{.members = 1 << 18, .values = 1 << 22};
using ull = unsigned long long;

Result<std::vector<uint64_t>> read_numbers(const Json& entry, const char* key, size_t most) {
  const auto it = entry.find(key);
  if (it == entry.end() || !it->is_array() || it->size() > most)
    return fail(Code::kCorrupt, "'%s' is not an array of at most %zu numbers", key, most);
  std::vector<uint64_t> numbers;
  for (const Json& n : *it) {
    if (!n.is_number_unsigned())
      return fail(Code::kCorrupt, "'%s' holds %s, want whole numbers of 0 or more", key,
                  escape(dump_json(n)).c_str());
    numbers.push_back(n.get<uint64_t>());
  }
  return numbers;
}

Result<Tensor> read_entry(const Json& entry, std::span<const std::byte> data) {
  if (!entry.is_object()) return fail(Code::kCorrupt, "its entry is not an object");
  Tensor t;
  auto type = get_string(entry, "dtype");
  if (!type) return fail(Code::kCorrupt, "%s", type.error().what.c_str());
  t.type_text = *type;
  t.type = dtype_named(*type);
  MC_TRY(t.shape, read_numbers(entry, "shape", kRankMax));
  MC_TRY(const std::vector<uint64_t> offsets, read_numbers(entry, "data_offsets", 2));
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size())
    return fail(Code::kCorrupt, "data_offsets are %s, want two within the %zu bytes of data",
                shape_text(offsets).c_str(), data.size());
  const auto elements = element_count(t.shape);
  if (!elements) return fail(Code::kCorrupt, "shape %s is too large", shape_text(t.shape).c_str());
  const uint64_t bytes = offsets[1] - offsets[0];
  const uint64_t want = t.type ? *elements * size_of(*t.type) : bytes;
  if (want != bytes)
    return fail(Code::kCorrupt, "%s of %s takes %llu bytes, data_offsets hold %llu",
                shape_text(t.shape).c_str(), t.type_text.c_str(), static_cast<ull>(want),
                static_cast<ull>(bytes));
  t.bytes = data.subspan(offsets[0], bytes);
  return t;
}

Result<> add_file(const std::string& path, TensorSet& set, Tensors& tensors) {
  MC_TRY(MappedFile opened, MappedFile::open(path));
  auto file = std::make_shared<const MappedFile>(std::move(opened));
  auto parsed = parse_safetensors(file->bytes());
  if (!parsed)
    return fail(parsed.error().code, "%s: %s", path.c_str(), parsed.error().what.c_str());
  tensors = std::move(*parsed);
  set.files.push_back(std::move(file));
  return {};
}

// A name beside the index, not a way out of the folder.
bool plain_file(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

Result<TensorSet> open_shards(const std::string& folder, const std::string& index_path) {
  MC_TRY(const Json index, read_json_file(index_path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object())
    return fail(Code::kCorrupt, "%s: no 'weight_map' object", index_path.c_str());
  TensorSet set;
  std::map<std::string, Tensors> shards;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !plain_file(file.get_ref<const std::string&>()))
      return fail(Code::kCorrupt, "%s: tensor '%s' is in %s, want the name of a file beside it",
                  index_path.c_str(), escape(name).c_str(), escape(dump_json(file)).c_str());
    const std::string& shard = file.get_ref<const std::string&>();
    if (!shards.contains(shard)) {
      if (shards.size() >= kShardsMax)
        return fail(Code::kCorrupt, "%s: over %zu shards", index_path.c_str(), kShardsMax);
      MC_TRY_(add_file(folder + "/" + shard, set, shards[shard]));
    }
    const auto it = shards[shard].find(name);
    if (it == shards[shard].end())
      return fail(Code::kNotFound, "%s: tensor '%s' should be in %s, which has none of that name",
                  index_path.c_str(), escape(name).c_str(), escape(shard).c_str());
    set.tensors.emplace(name, it->second);
  }
  return set;
}

}  // namespace

uint64_t digest_of(const std::string& name, const Tensor& t, uint64_t seed) {
  constexpr size_t kSample = 64;  // bytes of each end
  const size_t n = std::min(kSample, t.bytes.size());
  uint64_t digest = xxh3(name + t.type_text + shape_text(t.shape), seed);
  digest = xxh3(t.bytes.data(), n, digest);
  digest = xxh3(t.bytes.data() + t.bytes.size() - n, n, digest);
  return t.made_of == 0 ? digest : xxh3(&t.made_of, sizeof t.made_of, digest);
}

std::string shape_text(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (const uint64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

std::optional<uint64_t> element_count(std::span<const uint64_t> shape) {
  constexpr uint64_t kMost = uint64_t{1} << 56;
  uint64_t n = 1;
  for (const uint64_t d : shape) {
    if (d > 0 && n > kMost / d) return std::nullopt;
    n *= d;
  }
  return n;
}

Result<const Tensor*> TensorSet::find(const std::string& name,
                                      std::span<const uint64_t> shape) const {
  const auto it = tensors.find(name);
  if (it == tensors.end())
    return fail(Code::kNotFound, "no tensor '%s' among the %zu there: want one of %s", name.c_str(),
                tensors.size(), shape_text(shape).c_str());
  const Tensor& t = it->second;
  if (!std::equal(t.shape.begin(), t.shape.end(), shape.begin(), shape.end()))
    return fail(Code::kInvalid, "tensor '%s' has shape %s, the configuration wants %s",
                name.c_str(), shape_text(t.shape).c_str(), shape_text(shape).c_str());
  if (!t.readable()) {
    std::string known = "f32, f16, bf16";
    for (const BlockFormat& f : block_formats()) known += std::string(", ") + f.name;
    return fail(Code::kUnsupported,
                "tensor '%s' is of format %s: want one of %s. Convert the model to one of these",
                name.c_str(), escape(t.type_text).c_str(), known.c_str());
  }
  return &t;
}

void Tensor::read(uint64_t first, size_t n, float* out) const {
  if (make_row) {
    MC_CHECK(n == shape.back() && first % n == 0);
    if (blocks == nullptr) return make_row(first / n, reinterpret_cast<std::byte*>(out));
    std::vector<std::byte> row(n / blocks->elements * blocks->bytes);
    make_row(first / n, row.data());
    return dequantize(*blocks, row.data(), out, n / blocks->elements);
  }
  if (blocks == nullptr) return to_floats(*type, bytes.data() + first * size_of(*type), out, n);
  const uint64_t block = first / blocks->elements, count = n / blocks->elements;
  MC_CHECK(block * blocks->elements == first && count * blocks->elements == n);
  dequantize(*blocks, bytes.data() + block * blocks->bytes, out, count);
}

Result<uint64_t> bytes_of(const Tensor& t) {
  const auto elements = element_count(t.shape);
  if (!elements) return fail(Code::kCorrupt, "shape %s is too large", shape_text(t.shape).c_str());
  if (t.type) return *elements * size_of(*t.type);
  if (t.blocks == nullptr) return uint64_t{0};
  const uint64_t row = t.shape.empty() ? 1 : t.shape.back();
  if (row % t.blocks->elements != 0)
    return fail(Code::kCorrupt, "rows of %llu elements are no whole blocks of %u, as %s has",
                static_cast<ull>(row), t.blocks->elements, t.blocks->name);
  return *elements / t.blocks->elements * t.blocks->bytes;
}

Result<> check_overlap(const Tensors& tensors) {
  struct Range {
    const std::byte *begin, *end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  for (const auto& [name, t] : tensors)
    if (!t.bytes.empty())
      ranges.push_back({t.bytes.data(), t.bytes.data() + t.bytes.size(), &name});
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].begin < ranges[i - 1].end)
      return fail(Code::kCorrupt, "tensors '%s' and '%s' overlap",
                  escape(*ranges[i - 1].name).c_str(), escape(*ranges[i].name).c_str());
  return {};
}

Result<Tensors> parse_safetensors(std::span<const std::byte> file) {
  uint64_t header = 0;
  if (file.size() < 8)
    return fail(Code::kCorrupt, "%zu bytes are too few for safetensors", file.size());
  std::memcpy(&header, file.data(), 8);
  if (header > kHeaderMax || header > file.size() - 8)
    return fail(Code::kCorrupt,
                "a header of %llu bytes in a file of %zu: truncated, or not safetensors",
                static_cast<ull>(header), file.size());
  const char* text = reinterpret_cast<const char*>(file.data()) + 8;
  const auto json = parse_json({text, header}, kHeaderLimits);
  if (!json) return fail(Code::kCorrupt, "the header: %s", json.error().what.c_str());
  if (!json->is_object()) return fail(Code::kCorrupt, "the header is not a JSON object");
  const auto data = file.subspan(8 + header);
  Tensors tensors;
  for (const auto& [name, entry] : json->items()) {
    if (name == "__metadata__") continue;
    auto t = read_entry(entry, data);
    if (!t)
      return fail(t.error().code, "tensor '%s': %s", escape(name).c_str(), t.error().what.c_str());
    tensors.emplace(name, std::move(*t));
  }
  MC_TRY_(check_overlap(tensors));
  return tensors;
}

Result<TensorSet> open_safetensors(const std::string& folder) {
  const std::string single = folder + "/model.safetensors";
  const std::string index = single + ".index.json";
  TensorSet set;
  const auto opened = add_file(single, set, set.tensors);
  if (opened) return set;
  if (opened.error().code != Code::kNotFound) return fail(opened.error());
  if (!MappedFile::open(index))
    return fail(Code::kNotFound, "%s: neither model.safetensors nor model.safetensors.index.json",
                folder.c_str());
  return open_shards(folder, index);
}

}  // namespace mc::model
