// Answers calls: the leading master does, a standby names the leader.
#include <algorithm>
#include <type_traits>

#include "base/json.h"
#include "base/log.h"
#include "store/service/master_service.h"

namespace mc::store {
namespace {

constexpr Duration kPark = std::chrono::milliseconds(100);
constexpr size_t kStandingMax = 16384;
constexpr const char* kStandsBy = "this master stands by";

void tell(const Mount& m, const Result<Mounted>& reply) {
  if (reply)
    log_info("store", "node %s at %s mounts %s, epoch %llu", escape(m.node.name).c_str(),
             escape(m.node.control).c_str(), rounded_bytes_text(m.layout.total()).c_str(),
             static_cast<unsigned long long>(reply->epoch));
  else
    log_warn("store", "mount refused: %s", reply.error().what.c_str());
}

void tell(const Unmount& m, const Result<Mounted>&) {
  log_info("store", "node %s unmounts", escape(m.node).c_str());
}

}  // namespace

// A reply that is sent only while this master leads. If it is dropped with the master, it names the
// new leader.
template <class R>
class MasterService::Held {
 public:
  Held(const MasterService& service, rpc::Reply<R> reply)
      : service_(service), reply_(std::move(reply)) {}
  ~Held() {
    if (!answered_) reply_.elsewhere(service_.leader(), kStandsBy);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void answer(const Result<R>& result) {
    if (!service_.leads()) return;
    answered_ = true;
    reply_(result);
  }

 private:
  const MasterService& service_;
  const rpc::Reply<R> reply_;
  bool answered_ = false;
};

template <class R>
Done<R> MasterService::held(const rpc::Reply<R>& reply) {
  if (leader_election_ == nullptr) return reply;
  return [h = std::make_shared<Held<R>>(*this, reply)](const Result<R>& r) { h->answer(r); };
}

namespace {

template <class M>
size_t items_of(const M& m) {
  if constexpr (requires { m.items.size(); })
    return m.items.size();
  else if constexpr (requires { m.keys.size(); })
    return m.keys.size();
  else
    return 1;
}

// The number of failed items of a call; 0 for calls without item results.
template <class R>
size_t failed_of(const Result<R>& result, size_t items) {
  if (!result) return items;
  if constexpr (requires { result->items.front().outcome; })
    return static_cast<size_t>(std::count_if(result->items.begin(), result->items.end(),
                                             [](const auto& i) { return !i.outcome.ok(); }));
  else if constexpr (requires { result->items.front().what; })
    return static_cast<size_t>(std::count_if(result->items.begin(), result->items.end(),
                                             [](const auto& i) { return !i.ok(); }));
  else
    return 0;
}

template <class M>
const char* type_of(const M& m) {  // its label in metrics
  if constexpr (std::is_same_v<M, CopyKey>)
    if (m.move) return "move";
  if constexpr (std::is_same_v<M, RemovePrefix>)
    if (m.prefix.empty()) return "remove-all";
  return M::kName;
}

}  // namespace

// Counts the call and its result.
template <class M>
Done<typename M::Reply> MasterService::counted(const M& m, Done<typename M::Reply> done) {
  CallTally* tally = told_.of(type_of(m));
  if (tally == nullptr) return done;
  return [tally, items = items_of(m), done = std::move(done)](const auto& result) {
    tally->add(items, failed_of(result, items));
    done(result);
  };
}

template <class M>
void MasterService::take(const M& m, const rpc::Call& call,
                         const rpc::Reply<typename M::Reply>& reply) {
  if (!leads()) return stand_by(m, call, reply);
  if constexpr (requires(Master & master) { master.handle(m, call.now); }) {
    const Result<typename M::Reply> result = master_->handle(m, call.now);
    if constexpr (std::is_same_v<M, Mount> || std::is_same_v<M, Unmount>) tell(m, result);
    counted(m, held(reply))(result);
  } else {
    master_->handle(m, call.now, counted(m, held(reply)));
  }
  arm();
}

template <class M>
void MasterService::stand_by(const M& m, const rpc::Call& call,
                             const rpc::Reply<typename M::Reply>& reply) {
  if (!leader().empty() || parked_.size() >= kStandingMax)
    return reply.elsewhere(leader(), standing_by());
  Parked parked;
  parked.again = [this, m, call, reply] {
    take(m, {loop_.now(), call.deadline, call.trace_id}, reply);
  };
  parked.give_up = [this, reply] { reply.elsewhere(leader(), standing_by()); };
  parked_.emplace(std::min(call.now + kPark, call.deadline), std::move(parked));
  if (parked_.size() == 1) run_parked(call.now);
}

// Answers parked calls whose time is over; once a master leads, all of them.
void MasterService::run_parked(Time now) {
  const bool decided = leads() || !leader().empty();
  std::multimap<Time, Parked> ready;
  while (!parked_.empty() && (decided || parked_.begin()->first <= now))
    ready.insert(parked_.extract(parked_.begin()));
  for (auto& [until, parked] : ready) leads() ? parked.again() : parked.give_up();
  loop_.cancel(parked_timer_);
  if (!parked_.empty())
    parked_timer_ = loop_.at(parked_.begin()->first, [this] { run_parked(loop_.now()); });
}

template <class M>
void MasterService::answer() {
  rpc_->on_later<M>([this](const M& m, const rpc::Call& call,
                           const rpc::Reply<typename M::Reply>& reply) { take(m, call, reply); });
}

void MasterService::answer_all() {
  answer<PutStart>();
  answer<PutEnd>();
  answer<PutRevoke>();
  answer<GetReplicas>();
  answer<Exists>();
  answer<MatchPrefix>();
  answer<MatchBlocks>();
  answer<Remove>();
  answer<List>();
  answer<Stat>();
  answer<Replay>();
  answer<Explain>();
  answer<RemovePrefix>();
  answer<PinKeys>();
  answer<CopyKey>();
  answer<ChangeReplicas>();
  answer<QueryTask>();
  answer<Drain>();
  answer<TaskDone>();
  answer<ReportNode>();
  answer<ReportReplica>();
  answer<Mount>();
  answer<Inventory>();
  answer<Unmount>();
  answer<Heartbeat>();
  answer<TierMount>();
  answer<TierHeartbeat>();
  answer<TierReport>();
}

// ---- several masters

void MasterService::join(const EtcdUrl& etcd, const MasterServiceOptions& options) {
  ElectionOptions election;
  election.me = options.advertise.empty() ? rpc_->address() : options.advertise;
  election.ttl = options.leader_ttl;
  leader_election_ = std::make_unique<LeaderElection>(loop_, etcd, election, [this] { elected(); });
}

void MasterService::elected() {
  const ElectionState& election = leader_election_->election();
  const bool leading = leader_election_->leads();
  if (master_ != nullptr && (!leading || lead_ != election.led())) {
    log_warn("store", "epoch %llu: this master lost the lead",
             static_cast<unsigned long long>(master_->epoch()));
    const std::unique_ptr<Master> gone = std::move(master_);  // Held answers its calls
  }
  if (leading && master_ == nullptr) {
    lead_ = election.led();
    log_info("store", "this master leads, epoch %llu", static_cast<unsigned long long>(lead_));
    master_ = std::make_unique<Master>(options_, lead_, ++seed_, loop_.now());
    published_ = 1;
    arm();
  }
  run_parked(loop_.now());
}

std::string MasterService::leader() const {
  return leader_election_ == nullptr || leader_election_->leads()
             ? ""
             : leader_election_->election().leader();
}

std::string MasterService::standing_by() const {
  const std::string& trouble = leader_election_->election().trouble();
  std::string text = kStandsBy;
  text += leader().empty() ? ": there is no leader" : ": the leader is " + leader();
  return trouble.empty() ? text : text + " (" + trouble + ")";
}

void MasterService::page_standing_by(const http::Exchange& exchange) {
  const Json state = {{"role", "standby"}, {"leader", leader()}, {"why", standing_by()}};
  if (http::serve_common(exchange, metrics_, standing_by(), dump_json(state))) return;
  if (exchange.request().path == "/state")
    exchange.reply(200, "application/json", dump_json(state, 2) + "\n");
  else
    exchange.reply(404, "text/plain",
                   "no such page: try /live, /ready, /health, /metrics or /state\n");
}

void MasterService::leave(std::function<void()> done) {
  if (leader_election_ == nullptr) return done();
  leader_election_->resign(std::move(done));
}

}  // namespace mc::store
