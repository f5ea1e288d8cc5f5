#include "xfer/qos/nic_inflight.h"

#include <algorithm>

#include "base/log.h"

namespace mc::xfer {

struct NicInflight::Entry {
  struct Call {
    std::weak_ptr<void> owner;
    std::function<void()> call;
  };
  Entry(std::string n, const Config& config) : name(std::move(n)), share(config.nic) {
    if (!config.shared) {
      problem = "switched off";
      return;
    }
    auto opened = ShmUsageTable::open(config.directory, name);
    if (opened)
      table = std::move(*opened);
    else
      problem = opened.error().what;
  }
  // What others do now, and what we do for them to see.
  void meet(Time now) MC_REQUIRES(mutex) {
    if (table == nullptr || now - met < kUsageEvery) return;
    met = now;
    share.others(table->usage(now));
  }
  void tell(Time now) MC_REQUIRES(mutex) {
    if (table != nullptr) table->publish(share.demand(now));
  }

  const std::string name;
  std::string problem;
  std::unique_ptr<ShmUsageTable> table;
  Mutex mutex;
  FairShare share MC_GUARDED_BY(mutex);
  Time met MC_GUARDED_BY(mutex) = kLongAgo;
  bool refused MC_GUARDED_BY(mutex) = false;
  std::vector<Call> calls MC_GUARDED_BY(mutex);
};

NicInflight::NicInflight(Config config) : config_(std::move(config)) {}
NicInflight::~NicInflight() = default;

NicIndex NicInflight::nic(const std::string& name) {
  Lock lock(mutex_);
  const auto [at, fresh] = by_name_.try_emplace(name, static_cast<NicIndex>(entries_.size()));
  if (!fresh) return at->second;
  entries_.push_back(std::make_unique<Entry>(name, config_));
  const Entry& e = *entries_.back();
  if (config_.shared && e.table == nullptr)
    log_warn("xfer", "processes do not share NIC %s fairly: %s", name.c_str(), e.problem.c_str());
  return at->second;
}

NicInflight::Entry& NicInflight::entry(NicIndex nic) {
  Lock lock(mutex_);
  return *entries_.at(nic);
}

void NicInflight::wants(NicIndex nic, Priority p, Time now) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  e.share.wants(p, now);
  e.tell(now);
}

ClassMask NicInflight::room(NicIndex nic, Time now) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  e.meet(now);
  ClassMask out = 0;
  for (size_t c = 0; c < kPriorities; ++c) {
    const auto p = static_cast<Priority>(c);
    const uint64_t slice = e.share.slice_max(p, now);
    if (e.share.admits(p, slice == FairShare::kNoLimit ? 1 : slice, now)) out |= mask_of(p);
  }
  e.refused = e.refused || out != kAllClasses;
  return out;
}

bool NicInflight::guarded(NicIndex nic, Time now) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  e.meet(now);
  return e.share.guarded(now);
}

uint64_t NicInflight::slice_max(NicIndex nic, Priority p, Time now) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  e.meet(now);
  return e.share.slice_max(p, now);
}

uint64_t NicInflight::window(NicIndex nic, Priority p, Time now) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  e.meet(now);
  return e.share.window(p, now);
}

double NicInflight::share(NicIndex nic, Priority p, Time now) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  e.meet(now);
  return e.share.share(p, now);
}

void NicInflight::sent(NicIndex nic, Priority p, uint64_t bytes, Time now) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  e.share.sent(p, bytes, now);
  e.tell(now);
}

void NicInflight::done(NicIndex nic, Priority p, uint64_t bytes, uint64_t moved, Time now) {
  Entry& e = entry(nic);
  std::vector<std::pair<std::shared_ptr<void>, std::function<void()>>> calls;
  {
    Lock lock(e.mutex);
    e.meet(now);
    e.share.done(p, bytes, moved, now);
    e.tell(now);
    if (!e.refused) return;
    e.refused = false;
    std::erase_if(e.calls, [](const auto& c) { return c.owner.expired(); });
    for (const auto& c : e.calls)
      if (auto owner = c.owner.lock()) calls.emplace_back(std::move(owner), c.call);
  }
  for (const auto& [owner, call] : calls) call();
}

void NicInflight::carried(NicIndex nic, Priority p, uint64_t bytes, Time now) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  e.meet(now);
  e.share.sent(p, bytes, now);
  e.share.done(p, bytes, bytes, now);
  e.tell(now);
}

void NicInflight::round_trip(NicIndex nic, Duration least) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  e.share.round_trip(least);
}

void NicInflight::on_room(NicIndex nic, std::weak_ptr<void> owner, std::function<void()> call) {
  Entry& e = entry(nic);
  Lock lock(e.mutex);
  std::erase_if(e.calls, [](const auto& c) { return c.owner.expired(); });
  e.calls.push_back({std::move(owner), std::move(call)});
}

std::vector<NicInflight::View> NicInflight::view(Time now) {
  std::vector<Entry*> entries;
  {
    Lock lock(mutex_);
    for (const auto& e : entries_) entries.push_back(e.get());
  }
  std::vector<View> out;
  for (Entry* e : entries) {
    Lock lock(e->mutex);
    e->meet(now);
    View v{.nic = e->name, .problem = e->problem};
    for (size_t c = 0; c < kPriorities; ++c)
      v.inflight[c] = e->share.inflight(static_cast<Priority>(c));
    v.others = e->share.others();
    v.share = e->share.share(Priority::kMedium, now);
    v.capacity = e->share.capacity(now);
    v.guarded = e->share.guarded(now);
    out.push_back(std::move(v));
  }
  return out;
}

}  // namespace mc::xfer
