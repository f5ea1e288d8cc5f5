// A member of the P2P store: publishes sets of files and pulls sets from other members. It is a
// source of every shard that it has, from the moment it has it. There is no central server:
// sources tell pullers about each other, and a set exists as long as its shards do.
//
// Files are mapped and registered read-only; a shard goes from the page cache of the source to the
// page cache of the puller. Peers are not trusted: paths must stay below the target folder, and
// every shard must match its checksum.
//
// Thread: any; serve()'s handlers run on the server's loop. pull() blocks, and runs a few threads.
// Source: Mooncake transfer engine, P2P store; TENT paper 4.3 (checkpoint engine).
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "p2p/swarm/messages.h"
#include "p2p/swarm/swarm.h"
#include "xfer/engine.h"

namespace mc::p2p {

struct PullReport {
  std::string name;
  uint64_t bytes = 0, kept = 0, shards = 0;  // kept: bytes that were there already
  double seconds = 0;
  std::map<std::string, uint64_t> from;  // bytes by source
};

struct PullRequest {
  std::string name, folder;
  std::vector<std::string> from;                 // control addresses; one that lives is enough
  Duration patience = std::chrono::seconds(15);  // without any new shard
  std::function<void(uint64_t done, uint64_t total)> progress;  // now and then, from one thread
};

class SwarmMember {
 public:
  struct Config {
    Uplink::Config uplink;
    uint32_t parallel = 4;  // pulls at a time
    Duration rpc_budget = std::chrono::milliseconds(700);
    Duration shard_budget = std::chrono::seconds(60);
    uint64_t seed = 1;
  };
  // `address`: this process's control address, as peers reach it. The engine outlives the node.
  SwarmMember(xfer::Engine& engine, const Clock& clock, Config config, std::string address);
  ~SwarmMember();
  SwarmMember(const SwarmMember&) = delete;
  SwarmMember& operator=(const SwarmMember&) = delete;
  void serve(rpc::Server& server);

  // Files, and all regular files below folders. Errors: kInvalid, kNotFound, kExists.
  Result<SetInfo> publish(const std::string& name, const std::vector<std::string>& paths,
                          uint64_t shard_bytes);
  // Errors: kNotFound (no source has it), kUnavailable (no source is left), kCorrupt, kNoSpace,
  // kTimeout, and kUnavailable when `stop` was set. What was pulled stays, and is kept next time.
  Result<PullReport> pull(const PullRequest& request, const std::atomic<bool>& stop);
  std::vector<SetInfo> list(const std::string& prefix) const;
  // Tells the other sources that this one goes: they need not find out by asking.
  void leave();

 private:
  struct Set;
  using SetPtr = std::shared_ptr<Set>;
  class Pull;
  Result<SetPtr> find(const std::string& name) const MC_REQUIRES(mutex_);
  Result<ShardGrant> grant(const AskShard& ask);
  static SetInfo info(const Set& set);
  static std::vector<std::string> others(const Set& set, const std::string& but);

  xfer::Engine& engine_;
  const Clock& clock_;
  const Config config_;
  const std::string address_;
  mutable Mutex mutex_;
  std::map<std::string, SetPtr> sets_ MC_GUARDED_BY(mutex_);  // and what is in them
};

}  // namespace mc::p2p
