#include "xfer/copy.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace mc::xfer {
namespace {

constexpr uint64_t kLine = 64, kGroup = 4 * kLine;
constexpr uint64_t kStreamMin = 16 * kLine;  // of a row: less is mostly its ends
// Bytes read ahead, and the page walked to ahead, of both sides: hardware prefetch stops at the end
// of a page, and a stream without it stalls there. Behind the last bytes come the first ones of
// what is copied next. Prefetches past the end are harmless.
constexpr uint64_t kAhead = 512, kPageAhead = 4096;

struct Prefetch {
  std::byte* const to;
  const std::byte* const from;
  const uint64_t bytes;
  const Ahead next;
  void group(uint64_t at) const {
    const uint64_t ahead = at + kAhead;
    const std::byte* p =
        ahead < bytes || next.from == nullptr ? from + ahead : next.from + (ahead - bytes);
    for (uint64_t line = 0; line < kGroup; line += kLine) _mm_prefetch(p + line, _MM_HINT_NTA);
  }
  void page(uint64_t at) const {  // for its address: any line of it does
    const uint64_t ahead = at + kPageAhead;
    const bool past = ahead >= bytes && next.from != nullptr;
    _mm_prefetch((past ? next.to : to + ahead) + kPageAhead - kLine, _MM_HINT_NTA);
    _mm_prefetch(past ? next.from : from + ahead, _MM_HINT_T0);
  }
};

// `to` lies on a cache line; whole groups of four lines. The caller fences.
__attribute__((target("avx512f"))) void stream_512(std::byte* to, const std::byte* from,
                                                   uint64_t bytes, const Ahead& next) {
  const Prefetch prefetch{to, from, bytes, next};
  for (uint64_t i = 0; i < bytes; i += kGroup) {
    if (i % kPageAhead == 0) prefetch.page(i);
    prefetch.group(i);
    __m512i v[4];
    for (uint64_t n = 0; n < 4; ++n) v[n] = _mm512_loadu_si512(from + i + n * kLine);
    for (uint64_t n = 0; n < 4; ++n)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + n * kLine), v[n]);
  }
}

__attribute__((target("avx2"))) void stream_256(std::byte* to, const std::byte* from,
                                                uint64_t bytes, const Ahead& next) {
  const Prefetch prefetch{to, from, bytes, next};
  for (uint64_t i = 0; i < bytes; i += kGroup) {
    if (i % kPageAhead == 0) prefetch.page(i);
    prefetch.group(i);
    __m256i v[8];
    for (uint64_t n = 0; n < 8; ++n)
      v[n] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + n * 32));
    for (uint64_t n = 0; n < 8; ++n)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + n * 32), v[n]);
  }
}

using Stream = void (*)(std::byte* to, const std::byte* from, uint64_t bytes, const Ahead& next);
Stream stream_of_this_cpu() {
  if (__builtin_cpu_supports("avx512f")) return stream_512;
  if (__builtin_cpu_supports("avx2")) return stream_256;
  return nullptr;
}

void copy_streaming(Stream stream, std::byte* to, const std::byte* from, uint64_t n,
                    const Ahead& next) {
  const uint64_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  const uint64_t body = (n - head) / kGroup * kGroup;
  std::memcpy(to, from, head);
  stream(to + head, from + head, body, next);
  std::memcpy(to + head + body, from + head + body, n - head - body);
}

}  // namespace

void copy_rows(const Rows& r, bool streaming, const Ahead& next) {
  static const Stream stream = stream_of_this_cpu();
  if (!streaming || stream == nullptr || r.bytes < kStreamMin) {
    for (uint64_t row = 0; row < r.rows; ++row)
      std::memcpy(r.to + row * r.to_stride, r.from + row * r.from_stride, r.bytes);
    return;
  }
  for (uint64_t row = 0; row < r.rows; ++row) {
    std::byte* to = r.to + row * r.to_stride;
    const std::byte* from = r.from + row * r.from_stride;
    const bool last = row + 1 == r.rows;
    copy_streaming(stream, to, from, r.bytes,
                   last ? next : Ahead{to + r.to_stride, from + r.from_stride});
  }
  _mm_sfence();  // streamed bytes are not ordered with what follows otherwise
}

Pieces::Pieces(const Rows& rows, uint64_t piece_bytes) : all(rows) {
  if (all.rows > 1 && all.to_stride == all.bytes && all.from_stride == all.bytes)
    all = {all.to, all.from, all.total(), 1, 0, 0};
  const uint64_t whole = (std::max(piece_bytes, kLine) + kLine - 1) / kLine * kLine;
  piece = std::min(whole, all.bytes);
  per_row = (all.bytes + piece - 1) / piece;
  if (per_row == 1) group = std::clamp<uint64_t>(whole / all.bytes, 1, all.rows);
  groups = (all.rows + group - 1) / group;
}

Rows Pieces::at(uint64_t index) const {
  const uint64_t row = index / per_row * group, in_row = index % per_row * piece;
  Rows r = all;
  r.to += row * all.to_stride + in_row;
  r.from += row * all.from_stride + in_row;
  r.bytes = std::min(piece, all.bytes - in_row);
  r.rows = std::min(group, all.rows - row);
  return r;
}

// (The thread sanitizer does not model fences and refuses to compile them.)
#ifndef __SANITIZE_THREAD__
void fence_copies() { std::atomic_thread_fence(std::memory_order_seq_cst); }
void fence_reads() { std::atomic_thread_fence(std::memory_order_acquire); }
#else
void fence_copies() {}
void fence_reads() {}
#endif

uint64_t guard_word(const std::byte* word) {
  auto* p = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(word));
  return std::atomic_ref<uint64_t>(*p).load(std::memory_order_acquire);
}

bool guard_holds(const std::byte* word, uint64_t expected) {
  fence_copies();
  const bool holds = guard_word(word) == expected;
  fence_copies();
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
