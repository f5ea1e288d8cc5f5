// What a worker process does: it computes prompts, generates tokens, or both, over one pool of KV
// blocks and one compute thread; and how it becomes another. SetRole drains it (requests in flight
// finish, new ones are refused and heartbeats say so), then opens the instances of the new role on
// an empty pool. Asked for the role it has, it stops draining for another.
//
// A worker that is both joins its conductors as two: one NAME that computes prompts and one NAME.d
// that generates, at one control address, by which a conductor knows that a prompt's KV need not
// move between them. One that is auto does nothing but say so, until a conductor gives it a role.
//
// Thread: the loop's. Errors: those of the instances; kInvalid for a role that is none.
// Source: Mooncake paper section 5.1 (roles follow the load); global-prefix-cache chapter 7.5.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/worker/decode_worker.h"
#include "serve/worker/prefill_worker.h"

namespace mc::serve {

enum class Role : uint8_t { kPrefill, kDecode, kBoth, kAuto };
const char* name(Role role);
Result<Role> role_named(const std::string& name);

// One worker as conductors see it.
struct RoleInstance {
  const char* role;                     // "prefill", "decode", "auto"
  const char* suffix;                   // of its name
  std::function<WorkerLoad()> load;     // while the role lasts
  const BlockManager* cache = nullptr;  // what it tells of; nullptr: nothing
};

// All outlive the role manager.
struct RoleParts {
  io::Loop& loop;
  xfer::Engine& transfer;
  rpc::Server& server;
  const Engine& engine;
  Metrics& metrics;
};

class RoleManager {
 public:
  // Answers all messages of workers on the server; `blocks` of both are to be the same, their
  // `epoch` is given here.
  static Result<std::unique_ptr<RoleManager>> open(RoleParts parts, PrefillConfig prefill,
                                                   DecodeConfig decode, Role role);
  ~RoleManager();
  RoleManager(const RoleManager&) = delete;
  RoleManager& operator=(const RoleManager&) = delete;

  Role role() const { return role_; }
  // Of what it is now: larger after every change, for nothing of before is there any more.
  uint64_t epoch() const { return epoch_; }
  std::vector<RoleInstance> instances() const;
  PrefillWorker* prefill() { return prefill_.get(); }  // nullptr: not of this role
  DecodeWorker* decode() { return decode_.get(); }
  // The instances changed, or began to drain: `joined` says that what instances() told before is
  // void.
  void on_change(std::function<void(bool joined)> callback) { on_change_ = std::move(callback); }

  void drain();  // for good
  bool draining() const { return draining_ || next_ != role_; }
  bool idle() const;
  bool whole() const { return prefill_ == nullptr || prefill_->whole(); }
  std::string state() const;  // JSON for /state; brings metrics up to date

 private:
  RoleManager(RoleParts parts, PrefillConfig prefill, DecodeConfig decode);
  Result<> become(Role role);
  Result<RoleSet> set(const SetRole& m);
  void refuse_all();
  void tick();
  void drain_instances(bool on);

  const RoleParts parts_;
  PrefillConfig prefill_config_;
  DecodeConfig decode_config_;
  Role role_ = Role::kPrefill, next_ = Role::kPrefill;
  uint64_t epoch_ = 0;
  bool draining_ = false;
  std::function<void(bool)> on_change_;
  io::Loop::Handle ticker_ = 0;
  std::unique_ptr<PrefillWorker> prefill_;
  std::unique_ptr<DecodeWorker> decode_;
};

}  // namespace mc::serve
