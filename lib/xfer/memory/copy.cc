#include "xfer/memory/copy.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace mc::xfer {
namespace {

constexpr uint64_t kLine = 64, kGroup = 4 * kLine;
constexpr uint64_t kStreamMin = 16 * kLine;  // of a row: less is mostly its ends
// Four pages at a time, a line of each in turn: memory has more of its banks at work, which is
// worth up to a third over one page after the other.
constexpr uint64_t kFrame = 4096, kFrames = 4, kQuad = kFrames * kFrame;
// Bytes read ahead, and the page walked to ahead, of both sides: hardware prefetch stops at the end
// of a page, and a stream without it stalls there. Behind the last bytes come the first ones of
// what is copied next. Prefetches past the end are harmless.
constexpr uint64_t kAhead = 512;
// Sizes at which libc leaves the copy to the CPU's string instruction ("rep movsb"). On AMD's CPUs
// up to family 19h (Zen 4) a plain loop is quicker, by far where the destination begins just past
// the source within a page; on those of family 1Ah (Zen 5) that instruction is the quicker one.
constexpr uint64_t kLoopMin = 2048, kLoopMost = 512 * 1024;

// (Inlined by force: to GCC 12 a function that does nothing but prefetch has no effect, and calls
// of it are dropped.)
#define MC_INLINE __attribute__((always_inline)) inline

struct Prefetch {
  std::byte* const to;
  const std::byte* const from;
  const uint64_t bytes;
  const Ahead next;
  MC_INLINE const std::byte* source(uint64_t at) const {
    return at < bytes || next.from == nullptr ? from + at : next.from + (at - bytes);
  }
  MC_INLINE void group(uint64_t at) const {
    const std::byte* p = source(at + kAhead);
    for (uint64_t line = 0; line < kGroup; line += kLine) _mm_prefetch(p + line, _MM_HINT_NTA);
  }
  MC_INLINE void page(uint64_t at) const {  // for its address: any line of it does
    const uint64_t ahead = at + kFrame;
    const bool past = ahead >= bytes && next.from != nullptr;
    _mm_prefetch((past ? next.to : to + ahead) + kFrame - kLine, _MM_HINT_NTA);
    _mm_prefetch(past ? next.from : from + ahead, _MM_HINT_T0);
  }
  // A line of each of four pages; `at` is `in_page` bytes into the first of them.
  MC_INLINE void lines(uint64_t at, uint64_t in_page) const {
    const bool stays = in_page + kAhead < kFrame;
    const std::byte* p = source(at + kAhead + (stays ? 0 : kQuad - kFrame));
    for (uint64_t n = 0; n < kFrames; ++n) _mm_prefetch(p + n * kFrame, _MM_HINT_NTA);
  }
};

// Four lines, `apart` bytes from one to the next. All are loaded before one is stored: a load that
// shares its place in a page with a store before it would wait for that.
__attribute__((target("avx512f"))) MC_INLINE void four_512(std::byte* to, const std::byte* from,
                                                           uint64_t apart) {
  const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + apart),
                c = _mm512_loadu_si512(from + 2 * apart), d = _mm512_loadu_si512(from + 3 * apart);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to + apart), b);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 2 * apart), c);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 3 * apart), d);
}

struct Line {
  __m256i low, high;
};
__attribute__((target("avx2"))) MC_INLINE void load(const std::byte* p, Line& line) {
  line.low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  line.high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
}
__attribute__((target("avx2"))) MC_INLINE void store(std::byte* p, const Line& line) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), line.low);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p + 32), line.high);
}
__attribute__((target("avx2"))) MC_INLINE void keep(std::byte* p, const Line& line) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), line.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), line.high);
}
__attribute__((target("avx2"))) MC_INLINE void four_256(std::byte* to, const std::byte* from,
                                                        uint64_t apart) {
  Line a, b, c, d;
  load(from, a);
  load(from + apart, b);
  load(from + 2 * apart, c);
  load(from + 3 * apart, d);
  store(to, a);
  store(to + apart, b);
  store(to + 2 * apart, c);
  store(to + 3 * apart, d);
}

// `to` lies on a cache line; whole groups of four lines. The caller fences.
template <class Four>
MC_INLINE void stream(const Prefetch& prefetch, Four four) {
  std::byte* const to = prefetch.to;
  const std::byte* const from = prefetch.from;
  const uint64_t quads = prefetch.bytes / kQuad * kQuad;
  for (uint64_t quad = 0; quad < quads; quad += kQuad)
    for (uint64_t in_page = 0; in_page < kFrame; in_page += kLine) {
      prefetch.lines(quad + in_page, in_page);
      four(to + quad + in_page, from + quad + in_page, kFrame);
    }
  for (uint64_t i = quads; i < prefetch.bytes; i += kGroup) {
    if (i % kFrame == 0) prefetch.page(i);
    prefetch.group(i);
    four(to + i, from + i, kLine);
  }
}

