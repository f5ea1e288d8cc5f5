// Pulls a set with a few threads, each with one shard at a time.
#include <algorithm>
#include <thread>

#include "base/log.h"
#include "base/text.h"
#include "p2p/swarm/mapped_file.h"
#include "p2p/swarm/set.h"
#include "rpc/client.h"

namespace mc::p2p {

class SwarmMember::Pull {
 public:
  Pull(SwarmMember& node, const PullRequest& request, const std::atomic<bool>& stop)
      : member_(node),
        request_(request),
        stop_(stop),
        sources_({}, node.address_, node.config_.seed + 1) {}
  Result<PullReport> run();

 private:
  using Clients = std::map<std::string, std::unique_ptr<rpc::SyncClient>>;
  Result<SetDescription> describe();
  Result<> prepare();  // files, and what they hold already; a file has its name when it is whole
  Result<> work();     // one thread
  // The source to ask, and the wanted shards; nothing: the set is complete. Waits.
  Result<std::optional<std::string>> next(ShardSet* wanted);
  Result<rpc::SyncClient*> client(Clients& clients, const std::string& source) const;
  Result<> pull_from(Clients& clients, const std::string& source, const ShardSet& wanted);
  Result<> fetch(const std::string& source, const ShardGrant& grant);
  void show();

