// A scope whose memory accesses are put in order by messages that pass through other processes.
// The thread sanitizer cannot follow those, so it looks away meanwhile. For what a process reads
// and writes of its own memory on behalf of a peer, and for nothing else.
//
// Thread: of the thread that made it.
#pragma once

#ifdef __SANITIZE_THREAD__
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace mc {

class PeerOrder {
 public:
#ifdef __SANITIZE_THREAD__
  PeerOrder() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~PeerOrder() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  PeerOrder() {}
  ~PeerOrder() {}
#endif
  PeerOrder(const PeerOrder&) = delete;
  PeerOrder& operator=(const PeerOrder&) = delete;
};

}  // namespace mc
