// Runs a worker process in its role, and changes the role on request.
// The role says whether it computes prompts, generates tokens, or both, over one pool of KV blocks
// and one compute thread. SetRole first drains the worker: requests in flight finish, new ones are
// refused, and heartbeats say so. Then it opens the instances of the new role on an empty pool. A
// SetRole for the present role ends a drain for another.
//
// A worker with both roles joins its conductors as two: NAME computes prompts and NAME.d generates
// tokens. They have one control address, by which a conductor knows that a prompt's KV need not
// move between them. A worker of role auto only joins, until a conductor gives it a role.
//
// Errors: those of the instances; kInvalid for an unknown role.
// Thread: the loop's.
// Source: Mooncake paper section 5.1 (roles follow the load); global-prefix-cache chapter 7.5.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/prefill/prefill_worker.h"
#include "serve/worker/decode_worker.h"

namespace mc::serve {

enum class Role : uint8_t { kPrefill, kDecode, kBoth, kAuto };
const char* name(Role role);
Result<Role> role_named(const std::string& name);

// A worker process in one role, as conductors see it.
struct RoleInstance {
  const char* role;    // "prefill", "decode", "auto"
  const char* suffix;  // of its name
  // While the role lasts. It says what other conductors than this one gave it.
  std::function<WorkerLoad(const std::string& conductor)> load;
  const BlockManager* cache = nullptr;  // whose events it reports; nullptr: none
};

// The objects that roles use; all outlive the role manager.
struct RoleParts {
  io::Loop& loop;
  xfer::Engine& transfer;
  rpc::Server& server;
  const Engine& engine;
  Metrics& metrics;
};

class RoleManager {
 public:
  // Answers all worker messages on the server and sets `epoch` of both configs. Requires: equal
  // `blocks` in both.
  static Result<std::unique_ptr<RoleManager>> open(RoleParts parts, PrefillConfig prefill,
                                                   DecodeConfig decode, Role role);
  ~RoleManager();
  RoleManager(const RoleManager&) = delete;
  RoleManager& operator=(const RoleManager&) = delete;

  Role role() const { return role_; }
  // Larger after every change: nothing of the earlier role is left.
  uint64_t epoch() const { return epoch_; }
  std::vector<RoleInstance> instances() const;
  PrefillWorker* prefill() { return prefill_.get(); }  // nullptr: not of this role
  DecodeWorker* decode() { return decode_.get(); }
  // Runs when the instances changed or began to drain. `joined`: earlier results of instances()
  // are void.
  void on_change(std::function<void(bool joined)> callback) { on_change_ = std::move(callback); }

  void drain();  // not reversible
  bool draining() const { return draining_ || next_ != role_; }
  bool idle() const;
  bool whole() const { return prefill_ == nullptr || prefill_->whole(); }
  std::string state() const;  // JSON for /state; updates metrics

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
