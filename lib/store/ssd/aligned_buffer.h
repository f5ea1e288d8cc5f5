// Page-aligned memory for direct I/O.
//
// Thread: values.
#pragma once
#include <cstring>
#include <memory>
#include <string_view>

#include "store/ssd/disk.h"

namespace mc::store::ssd {

class AlignedBuffer {
 public:
  explicit AlignedBuffer(uint64_t bytes) : bytes_(align_up(bytes)), pages_(bytes_ / kAlign) {}
  std::byte* data() { return bytes_ == 0 ? nullptr : pages_.front().bytes; }
  uint64_t size() const { return bytes_; }
  std::string_view text(uint64_t at, uint64_t n) const {
    return {reinterpret_cast<const char*>(pages_.front().bytes) + at, n};
  }
  void put(uint64_t at, std::string_view content) {
    std::memcpy(data() + at, content.data(), content.size());
  }

 private:
  struct alignas(kAlign) Page {
    std::byte bytes[kAlign] = {};
  };
  uint64_t bytes_;
  std::vector<Page> pages_;
};

}  // namespace mc::store::ssd
