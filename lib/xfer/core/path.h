// Describes a transport to a range of a peer's segment, and why it is chosen or not.
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
  std::string why;                  // why it is usable, or not
  MemoryEnds memory;                // where the memory of both ends lies
  std::vector<RailView> rails;      // of a multi-rail transport that was used already
  std::vector<double> predicted_s;  // for the bytes of the query, one per rail
};

}  // namespace mc::xfer