__attribute__((target("avx512f"))) void stream_512(std::byte* to, const std::byte* from,
                                                   uint64_t bytes, const Ahead& next) {
  stream({to, from, bytes, next}, four_512);
}
// The same where the ends lie differently in a cache line, by a multiple of four bytes, as memory
// of malloc and of a mapping do. Every load of a vector would touch two lines, which takes twice as
// long: so whole lines are loaded, once, and two of them make one of the destination. The first and
// the last line may begin before and end behind the source, and hold a byte of it each.
__attribute__((target("avx512f"), no_sanitize("address"), no_sanitize("thread"))) void
stream_skewed_512(std::byte* to, const std::byte* from, uint64_t bytes, const Ahead& next) {
  const uint64_t skew = reinterpret_cast<uintptr_t>(from) % kLine;
  const std::byte* const lines = from - skew;
  const __m512i pick =
      _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(skew / 4)),
                       _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  const Prefetch prefetch{to, from, bytes, next};
  const uint64_t quads = bytes / kQuad * kQuad;
  for (uint64_t quad = 0; quad < quads; quad += kQuad) {
    __m512i before[kFrames];
    for (uint64_t n = 0; n < kFrames; ++n) before[n] = _mm512_load_si512(lines + quad + n * kFrame);
    for (uint64_t in_page = 0; in_page < kFrame; in_page += kLine) {
      prefetch.lines(quad + in_page, in_page);
      __m512i line[kFrames];
      for (uint64_t n = 0; n < kFrames; ++n)
        line[n] = _mm512_load_si512(lines + quad + n * kFrame + in_page + kLine);
      for (uint64_t n = 0; n < kFrames; ++n) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + quad + n * kFrame + in_page),
                            _mm512_permutex2var_epi32(before[n], pick, line[n]));
        before[n] = line[n];
      }
    }
  }
  stream_512(to + quads, from + quads, bytes - quads, next);
}
__attribute__((target("avx2"))) void stream_256(std::byte* to, const std::byte* from,
                                                uint64_t bytes, const Ahead& next) {
  stream({to, from, bytes, next}, four_256);
}

// Four lines at a time to the caches, `to` on a cache line; the ends are libc's.
__attribute__((target("avx2"))) void copy_loop(std::byte* to, const std::byte* from, uint64_t n) {
  const uint64_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  uint64_t at = head;
  for (; at + kGroup <= n; at += kGroup) {
    Line a, b, c, d;
    load(from + at, a);
    load(from + at + kLine, b);
    load(from + at + 2 * kLine, c);
    load(from + at + 3 * kLine, d);
    keep(to + at, a);
    keep(to + at + kLine, b);
    keep(to + at + 2 * kLine, c);
    keep(to + at + 3 * kLine, d);
  }
  std::memcpy(to + at, from + at, n - at);
}

#undef MC_INLINE

using Plain = void (*)(std::byte* to, const std::byte* from, uint64_t bytes);
uint32_t cpu_family() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return 0;
  const uint32_t family = a >> 8 & 0xf;
  return family == 0xf ? family + (a >> 20 & 0xff) : family;
}

Plain plain_of_this_cpu() {
  const bool loop = __builtin_cpu_is("amd") && cpu_family() <= 0x19;
  return loop && __builtin_cpu_supports("avx2") ? copy_loop : nullptr;
}

// To where a cache holds it, or soon will.
void copy_plain(std::byte* to, const std::byte* from, uint64_t bytes) {
  static const Plain loop = plain_of_this_cpu();
  if (loop != nullptr && bytes >= kLoopMin && bytes <= kLoopMost)
    loop(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

void copy_string(std::byte* to, const std::byte* from, uint64_t bytes) {
  __asm__ __volatile__("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
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
  const uint64_t skew = reinterpret_cast<uintptr_t>(from + head) % kLine;
  const bool lines = stream == stream_512 && skew != 0 && skew % 4 == 0;
  (lines ? stream_skewed_512 : stream)(to + head, from + head, body, next);
  std::memcpy(to + head + body, from + head + body, n - head - body);
}

}  // namespace

void copy_rows(const Rows& r, CopyKind kind, const Ahead& next) {
  static const Stream stream = stream_of_this_cpu();
  if (kind != CopyKind::kStreaming || stream == nullptr || r.bytes < kStreamMin) {
    const Plain copy = kind == CopyKind::kString ? copy_string : copy_plain;
    for (uint64_t row = 0; row < r.rows; ++row)
      copy(r.to + row * r.to_stride, r.from + row * r.from_stride, r.bytes);
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
