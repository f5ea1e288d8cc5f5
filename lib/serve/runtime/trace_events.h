// Records what a worker did when, as a Chrome trace (chrome://tracing, Perfetto).
// The trace has spans on named tracks. Times are those of the machine's steady clock, so files of
// several workers of one machine share a time line: join their traceEvents.
//
// Errors: those of writing a file.
// Thread: one owner (the loop's). The newest `kEventsMax` spans are kept.
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

  // `track`: "compute", "send", ...; outlives this. `request`: the request it belongs to.
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
