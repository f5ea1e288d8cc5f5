#include "xfer/qos/priority_queue.h"

namespace mc::xfer {

const char* name(Priority priority) {
  switch (priority) {
    case Priority::kHigh: return "high";
    case Priority::kMedium: return "medium";
    case Priority::kLow: return "low";
  }
  return "?";
}

}  // namespace mc::xfer
