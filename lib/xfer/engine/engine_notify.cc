// Sends notifications behind transfers, receives those of peers, and answers descriptors.
#include <algorithm>

#include "base/json.h"
#include "rpc/server.h"
#include "topo/discover/discover.h"
#include "topo/formats/json.h"
#include "xfer/engine/engine_impl.h"

namespace mc::xfer {

// Returns: the segments of these requests, each once.
Result<std::vector<SegmentHandle>> Engine::Impl::notification_targets(
    const Notification& n, std::span<const Request> requests) {
  MC_TRY_(check(n));
  if (requests.empty())
    return fail(Code::kInvalid, "a notification without requests before it: use notify()");
  std::vector<SegmentHandle> out;
  Lock lock(mutex);
  for (const Request& r : requests) {
    if (std::find(out.begin(), out.end(), r.segment) != out.end()) continue;
    MC_TRY(const PeerPtr peer, peer_of(r.segment));
    if (!peer->same_process && segments[r.segment].control.empty())
      return fail(Code::kInvalid, "%s cannot be notified: open its segment by its control address",
                  peer->descriptor.node.c_str());
    out.push_back(r.segment);
  }
  return out;
}

void Engine::Impl::send_notification(const TaskPtr& send, const CompletionNotification& notice) {
  Notify message{options.node, 0, notice.notification.name, {notice.notification.payload}};
  std::string control;
  Result<> known;
  {
    Lock lock(mutex);
    if (auto peer = peer_of(send->segment); !peer)
      known = fail(peer.error());
    else
      message.instance = send->instance != 0 ? send->instance.load() : (*peer)->instance;
    if (known) control = segments[send->segment].control;
  }
  if (send->cancelled.load()) known = fail(Code::kUnavailable, "the notification was cancelled");
  const auto notified = [this, send,
                         bytes = message.payload.bytes.size()](const Result<>& outcome) {
    ended(send, 0, outcome ? bytes : 0, {}, outcome);
  };
  if (!known) return notified(known);
  if (message.instance == instance_of(secret)) return notified(receive(message));  // this process
  const Duration budget = std::min(notice.deadline - clock.now(), options.peer_timeout);
  notifier.send(control, std::move(message), budget, notified);
}

Result<> Engine::Impl::receive(const Notify& message) {
  if (message.instance != instance_of(secret))
    return fail(Code::kStale, "the process that has the data was restarted");
  return inbox.put({message.name, message.payload.bytes, message.from});
}

Result<> Engine::notify(SegmentHandle segment, const Notification& notification, Duration budget) {
  Request to;
  to.segment = segment;
  MC_TRY_(impl_->notification_targets(notification, {&to, 1}));
  const TaskPtr send = single_task(segment, notification.payload.size());
  send->slices_left = 1;
  CompletionNotification notice;
  notice.notification = notification;
  notice.deadline = Impl::after(budget, impl_->clock.now());
  impl_->send_notification(send, notice);
  return impl_->outcome_of(*send->batch, budget);
}

void Engine::on_notification(std::function<void(const Notification&)> handler) {
  impl_->inbox.hand_to(std::move(handler));
}
std::vector<Notification> Engine::take_notifications(size_t max) { return impl_->inbox.take(max); }
Result<int> Engine::notifications_fd() { return impl_->inbox.fd(); }

void serve(Engine& engine, rpc::Server& server) {
  server.on<DescribeSegment>(
      [&engine](const DescribeSegment&, const rpc::Call&) -> Result<SegmentDescriptor> {
        return engine.describe();
      });
  server.on<DescribeMachine>(
      [sysfs = engine.impl_->options.sysfs](const DescribeMachine&,
                                            const rpc::Call&) -> Result<MachineDescription> {
        MC_TRY(const topo::Machine machine,
               sysfs == "/sys" ? topo::discover_kernel() : topo::discover_sysfs(sysfs));
        return MachineDescription{.json = {dump_json(topo::machine_json(machine))}};
      });
  server.on<Notify>([impl = engine.impl_.get()](const Notify& message,
                                                const rpc::Call&) -> Result<Notify::Reply> {
    MC_TRY_(impl->receive(message));
    return Notify::Reply{};
  });
}

}  // namespace mc::xfer
