// Registers the workers: which are alive, what they can do, cache, and work on.
//
// The truth is on the workers. The registry rebuilds its copy from heartbeats and snapshots when
// the conductor starts, when a worker restarts, and when events were missed. It detects missed
// events by their numbers, and by the digest of the worker's whole cache in every heartbeat.
//
// It refuses a worker of another model or layout, and names both fingerprints. A worker that is
// silent for `worker_ttl`, or returns with another epoch, is gone: on_gone is called and what it
// held is forgotten. Silence counts only while this process itself runs (rpc/membership).
//
// Thread: the loop's. Source: Mooncake paper section 5.3.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "rpc/client.h"
#include "rpc/membership.h"
#include "sched/prefix_index.h"
#include "sched/request/roster.h"
#include "serve/conductor/owed_aborts.h"
#include "serve/protocol/messages.h"

namespace mc::serve {

struct Worker : sched::FleetWorker {
  std::string http;
  wire::Release release;
  bool changed = false;  // it is gone because it has another role now; it had finished
  WorkerLoad load;
  std::unique_ptr<rpc::Client> client;

  // Prefill: its part of the index.
  bool synced = false;       // a snapshot was taken and no event is missing since
  bool asking = false;       // for a snapshot
  uint64_t events_seen = 0;  // applied up to here
  uint64_t digest = 0;       // of what they say is stored

  struct Commit {
    std::string wire, request;
    bool again = false;  // one that was sent was not answered
  };
  std::vector<Commit> commits;   // prefill: not sent yet
  std::vector<uint64_t> joined;  // epochs of the conductors that it has joined, as it says
};

struct WorkerRegistryOptions {
  std::string model, fingerprint;
  uint64_t block_tokens = 0;
  uint64_t epoch = 0;  // the conductor's
  Duration worker_ttl{};
  Duration snapshot_budget{};  // for one page
};

class WorkerRegistry {
 public:
  WorkerRegistry(io::Loop& loop, WorkerRegistryOptions options, sched::PrefixIndex& index,
                 Metrics& metrics);

  // Errors: kInvalid for a worker that does not fit; kStale from a process that was replaced;
  // kBusy when there are too many.
  Result<HeartbeatAck> heartbeat(const Heartbeat& beat, Time now);
  void tick(Time now);

  // For changes to the worker: Roster::take_changed() lists it then.
  Worker* find(const NodeId& node, uint64_t epoch);
  Worker* find(const NodeId& node);
  Worker* find(const sched::WorkerRef& ref);
  sched::Roster& roster() { return roster_; }  // of the same workers
  const Worker* find(const NodeId& node, uint64_t epoch) const;
  const std::map<NodeId, std::unique_ptr<Worker>>& all() const { return workers_; }
  Duration silence(const NodeId& node, Time now) const { return members_.silence(node, now); }
  size_t slots() const { return slots_used_; }  // of the index: one more than the largest
  // A slot of the index for an external engine.
  sched::PrefixIndex::Slot take_slot();
  void give_slot(sched::PrefixIndex::Slot slot);  // what is known under it is forgotten
  size_t live(bool prefill) const;
  size_t unsynced() const;
  // Of several conductors over the same workers the one that started first decides on roles and
  // scaling. Whom no worker knows has nobody before it.
  bool leads() const;

  std::function<void(const Worker& worker, const std::string& why)> on_gone;
  std::function<void(const Worker& worker)> on_joined;
  std::function<void(const Heartbeat& beat)> on_auto;  // it fits, and waits for a role
  OwedAborts owed_aborts;                              // to those that are away

 private:
  Result<> check(const Heartbeat& beat) const;
  Result<Worker*> join(const Heartbeat& beat);
  std::unique_ptr<Worker> take(const NodeId& node, const std::string& why);
  void remove(const NodeId& node, const std::string& why);
  void apply(Worker& worker, const Heartbeat& beat);
  void resync(Worker& worker);
  void ask(const Worker& worker, uint64_t from, uint64_t seq, uint64_t pages);
  void page(Worker& worker, const KvSnapshot& page, uint64_t from, uint64_t seq, uint64_t pages);
  void verify(Worker& worker, const Heartbeat& beat);

  io::Loop& loop_;
  const WorkerRegistryOptions options_;
  sched::PrefixIndex& index_;
  struct {
    Counter &gaps, &mismatches, &resyncs;
  } counted_;
  rpc::Membership members_;  // who of workers_ is alive
  std::map<NodeId, std::unique_ptr<Worker>> workers_;
  std::map<NodeId, std::string> refused_;  // the reason logged last, so that it is logged once
  std::vector<sched::PrefixIndex::Slot> slots_free_;
  size_t slots_used_ = 0;
  sched::Roster roster_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace mc::serve
