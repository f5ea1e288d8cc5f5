// The ways from this process to a range of a peer's segment, and which would be chosen.
//
// Thread: values.
#pragma once
#include <string>
#include <vector>

#include "xfer/core/rail_view.h"

namespace mc::xfer {

struct Path {
  std::string transport;
  bool usable = false, chosen = false;
  std::string why;                  // what speaks for it, or against
  MemoryLocation memory;            // where the local memory lies
  std::vector<RailView> rails;      // of a multi-rail transport that was used already
  std::vector<double> predicted_s;  // for the bytes asked about, a rail each
};

}  // namespace mc::xfer
