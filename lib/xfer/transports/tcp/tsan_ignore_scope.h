// A scope that the thread sanitizer ignores, for accesses ordered by messages through other
// processes. The sanitizer cannot follow those messages. Use it only where a process reads and
// writes its own memory on behalf of a peer.
//
// Thread: the one that made it.
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

class TsanIgnoreScope {
 public:
#ifdef __SANITIZE_THREAD__
  TsanIgnoreScope() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~TsanIgnoreScope() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  TsanIgnoreScope() {}
  ~TsanIgnoreScope() {}
#endif
  TsanIgnoreScope(const TsanIgnoreScope&) = delete;
  TsanIgnoreScope& operator=(const TsanIgnoreScope&) = delete;
};

}  // namespace mc
