#include "xfer/memory/staged_copy.h"

#include <algorithm>
#include <cstring>

namespace mc::xfer {
namespace {
constexpr uint64_t kPageBytes = 4096;
}

// A long row lies in the slot as it lies in its pages, and ends at the end of one, so that whole
// pages move directly. Short ones are packed.
bool StagedCopy::lay_out(size_t slot) {
  auto& pieces = pieces_[slot];
  pieces.clear();
  const size_t room = stream_->slot(slot).size();
  size_t used = 0;
  while (row_ < rows_.rows && pieces.size() < kPiecesMax) {
    const uint64_t at = rows_.at + row_ * rows_.stride + done_, left = rows_.bytes - done_;
    size_t from = used;
    if (left >= kPageBytes)
      from += static_cast<size_t>((at + kPageBytes - used % kPageBytes) % kPageBytes);
    if (from >= room || (left > room - from && room - from < kPageBytes && used > 0)) break;
    uint64_t n = std::min<uint64_t>(left, room - from);
    if (n < left && (at + n) % kPageBytes < n) n -= (at + n) % kPageBytes;
    pieces.push_back({from, at, static_cast<size_t>(n)});
    used = from + static_cast<size_t>(n);
    done_ += n;
    if (done_ == rows_.bytes) {
      done_ = 0;
      ++row_;
    }
  }
  return !pieces.empty();
}

void StagedCopy::start(size_t slot, bool write) {
  if (!backend_) return;
  for (const Piece& p : pieces_[slot]) stream_->start(slot, p.from, write, p.at, p.bytes);
}

void StagedCopy::finish(size_t slot) {
  auto outcome = stream_->finish(slot);
  if (!outcome && backend_) backend_ = std::move(outcome);
}

std::span<iovec> StagedCopy::parts(size_t slot) {
  parts_.clear();
  for (const Piece& p : pieces_[slot])
    parts_.push_back({stream_->slot(slot).data() + p.from, p.bytes});
  return parts_;
}

Result<> StagedCopy::begin() {
  for (size_t i = 0; i < StagingStream::kSlots && lay_out(i); ++i) start(i, false);
  finish(0);
  return backend_;
}

Result<> StagedCopy::send(const Wire& wire) {
  for (size_t i = 0; !pieces_[i].empty(); i = (i + 1) % StagingStream::kSlots) {
    finish(i);
    if (!backend_) std::memset(stream_->slot(i).data(), 0, stream_->slot(i).size());
    MC_TRY_(wire(parts(i)));
    if (lay_out(i)) start(i, false);
  }
  return {};
}

Result<> StagedCopy::receive(const Wire& wire) {
  for (size_t i = 0; lay_out(i); i = (i + 1) % StagingStream::kSlots) {
    finish(i);  // what it held before
    MC_TRY_(wire(parts(i)));
    start(i, true);
  }
  for (size_t i = 0; i < StagingStream::kSlots; ++i) finish(i);
  return {};
}

}  // namespace mc::xfer
