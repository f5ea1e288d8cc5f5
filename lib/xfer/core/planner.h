// Cuts requests into slices. A transport moves one slice at a time: a contiguous range, or some
// rows of a strided request. Rows that touch on both sides become one range first.
//
// Pure: decides only. Thread: values. Source: TENT paper section 3.2 (slices of at least 64 KiB, a
// bounded number of them, so that slice size grows with the request).
#pragma once
#include <cstdint>
#include <vector>

#include "xfer/core/request.h"

namespace mc::xfer {

inline constexpr uint64_t kSliceBytesMin = 64 * 1024;
inline constexpr uint64_t kSlicesMax = 64;
// Of one slice, however short they are: each costs its owner work. Requests of more rows are cut
// into more slices.
inline constexpr uint64_t kRowsMax = 64 * 1024;

// Rows of `bytes`: the first at `local` and `remote`, the others at multiples of the strides.
struct Piece {
  uint64_t local = 0;   // from the request's local address
  uint64_t remote = 0;  // in the peer's segment
  uint64_t bytes = 0, rows = 1, local_stride = 0, remote_stride = 0;
  uint64_t total() const { return bytes * rows; }
};

// kInvalid when a length overflows or rows overlap on the written side.
Result<> check(const Request& request);
// Sets `piece` to a request that is too small to be cut. False: it is larger.
bool in_one_piece(const Request& request, uint64_t slice_bytes, Piece* piece);
// Cuts a piece into parts of at most `bytes_max`, in whole rows if they fit. Local offsets count
// from the start of the piece's local side.
std::vector<Piece> cut(const Piece& whole, uint64_t bytes_max);
std::vector<Piece> plan(const Request& request, uint64_t slice_bytes);

// Returns: the end of the last row, from the start of the first; 0 when it overflows, and for rows
// of no bytes.
uint64_t span_of(uint64_t bytes, uint64_t rows, uint64_t stride);

}  // namespace mc::xfer
