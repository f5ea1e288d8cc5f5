// Maps a whole file for reading. Weights are read in place, once.
//
// Requires: no process truncates the file while it is mapped; that ends the process. Weights are
// not to be rewritten in place. Errors: kNotFound, kDenied name the path; an empty file and a
// folder are refused. Thread: values that move; the bytes from any.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace mc::model {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mc::model
