// Asks the owner of a segment whether its memory may be overwritten. Benchmarks fill what they
// measure: memory that holds data of others is none of theirs.
//
// Thread: values.
#pragma once
#include <cstdint>

#include "wire/codec.h"

namespace mc::xfer {

struct ScratchMemory {
  static constexpr const char* kName = "scratch-memory";
  uint64_t bytes = 0;  // from offset 0: nobody needs what is in them
  static void fields(auto& a, auto& m) { a(m.bytes); }
};

struct AskScratch {  // sent to the owner's control address; mc-xfer serve answers it, others do not
  static constexpr const char* kName = "ask-scratch";
  using Reply = ScratchMemory;
  static void fields(auto& a, auto&) { a(); }
};

}  // namespace mc::xfer
