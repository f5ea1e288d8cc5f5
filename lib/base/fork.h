// Tells the child of a fork from its parent. Threads, sockets and locks of the parent do not work
// in the child, so what owns some is of no use there.
//
// Thread: any.
#pragma once
#include <cstdint>

namespace mc {

uint32_t forks();  // between the first process and this one

// The process that made an object.
class ProcessMark {
 public:
  bool here() const { return made_ == forks(); }  // false: in a child of it

 private:
  uint32_t made_ = forks();
};

}  // namespace mc
