// How much slower this build is than one without sanitizers. A TTL or a deadline that real time
// must meet is a multiple of it; tests/common.inc has the same for scripts.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mc {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlow = 3;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr int kSlow = 3;
#else
inline constexpr int kSlow = 1;
#endif
#else
inline constexpr int kSlow = 1;
#endif

#if defined(__SANITIZE_THREAD__)  // g++, which builds for it
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Of kernels, formats and sizes that must agree on numbers: how many to try. One shows the thread
// sanitizer what the threads of all do; the other builds try all.
constexpr size_t enough_for_races(size_t all, size_t enough = 1) {
  return kThreadSanitizer ? std::min(all, enough) : all;
}

// Of random cases that compute, and wait for nothing: all, or a fifth of them under sanitizers.
constexpr uint64_t fewer(uint64_t cases) {
  return kSlow > 1 ? std::max<uint64_t>(cases / 5, 1) : cases;
}

}  // namespace mc
