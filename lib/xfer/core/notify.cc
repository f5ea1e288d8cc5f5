#include "xfer/core/notify.h"

#include <sys/eventfd.h>

#include "base/log.h"
#include "io/thread.h"
#include "rpc/client.h"

namespace mc::xfer {

Result<> check(const Notification& n) {
  if (n.name.size() > kNotificationNameMax || n.payload.size() > kNotificationBytesMax)
    return fail(Code::kInvalid,
                "notification with a name of %zu and a payload of %zu bytes: %zu and %zu is the "
                "most",
                n.name.size(), n.payload.size(), kNotificationNameMax, kNotificationBytesMax);
  return {};
}

Result<> Inbox::put(Notification n) {
  MC_TRY_(check(n));
  std::shared_ptr<const Handler> handler;
  {
    Lock lock(mutex_);
    handler = handler_;
    const size_t bytes = n.name.size() + n.payload.size();
    if (handler == nullptr) {
      if (waiting_.size() >= kMessagesMax || bytes > kBytesMax - bytes_)
        return fail(Code::kBusy, "%zu notifications wait to be taken already", waiting_.size());
      bytes_ += bytes;
      waiting_.push_back(std::move(n));
      if (event_ && waiting_.size() == 1) (void)::eventfd_write(event_.get(), 1);
      return {};
    }
  }
  (*handler)(n);
  return {};
}

std::vector<Notification> Inbox::take(size_t max) {
  std::vector<Notification> out;
  Lock lock(mutex_);
  while (!waiting_.empty() && out.size() < max) {
    bytes_ -= waiting_.front().name.size() + waiting_.front().payload.size();
    out.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  eventfd_t count = 0;
  if (event_ && waiting_.empty() && !out.empty()) (void)::eventfd_read(event_.get(), &count);
  return out;
}

Result<int> Inbox::fd() {
  Lock lock(mutex_);
  if (!event_) {
    event_.reset(::eventfd(waiting_.empty() ? 0 : 1, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!event_) return fail_errno("new eventfd");
  }
  return event_.get();
}

void Inbox::hand_to(Handler handler) {
  const auto shared = std::make_shared<const Handler>(std::move(handler));
  for (;;) {
    const auto earlier = take(kMessagesMax);
    for (const Notification& n : earlier) (*shared)(n);
    Lock lock(mutex_);
    if (!waiting_.empty()) continue;
    handler_ = shared;
    return;
  }
}

Notifier::Notifier(const Clock& clock) : loop_(clock) {}
Notifier::~Notifier() { stop(); }

void Notifier::send(const std::string& control, Notify message, Duration budget, Done done) {
  uint64_t id = 0;
  Result<> started;
  {
    Lock lock(mutex_);
    started = start();
    if (started) {
      id = next_id_++;
      waiting_.emplace(id, std::move(done));
    }
  }
  if (!started) {
    done(started);
    return;
  }
  const bool posted = loop_.post([this, id, control, budget, message = std::move(message)] {
    call(id, control, message, budget);
  });
  if (!posted) finish(id, fail(Code::kBusy, "too many notifications are under way"));
}

Result<> Notifier::start() {
  if (stopping_) return fail(Code::kUnavailable, "shutting down");
  if (thread_.joinable()) return {};
  MC_TRY(thread_, io::start_thread([this] {
           if (auto ran = loop_.run(); !ran) log_error("xfer", "%s", ran.error().what.c_str());
           clients_.clear();
         }));
  return {};
}

void Notifier::call(uint64_t id, const std::string& control, const Notify& message,
                    Duration budget) {
  auto to = client(control);
  if (!to) {
    finish(id, fail(to.error()));
    return;
  }
  (*to)->call(message, budget, [this, id](const Result<Notify::Reply>& reply) {
    finish(id, reply ? Result<>{} : Result<>(fail(reply.error())));
  });
}

Result<rpc::Client*> Notifier::client(const std::string& control) {
  auto known = clients_.find(control);
  if (known != clients_.end()) return known->second.get();
  if (clients_.size() >= kClientsMax)
    std::erase_if(clients_, [](const auto& c) { return c.second->in_flight() == 0; });
  MC_TRY(auto made, rpc::Client::connect(loop_, control));
  return clients_.emplace(control, std::move(made)).first->second.get();
}

void Notifier::finish(uint64_t id, const Result<>& outcome) {
  Done done;
  {
    Lock lock(mutex_);
    const auto it = waiting_.find(id);
    if (it == waiting_.end()) return;
    done = std::move(it->second);
    waiting_.erase(it);
  }
  done(outcome);
}

void Notifier::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  loop_.stop();
  if (thread_.joinable()) thread_.join();
  for (;;) {
    uint64_t id = 0;
    {
      Lock lock(mutex_);
      if (waiting_.empty()) return;
      id = waiting_.begin()->first;
    }
    finish(id, fail(Code::kUnavailable, "shutting down"));
  }
}

}  // namespace mc::xfer
