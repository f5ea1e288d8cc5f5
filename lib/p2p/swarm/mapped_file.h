// A file mapped whole and offered to peers, read-only for them.
//
// Thread: a value; its owner's.
#pragma once
#include <memory>
#include <string>

#include "io/fd.h"
#include "xfer/engine.h"

namespace mc::p2p {

class MappedFile {
 public:
  static Result<std::unique_ptr<MappedFile>> open(xfer::Engine& engine, const std::string& path);
  // The file of that length, else its part (p2p/shards.h), made with its folders and all of it
  // allocated. `existed`: it was there with that length.
  static Result<std::unique_ptr<MappedFile>> create(xfer::Engine& engine, const std::string& path,
                                                    uint64_t bytes, bool* existed);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Which name it has from now on: its own, or its part's. A file of that name is replaced.
  Result<> rename_to(bool whole);

  uint64_t bytes() const { return bytes_; }
  std::byte* data() const { return data_; }
  uint64_t segment_offset() const { return memory_.offset(); }
  // By read(2): a file cut short under us is an error, not a signal.
  Result<uint64_t> checksum(uint64_t offset, uint64_t bytes) const;

 private:
  MappedFile() = default;
  Result<> map(xfer::Engine& engine, int protection);
  std::string path_;  // its own
  bool whole_ = true;
  io::Fd fd_;
  uint64_t bytes_ = 0;
  std::byte* data_ = nullptr;
  xfer::Memory memory_;
};

}  // namespace mc::p2p
