#include "xfer/rails/endpoint_pool.h"

#include <optional>

namespace mc::xfer {

Result<EndpointPool::Id> EndpointPool::add(std::function<void()> close, const Clock& clock,
                                           Duration budget) {
  const Time deadline = clock.now() + budget;
  for (;;) {
    std::optional<Id> victim;
    std::function<void()> end;
    {
      Lock lock(mutex_);
      if (endpoints_.size() < most_) {
        const Id id = next_++;
        endpoints_[id].close = std::move(close);
        order_.insert(id);
        return id;
      }
      victim = order_.evict(
          [&](Id id) MC_TSA(no_thread_safety_analysis) { return !endpoints_.at(id).busy; });
      if (victim) {
        Endpoint& e = endpoints_.at(*victim);
        e.closing = true;
        end = std::move(e.close);
        ++evicted_;
      } else {
        const Duration left = deadline - clock.now();
        if (left.count() <= 0)
          return fail(Code::kUnavailable, "all %zu connections are in use: raise --endpoints",
                      most_);
        changed_.wait_for(mutex_, left);
      }
    }
    if (!victim) continue;
    end();
    Lock lock(mutex_);
    endpoints_.erase(*victim);
    changed_.notify_all();
  }
}

bool EndpointPool::claim(Id id) {
  Lock lock(mutex_);
  const auto it = endpoints_.find(id);
  if (it == endpoints_.end()) return false;
  if (it->second.closing) {  // it is being closed just now: that has to be over
    while (endpoints_.contains(id)) changed_.wait(mutex_);
    return false;
  }
  it->second.busy = true;
  if (eviction_ == Eviction::kSieve) order_.visit(id);  // else: as they came
  return true;
}

void EndpointPool::release(Id id, bool used_again) {
  Lock lock(mutex_);
  const auto it = endpoints_.find(id);
  if (it == endpoints_.end()) return;
  it->second.busy = false;
  if (used_again && eviction_ == Eviction::kSieve) order_.visit(id);
  if (endpoints_.size() >= most_) changed_.notify_all();
}

void EndpointPool::remove(Id id) {
  Lock lock(mutex_);
  const auto it = endpoints_.find(id);
  if (it == endpoints_.end()) return;
  if (it->second.closing) {
    while (endpoints_.contains(id)) changed_.wait(mutex_);
    return;
  }
  order_.erase(id);
  endpoints_.erase(it);
  changed_.notify_all();
}

size_t EndpointPool::size() const {
  Lock lock(mutex_);
  return endpoints_.size();
}

uint64_t EndpointPool::evicted() const {
  Lock lock(mutex_);
  return evicted_;
}

}  // namespace mc::xfer
