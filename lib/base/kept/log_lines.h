// Lines of the log for a program that has a log of its own: they wait to be taken there instead of
// being written to stderr. Those beyond 4,096 are lost, and counted. A child of a fork writes to
// stderr again.
//
// Thread: any.
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace mc {

struct KeptLine {
  int level = 0;  // as LogLevel
  std::string area, text;
};
void keep_log(bool on);
// Waits up to `patience` for a line, while they are kept.
std::vector<KeptLine> take_kept_log(std::chrono::nanoseconds patience);

// Of the log itself. False: the line is to be written.
bool kept_line(int level, const char* area, const char* text);

}  // namespace mc
