// Finds the KV of a position in paged blocks, for the kernels.
#pragma once
#include "device/kernels/group.h"

namespace {

// Where one layer's KV of one sequence lies.
template <class T>
struct Pages {
  char* kv;
  const uint64_t* table;  // of the sequence
  uint64_t layer_offset;
  uint32_t kv_heads, dim, block_tokens;

  // Head `plane` of keys, or from kv_heads on of values, at a position.
  MC_DEVICE T* at(uint32_t plane, uint32_t position) const {
    T* const block = reinterpret_cast<T*>(kv + table[position / block_tokens] + layer_offset);
    return block + (static_cast<uint64_t>(plane) * block_tokens + position % block_tokens) * dim;
  }
  // What lies between a head's keys and its values in a block, in numbers.
  MC_DEVICE uint64_t to_values() const {
    return static_cast<uint64_t>(kv_heads) * block_tokens * dim;
  }
};

}  // namespace
