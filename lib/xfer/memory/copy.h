// Copies between mapped memory, by one of several kinds. On most CPUs plain stores are faster when
// the destination is in a cache. Non-temporal stores are 1.4 to 2 times as fast when it is not,
// because they do not read the destination first; on others they are three times as slow. Which is
// the faster one here is measured (machine_copies.h), and the caller guesses whether a cache holds
// the destination (transports/shm/cache_residency.h).
//
// Thread: any.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "xfer/core/request.h"

namespace mc::xfer {

// `rows` pieces of `bytes`, one or several strides apart.
struct Rows {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0, rows = 1, to_stride = 0, from_stride = 0;
  uint64_t total() const { return bytes * rows; }
};

// Where the caller will copy next, so that its first bytes are on their way by then. Null: unknown.
struct Ahead {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
};

enum class CopyKind : uint8_t {
  kPlain,      // libc's memcpy; on AMD's CPUs before Zen 5 a loop of our own from 2 to 512 KiB
  kStreaming,  // non-temporal stores; plain where the CPU has no AVX2
  kString,     // the CPU's string instruction
};
inline constexpr size_t kCopyKinds = 3;

// On return the bytes are there for every CPU that sees what this one does next.
void copy_rows(const Rows& rows, CopyKind kind, const Ahead& next = {});
inline void copy_rows(const Rows& rows, bool streaming, const Ahead& next = {}) {
  copy_rows(rows, streaming ? CopyKind::kStreaming : CopyKind::kPlain, next);
}

// About equal pieces of Rows by number, so that threads may share a copy without a list of them: a
// part of a row when rows are long, several rows when they are short. Pieces begin on a cache line
// of their row.
struct Pieces {
  Pieces(const Rows& all, uint64_t piece_bytes);
  uint64_t count() const { return groups * per_row; }
  Rows at(uint64_t index) const;

  Rows all;
  uint64_t piece = 0;    // bytes of one, within a row
  uint64_t per_row = 1;  // pieces of a row
  uint64_t group = 1;    // rows of one piece
  uint64_t groups = 1;
};

// Between the bytes of a copy and a look at a guard word that must not be seen before them: in any
// case, and the cheaper one for bytes that were read.
void fence_copies();
void fence_reads();
// The word, no later than what is read or written next.
uint64_t guard_word(const std::byte* word);
// The guard word `expected` at `word` (8-byte aligned, possibly in another process's memory).
bool guard_holds(const std::byte* word, uint64_t expected);
// Sets it to `value` if it holds less; false when it holds more.
bool raise_guard_word(std::byte* word, uint64_t value);

}  // namespace mc::xfer
