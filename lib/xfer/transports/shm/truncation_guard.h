// Keeps this process alive when a file that it has mapped is truncated. To touch such memory beyond
// the end of its file raises SIGBUS. Within a guarded mapping the handler puts zeroed memory of
// this process in the place of all from there to the mapping's end, and sets the word that lies in
// its last page to kTruncated. So a copy always ends, and the look at the word after it tells that
// its bytes are worth nothing. Memory that a seal keeps from shrinking needs no guard.
//
// Other SIGBUS goes to the handler that was there before, which is the default as a rule.
//
// Thread: any.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mc::xfer {

class TruncationGuard {
 public:
  static constexpr size_t kMappingsMax = 256;  // at a time
  static constexpr uint64_t kTruncated = 2;    // of the word; 1: offered, 0: withdrawn

  TruncationGuard() = default;
  TruncationGuard(const TruncationGuard&) = delete;
  TruncationGuard& operator=(const TruncationGuard&) = delete;
  ~TruncationGuard();
  // Guards [begin, begin + bytes), mapped in units of `unit`; `word` lies in it. Before it is
  // touched, and until it is unmapped. False: too many are guarded already.
  bool protect(std::byte* begin, size_t bytes, size_t unit, const std::byte* word);

 private:
  size_t slot_ = kMappingsMax;
};

}  // namespace mc::xfer
