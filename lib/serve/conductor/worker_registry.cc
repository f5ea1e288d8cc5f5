#include "serve/conductor/worker_registry.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/log.h"
#include "base/random.h"

namespace mc::serve {
namespace {
constexpr size_t kWorkersMax = 16384;  // half of the index's slots: others wait to be swept
constexpr size_t kSweptPerTick = size_t{1} << 17;  // entries: 2 MiB
constexpr size_t kRefusedMax = 1024;
constexpr size_t kBuildBytesMax = 256;
constexpr uint64_t kPagesMax = 1 << 16;
constexpr const char* kRestarted = "it restarted";

// A peer's fingerprint in full, for it is compared by eye; but not endless, and printable.
std::string printable(std::string text) {
  text.resize(std::min<size_t>(text.size(), 400));
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

// Whether it is for the conductor of that epoch to give the worker a role. One that has several
// conductors names those that answered: before that nobody knows.
bool places(const Heartbeat& beat, uint64_t epoch) {
  if (beat.conductors < 2) return true;
  return !beat.joined.empty() && *std::min_element(beat.joined.begin(), beat.joined.end()) == epoch;
}
}  // namespace

WorkerRegistry::WorkerRegistry(io::Loop& loop, WorkerRegistryOptions options,
                               sched::PrefixIndex& index, Metrics& metrics)
    : loop_(loop),
      options_(std::move(options)),
      index_(index),
      counted_{metrics.counter("mc_conductor_index_gaps_total", "KV events found missing"),
               metrics.counter("mc_conductor_index_digest_mismatches_total",
                               "caches found to be other than their events said"),
               metrics.counter("mc_conductor_index_resyncs_total", "snapshots asked of workers")},
      members_({options_.worker_ttl, options_.worker_ttl, kWorkersMax}) {}

Worker* WorkerRegistry::find(const NodeId& node) {
  return static_cast<Worker*>(roster_.find(node));
}

Worker* WorkerRegistry::find(const sched::WorkerRef& ref) {
  return static_cast<Worker*>(roster_.find(ref));
}

Worker* WorkerRegistry::find(const NodeId& node, uint64_t epoch) {
  Worker* const worker = find(node);
  return worker != nullptr && worker->epoch == epoch ? worker : nullptr;
}

const Worker* WorkerRegistry::find(const NodeId& node, uint64_t epoch) const {
  const auto it = workers_.find(node);
  return it != workers_.end() && it->second->epoch == epoch ? it->second.get() : nullptr;
}

size_t WorkerRegistry::live(bool prefill) const { return roster_.live(prefill); }

size_t WorkerRegistry::unsynced() const {
  return static_cast<size_t>(std::count_if(
      workers_.begin(), workers_.end(), [](const auto& entry) { return !entry.second->synced; }));
}

bool WorkerRegistry::leads() const {
  return std::none_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const std::vector<uint64_t>& joined = entry.second->joined;
    return std::any_of(joined.begin(), joined.end(),
                       [&](uint64_t epoch) { return epoch < options_.epoch; });
  });
}

Result<> WorkerRegistry::check(const Heartbeat& beat) const {
  MC_TRY_(check_node_id(beat.node));
  MC_TRY_(wire::check_release("worker " + escape(beat.node), beat.release, "this conductor"));
  if (beat.role != "prefill" && beat.role != "decode" && beat.role != "auto")
    return fail(Code::kInvalid, "role '%s', want prefill, decode or auto",
                escape(beat.role).c_str());
  if (beat.fingerprint != options_.fingerprint || beat.model != options_.model ||
      beat.block_tokens != options_.block_tokens)
    return fail(Code::kInvalid,
                "worker %s does not fit this cluster: it has [%s], the conductor [%s]: start both "
                "with the same --model and --block-size",
                escape(beat.node).c_str(), printable(beat.fingerprint).c_str(),
                options_.fingerprint.c_str());
  return {};
}

