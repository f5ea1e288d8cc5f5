// What a worker did when, as a Chrome trace (chrome://tracing, Perfetto): spans on named tracks.
// Times are those of the machine's steady clock, so the files of several workers of one machine fit
// on one time line: their traceEvents are simply joined.
//
// Thread: one owner (the loop's). The newest `kEventsMax` are kept. Errors: those of writing a
// file.
#pragma once
#include <cstdint>
#include <deque>
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace mc::serve {

class TraceEvents {
 public:
  static constexpr size_t kEventsMax = size_t{1} << 17;

  // `track`: "compute", "send", ...; outlives this. `request`: what it was done for.
  void span(const char* track, std::string name, Time begin, Time end, std::string request);
  size_t size() const { return events_.size(); }
  // {"traceEvents": [...]}: complete events (ph X), ts and dur in microseconds, pid of this
  // process, called `process`, one tid a track. Written whole or not at all.
  Result<> write(const std::string& path, const std::string& process) const;

 private:
  struct Event {
    const char* track;
    std::string name, request;
    Time begin, end;
  };
  std::deque<Event> events_;
};

}  // namespace mc::serve
