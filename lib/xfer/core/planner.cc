#include "xfer/core/planner.h"

#include <algorithm>

namespace mc::xfer {

uint64_t span_of(uint64_t bytes, uint64_t rows, uint64_t stride) {
  uint64_t skipped = 0, end = 0;
  if (bytes == 0 || rows == 0 || __builtin_mul_overflow(rows - 1, stride, &skipped) ||
      __builtin_add_overflow(skipped, bytes, &end))
    return 0;
  return end;
}

Result<> check(const Request& r) {
  if (r.local == nullptr || r.bytes == 0 || r.rows == 0)
    return fail(Code::kInvalid, "transfer of %llu rows of %llu bytes: want at least one of each",
                static_cast<unsigned long long>(r.rows), static_cast<unsigned long long>(r.bytes));
  uint64_t total = 0, end = 0;
  const uint64_t remote = span_of(r.bytes, r.rows, r.remote_stride);
  if (__builtin_mul_overflow(r.bytes, r.rows, &total) || remote == 0 ||
      span_of(r.bytes, r.rows, r.local_stride) == 0 ||
      __builtin_add_overflow(r.offset, remote, &end))
    return fail(Code::kInvalid, "transfer at offset %llu: its lengths overflow",
                static_cast<unsigned long long>(r.offset));
  // The owner refuses rows that overlap in its memory; a local source may repeat.
  const uint64_t stride =
      r.op == Op::kRead ? std::min(r.local_stride, r.remote_stride) : r.remote_stride;
  if (r.rows > 1 && stride < r.bytes)
    return fail(Code::kInvalid, "rows of %llu bytes every %llu bytes overlap",
                static_cast<unsigned long long>(r.bytes), static_cast<unsigned long long>(stride));
  if (r.guard.offset != Guard::kNone && r.guard.offset % 8 != 0)
    return fail(Code::kInvalid, "guard at offset %llu is not 8-byte aligned",
                static_cast<unsigned long long>(r.guard.offset));
  return {};
}

namespace {
Piece whole_of(const Request& r) {
  if (r.local_stride == r.bytes && r.remote_stride == r.bytes)
    return {0, r.offset, r.bytes * r.rows, 1, 0, 0};
  return {0, r.offset, r.bytes, r.rows, r.local_stride, r.remote_stride};
}
}  // namespace

bool in_one_piece(const Request& r, uint64_t slice_bytes, Piece* piece) {
  if (r.bytes * r.rows > std::max(slice_bytes, kSliceBytesMin)) return false;
  *piece = whole_of(r);
  return piece->rows <= kRowsMax;
}

std::vector<Piece> cut(const Piece& whole, uint64_t bytes_max) {
  std::vector<Piece> out;
  if (whole.bytes >= bytes_max) {  // long rows: each is cut by itself
    for (uint64_t row = 0; row < whole.rows; ++row)
      for (uint64_t at = 0; at < whole.bytes; at += bytes_max)
        out.push_back({row * whole.local_stride + at, whole.remote + row * whole.remote_stride + at,
                       std::min(bytes_max, whole.bytes - at), 1, 0, 0});
    return out;
  }
  const uint64_t group = std::min(bytes_max / whole.bytes, kRowsMax);
  for (uint64_t row = 0; row < whole.rows; row += group) {
    Piece p = whole;
    p.local = row * whole.local_stride;
    p.remote = whole.remote + row * whole.remote_stride;
    p.rows = std::min(group, whole.rows - row);
    out.push_back(p);
  }
  return out;
}

std::vector<Piece> plan(const Request& r, uint64_t slice_bytes) {
  const Piece whole = whole_of(r);
  const uint64_t slice = std::max({slice_bytes, kSliceBytesMin, whole.total() / kSlicesMax + 1});
  return cut(whole, (slice + 63) / 64 * 64);  // cuts fall on cache lines
}

}  // namespace mc::xfer
