// Client's part in a change of the cluster's key.
#include <algorithm>

#include "rpc/client.h"
#include "rpc/client_impl.h"

namespace mc::rpc {

// Over the last connection. One whose key was refused keeps the call until it is sent again.
Result<> Client::send_over(size_t at, const std::string& envelope, const std::string& body) {
  Link& link = links_[at];
  // Each time through learn_fate(): what the monitor said is said once.
  const auto fate = [&] {
    learn_fate(at, link.connections.back()->number);
    return link.connections.back()->socket.known_fate();
  };
  for (;;) {
    const Socket::Fate before = fate();
    if (before == Socket::Fate::kRefused) return {};
    if (before == Socket::Fate::kEnded) {
      MC_TRY_(add_connection(at));
      link.close_unused();
    }
    auto sent = link.connections.back()->socket.send({envelope, body});
    const Socket::Fate after = fate();
    if (sent || (after != Socket::Fate::kRefused && after != Socket::Fate::kEnded)) return sent;
  }
}

void Client::learn_fate(size_t at, uint64_t number) {
  Connection* const connection = links_[at].find(number);
  if (connection == nullptr || !connection->socket.tells()) return;
  Link& link = links_[at];
  const bool tried = link.candidate.get() == connection;
  const Socket::Fate before = connection->socket.known_fate();
  switch (connection->socket.fate()) {
    case Socket::Fate::kOpen: return;
    case Socket::Fate::kProven:
      link.key = connection->socket.key();
      link.refusals = 0;
      if (!tried) return;
      link.connections.push_back(std::move(link.candidate));
      return link.close_unused();
    case Socket::Fate::kRefused:
      if (tried) return link.candidate.reset();
      if (link.retry != 0) return;
      link.retry = loop_.after(detail::pause_after(link.refusals++), [this, at] {
        links_[at].retry = 0;
        send_again(at);
      });
      return;
    case Socket::Fate::kEnded:  // the next call makes a new one
      if (tried) return link.candidate.reset();
      if (before == Socket::Fate::kEnded) return;
      // On a later turn: this one may be inside call(). What came before the end is read first.
      loop_.at(loop_.now(), [this, at, number, alive = std::weak_ptr(alive_)] {
        while (!alive.expired() && receive(at, number)) continue;
        if (!alive.expired()) fail_lost(at, number);
      });
  }
}

// The calls of connections whose key was refused have not left.
void Client::send_again(size_t at) {
  Link& link = links_[at];
  if (link.connections.empty()) return;
  const Socket& latest = link.connections.back()->socket;
  if (latest.known_fate() == Socket::Fate::kRefused) {
    auto made = make_connection(at, cluster_keys().other(latest.key()));
    if (!made) return;  // the calls run into their deadlines, and the next makes a new one
    link.connections.push_back(std::move(*made));
  }
  Connection& last = *link.connections.back();
  std::vector<uint64_t> waiting;  // in the order of calling
  for (const auto& [id, call] : pending_) {
    const Connection* const over =
        call.link == at && !call.shm ? link.find(call.connection) : nullptr;
    if (over != nullptr && over->socket.known_fate() == Socket::Fate::kRefused)
      waiting.push_back(id);
  }
  std::sort(waiting.begin(), waiting.end());
  for (const uint64_t id : waiting) {
    Pending& call = pending_.at(id);
    --link.find(call.connection)->in_flight;
    call.connection = last.number;
    ++last.in_flight;
    const std::string envelope =
        detail::envelope_of(call.type, id, call.deadline - loop_.clock().now(), call.trace_id);
    (void)last.socket.send({envelope, call.body});  // a full queue: it runs into its deadline
  }
  link.close_unused();
}

void Client::follow_keys() {
  const Time now = loop_.clock().now();
  reload_cluster_key(now);
  const ClusterKeys keys = cluster_keys();
  for (size_t at = 0; at < links_.size(); ++at) {
    Link& link = links_[at];
    if (link.shm && link.shm->key() != keys.first && link.in_flight == link.by_zeromq) {
      lose_shm(at);  // no call is in flight over it
      link.shm_tried = Time::min();
    }
    if (link.candidate != nullptr && (link.candidate->socket.key() != keys.first ||
                                      now >= link.candidate_tried + detail::kKeyPatience))
      link.candidate.reset();  // it says nothing: where its name has no address, say
    if (link.connections.empty() || link.candidate != nullptr || link.retry != 0) continue;
    const Socket& last = link.connections.back()->socket;
    const bool good = last.key() == keys.first && (last.tells() || keys.second == nullptr);
    if (good || now < link.candidate_tried + detail::kKeyRetry) continue;
    link.candidate_tried = now;
    auto made = make_connection(at, keys.first);
    if (!made) continue;
    link.candidate = std::move(*made);
    if (link.candidate->socket.tells()) continue;
    link.connections.push_back(std::move(link.candidate));  // the only key: no other will do
    link.close_unused();
  }
}

}  // namespace mc::rpc
