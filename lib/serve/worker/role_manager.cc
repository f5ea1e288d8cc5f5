#include "serve/worker/role_manager.h"

#include <type_traits>
#include <utility>

#include "base/json.h"
#include "base/log.h"

namespace mc::serve {
namespace {

constexpr Duration kRoleTick = std::chrono::milliseconds(20);
constexpr Role kRoles[] = {Role::kPrefill, Role::kDecode, Role::kBoth, Role::kAuto};

Json decode_state(const DecodeWorker& worker) {
  const WorkerLoad l = worker.load();
  return {{"role", "decode"},
          {"waiting", l.waiting},
          {"running", l.running},
          {"blocks_total", l.blocks_total},
          {"blocks_free", l.blocks_free},
          {"tbt_ms", l.tbt_ms}};
}

}  // namespace

const char* name(Role role) {
  switch (role) {
    case Role::kPrefill: return "prefill";
    case Role::kDecode: return "decode";
    case Role::kBoth: return "both";
    case Role::kAuto: return "auto";
  }
  return "?";
}

Result<Role> role_named(const std::string& text) {
  for (const Role role : kRoles)
    if (text == name(role)) return role;
  return fail(Code::kInvalid, "no role '%s': take prefill, decode, both or auto",
              escape(text).c_str());
}

RoleManager::RoleManager(RoleParts parts, PrefillConfig prefill, DecodeConfig decode)
    : parts_(parts), prefill_config_(std::move(prefill)), decode_config_(std::move(decode)) {}

RoleManager::~RoleManager() { parts_.loop.cancel(ticker_); }

Result<std::unique_ptr<RoleManager>> RoleManager::open(RoleParts parts, PrefillConfig prefill,
                                                       DecodeConfig decode, Role role) {
  std::unique_ptr<RoleManager> self(new RoleManager(parts, std::move(prefill), std::move(decode)));
  MC_TRY_(self->become(role));
  RoleManager* const raw = self.get();
  parts.server.on<SetRole>([raw](const SetRole& m, const rpc::Call&) { return raw->set(m); });
  self->ticker_ = parts.loop.every(kRoleTick, [raw] { raw->tick(); });
  return self;
}

// Refuses every worker message; the new role's instances then register the ones they answer.
void RoleManager::refuse_all() {
  const auto refuse = [this]<class M>(const M*) {
    // kBusy sends a new request elsewhere; a message about an older one fails it.
    constexpr bool begins = std::is_same_v<M, TxAllocate> || std::is_same_v<M, Reserve>;
    parts_.server.on<M>([this](const M&, const rpc::Call&) -> Result<typename M::Reply> {
      return fail(begins ? Code::kBusy : Code::kUnavailable, "this worker's role is %s now",
                  name(role_));
    });
  };
  refuse(static_cast<TxAllocate*>(nullptr));
  refuse(static_cast<Prefill*>(nullptr));
  refuse(static_cast<TxCommit*>(nullptr));
  refuse(static_cast<AwaitPrefix*>(nullptr));
  refuse(static_cast<Snapshot*>(nullptr));
  refuse(static_cast<Reserve*>(nullptr));
  refuse(static_cast<KvOffer*>(nullptr));
  refuse(static_cast<KvReady*>(nullptr));
  refuse(static_cast<KvFailed*>(nullptr));
}

Result<> RoleManager::become(Role role) {
  RoleParts p = parts_;
  refuse_all();
  p.server.on<Abort>(
      [](const Abort&, const rpc::Call&) -> Result<rpc::Empty> { return rpc::Empty{}; });
  prefill_.reset();
  decode_.reset();
  std::shared_ptr<WorkerCore> core;
  const bool computes = role == Role::kPrefill || role == Role::kBoth;
  const bool decodes = role == Role::kDecode || role == Role::kBoth;
  if (role != Role::kAuto) {
    MC_TRY(core, WorkerCore::open(p.loop, p.transfer, p.engine, prefill_config_.blocks,
                                  p.transfer.generation().n));
  }
  epoch_ = prefill_config_.epoch = decode_config_.epoch = p.transfer.generation().n;
  if (computes) {
    MC_TRY(prefill_, PrefillWorker::open(p.loop, p.transfer, p.server, p.engine, prefill_config_,
                                         p.metrics, core));
  }
  if (decodes) {
    MC_TRY(decode_, DecodeWorker::open(p.loop, p.transfer, p.server, p.engine, decode_config_,
                                       p.metrics, core));
  }
  if (role == Role::kBoth) {
    decode_->colocate();
    prefill_->colocate(p.server.address(), [this](const std::string& request, uint64_t guard,
                                                  const std::vector<BlockId>& blocks) {
      return decode_->adopt(request, guard, blocks);
    });
    p.server.on<Abort>([this](const Abort& m, const rpc::Call&) -> Result<rpc::Empty> {
      MC_TRY_(prefill_->abort(m));
      return decode_->abort(m);
    });
  }
  role_ = next_ = role;
  for (const Role r : kRoles)
    p.metrics.gauge("mc_engine_role", "1 for the role this worker has", {{"role", name(r)}})
        .set(r == role);
  return {};
}

std::vector<RoleInstance> RoleManager::instances() const {
  std::vector<RoleInstance> out;
  if (prefill_ != nullptr)
    out.push_back({"prefill", "", [this](const std::string& c) { return prefill_->load(c); },
                   &prefill_->cache()});
  if (decode_ != nullptr)
    out.push_back({"decode", prefill_ != nullptr ? ".d" : "",
                   [this](const std::string& c) { return decode_->load(c); }, nullptr});
  if (out.empty())
    out.push_back({"auto", "", [](const std::string&) { return WorkerLoad{}; }, nullptr});
  return out;
}

Result<RoleSet> RoleManager::set(const SetRole& m) {
  MC_TRY(const Role role, role_named(m.role));
  if (draining_) return fail(Code::kUnavailable, "this worker is draining to stop");
  if (!prefill_config_.stages.empty() && role != role_)
    return fail(Code::kUnsupported,
                "this worker is the head of a pipeline: its role stays prefill");
  if (!m.from.empty() && (m.from != name(role_) || (next_ != role_ && next_ != role)))
    return fail(Code::kStale, "this worker's role is %s, changing to %s, not %s", name(role_),
                name(next_), escape(m.from).c_str());
  next_ = role;
  drain_instances(next_ != role_);
  log_info("serve", "role %s, changing to %s", name(role_), name(next_));
  if (on_change_) on_change_(false);
  return RoleSet{name(role_), name(role)};
}

void RoleManager::drain_instances(bool on) {
  if (prefill_ != nullptr) prefill_->drain(on);
  if (decode_ != nullptr) decode_->drain(on);
}

void RoleManager::drain() {
  draining_ = true;
  drain_instances(true);
}

bool RoleManager::idle() const {
  return (prefill_ == nullptr || prefill_->idle()) && (decode_ == nullptr || decode_->idle());
}

// Changes the role between messages, when no instance is on the stack.
void RoleManager::tick() {
  if (draining_ || next_ == role_ || !idle()) return;
  const Role was = role_, wanted = next_;
  if (const auto done = become(wanted); !done) {
    log_error("serve", "cannot change to role %s: %s", name(wanted), done.error().what.c_str());
    if (!become(was)) return parts_.loop.stop();  // the earlier role fails too
  }
  log_info("serve", "role is %s now", name(role_));
  if (on_change_) on_change_(true);
}

std::string RoleManager::state() const {
  if (prefill_ != nullptr) prefill_->update_metrics();
  if (prefill_ == nullptr && decode_ == nullptr) return dump_json({{"role", "auto"}});
  if (decode_ == nullptr) return dump_json(prefill_->state());
  if (prefill_ == nullptr) return dump_json(decode_state(*decode_));
  return dump_json(
      {{"role", "both"}, {"prefill", prefill_->state()}, {"decode", decode_state(*decode_)}});
}

}  // namespace mc::serve
