// Lists the tensors of a model's files by name: bytes, format and shape.
//
// Thread: values; tensors view the files that TensorSet keeps mapped.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/files/block_format.h"
#include "model/files/dtype.h"
#include "model/files/mapped_file.h"

namespace mc::model {

struct Tensor {
  std::optional<DType> type;  // none: in blocks, or a format that is not read here
  std::string type_text;      // as the file says it
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
  const BlockFormat* blocks = nullptr;  // the format of its blocks; rows have whole ones
  // Writes a row of a matrix, as blocks or floats (`type` is kF32), where several tensors make it
  // (quantized_modules.h); `bytes` are then of one of these. Thread: any.
  std::function<void(uint64_t row, std::byte* out)> make_row{};
  uint64_t made_of = 0;  // then: a digest of the others, and of how they are put together

  bool readable() const { return type.has_value() || blocks != nullptr; }
  // `n` elements from `first` on, as floats. Requires: readable(); within the tensor; whole blocks;
  // one row where it is made.
  void read(uint64_t first, size_t n, float* out) const;
};
// Bytes of the shape in the tensor's format. Errors: kCorrupt where a row has no whole blocks, or
// the shape is too large. 0: a format that is not read here.
Result<uint64_t> bytes_of(const Tensor& tensor);
using Tensors = std::map<std::string, Tensor>;
// Of one file: shared bytes would let a small file ask for any amount of memory. Errors: kCorrupt,
// with both names.
Result<> check_overlap(const Tensors& tensors);

struct TensorSet {
  Tensors tensors;
  std::vector<std::shared_ptr<const MappedFile>> files;
  bool dequantized = false;  // blocks are wanted as floats, for products that round nothing
  std::string path{};        // of the folder or file, for errors

  // The tensor of that name and shape, in a format that is read here. Errors: kNotFound; kInvalid
  // names both shapes; kUnsupported names the format.
  Result<const Tensor*> find(const std::string& name, std::span<const uint64_t> shape) const;
};

// Of name, format, shape and a sample of the bytes.
uint64_t digest_of(const std::string& name, const Tensor& tensor, uint64_t seed);
std::string shape_text(std::span<const uint64_t> shape);  // "[512, 64]"
// Elements of a shape; none when they do not fit in 2^56.
std::optional<uint64_t> element_count(std::span<const uint64_t> shape);

// The tensors of a safetensors file, given its bytes: an 8-byte length, a JSON header, the data.
// Every offset is checked against the data, every length against shape and format, and no two
// tensors overlap. Errors: kCorrupt, naming the tensor.
Result<Tensors> parse_safetensors(std::span<const std::byte> file);

// All tensors of a HF folder: model.safetensors, or the shards of model.safetensors.index.json.
// Errors name the file: kNotFound, kCorrupt, kInvalid.
Result<TensorSet> open_safetensors(const std::string& folder);

}  // namespace mc::model
