#include "store/client/client.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "base/hash.h"
#include "store/client/client_impl.h"
#include "store/election/leader_election.h"

namespace mc::store {
namespace {
// Messages carry budgets in milliseconds, and errors show them to people.
Duration whole_ms(Duration d) { return std::chrono::ceil<std::chrono::milliseconds>(d); }

constexpr int kStaleTries = 8;
constexpr Duration kReport = std::chrono::milliseconds(200);

// The keys of one call, from `at` on.
std::vector<ObjectKey> some_of(const std::vector<ObjectKey>& keys, size_t at) {
  const auto first = keys.begin() + static_cast<ptrdiff_t>(at);
  return {first, first + static_cast<ptrdiff_t>(std::min(kBatchMax, keys.size() - at))};
}

// An older master does not tell the place, or the node.
StoredPlace place_in(const Matched& reply, size_t i) {
  StoredPlace place;
  const std::string &at = reply.places.bytes, &holders = reply.holders.bytes;
  if (i < at.size() && static_cast<uint8_t>(at[i]) < kStoredAts)
    place.at = static_cast<StoredAt>(at[i]);
  const size_t node = i < holders.size() ? static_cast<uint8_t>(holders[i]) : 0;
  if (node > 0 && node <= reply.nodes.size())
    place.node = static_cast<uint32_t>(xxh3(reply.nodes[node - 1])) | 1;
  return place;
}
}  // namespace

void ClientOptions::describe(OptionList& v) {
  v("master", master,
    "address of mc-master; of several, all, separated by commas, or etcd://host:port[/prefix]");
  v("timeout", timeout, "how long one operation may take");
  v("put-wait", put_wait, "how long a put waits for room in a full pool");
  v("verify", verify, "checksums of reads from this host; of other hosts all are checked",
    {"always", "sample", "never"});
  v("replicas", replicas, "copies to keep of what is put");
  v("prefer", prefer, "node to put on while it has room");
  v("near-cache", local_hot_cache,
    "memory for values read more than once from other hosts or disks; 0: none");
  v("hedge", hedge, "ask the next replica too when a read over a network is late");
  v("tenant", tenant, "whose objects; empty: those of the tenant 'default'");
}

void PutConfig::describe(OptionList& v) {
  v("class", cls, "whether the pool keeps it: see docs/store.md",
    {"normal", "ephemeral", "context"});
  v("pin", pin, "soft: evicted only if there is nothing else; hard: not evicted",
    {"none", "soft", "hard"});
  v("ttl", ttl,
    "how long the pin, or the life of a context, lasts; 0: for ever; nothing else ends by itself");
  v("group", group, "objects of a group are leased and evicted together");
  v("prefer-local", prefer_local, "put on nodes of this host while they have room");
  v("host", host, "name of this host, as its nodes were given by --host");
}

Result<> check(const PutConfig& config) {
  if (config.cls != "normal" && config.cls != "ephemeral" && config.cls != "context")
    return fail(Code::kInvalid, "class '%s': want normal, ephemeral or context",
                config.cls.c_str());
  if (config.pin != "none" && config.pin != "soft" && config.pin != "hard")
    return fail(Code::kInvalid, "pin '%s': want none, soft or hard", config.pin.c_str());
  if (config.ttl < Duration::zero())
    return fail(Code::kInvalid, "ttl %s: want 0 or more", to_text(config.ttl).c_str());
  return {};
}

Result<std::unique_ptr<Client>> Client::open(xfer::Engine& engine, const Clock& clock,
                                             ClientOptions options, Metrics& metrics) {
  if (options.verify != "always" && options.verify != "sample" && options.verify != "never")
    return fail(Code::kInvalid, "verify '%s': want always, sample or never",
                options.verify.c_str());
  if (options.replicas < 1 || options.replicas > kReplicasMax)
    return fail(Code::kInvalid, "replicas %u: want 1 to %u", options.replicas, kReplicasMax);
  if (options.tenant.size() > kTenantBytesMax || options.tenant.find('\0') != std::string::npos)
    return fail(Code::kInvalid, "tenant '%s': want %zu bytes at most, any but NUL",
                escape(options.tenant).c_str(), kTenantBytesMax);
  MC_TRY_(check(options.put));
  MC_TRY(const std::string masters, find_masters(options.master, clock, options.timeout));
  MC_TRY(auto master, rpc::SyncClient::connect(masters, clock, rpc::Channel::kShm));
  auto shared = std::make_shared<Shared>();
  if (options.local_hot_cache.n > 0)
    shared->hot_cache = std::make_unique<LocalHotCache>(options.local_hot_cache.n);
  return std::unique_ptr<Client>(
      new Client(engine, clock, std::move(options), metrics, std::move(master), std::move(shared)));
}

Result<std::unique_ptr<Client>> Client::another(Metrics& metrics) const {
  MC_TRY(auto master, rpc::SyncClient::connect(master_->address(), clock_, rpc::Channel::kShm));
  return std::unique_ptr<Client>(
      new Client(engine_, clock_, options_, metrics, std::move(master), shared_));
}

Client::Client(xfer::Engine& engine, const Clock& clock, ClientOptions options, Metrics& metrics,
               std::unique_ptr<rpc::SyncClient> master, std::shared_ptr<Shared> shared)
    : engine_(engine),
      clock_(clock),
      options_(std::move(options)),
      master_(std::move(master)),
      several_(master_->address().find(',') != std::string::npos),
      shared_(std::move(shared)),
      put_bytes_(metrics.counter("mc_store_client_put_bytes_total", "bytes of values put")),
      get_bytes_(metrics.counter("mc_store_client_get_bytes_total", "bytes of values got")),
      hits_(metrics.counter("mc_store_client_hits_total", "values got")),
      misses_(metrics.counter("mc_store_client_misses_total", "values not found")),
      corrupt_(metrics.counter("mc_store_client_corrupt_total", "replicas whose checksum failed")),
      stale_(metrics.counter("mc_store_client_stale_total", "replicas replaced under a read")),
      hot_hits_(metrics.counter("mc_store_client_near_hits_total",
                                "values got that this process had read before")),
      hedged_(metrics.counter("mc_store_client_hedged_total",
                              "late reads sent to another replica too")),
      hedges_won_(metrics.counter("mc_store_client_hedges_won_total",
                                  "hedged reads that the other replica answered first")),
      hot_bytes_(metrics.gauge("mc_store_client_near_bytes", "bytes in the near cache")) {}

Result<> Client::check_epoch(uint64_t epoch) {
  uint64_t seen = shared_->epoch.load();
  while (epoch > seen && !shared_->epoch.compare_exchange_weak(seen, epoch)) {
  }
  if (epoch < seen)
    return fail(Code::kStale, "master %s is at epoch %llu, older than %llu seen: refused",
                options_.master.c_str(), static_cast<unsigned long long>(epoch),
                static_cast<unsigned long long>(seen));
  heard_ = true;
  return {};
}

void Client::find_leader() {
  if (several_ && !heard_) (void)ask(Stat{}, clock_.now() + limits.timeout_or(options_.timeout));
}

template <class M>
Result<typename M::Reply> Client::ask(const M& message, Time deadline, Duration wait) {
  // Retry a lost call, because the master may be restarting, and a call that lacked nodes. Report
  // that reason rather than that the last attempt had no time.
  Error why{Code::kTimeout, strf("%s: no time left to ask %s", M::kName, options_.master.c_str())};
  bool told = several_;  // of several masters another one leads, at a later epoch
  constexpr bool kPuts = std::is_same_v<M, PutStart> || std::is_same_v<M, PutEnd>;
  const Duration attempt = kPuts ? one_try(left(deadline), wait) : wait + kAttempt;
  if constexpr (std::is_same_v<M, PutStart>)
    shared_->unheard.give_back_left(*master_, shared_->epoch,
                                    std::min(left(deadline) / 2, kAttempt / 10));
  for (int tries = several_ ? kStaleTries : 1;;) {
    const Duration budget = whole_ms(std::min(left(deadline), attempt));
    if (budget <= Duration::zero()) return fail(why);
    auto reply = master_->call(message, budget);
    if (reply) {
      const auto checked = check_epoch(reply->epoch);
      if (checked) return reply;
      if (!std::exchange(told, true)) {  // its clock went back before it was restarted
        (void)master_->call(Stat{shared_->epoch.load()}, budget);
        // What it granted is given back by its nonce, which is not granted again.
        if constexpr (std::is_same_v<M, PutStart>) return fail(checked.error());
        continue;
      }
      if (--tries == 0) return fail(checked.error());
      why = checked.error();
      master_->skip_server();  // one of several, which does not know yet that it no longer leads
      continue;
    }
    const Error& error = reply.error();
    if (error.code != Code::kTimeout && error.code != Code::kUnavailable) return reply;
    if (error.code == Code::kUnavailable || why.code == Code::kTimeout) why = error;
  }
}
template Result<PutStarted> Client::ask(const PutStart&, Time, Duration);
template Result<Outcomes> Client::ask(const PutEnd&, Time, Duration);
template Result<Outcomes> Client::ask(const PutRevoke&, Time, Duration);
template Result<Replicas> Client::ask(const GetReplicas&, Time, Duration);

// Waits until the batch has moved, and renews the leases of the objects it reads.
void Client::wait_moved(xfer::BatchId batch, size_t requests, uint64_t total,
                        const std::vector<ObjectKey>& leased, Duration lease, Time deadline,
                        const std::atomic<bool>* stopped) {
  constexpr Duration kProgress = std::chrono::milliseconds(200);
  constexpr Duration kStop = std::chrono::milliseconds(20);
  const auto renew_every =
      leased.empty() ? limits.timeout_or(options_.timeout) : std::max(lease / 2, kProgress / 2);
  const auto& progress = limits.progress ? limits.progress : options_.progress;
  Time renewed = clock_.now(), told = renewed;
  for (;;) {
    Duration turn = progress ? std::min(kProgress, renew_every) : renew_every;
    if (stopped != nullptr) turn = std::min(turn, kStop);
    const Duration budget = std::min(left(deadline), turn);
    if (budget <= Duration::zero()) return;
    const auto moved = engine_.wait(batch, budget);
    uint64_t bytes = 0;
    bool finished = true;
    for (size_t i = 0; i < requests; ++i) {
      const xfer::Status status = engine_.status(batch, i);
      bytes += status.bytes_done;
      finished = finished && xfer::finished(status.state);
    }
    finished = finished || moved;
    if (progress && (finished || clock_.now() - told >= kProgress)) {
      told = clock_.now();
      progress(bytes, total);
    }
    if (finished || (stopped != nullptr && stopped->load())) return;
    if (!leased.empty() && clock_.now() - renewed >= renew_every) {
      renewed = clock_.now();
      // A failed renewal is no error: the guard words show whether the bytes are valid.
      (void)ask(GetReplicas{leased, 0, options_.tenant}, deadline);
    }
  }
}

// A lost node costs one wait per call, not per item.
Result<xfer::SegmentHandle> Client::segment_of(const NodeRef& node, Opened& opened, Time deadline) {
  const auto it = opened.find(node.control);
  if (it != opened.end()) return it->second;
  auto segment =
      engine_.open_segment(node.control, std::min(left(deadline), kAttempt), node.generation);
  if (!segment) report(node);
  if (segment) {
    const Lock lock(holders_.mutex);
    holders_.segments[node.control] = *segment;
  }
  opened.emplace(node.control, segment);
  return segment;
}

void Client::report(const NodeRef& node) {  // a hint; a lost one does no harm
  shared_->unreached.failed(node.name, clock_.now());
  (void)master_->call(ReportNode{node.name, node.generation}, kReport);
}

// As above. The master has the node check it.
void Client::report_corrupt(const Read& r, const ReplicaLocation& place, const NodeRef& node) {
  const Generation generation = place.generation ? place.generation : r.at->generation;
  (void)master_->call(ReportReplica{r.item->key, options_.tenant, node.name, generation}, kReport);
}

bool Client::verifies(const Read& r) {
  if (options_.verify == "always" || far(r.segment)) return true;
  return options_.verify != "never" && verified_.due(r.replica);
}

Result<std::vector<bool>> Client::exists(const std::vector<ObjectKey>& keys) {
  const Time deadline = clock_.now() + limits.timeout_or(options_.timeout);
  std::vector<bool> out;
  for (size_t at = 0; at == 0 || at < keys.size(); at += kBatchMax) {
    const Exists message{some_of(keys, at), options_.tenant};
    MC_TRY(const Existing reply, ask(message, deadline));
    if (reply.items.size() != message.keys.size())
      return fail(Code::kCorrupt, "exists: %zu answers to %zu keys", reply.items.size(),
                  message.keys.size());
    out.insert(out.end(), reply.items.begin(), reply.items.end());
  }
  return out;
}

Result<uint64_t> Client::match_prefix(const std::vector<ObjectKey>& keys,
                                      std::vector<StoredPlace>* places) {
  const Time deadline = clock_.now() + limits.timeout_or(options_.timeout);
  uint64_t hits = 0;
  for (size_t at = 0; at == hits && (at == 0 || at < keys.size()); at += kBatchMax) {
    const MatchPrefix message{some_of(keys, at), options_.tenant, places != nullptr,
                              options_.put.host};
    MC_TRY(const Matched reply, ask(message, deadline));
    const size_t found = std::min<uint64_t>(reply.hits, message.keys.size());
    hits += found;
    for (size_t i = 0; places != nullptr && i < found; ++i) places->push_back(place_in(reply, i));
  }
  return hits;
}

Result<uint64_t> Client::match_blocks(const std::vector<std::string>& prefixes,
                                      std::span<const uint8_t> hashes, size_t hash_bytes,
                                      Duration within) {
  if (prefixes.empty() || prefixes.size() > kPrefixesMax)
    return fail(Code::kInvalid, "%zu prefixes: want 1 to %zu", prefixes.size(), kPrefixesMax);
  if (hash_bytes == 0 || hash_bytes > kHashBytesMax || hashes.size() % hash_bytes != 0)
    return fail(Code::kInvalid, "hashes of %zu bytes: want 1 to %zu", hash_bytes, kHashBytesMax);
  const Time deadline =
      clock_.now() + (within > Duration::zero() ? within : limits.timeout_or(options_.timeout));
  MatchBlocks message{prefixes, {}, static_cast<uint32_t>(hash_bytes), options_.tenant};
  const size_t count = hashes.size() / hash_bytes, most = kBatchMax / prefixes.size();
  uint64_t hits = 0;
  for (size_t at = 0; at == hits && at < count; at += most) {
    const size_t n = std::min(most, count - at);
    const auto part = hashes.subspan(at * hash_bytes, n * hash_bytes);
    message.hashes.bytes.assign(part.begin(), part.end());
    MC_TRY(const Matched reply, ask(message, deadline));
    hits += std::min<uint64_t>(reply.hits, n);
  }
  return hits;
}

// With one master the call is made once, because a retry would not find what the first call
// removed. With several masters one may be gone: then a missing key counts as removed by a call
// whose answer was lost.
std::vector<Result<>> Client::remove(const std::vector<ObjectKey>& keys, bool force,
                                     const std::string* of) {
  const std::string& tenant = of == nullptr ? options_.tenant : *of;
  const Time deadline = clock_.now() + limits.timeout_or(options_.timeout);
  std::vector<Result<>> out;
  for (size_t at = 0; at < keys.size(); at += kBatchMax) {
    auto some = remove_some(some_of(keys, at), force, tenant, deadline);
    std::move(some.begin(), some.end(), std::back_inserter(out));
  }
  return out;
}

std::vector<Result<>> Client::remove_some(const std::vector<ObjectKey>& keys, bool force,
                                          const std::string& tenant, Time deadline) {
  constexpr int kTriesMax = 100;
  const Remove message{keys, force, tenant};
  const auto unanswered = [](const Result<Outcomes>& r) {
    if (!r) return r.error().code == Code::kTimeout || r.error().code == Code::kUnavailable;
    return std::any_of(r->items.begin(), r->items.end(), [](const Outcome& o) {
      return o.code == static_cast<uint8_t>(Code::kUnavailable);
    });
  };
  Result<Outcomes> reply;
  bool again = false;
  for (int tries = 1;; ++tries, again = true) {
    const Duration budget =
        std::min(left(deadline), several_ ? kAttempt : limits.timeout_or(options_.timeout));
    reply = master_->call(message, whole_ms(budget));
    if (!several_ || !unanswered(reply) || tries == kTriesMax ||
        left(deadline) <= std::chrono::milliseconds(1))
      break;
    // During a rebuild the master holds this query; it does not hold a removal.
    if (reply) (void)ask(Exists{keys, tenant}, deadline);
  }
  if (reply && reply->items.size() != keys.size())
    reply =
        fail(Code::kCorrupt, "remove: %zu answers to %zu keys", reply->items.size(), keys.size());
  std::vector<Result<>> out;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (shared_->hot_cache != nullptr) shared_->hot_cache->erase(keys[i]);
    out.push_back(reply ? reply->items[i].result() : Result<>(fail(reply.error())));
    if (again && !out.back() && out.back().error().code == Code::kNotFound) out.back() = {};
  }
  return out;
}

Result<Listed> Client::list(const std::string& prefix, const std::string& after, uint32_t limit) {
  MC_TRY(Listed page, ask(List{prefix, after, limit, options_.tenant},
                          clock_.now() + limits.timeout_or(options_.timeout)));
  if (page.more && (page.items.empty() || page.items.back().key <= after))
    return fail(Code::kCorrupt, "list: master %s says that more follows, and does not go on",
                options_.master.c_str());
  return page;
}

Result<ClusterStat> Client::stat(Duration within) {
  return ask(
      Stat{},
      clock_.now() + (within > Duration::zero() ? within : limits.timeout_or(options_.timeout)));
}

Result<Located> Client::locate(const ObjectKey& key, std::vector<NodeRef>* nodes) {
  MC_TRY(Replicas reply, ask(GetReplicas{{key}, 0, options_.tenant},
                             clock_.now() + limits.timeout_or(options_.timeout)));
  if (reply.items.size() != 1)
    return fail(Code::kCorrupt, "get-replicas: %zu answers to one key", reply.items.size());
  MC_TRY_(reply.items[0].outcome.result());
  if (nodes != nullptr) *nodes = std::move(reply.nodes);
  return std::move(reply.items[0]);
}

}  // namespace mc::store
