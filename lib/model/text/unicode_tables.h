// Declares the tables of unicode.h. scripts/gen-unicode makes them and documents their format.
//
// Thread: any.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mc::model {

extern const uint32_t kClassRuns[];
extern const size_t kClassRunsSize;
extern const uint64_t kDecompositions[];  // by code
extern const size_t kDecompositionsSize;
extern const uint32_t kCombining[];  // by code
extern const size_t kCombiningSize;

}  // namespace mc::model
