#include "serve/runtime/trace_events.h"

#include <unistd.h>

#include <map>
#include <utility>

#include "base/json.h"
#include "io/file.h"

namespace mc::serve {
namespace {

double microseconds(Duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

}  // namespace

void TraceEvents::span(const char* track, std::string name, Time begin, Time end,
                       std::string request) {
  if (events_.size() == kEventsMax) events_.pop_front();
  events_.push_back({track, std::move(name), std::move(request), begin, end});
}

Result<> TraceEvents::write(const std::string& path, const std::string& process) const {
  const int pid = ::getpid();
  std::map<std::string, int> tracks;
  Json events = Json::array();
  events.push_back(
      {{"ph", "M"}, {"name", "process_name"}, {"pid", pid}, {"args", {{"name", process}}}});
  for (const Event& e : events_) {
    const auto [track, added] = tracks.try_emplace(e.track, static_cast<int>(tracks.size()) + 1);
    if (added)
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", pid},
                        {"tid", track->second},
                        {"args", {{"name", e.track}}}});
    events.push_back({{"ph", "X"},
                      {"name", e.name},
                      {"cat", e.track},
                      {"pid", pid},
                      {"tid", track->second},
                      {"ts", microseconds(e.begin.time_since_epoch())},
                      {"dur", microseconds(e.end - e.begin)},
                      {"args", {{"request", e.request}}}});
  }
  return io::write_output(path, dump_json({{"traceEvents", events}}) + "\n");
}

}  // namespace mc::serve
