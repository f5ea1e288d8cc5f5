// Reading: from the disk into staging memory, lent to whoever asked.
#include <algorithm>

#include "base/log.h"
#include "store/file_storage_impl.h"

namespace mc::store {
namespace {
constexpr size_t kParkedMax = 1024;  // loads that wait for staging memory
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
  if (parked_.empty() && start_load(m, reply)) return arm();
  if (m.promote_only) return reply(Loaded{});  // a hint, and there is no room for it
  if (parked_.size() >= kParkedMax)
    return reply.error({Code::kBusy, "too many loads wait for staging memory: retry"});
  parked_.push_back({m, call, reply});
  arm();
}

// False when there is no staging memory now.
bool FileStorage::start_load(const LoadObjects& m, const rpc::Reply<Loaded>& reply) {
  auto loading = std::make_shared<Loading>();
  loading->message = m;
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
    reply.error(batch.error());
    return true;
  }
  loading->batch = std::move(*batch);
  raise(loading->batch.slots);
  for (size_t n = 0; n < loading->loads.size(); ++n)
    loading->loads[n].into = {bytes_of(loading->batch.slots[n].at), loading->batch.slots[n].bytes};
  if (m.promote_only)
    reply(Loaded{});
  else
    loading->reply.push_back(reply);
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
    const ssd::Slot& slot = loading->batch.slots[n];
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
    staging_.lend(loading->batch.id, loop_.now());
    loading->reply[0](answer);
  }
  if (promote_) promote(loading);
  staging_.drop(loading->batch.id);
  retry_loads();
  arm();
}

// Back into memory, as a put by this node of what it has just read.
void FileStorage::promote(const std::shared_ptr<Loading>& loading) {
  for (size_t n = 0; n < loading->loads.size(); ++n) {
    const ssd::Load& l = loading->loads[n];
    if (!l.outcome || promoting_ + l.outcome->bytes > staging_.capacity() / 2) continue;
    promoting_ += l.outcome->bytes;
    staging_.hold(loading->batch.id);
    promote_(l.key, {l.into.data(), l.outcome->bytes},
             [this, batch = loading->batch.id, bytes = l.outcome->bytes](bool taken) {
               if (taken) promoted_.add();
               promoting_ -= bytes;
               staging_.drop(batch);
               retry_loads();
             });
  }
}

void FileStorage::retry_loads() {
  while (!parked_.empty()) {
    Parked& p = parked_.front();
    if (p.call.deadline <= loop_.now()) {
      p.reply.error({Code::kBusy, "the staging memory was lent all the time: retry"});
    } else if (!start_load(p.message, p.reply)) {
      return;
    }
    parked_.pop_front();
  }
}

}  // namespace mc::store
