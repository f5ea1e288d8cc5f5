#include "xfer/core/rail_view.h"

namespace mc::xfer {

const char* name(RailState state) {
  switch (state) {
    case RailState::kHealthy: return "healthy";
    case RailState::kSuspect: return "suspect";
    case RailState::kSlow: return "slow";
    case RailState::kResting: return "resting";
    case RailState::kProbing: return "probing";
  }
  return "?";
}

}  // namespace mc::xfer
