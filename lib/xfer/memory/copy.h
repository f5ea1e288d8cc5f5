// Copies between mapped memory, with the fastest stores for the CPU and the destination. Plain
// stores are faster when the destination is in a cache. Non-temporal stores are 1.4 to 2 times as
// fast when it is not, wherever the source is, because they do not read the destination first. The
// caller guesses which case it is (transports/shm/cache_residency.h). The code is chosen at run
// time by the CPU: libc's memcpy, but on AMD's CPUs before Zen 5 a loop of our own up to 512 KiB
// (bench/run xfer-shm, "8 bytes on").
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

// `streaming`: the destination is in no cache. On return the bytes are there for every CPU that
// sees what this one does next.
void copy_rows(const Rows& rows, bool streaming, const Ahead& next = {});

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
