#include "xfer/copy.h"

#include <immintrin.h>

#include <atomic>
#include <cstring>

namespace mc::xfer {
namespace {

constexpr size_t kLine = 64;

__attribute__((target("avx512f"))) void stream_512(std::byte* to, const std::byte* from,
                                                   size_t lines) {
  for (size_t i = 0; i < lines; ++i) {
    const __m512i v = _mm512_loadu_si512(from + i * kLine);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i * kLine), v);
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void stream_256(std::byte* to, const std::byte* from,
                                                size_t lines) {
  for (size_t i = 0; i < lines * 2; ++i) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i * 32), v);
  }
  _mm_sfence();
}

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, size_t n, bool streaming) {
  static const bool has_512 = __builtin_cpu_supports("avx512f");
  static const bool has_256 = __builtin_cpu_supports("avx2");
  if (!streaming || n < 4 * kLine || !(has_512 || has_256)) {
    std::memcpy(to, from, n);
    return;
  }
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  const size_t lines = (n - head) / kLine;
  (has_512 ? stream_512 : stream_256)(to + head, from + head, lines);
  const size_t done = head + lines * kLine;
  std::memcpy(to + done, from + done, n - done);
}

namespace {
// The copy between two looks at a guard must not be seen outside them. (The thread sanitizer does
// not model fences and refuses to compile them.)
void full_fence() {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}
}  // namespace

bool guard_holds(const std::byte* word, uint64_t expected) {
  full_fence();
  auto* p = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(word));
  const bool holds = std::atomic_ref<uint64_t>(*p).load(std::memory_order_acquire) == expected;
  full_fence();
  return holds;
}

bool raise_guard_word(std::byte* word, uint64_t value) {
  std::atomic_ref<uint64_t> guard(*reinterpret_cast<uint64_t*>(word));
  uint64_t seen = guard.load(std::memory_order_acquire);
  while (seen < value)
    if (guard.compare_exchange_weak(seen, value, std::memory_order_acq_rel)) return true;
  return seen == value;
}

}  // namespace mc::xfer