Result<HeartbeatAck> WorkerRegistry::heartbeat(const Heartbeat& beat, Time now) {
  if (auto fits = check(beat); !fits) {
    if (refused_.size() < kRefusedMax && refused_[beat.node] != fits.error().what)
      log_warn("conductor", "%s", (refused_[beat.node] = fits.error().what).c_str());
    return fail(fits.error());
  }
  const auto acknowledged = [this](uint64_t events_seen) {
    return HeartbeatAck{options_.epoch, events_seen, {}, wire::this_release()};
  };
  Worker* worker = find(beat.node);
  const bool waits = beat.role == "auto";
  if (waits && worker == nullptr) {
    if (on_auto && places(beat, options_.epoch)) on_auto(beat);
    return acknowledged(0);
  }
  MC_TRY_(members_.heard(beat.node, beat.epoch, now));
  struct Replaced {  // told when its successor has joined, which may do what it had
    WorkerRegistry& workers;
    std::unique_ptr<Worker> worker{};
    ~Replaced() {
      if (worker && workers.on_gone) workers.on_gone(*worker, kRestarted);
    }
  } replaced{*this};
  if (worker != nullptr && (beat.epoch > worker->epoch || beat.control != worker->control ||
                            waits || worker->prefill != (beat.role == "prefill"))) {
    worker->changed = beat.epoch == worker->epoch && beat.control == worker->control;
    if (beat.epoch > worker->epoch)
      replaced.worker = take(beat.node, kRestarted);
    else
      remove(beat.node, worker->changed ? "its role is another now" : kRestarted);
    worker = nullptr;
  }
  if (waits) {
    members_.forget(beat.node);
    return acknowledged(0);  // its next beat asks for a role
  }
  if (worker == nullptr) {
    auto joined = join(beat);
    if (!joined) {
      members_.forget(beat.node);
      return fail(joined.error());
    }
    worker = *joined;
    if (on_joined) on_joined(*worker);
  }
  worker->draining = beat.draining;
  worker->load = beat.load;
  worker->joined = beat.joined;
  worker->ledger.tell_others(beat.load.others_ms, now);
  roster_.tell_others(*worker, beat.load.others_requests, beat.load.others_tokens);
  worker->blocks_total = beat.load.blocks_total;
  worker->blocks_free = beat.load.blocks_free;
  worker->blocks_cached = beat.load.blocks_cached;
  worker->growth = beat.load.growth;
  if (beat.pool_reuse <= static_cast<uint8_t>(sched::PoolUse::kAlways))
    worker->pool = static_cast<sched::PoolUse>(beat.pool_reuse);
  worker->pipeline = {std::max(1u, beat.stages), beat.chunk_tokens};
  worker->reserved_blocks = 0;
  ++worker->spoke;
  if (worker->prefill) apply(*worker, beat);
  return acknowledged(worker->events_seen);
}

Result<Worker*> WorkerRegistry::join(const Heartbeat& beat) {
  auto worker = std::make_unique<Worker>();
  worker->node = beat.node;
  worker->prefill = beat.role == "prefill";
  worker->epoch = beat.epoch;
  worker->control = beat.control;
  worker->http = beat.http;
  worker->release = beat.release;
  worker->release.build = beat.release.build.substr(0, kBuildBytesMax);
  worker->synced = !worker->prefill;
  MC_TRY(worker->client, rpc::Client::connect(loop_, beat.control, rpc::Channel::kShm));
  if (worker->prefill) worker->slot = take_slot();
  worker->ledger.set_order({beat.srpf, beat.ageing, beat.chunk_tokens});
  log_info("conductor", "%s worker %s at %s joins", beat.role.c_str(), escape(beat.node).c_str(),
           escape(beat.control).c_str());
  if (beat.release.build != wire::this_release().build)
    log_warn("conductor", "worker %s is %s, this conductor is %s", escape(beat.node).c_str(),
             wire::release_text(beat.release).c_str(),
             wire::release_text(wire::this_release()).c_str());
  refused_.erase(beat.node);
  Worker* const joined = (workers_[beat.node] = std::move(worker)).get();
  roster_.join(*joined);
  return joined;
}

sched::PrefixIndex::Slot WorkerRegistry::take_slot() {
  if (slots_free_.empty() && slots_used_ > sched::PrefixIndex::kSlotsMax)
    slots_free_ = index_.sweep(SIZE_MAX);
  if (slots_free_.empty())
    slots_free_.push_back(static_cast<sched::PrefixIndex::Slot>(slots_used_++));
  if (slots_used_ != roster_.slots()) roster_.slots_changed(slots_used_);
  const auto slot = slots_free_.back();
  slots_free_.pop_back();
  return slot;
}

void WorkerRegistry::give_slot(sched::PrefixIndex::Slot slot) {
  if (!index_.retire(slot)) slots_free_.push_back(slot);
}

std::unique_ptr<Worker> WorkerRegistry::take(const NodeId& node, const std::string& why) {
  const auto it = workers_.find(node);
  std::unique_ptr<Worker> gone = std::move(it->second);
  workers_.erase(it);
  roster_.leave(*gone);
  if (gone->prefill) give_slot(gone->slot);
  log_warn("conductor", "%s worker %s is gone: %s", gone->prefill ? "prefill" : "decode",
           escape(node).c_str(), why.c_str());
  return gone;
}

