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
