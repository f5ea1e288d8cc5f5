// A set that this process serves, whole or in part. Private to p2p/swarm.
//
// Thread: the member's mutex guards all but `manifest`, `shards`, `id` and `files`, which do not
// change.
#pragma once
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "p2p/swarm/mapped_file.h"
#include "p2p/swarm/node.h"

namespace mc::p2p {

struct SwarmMember::Set {
  Manifest manifest;
  std::vector<Shard> shards;
  uint64_t id = 0;
  std::vector<std::unique_ptr<MappedFile>> files;  // as in the manifest
  ShardSet have;
  std::optional<Uplink> uplink;
  std::set<std::string> sources;  // other sources' control addresses
  bool dropped = false;
};

}  // namespace mc::p2p