void WorkerRegistry::remove(const NodeId& node, const std::string& why) {
  const std::unique_ptr<Worker> gone = take(node, why);
  if (on_gone) on_gone(*gone, why);
}

void WorkerRegistry::tick(Time now) {
  for (const auto slot : index_.sweep(kSweptPerTick)) slots_free_.push_back(slot);
  for (const auto& change : members_.tick(now))
    if (change.kind == rpc::Membership::Change::Kind::kDead)
      remove(change.node, "no heartbeat for " + to_text(options_.worker_ttl));
}

// Events are applied in order and once. While a snapshot is on its way they are not acknowledged,
// so the worker sends them again after it.
void WorkerRegistry::apply(Worker& worker, const Heartbeat& beat) {
  if (!worker.synced) {
    if (!worker.asking) resync(worker);
    return;
  }
  if (beat.events_last < worker.events_seen ||
      (!beat.events.empty() && beat.events_first > worker.events_seen + 1)) {
    counted_.gaps.add();
    const unsigned long long first = worker.events_seen + 1, last = beat.events_first - 1;
    log_warn("conductor", "worker %s: events %llu to %llu are missing: asking for a snapshot",
             escape(worker.node).c_str(), first, last);
    resync(worker);
    return;
  }
  uint64_t seq = beat.events_first;
  for (const KvEvent& event : beat.events) {
    if (seq++ <= worker.events_seen) continue;
    if (event.stored)
      index_.add(worker.slot, event.hash.tag());
    else
      index_.remove(worker.slot, event.hash.tag());
    worker.events_seen = seq - 1;
    worker.digest += event.stored ? mix64(event.hash.tag()) : -mix64(event.hash.tag());
  }
  verify(worker, beat);
}

// All events were seen, so both sides know the same cache; or one was lost or changed on the way.
void WorkerRegistry::verify(Worker& worker, const Heartbeat& beat) {
  if (!beat.digested || worker.events_seen != beat.events_last || worker.digest == beat.digest)
    return;
  counted_.mismatches.add();
  log_warn("conductor",
           "worker %s: after event %llu its cache is not what its events said: asking "
           "for a snapshot",
           escape(worker.node).c_str(), static_cast<unsigned long long>(beat.events_last));
  resync(worker);
}

void WorkerRegistry::resync(Worker& worker) {
  counted_.resyncs.add();
  give_slot(worker.slot);
  worker.slot = take_slot();
  roster_.slots_changed(slots_used_);
  worker.synced = false;
  worker.asking = true;
  ask(worker, 0, 0, 0);
}

void WorkerRegistry::ask(const Worker& worker, uint64_t from, uint64_t seq, uint64_t pages) {
  worker.client->call(Snapshot{from}, options_.snapshot_budget,
                      [this, alive = std::weak_ptr<bool>(alive_), node = worker.node,
                       epoch = worker.epoch, from, seq, pages](const Result<KvSnapshot>& reply) {
                        if (alive.expired()) return;
                        Worker* const w = find(node, epoch);
                        if (w == nullptr) return;
                        if (reply && reply->epoch == epoch)
                          return page(*w, *reply, from, seq, pages);
                        w->asking = false;  // the next heartbeat asks again
                        log_warn("conductor", "snapshot of worker %s: %s", escape(node).c_str(),
                                 reply ? "it is of another epoch" : reply.error().what.c_str());
                      });
}

// The cache may change between pages: events after the first page's sequence number are applied
// over all of them, and repeating one does no harm.
void WorkerRegistry::page(Worker& worker, const KvSnapshot& page, uint64_t from, uint64_t seq,
                          uint64_t pages) {
  std::vector<uint64_t> tags;
  for (const BlockHash& hash : page.blocks) tags.push_back(hash.tag());
  index_.add(worker.slot, tags);
  if (from == 0) {
    seq = page.seq;
    worker.digest = page.digest;
  }
  if (page.next != 0 && !page.blocks.empty() && pages < kPagesMax)
    return ask(worker, page.next, seq, pages + 1);
  worker.events_seen = seq;
  worker.asking = false;
  worker.synced = true;
  log_info("conductor", "worker %s: snapshot taken, %zu blocks known in all",
           escape(worker.node).c_str(), index_.blocks());
}

}  // namespace mc::serve
