#include "model/kernels/scratch.h"

#include <doctest/doctest.h>

#include <thread>

using namespace mc::model;

TEST_CASE("scratch memory: what a thread gave back is the memory of its next step") {
  const std::byte *large, *larger;
  {
    const ScratchMemory a(1 << 20), b(2 << 20);
    large = a.get();
    larger = b.get();
    CHECK(large != larger);
  }
  const ScratchMemory c((1 << 20) - 100);
  CHECK(c.get() == large);
  std::thread([&] { CHECK(ScratchMemory(1 << 20).get() != larger); }).join();
  const ScratchMemory d(1 << 20);  // the smallest that is large enough
  CHECK(d.get() == larger);
}
