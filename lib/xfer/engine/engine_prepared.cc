// Prepared transfers: what admit() made of requests, kept with the peers that it is true for.
#include "xfer/prepared.h"

#include <algorithm>

#include "xfer/engine/engine_impl.h"

namespace mc::xfer {
namespace {

constexpr uint64_t kPreparedInlineBytes = 8 * kMiB;  // more is worth the copy threads

}  // namespace

struct PreparedTransfers::Impl {
  struct Plan {
    std::vector<std::pair<SegmentHandle, PeerPtr>> peers;
    uint64_t devices = 0;  // the registry's version where devices are known
    Engine::Impl::Admitted admitted;
  };
  using PlanPtr = std::shared_ptr<const Plan>;

  Impl(Engine::Impl& e, std::vector<Request> r) : engine(e), requests(std::move(r)) {
    for (const Request& one : requests) {
      bytes += one.bytes * one.rows;
      if (std::find(segments.begin(), segments.end(), one.segment) == segments.end())
        segments.push_back(one.segment);
    }
  }

  // What keeps the local memory that this engine allocated.
  void hold_local() {
    std::vector<std::span<const std::byte>> ranges;
    for (const Request& r : requests)
      ranges.emplace_back(r.local, span_of(r.bytes, r.rows, r.local_stride));
    local = engine.registry->mapped(ranges);
  }
  Result<> still_there() const {
    for (const BufferPtr& buffer : local)
      if (buffer->withdrawn.load(std::memory_order_acquire))
        return fail(Code::kInvalid, "local memory of prepared requests was freed");
    return {};
  }
  uint64_t device_version() const {
    return engine.registry->has_devices() ? engine.registry->version() : 0;
  }
  Result<std::vector<std::pair<SegmentHandle, PeerPtr>>> peers_now() const {
    std::vector<std::pair<SegmentHandle, PeerPtr>> peers;
    Lock lock(engine.mutex);
    for (const SegmentHandle segment : segments) {
      MC_TRY(PeerPtr peer, engine.peer_of(segment));
      peers.emplace_back(segment, std::move(peer));
    }
    return peers;
  }
  // The peers are looked at first: if one is replaced meanwhile, the next run sees it.
  Result<PlanPtr> current() {
    MC_TRY_(still_there());
    const uint64_t devices = device_version();
    MC_TRY(auto peers, peers_now());
    {
      Lock lock(mutex);
      if (plan != nullptr && plan->devices == devices && plan->peers == peers) return plan;
    }
    auto fresh = std::make_shared<Plan>();
    fresh->peers = std::move(peers);
    fresh->devices = devices;
    MC_TRY(fresh->admitted, engine.admit(requests));
    Lock lock(mutex);
    plan = std::move(fresh);
    return plan;
  }
  // Copies all of it on this thread. False: submit it; what was copied is copied again.
  bool copy_all(const Plan& now_planned, Time now, Time deadline) const {
    if (engine.host_copies == nullptr || bytes > kPreparedInlineBytes ||
        engine.registry->has_devices() || now >= deadline)
      return false;
    const Clock& clock = engine.clock;
    for (const Engine::Impl::Work& work : now_planned.admitted.work) {
      Request r = work.merged.request;
      r.deadline = deadline;
      if (!engine.host_copies->copy_again(r, clock.coarse_now(), bytes) &&
          !engine.try_inline_copy(r, work.peer, clock.now(), bytes))
        return false;
    }
    return true;
  }

  Engine::Impl& engine;
  const std::vector<Request> requests;
  uint64_t bytes = 0;
  std::vector<SegmentHandle> segments;
  std::vector<BufferPtr> local;
  Mutex mutex;
  PlanPtr plan MC_GUARDED_BY(mutex);
};

PreparedTransfers::PreparedTransfers(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PreparedTransfers::~PreparedTransfers() = default;

Result<std::unique_ptr<PreparedTransfers>> PreparedTransfers::make(Engine& engine,
                                                                   std::vector<Request> requests) {
  for (const Request& r : requests)
    if (r.deadline != Time::max())
      return fail(Code::kInvalid, "a prepared request has a deadline: give it to each run");
  auto impl = std::make_unique<Impl>(*engine.impl_, std::move(requests));
  MC_TRY_(impl->current());
  impl->hold_local();
  return std::unique_ptr<PreparedTransfers>(new PreparedTransfers(std::move(impl)));
}

Result<> PreparedTransfers::run(Duration budget) {
  const Time now = impl_->engine.clock.now(), deadline = Engine::Impl::after(budget, now);
  MC_TRY(const Impl::PlanPtr plan, impl_->current());
  if (impl_->copy_all(*plan, now, deadline)) return {};
  const auto batch = std::make_shared<Batch>();
  MC_TRY_(impl_->engine.submit(batch, impl_->requests, plan->admitted,
                               {.awaited_for = budget, .deadline = deadline}));
  return impl_->engine.outcome_of(*batch, budget);
}

Result<> PreparedTransfers::submit(BatchId id, Duration budget, std::function<void()> all_done) {
  const auto batch = impl_->engine.find(id);
  if (batch == nullptr)
    return fail(Code::kNotFound, "no batch %llu", static_cast<unsigned long long>(id));
  MC_TRY(const Impl::PlanPtr plan, impl_->current());
  return impl_->engine.submit(batch, impl_->requests, plan->admitted,
                              {.all_done = std::move(all_done),
                               .deadline = Engine::Impl::after(budget, impl_->engine.clock.now())});
}

size_t PreparedTransfers::count() const { return impl_->requests.size(); }

}  // namespace mc::xfer
