// Compiles what lies between MC_TARGET_BEGIN and MC_TARGET_END for an instruction set of x86-64.
//
//   MC_TARGET_BEGIN("avx2,fma")
//   ...
//   MC_TARGET_END
#pragma once
#if !defined(__clang__)  // g++ 12's own header leaves the unused operand of max and min unset
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "model/kernels/kernel_dispatch.h"

#define MC_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define MC_TARGET_BEGIN(set) \
  MC_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define MC_TARGET_END MC_PRAGMA(clang attribute pop)
#else
#define MC_TARGET_BEGIN(set) MC_PRAGMA(GCC push_options) MC_PRAGMA(GCC target(set))
#define MC_TARGET_END MC_PRAGMA(GCC pop_options)
#endif

// Before a loop over the rows of a tile: what it goes through stays in registers. Not where a
// sanitizer looks at every access: in a loop each is the same, and compiles sooner.
#if defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MC_UNROLL
#else
#define MC_UNROLL _Pragma("clang loop unroll(full)")
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MC_UNROLL
#else
#define MC_UNROLL _Pragma("GCC unroll 16")
#endif
