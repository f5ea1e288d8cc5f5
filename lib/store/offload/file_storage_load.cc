// Loads objects from the disk into staging memory and leases the slots to readers.
#include <algorithm>

#include "base/log.h"
#include "store/offload/file_storage_impl.h"

namespace mc::store {
namespace {
constexpr size_t kLoadsParkedMax = 1024;  // loads that wait for staging memory
}

void FileStorage::serve(rpc::Server& server) {
  server.on_later<LoadObjects>([this](const LoadObjects& m, const rpc::Call& call,
                                      const rpc::Reply<Loaded>& reply) { load(m, call, reply); });
  server.on<ReleaseSlots>([this](const ReleaseSlots& m, const rpc::Call&) -> Result<rpc::Empty> {
    raise(staging_.release(m.batch));
    retry_loads();
    arm();
    return rpc::Empty{};
  });
}

void FileStorage::load(const LoadObjects& m, const rpc::Call& call,
                       const rpc::Reply<Loaded>& reply) {
  if (m.names.size() > kLoadMax)
    return reply.error(
        {Code::kInvalid, strf("%zu objects in one load: %zu at most", m.names.size(), kLoadMax)});
  auto loading = std::make_shared<Loading>();
  loading->message = m;
  loading->reply.push_back(reply);
  if (parked_.empty() && start_load(loading)) return arm();
  if (m.promote_only) return reply(Loaded{});  // only a hint: drop it for lack of space
  if (parked_.size() >= kLoadsParkedMax)
    return reply.error({Code::kBusy, "too many loads wait for staging memory: retry"});
  parked_.push_back({m, call, reply});
  arm();
}

// Returns: false if there is no staging memory now.
bool FileStorage::start_load(const std::shared_ptr<Loading>& loading) {
  const LoadObjects& m = loading->message;
  loading->answer.items.resize(m.names.size());
  std::vector<uint64_t> bytes;
  for (size_t i = 0; i < m.names.size(); ++i) {
    const auto object = backend_->find(m.names[i]);
    if (!object) {
      loading->answer.items[i].outcome = Outcome::of(object.error());
      continue;
    }
    bytes.push_back(object->bytes);
    loading->loads.push_back({m.names[i], object->generation, {}});
    loading->which.push_back(i);
  }
  auto batch = staging_.take(bytes);
  if (!batch && batch.error().code == Code::kBusy) return false;
  if (!batch) {
    for (const auto& reply : loading->reply) reply.error(batch.error());
    if (loading->bring) tell_brought(m.names[0], fail(batch.error()));
    return true;
  }
  loading->batch = std::move(*batch);
  raise(loading->batch.slots);
  for (size_t n = 0; n < loading->loads.size(); ++n)
    loading->loads[n].into = {bytes_of(loading->batch.slots[n].at), loading->batch.slots[n].bytes};
  if (m.promote_only) {
    for (const auto& reply : loading->reply) reply(Loaded{});
    loading->reply.clear();
  }
  readers_[next_reader_++ % kReaders]->post([this, loading] {
    backend_->read(loading->loads);
    mail_->post([this, loading] { loaded(loading); });
  });
  return true;
}

void FileStorage::loaded(const std::shared_ptr<Loading>& loading) {
  std::vector<ssd::Stored> damaged;
  for (size_t n = 0; n < loading->loads.size(); ++n) {
    const ssd::Load& l = loading->loads[n];
    LoadedSlot& item = loading->answer.items[loading->which[n]];
    if (!l.outcome) {
      item.outcome = Outcome::of(l.outcome.error());
      if (l.outcome.error().code != Code::kCorrupt) continue;
      log_warn("ssd", "dropped: %s", l.outcome.error().what.c_str());
      ssd::Stored object;
      object.key = l.key;
      object.generation = l.generation;
      damaged.push_back(std::move(object));
      continue;
    }
    loads_.add();
    load_bytes_.add(l.outcome->bytes);
    const ssd::StagingSlot& slot = loading->batch.slots[n];
    item = {{},
            l.outcome->bytes,
            l.outcome->checksum,
            data_of(slot.at),
            guard_of(slot.at),
            slot.generation};
  }
  if (!damaged.empty()) forget(std::move(damaged), true);
  if (!loading->reply.empty()) {
    Loaded& answer = loading->answer;
    answer.batch = loading->batch.id;
    answer.ttl_ms = static_cast<uint32_t>(options_.lease / std::chrono::milliseconds(1));
    answer.generation = node_.me().generation;
    staging_.start_lease(loading->batch.id, loop_.now());
    loading->reply[0](answer);
  }
  if (loading->bring && !loading->answer.items[0].outcome.ok())
    tell_brought(loading->message.names[0],
                 fail(loading->answer.items[0].outcome.result().error()));
  if (promote_ && (loading->bring || loading->message.promote_only || promote_hits_))
    promote(loading);
  staging_.drop(loading->batch.id);
  retry_loads();
  arm();
}

// Promotes a loaded object: this node puts it.
void FileStorage::promote(const std::shared_ptr<Loading>& loading) {
  for (size_t n = 0; n < loading->loads.size(); ++n) {
    const ssd::Load& l = loading->loads[n];
    const bool crowded =
        promoting_ > 0 && l.outcome && promoting_ + l.outcome->bytes > staging_.capacity() / 2;
    if (!l.outcome || (crowded && !loading->bring)) continue;
    promoting_ += l.outcome->bytes;
    staging_.hold(loading->batch.id);
    promote_(*l.outcome, {l.into.data(), l.outcome->bytes},
             [this, loading, bytes = l.outcome->bytes](const Result<bool>& taken) {
               if (taken && *taken) promoted_.add();
               if (loading->bring)
                 tell_brought(loading->message.names[0], taken ? Result<>() : fail(taken.error()));
               promoting_ -= bytes;
               staging_.drop(loading->batch.id);
               retry_loads();
             });
  }
}

// ---- moves of a drain

void FileStorage::start_bring() {
  while (!bringing_.empty()) {
    auto loading = std::make_shared<Loading>();
    loading->bring = true;
    loading->message.names = {bringing_.front().name};
    loading->message.promote_only = true;
    if (!promote_)
      tell_brought(bringing_.front().name, fail(Code::kUnsupported, "it has no client"));
    else if (!start_load(loading))
      return;
    bringing_.pop_front();
  }
}

void FileStorage::tell_brought(const std::string& name, const Result<>& outcome) {
  if (!outcome)
    log_warn("ssd", "'%s' is not moved: %s", escape(name).c_str(), outcome.error().what.c_str());
  tell({static_cast<uint8_t>(outcome ? TierEvent::kBrought : TierEvent::kNotBrought),
        outcome ? uint8_t{0} : static_cast<uint8_t>(outcome.error().code),
        name,
        {}});
  report();
}

void FileStorage::retry_loads() {
  while (!parked_.empty()) {
    Parked& p = parked_.front();
    if (p.call.deadline <= loop_.now()) {
      p.reply.error({Code::kBusy, "all staging memory stayed leased: retry"});
    } else {
      auto loading = std::make_shared<Loading>();
      loading->message = p.message;
      loading->reply.push_back(p.reply);
      if (!start_load(loading)) return;
    }
    parked_.pop_front();
  }
  start_bring();
}

}  // namespace mc::store
