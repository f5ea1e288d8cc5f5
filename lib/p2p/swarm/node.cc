#include "p2p/swarm/node.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/log.h"
#include "p2p/swarm/mapped_file.h"
#include "p2p/swarm/set.h"
#include "rpc/client.h"
#include "rpc/server.h"

namespace mc::p2p {
namespace {

struct Found {
  std::string path, entry;
};

Result<std::vector<Found>> files_of(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<Found> out;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      out.push_back({path, fs::path(path).filename().string()});
      continue;
    }
    for (auto it = fs::recursive_directory_iterator(path, error);
         !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      std::error_code gone;  // or a link that leads nowhere
      const std::string file = it->path().string();
      if (it->is_symlink(gone) || !it->is_regular_file(gone) || is_part(file)) continue;
      out.push_back({file, fs::relative(it->path(), path, gone).generic_string()});
    }
    if (error) return fail(Code::kInvalid, "%s: %s", path.c_str(), error.message().c_str());
  }
  std::sort(out.begin(), out.end(),
            [](const Found& a, const Found& b) { return a.entry < b.entry; });
  return out;
}

}  // namespace

SwarmMember::SwarmMember(xfer::Engine& engine, const Clock& clock, Config config,
                         std::string address)
    : engine_(engine), clock_(clock), config_(config), address_(std::move(address)) {}
SwarmMember::~SwarmMember() = default;

Result<SwarmMember::SetPtr> SwarmMember::find(const std::string& name) const {
  auto it = sets_.find(name);
  if (it == sets_.end()) return fail(Code::kNotFound, "no set '%.200s' here", name.c_str());
  return it->second;
}

SetInfo SwarmMember::info(const Set& s) {
  return {s.manifest.name, s.id,           s.manifest.bytes(), s.shards.size(),
          s.have.count(),  s.files.size(), s.sources.size()};
}

std::vector<std::string> SwarmMember::others(const Set& s, const std::string& but) {
  std::vector<std::string> out;
  for (const std::string& address : s.sources)
    if (address != but) out.push_back(address);
  return out;
}

Result<SetInfo> SwarmMember::publish(const std::string& name, const std::vector<std::string>& paths,
                                     uint64_t shard_bytes) {
  if (shard_bytes < kShardBytesMin || shard_bytes > kShardBytesMax)  // before any is counted
    return fail(Code::kInvalid, "shards of %llu bytes; want 64 KiB to 1 GiB",
                static_cast<unsigned long long>(shard_bytes));
  auto set = std::make_shared<Set>();
  set->manifest.name = name;
  set->manifest.shard_bytes = shard_bytes;
  MC_TRY(const auto found, files_of(paths));
  for (const Found& f : found) {
    MC_TRY(auto file, MappedFile::open(engine_, f.path));
    set->manifest.files.push_back({f.entry, file->bytes()});
    set->files.push_back(std::move(file));
  }
  set->shards = shards_of(set->manifest);
  set->have = ShardSet(set->shards.size());
  for (uint32_t i = 0; i < set->shards.size(); ++i) {
    const Shard& shard = set->shards[i];
    MC_TRY(const uint64_t sum, set->files[shard.file]->checksum(shard.offset, shard.bytes));
    set->manifest.sums.push_back(sum);
    set->have.add(i);
  }
  MC_TRY_(check(set->manifest));
  set->id = set->manifest.id();
  set->uplink.emplace(set->shards.size(), config_.uplink, config_.seed);
  Lock lock(mutex_);
  if (!sets_.emplace(name, set).second)
    return fail(Code::kExists, "set '%s' is published here already", name.c_str());
  return info(*set);
}

std::vector<SetInfo> SwarmMember::list(const std::string& prefix) const {
  Lock lock(mutex_);
  std::vector<SetInfo> out;
  for (const auto& [name, set] : sets_)
    if (name.starts_with(prefix)) out.push_back(info(*set));
  return out;
}

Result<ShardGrant> SwarmMember::grant(const AskShard& ask) {
  Lock lock(mutex_);
  MC_TRY(const SetPtr set, find(ask.name));
  if (set->id != ask.id)
    return fail(Code::kStale, "set '%s' has other contents here", set->manifest.name.c_str());
  if (ask.asker.size() > kNameMax) return fail(Code::kInvalid, "the asker's address is too long");
  MC_TRY(const ShardSet wanted, ShardSet::from(ask.wanted.bytes, set->shards.size()));
  // An asker that got no shard here still becomes a source of what it gets elsewhere.
  if (!ask.asker.empty() && set->sources.size() < kSourcesMax) set->sources.insert(ask.asker);
  ShardGrant grant;
  grant.sources = others(*set, ask.asker);
  MC_TRY(grant.shard, set->uplink->grant(set->have, wanted, ask.asker, clock_.now()));
  const Shard& shard = set->shards[grant.shard];
  grant.offset = set->files[shard.file]->segment_offset() + shard.offset;
  return grant;
}

void SwarmMember::leave() {
  constexpr Duration kBudget = std::chrono::milliseconds(200);  // best effort
  std::vector<std::pair<std::string, std::string>> told;        // set, source
  {
    Lock lock(mutex_);
    for (const auto& [name, set] : sets_)
      for (const std::string& address : set->sources) told.emplace_back(name, address);
  }
  const Time until = clock_.now() + 5 * kBudget;
  for (const auto& [name, source] : told) {
    if (clock_.now() > until) return;
    if (auto client = rpc::SyncClient::connect(source, clock_))
      (void)(*client)->call(LeaveSwarm{name, address_}, kBudget);
  }
}

void SwarmMember::serve(rpc::Server& server) {
  server.on<ListSets>([this](const ListSets& m, const rpc::Call&) -> Result<SetList> {
    return SetList{list(m.prefix)};
  });
  server.on<DescribeSet>([this](const DescribeSet& m, const rpc::Call&) -> Result<SetDescription> {
    Lock lock(mutex_);
    MC_TRY(const SetPtr set, find(m.name));
    return SetDescription{set->manifest, others(*set, {})};
  });
  server.on<AskShard>([this](const AskShard& m, const rpc::Call&) { return grant(m); });
  server.on<ReleaseShard>([this](const ReleaseShard& m, const rpc::Call&) -> Result<Noted> {
    Lock lock(mutex_);
    MC_TRY(const SetPtr set, find(m.name));
    set->uplink->released(m.shard, m.asker);
    return Noted{};
  });
  server.on<LeaveSwarm>([this](const LeaveSwarm& m, const rpc::Call&) -> Result<Noted> {
    Lock lock(mutex_);
    MC_TRY(const SetPtr set, find(m.name));
    set->sources.erase(m.source);
    return Noted{};
  });
  server.on<DropSet>([this](const DropSet& m, const rpc::Call&) -> Result<SetDescription> {
    SetPtr set;  // its files are closed outside the lock
    Lock lock(mutex_);
    MC_TRY(set, find(m.name));
    set->dropped = true;
    sets_.erase(m.name);
    log_info("p2p", "set %s is unpublished", set->manifest.name.c_str());
    return SetDescription{set->manifest, others(*set, {})};
  });
}

}  // namespace mc::p2p
