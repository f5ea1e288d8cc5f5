// Memory for the numbers between the steps of a forward pass. What a thread gives back is kept for
// its next step: fresh pages of the system cost more than most steps do.
//
// Thread: made and destroyed on one thread; the memory, any.
#pragma once
#include <cstddef>
#include <memory>

namespace mc::model {

class ScratchMemory {
 public:
  explicit ScratchMemory(size_t bytes);  // not cleared
  ~ScratchMemory();
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  std::byte* get() const { return piece_.memory.get(); }

  struct Piece {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };

 private:
  Piece piece_;
};

}  // namespace mc::model
