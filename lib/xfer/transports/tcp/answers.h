// Buffers a connection's answers, to send several in one call. Private to tcp/. An answer leaves
// with the answers to the requests that follow, because a send call costs as much as 16 KiB.
//
// Thread: the connection's.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "base/time.h"
#include "xfer/memory/registry.h"
#include "xfer/transports/tcp/frame.h"
#include "xfer/transports/tcp/stream.h"

namespace mc::xfer::tcp {

class Answers {
 public:
  bool empty() const { return parts_.empty(); }
  bool pins() const { return !pinned_.empty(); }
  // Room for one more header, its payload's parts and its trailer.
  bool room_for(size_t parts) const {
    return headers_used_ < headers_.size() && trailers_used_ < trailers_.size() &&
           parts_.size() + parts + 2 <= kPartsMax && bytes_ < kBytesMax;
  }
  void add(const Header& header) { put(&(headers_[headers_used_++] = header), sizeof header); }
  // Bytes of `pinned`, which stays so until they have left.
  void add(std::span<const iovec> payload, BufferPtr pinned);
  void add(const Trailer& trailer) {
    put(&(trailers_[trailers_used_++] = trailer), sizeof trailer);
  }

  // Everything; `give_up` besides the withdrawal of any of the memory.
  Result<> send(Stream& stream, const Stream::GiveUp& give_up);
  void forget();

 private:
  static constexpr size_t kPartsMax = 512;
  static constexpr uint64_t kBytesMax = 512 * 1024;
  void put(void* data, size_t bytes) {
    parts_.push_back({data, bytes});
    bytes_ += bytes;
  }

  std::array<Header, 128> headers_;
  std::array<Trailer, 128> trailers_;
  size_t headers_used_ = 0, trailers_used_ = 0;
  uint64_t bytes_ = 0;
  std::vector<iovec> parts_;
  std::vector<BufferPtr> pinned_;
};

}  // namespace mc::xfer::tcp
