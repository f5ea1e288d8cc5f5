#include "xfer/transports/fault/fault_transport.h"

#include <algorithm>
#include <optional>

namespace mc::xfer::fault {
namespace {
constexpr Duration kLook = std::chrono::milliseconds(10);  // for cancelled slices
}

FaultTransport::FaultTransport(Sink& outer, Plan plan, uint64_t seed, const Clock& clock,
                               Duration silence)
    : outer_(outer), clock_(clock), silence_(silence), plan_(std::move(plan)) {
  plan_.start(clock_.now(), seed);
  thread_ = std::thread([this] { run(); });
}

void FaultTransport::wrap(std::unique_ptr<Transport> inner) { inner_ = std::move(inner); }

Error FaultTransport::why(const Slice& slice, const char* what) const {
  return {Code::kUnavailable,
          slice.peer->descriptor.node + ": " + inner_->name() + " " + what + " (a drill)"};
}

void FaultTransport::submit(SlicePtr slice) {
  const Time now = clock_.now();
  const Traffic traffic{inner_->name(), slice->peer->descriptor.node, slice->op,
                        slice->piece.total()};
  Held held;
  {
    Lock lock(mutex_);
    if (!stopping_) {
      const Verdict verdict = plan_.decide(traffic, now);
      const bool lost = verdict.action == FaultAction::kDrop;
      held = {std::move(slice), lost ? now + silence_ : verdict.release, verdict.action};
      if (held.until > now) {
        held.slice->awaited = false;  // released by our thread, which must not carry it
        held.slice->more_follow = false;
        held_.push_back(std::move(held));
        changed_.notify_all();
        return;
      }
    }
  }
  if (slice != nullptr)
    outer_.finished(std::move(slice), fail(Code::kUnavailable, "shutting down"));
  else
    release(std::move(held));
}

void FaultTransport::release(Held held) {
  switch (held.action) {
    case FaultAction::kDrop: {
      const Error error = why(*held.slice, "did not answer");
      outer_.finished(std::move(held.slice), fail(error));
      return;
    }
    case FaultAction::kFailSubmit: {
      const Error error = why(*held.slice, "refused");
      outer_.finished(std::move(held.slice), fail(error));
      return;
    }
    case FaultAction::kFailCompletion: {
      Lock lock(mutex_);
      doomed_.insert(held.slice.get());
      break;
    }
    case FaultAction::kStop: held.slice->stops = true; break;
    case FaultAction::kPass: break;
  }
  inner_->submit(std::move(held.slice));
}

void FaultTransport::finished(SlicePtr slice, Result<> outcome) {
  bool doomed = false;
  {
    Lock lock(mutex_);
    doomed = doomed_.erase(slice.get()) > 0;
  }
  slice->stops = false;
  if (doomed && outcome) outcome = fail(why(*slice, "lost the answer"));
  outer_.finished(std::move(slice), std::move(outcome));
}

void FaultTransport::run() {
  for (;;) {
    std::vector<Held> due;
    std::vector<std::pair<SlicePtr, Error>> over;
    {
      Lock lock(mutex_);
      while (held_.empty() && !stopping_) changed_.wait(mutex_);
      if (held_.empty()) return;
      const Time now = clock_.now();
      Time next = now + kLook;
      for (Held& h : held_) {
        const Slice& s = *h.slice;
        if (stopping_)
          over.emplace_back(std::move(h.slice), Error{Code::kUnavailable, "shutting down"});
        else if (s.cancelled->load(std::memory_order_acquire))
          over.emplace_back(std::move(h.slice), cancelled_error(s));
        else if (s.deadline != Time::max() && now >= s.deadline)
          over.emplace_back(std::move(h.slice), expired_error(s));
        else if (auto open = still_open(*s.peer); !open)
          over.emplace_back(std::move(h.slice), open.error());
        else if (now >= h.until)
          due.push_back(std::move(h));
        else
          next = std::min(next, h.until);
      }
      std::erase_if(held_, [](const Held& h) { return h.slice == nullptr; });
      if (due.empty() && over.empty()) changed_.wait_for(mutex_, next - now);
    }
    for (auto& [slice, error] : over) outer_.finished(std::move(slice), fail(error));
    for (Held& h : due) release(std::move(h));
  }
}

void FaultTransport::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (inner_ != nullptr) inner_->stop();
}

}  // namespace mc::xfer::fault
