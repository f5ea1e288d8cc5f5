// Moves rows between a buffer's backend and a network stream, through a StagingStream. While one
// slot is on the wire, the next ones are read or written.
//
// Errors: an error of the network stream ends the copy at once. An error of the backend does not,
// so that the stream stays in step: the rest is sent as zeros, or read and dropped, and the error
// is reported at the end.
// Thread: one at a time.
#pragma once
#include <sys/uio.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "xfer/memory/buffer_backend.h"

namespace mc::xfer {

class StagedCopy {
 public:
  // `rows` of `bytes`, each `stride` after the last, the first at `at` in the backend; checked by
  // the caller: they lie inside it.
  struct Rows {
    uint64_t at = 0, bytes = 0, rows = 1, stride = 0;
  };
  using Wire = std::function<Result<>(std::span<iovec>)>;
  StagedCopy(BufferBackend& backend, const Rows& rows)
      : stream_(backend.staging_stream()), rows_(rows) {}

  // Out of the backend: begin() starts to read ahead and returns an immediate error; then send().
  Result<> begin();
  Result<> send(const Wire& wire);
  // Into the backend. All is written when it returns.
  Result<> receive(const Wire& wire);
  const Result<>& backend() const { return backend_; }  // the first fault of the backend

 private:
  static constexpr size_t kPiecesMax = 64;  // of rows in a slot
  struct Piece {
    size_t from = 0;  // in the slot
    uint64_t at = 0;
    size_t bytes = 0;
  };
  bool lay_out(size_t slot);  // the next pieces of the rows; false: none left
  void start(size_t slot, bool write);
  void finish(size_t slot);
  std::span<iovec> parts(size_t slot);

  std::unique_ptr<StagingStream> stream_;
  const Rows rows_;
  uint64_t row_ = 0, done_ = 0;  // where lay_out() continues
  std::array<std::vector<Piece>, StagingStream::kSlots> pieces_;
  std::vector<iovec> parts_;
  Result<> backend_;
};

}  // namespace mc::xfer
