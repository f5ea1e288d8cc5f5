// How much one rendering of a chat template may do, and how much memory it may take.
//
// The steps bound the lists too: an element that is copied is a step, and takes 32 bytes.
//
// Thread: values.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mc::model {

struct TemplateLimits {
  uint64_t steps = 20'000'000;  // expressions, loop turns, items copied: seconds at most
  uint64_t bytes = 64u << 20;   // of text made, besides 32 times what was given
  size_t output = 64u << 20;    // bytes
  unsigned depth = 600;         // expressions and macros inside each other
};

}  // namespace mc::model