  SwarmMember& member_;
  const PullRequest& request_;
  const std::atomic<bool>& stop_;
  SetPtr set_;
  PullReport report_;
  Condition changed_;  // with the node's mutex
  Sources sources_ MC_GUARDED_BY(member_.mutex_);
  ShardSet under_way_ MC_GUARDED_BY(member_.mutex_);
  std::vector<uint64_t> missing_;  // shards of each file; of the threads: under the node's mutex
  uint64_t done_ MC_GUARDED_BY(member_.mutex_) = 0;
  Time last_gain_ MC_GUARDED_BY(member_.mutex_){};
  Error last_error_ MC_GUARDED_BY(member_.mutex_);
};

Result<SetDescription> SwarmMember::Pull::describe() {
  Error last{Code::kInvalid, "no source is named: use --from"};
  for (const std::string& address : request_.from) {
    auto client = rpc::SyncClient::connect(address, member_.clock_);
    if (!client) return fail(client.error());
    auto found = (*client)->call(DescribeSet{request_.name}, member_.config_.rpc_budget);
    if (found) return found;
    last = found.error();
  }
  return fail(last);
}

Result<> SwarmMember::Pull::prepare() {
  const Manifest& m = set_->manifest;
  std::vector<bool> existed(m.files.size());
  for (size_t i = 0; i < m.files.size(); ++i) {
    bool there = false;
    MC_TRY(auto file, MappedFile::create(member_.engine_, request_.folder + "/" + m.files[i].path,
                                         m.files[i].bytes, &there));
    existed[i] = there;
    set_->files.push_back(std::move(file));
  }
  for (uint32_t i = 0; i < set_->shards.size() && !stop_.load(); ++i) {
    const Shard& shard = set_->shards[i];
    if (!existed[shard.file]) continue;
    MC_TRY(const uint64_t sum, set_->files[shard.file]->checksum(shard.offset, shard.bytes));
    if (sum != m.sums[i]) continue;
    set_->have.add(i);
    report_.kept += shard.bytes;
  }
  if (stop_.load()) return fail(Code::kUnavailable, "stopped");  // names stay: nothing is known
  missing_.assign(m.files.size(), 0);
  for (size_t i = 0; i < set_->shards.size(); ++i)
    if (!set_->have.has(i)) ++missing_[set_->shards[i].file];
  for (size_t i = 0; i < m.files.size(); ++i) MC_TRY_(set_->files[i]->rename_to(missing_[i] == 0));
  return {};
}

Result<std::optional<std::string>> SwarmMember::Pull::next(ShardSet* wanted) {
  constexpr Duration kStep = std::chrono::milliseconds(100);
  Lock lock(member_.mutex_);
  for (;;) {
    if (set_->have.all()) return std::optional<std::string>();
    if (set_->dropped) return fail(Code::kUnavailable, "the set was unpublished meanwhile");
    if (stop_.load()) return fail(Code::kUnavailable, "stopped");
    const Time now = member_.clock_.now();
    if (now - last_gain_ > request_.patience)
      return fail(last_error_.what.empty() ? Code::kTimeout : last_error_.code,
                  "no shard came for %s: %s", rounded_text(request_.patience).c_str(),
                  last_error_.what.empty() ? "all sources are busy" : last_error_.what.c_str());
    if (sources_.none())
      return fail(Code::kUnavailable, "no source is left: %s", last_error_.what.c_str());
    *wanted = ShardSet(set_->shards.size());
    for (size_t i = 0; i < wanted->size(); ++i)
      if (!set_->have.has(i) && !under_way_.has(i)) wanted->add(i);
    if (wanted->count() > 0)
      if (auto source = sources_.next(now)) return source;
    changed_.wait_for(member_.mutex_,
                      std::clamp(sources_.wakes() - now, Duration(1'000'000), kStep));
  }
}

Result<rpc::SyncClient*> SwarmMember::Pull::client(Clients& clients,
                                                   const std::string& source) const {
  auto& known = clients[source];
  if (known == nullptr) {
    MC_TRY(known, rpc::SyncClient::connect(source, member_.clock_));
  }
  return known.get();
}

Result<> SwarmMember::Pull::fetch(const std::string& source, const ShardGrant& grant) {
  const Shard& shard = set_->shards[grant.shard];
  MappedFile& file = *set_->files[shard.file];
  xfer::Engine& engine = member_.engine_;
  MC_TRY(const xfer::SegmentHandle segment,
         engine.open_segment(source, member_.config_.rpc_budget));
  xfer::Request r;
  r.local = file.data() + shard.offset;
  r.segment = segment;
  r.offset = grant.offset;
  r.bytes = shard.bytes;
  MC_TRY_(engine.transfer_sync(r, member_.config_.shard_budget));
  MC_TRY(const uint64_t sum, file.checksum(shard.offset, shard.bytes));
  if (sum != set_->manifest.sums[grant.shard])
    return fail(Code::kCorrupt, "shard %u from %s fails its checksum", grant.shard, source.c_str());
  return {};
}

Result<> SwarmMember::Pull::pull_from(Clients& clients, const std::string& source,
                                      const ShardSet& wanted) {
  const std::string& name = set_->manifest.name;
  MC_TRY(rpc::SyncClient * peer, client(clients, source));
  MC_TRY(const ShardGrant grant,
         peer->call(AskShard{name, set_->id, member_.address_, {wanted.bytes()}},
                    member_.config_.rpc_budget));
  bool ours = false;
  {
    Lock lock(member_.mutex_);
    for (const std::string& other : grant.sources)
      if (sources_.known().size() < kSourcesMax) sources_.learn(other);
    ours = grant.shard < set_->shards.size() && wanted.has(grant.shard) &&
           !set_->have.has(grant.shard) && !under_way_.has(grant.shard);
    if (ours) under_way_.add(grant.shard);
  }
  Result<> outcome;  // another thread of ours may have been given the same
  if (ours) outcome = fetch(source, grant);
  MappedFile* whole = nullptr;
  {
    Lock lock(member_.mutex_);
    if (ours) under_way_.remove(grant.shard);
    if (ours && outcome) {
      const auto [file, at, bytes] = set_->shards[grant.shard];
      set_->have.add(grant.shard);
      if (--missing_[file] == 0) whole = set_->files[file].get();
      done_ += bytes;
      report_.from[source] += bytes;
      last_gain_ = member_.clock_.now();
    }
  }
  if (whole != nullptr) (void)whole->rename_to(true);  // run() tries again, and tells
  // The upload slot expires anyway; the source may be dead.
  (void)peer->call(ReleaseShard{name, member_.address_, grant.shard}, member_.config_.rpc_budget);
  return outcome;
}

Result<> SwarmMember::Pull::work() {
  Clients clients;
  for (;;) {
    ShardSet wanted;
    MC_TRY(const auto source, next(&wanted));
    if (!source) return {};
    const Result<> outcome = pull_from(clients, *source, wanted);
    {
      Lock lock(member_.mutex_);
      const Time now = member_.clock_.now();
      if (outcome) {
        sources_.gave(*source, now);
      } else if (outcome.error().code == Code::kBusy) {
        sources_.refused(*source, false, now);
      } else if (outcome.error().code == Code::kNotFound) {
        sources_.refused(*source, true, now);
        last_error_ = outcome.error();
      } else {
        log_debug("p2p", "%s: %s", source->c_str(), outcome.error().what.c_str());
        last_error_ = outcome.error();
        sources_.failed(*source, now);
        if (!std::ranges::count(sources_.known(), *source)) set_->sources.erase(*source);
        clients.erase(*source);
        if (outcome.error().code == Code::kNoSpace) return outcome;
      }
    }
    changed_.notify_all();
    show();
  }
}

void SwarmMember::Pull::show() {
  if (!request_.progress) return;
  Lock lock(member_.mutex_);
  request_.progress(done_ + report_.kept, set_->manifest.bytes());
}

Result<PullReport> SwarmMember::Pull::run() {
  const Time start = member_.clock_.now();
  MC_TRY(SetDescription found, describe());
  MC_TRY_(check(found.manifest));
  if (found.manifest.name != request_.name)
    return fail(Code::kCorrupt, "asked for set '%s', the source described '%s'",
                request_.name.c_str(), found.manifest.name.c_str());
  set_ = std::make_shared<Set>();
  set_->manifest = std::move(found.manifest);
  set_->shards = shards_of(set_->manifest);
  set_->id = set_->manifest.id();
  set_->have = ShardSet(set_->shards.size());
  set_->uplink.emplace(set_->shards.size(), member_.config_.uplink, member_.config_.seed);
  MC_TRY_(prepare());
  {
    Lock lock(member_.mutex_);
    under_way_ = ShardSet(set_->shards.size());
    last_gain_ = member_.clock_.now();
    found.sources.insert(found.sources.end(), request_.from.begin(), request_.from.end());
    for (const std::string& address : found.sources) {
      sources_.learn(address);
      if (address != member_.address_ && set_->sources.size() < kSourcesMax)
        set_->sources.insert(address);
    }
    if (!member_.sets_.emplace(request_.name, set_).second)
      return fail(Code::kExists, "set '%s' is here already", request_.name.c_str());
  }
  std::vector<Result<>> outcomes(std::max(1u, member_.config_.parallel));
  std::vector<std::thread> threads;
  for (auto& outcome : outcomes) threads.emplace_back([this, &outcome] { outcome = work(); });
  for (auto& t : threads) t.join();
  bool complete = false;
  {
    Lock lock(member_.mutex_);
    complete = set_->have.all();
  }
  for (auto& outcome : outcomes)
    if (!complete && !outcome) return fail(outcome.error());
  for (const auto& file : set_->files) MC_TRY_(file->rename_to(true));
  report_.name = request_.name;
  report_.bytes = set_->manifest.bytes();
  report_.shards = set_->shards.size();
  report_.seconds = to_seconds(member_.clock_.now() - start);
  return std::move(report_);
}

Result<PullReport> SwarmMember::pull(const PullRequest& request, const std::atomic<bool>& stop) {
  return Pull(*this, request, stop).run();
}

}  // namespace mc::p2p
