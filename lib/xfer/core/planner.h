// Pure: cuts requests into slices. A slice is what one transport moves in one go: a run of bytes,
// or some rows of a strided request; rows that touch on both sides become one run first.
//
// Thread: values. Source: TENT paper section 3.2 (slices of at least 64 KiB, a bounded number of
// them, so that slice size grows with the request).
#pragma once
#include <cstdint>
#include <vector>

#include "xfer/core/request.h"

namespace mc::xfer {

inline constexpr uint64_t kSliceBytesMin = 64 * 1024;
inline constexpr uint64_t kSlicesMax = 64;

// Rows of `bytes` at `local`, `remote`, and multiples of the strides further.
struct Piece {
  uint64_t local = 0;   // from the request's local address
  uint64_t remote = 0;  // in the peer's segment
  uint64_t bytes = 0, rows = 1, local_stride = 0, remote_stride = 0;
  uint64_t total() const { return bytes * rows; }
};

// kInvalid when a length overflows or rows overlap on the written side.
Result<> check(const Request& request);
// A request so small that it is not cut at all: sets `piece` to it.
bool in_one_piece(const Request& request, uint64_t slice_bytes, Piece* piece);
// A piece in parts of at most `bytes_max`: whole rows where they fit. Places are as the piece's,
// from the start of its local side.
std::vector<Piece> cut(const Piece& whole, uint64_t bytes_max);
std::vector<Piece> plan(const Request& request, uint64_t slice_bytes);

// The end of the last row, from the start of the first; 0 when it overflows.
uint64_t span_of(uint64_t bytes, uint64_t rows, uint64_t stride);

}  // namespace mc::xfer
