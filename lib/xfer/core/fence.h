// A range of this process's segment that is about to get another owner. Engine::fence() ends what
// peers still write there under the guard of the earlier one.
//
// Thread: values.
#pragma once
#include <cstdint>

namespace mc::xfer {

struct FencedRange {
  uint64_t offset = 0, bytes = 0;
  uint64_t id = 0;          // the caller's
  bool unfinished = false;  // its last writer did not say that it had ended: NICs may go on writing
  uint64_t nics = 0;        // fence()'s: by when queue pairs are closed
  bool done = false;        // by fence(): no earlier write is applied there any more

  bool meets(uint64_t begin, uint64_t end) const {
    return begin < end && begin < offset + bytes && offset < end;
  }
};

}  // namespace mc::xfer
