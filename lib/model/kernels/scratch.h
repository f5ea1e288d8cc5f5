// Memory for panels of weights, and for the numbers between the steps of a forward pass. Panels lie
// in huge pages where the system gives them, for they are read from end to end. Of the rest, what a
// thread gives back is kept for its next step: fresh pages of the system cost more than most steps
// do.
//
// Thread: scratch memory is made and destroyed on one thread; the bytes, any. Panels: values.
#pragma once
#include <cstddef>
#include <memory>

namespace mc::model {

struct FreePanels {
  void operator()(std::byte* p) const;
};
using PanelMemory = std::unique_ptr<std::byte[], FreePanels>;

PanelMemory allocate_panels(size_t bytes);  // not set to anything; MC_CHECK that there is memory

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

// Memory of this thread until its next call, not cleared, aligned to 64. The thread keeps it.
std::byte* thread_scratch(size_t bytes);

}  // namespace mc::model
