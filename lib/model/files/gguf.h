// Reads GGUF files: metadata and tensors of a model in one file. It checks every count and length
// against the bytes that are left before it reads or reserves anything.
//
// Requires: the bytes outlive the tensors, which view them. Errors: kCorrupt, kUnsupported, naming
// key or tensor. Thread: values. Source: the GGUF specification, versions 2 and 3 (little-endian).
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "model/files/config.h"
#include "model/files/tensors.h"

namespace mc::model {

// Whole numbers, floating ones, flags, texts, and arrays of one of these.
using GgufValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct Gguf {
  std::map<std::string, GgufValue> metadata;
  Tensors tensors;  // shapes with rows first, as elsewhere here
};

Result<Gguf> parse_gguf(std::span<const std::byte> file);
// The configuration that the metadata describes (config_gguf.cc). kUnsupported: an architecture
// that families.cc does not list.
Result<ModelConfig> gguf_config(const Gguf& file);
// What of a model may be computed otherwise than its makers do, for the log; else empty.
std::string gguf_doubt(const Gguf& file, const ModelConfig& config);
// A whole number of the metadata, from 1 to `most`. `fallback` 0: it must be there.
Result<uint64_t> gguf_number(const Gguf& file, const std::string& key, uint64_t fallback,
                             uint64_t most);

// A value of the metadata; nullptr: there is none of this key and type.
template <class T>
const T* gguf_value(const Gguf& file, const std::string& key) {
  const auto it = file.metadata.find(key);
  return it == file.metadata.end() ? nullptr : std::get_if<T>(&it->second);
}

}  // namespace mc::model
