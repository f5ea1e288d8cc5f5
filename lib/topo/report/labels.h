// Labels each device in a picture: a title and two lines. Shared by SVG and DOT.
//
// Thread: any. Pure.
#pragma once
#include <string>
#include <vector>

#include "topo/model/model.h"
#include "topo/model/tiers.h"
#include "topo/model/tree.h"

namespace mc::topo {

struct DeviceLabel {
  std::string title;               // "GPU 3", "mlx5_0"
  std::vector<std::string> lines;  // two at most, short
  bool bad = false;                // the device does not work as it is
};

DeviceLabel label_of(const Machine& machine, const TierTable& table, const Leaf& leaf);
std::string node_title(const NodeTree& tree);

}  // namespace mc::topo
