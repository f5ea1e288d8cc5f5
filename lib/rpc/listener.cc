#include "rpc/listener.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mc::rpc {

Result<std::unique_ptr<Listener>> Listener::open(io::Loop& loop, Socket::Kind kind,
                                                 const std::string& address, Metrics& metrics,
                                                 std::function<void()> ready) {
  auto listener = std::unique_ptr<Listener>(new Listener(loop, kind, metrics, std::move(ready)));
  MC_TRY(Socket socket, Socket::listen(kind, address));
  listener->address_ = socket.address();
  listener->add(std::move(socket));
  if (cluster_key_reloads())
    listener->timer_ = loop.every(kKeyLook, [l = listener.get()] { l->look(); });
  return listener;
}

Listener::Listener(io::Loop& loop, Socket::Kind kind, Metrics& metrics, std::function<void()> ready)
    : loop_(loop),
      kind_(kind),
      metrics_(metrics),
      ready_(std::move(ready)),
      by_second_(metrics.gauge("mc_rpc_second_key_connections",
                               "control connections that were made by the second cluster key")),
      keys_(cluster_keys()) {}

Listener::~Listener() {
  loop_.cancel(timer_);
  for (const auto& port : ports_) loop_.unwatch(port->watch);
  if (by_second_here_ > 0) tell_by_second(0);
}

void Listener::add(Socket socket) {
  auto port = std::unique_ptr<Port>(new Port{std::move(socket), next_++});
  port->socket.count_ended(metrics_);
  port->socket.on_doubt([this, loop = &loop_, alive = std::weak_ptr(alive_)] {
    return loop->post([this, alive] {
      if (!alive.expired()) ready_();
    });
  });
  port->watch = loop_.watch_socket(
      port->socket.handle(), [this] { ready_(); }, port->socket.uses());
  ports_.push_back(std::move(port));
}

std::vector<std::string> Listener::receive(uint64_t& from) {
  for (size_t i = 0; i < ports_.size(); ++i) {
    Port& port = *ports_[++turn_ % ports_.size()];
    auto frames = port.socket.receive();
    if (frames.empty()) continue;
    from = port.number;
    if (kind_ == Socket::Kind::kPub && !frames[0].empty()) port.subscribed(frames[0][0]);
    return frames;
  }
  return {};
}

void Listener::Port::subscribed(char what) {
  if (what == 1) ++subscriptions;
  if (what == 0 && subscriptions > 0) --subscriptions;
}

size_t Listener::subscriptions() const {
  size_t n = 0;
  for (const auto& port : ports_) n += port->subscriptions;
  return n;
}

Result<> Listener::send(uint64_t by, const std::vector<std::string_view>& frames) {
  for (const auto& port : ports_)
    if (port->number == by) return port->socket.send(frames);
  return fail(Code::kUnavailable, "the connection's key was revoked");
}

void Listener::send_to_all(const std::vector<std::string_view>& frames) {
  for (const auto& port : ports_) (void)port->socket.send(frames);
}

void Listener::look() {
  reload_cluster_key(loop_.clock().now());
  const ClusterKeys keys = cluster_keys();
  const bool changed = keys.first != keys_.first || keys.second != keys_.second;
  keys_ = keys;
  if (changed || ports_.size() != 1 || ports_.front()->socket.key() != keys.first) {
    if (auto served = serve_first(); served)
      told_.clear();
    else if (std::exchange(told_, served.error().what) != served.error().what)
      log_error("rpc", "the first cluster key is not served at %s yet: %s", address_.c_str(),
                served.error().what.c_str());
    close_revoked();
  }
  if (changed || keys.second != nullptr) count_by_second();
}

void Listener::count_by_second() {
  size_t now = others_ ? others_(keys_) : 0;
  for (const auto& port : ports_)
    if (port->socket.key() != keys_.first) now += port->socket.connections();
  tell_by_second(now);
}

void Listener::tell_by_second(size_t now) {
  by_second_.add(static_cast<double>(now) -
                 static_cast<double>(std::exchange(by_second_here_, now)));
}

// New connections go to the socket of the first key. Said at each look while there are two sockets:
// the kernel's order changes when libzmq has closed one, which is later than here.
Result<> Listener::serve_first() {
  const auto by_first = [&] {
    return std::find_if(ports_.begin(), ports_.end(),
                        [&](const auto& port) { return port->socket.key() == keys_.first; });
  };
  if (by_first() == ports_.end()) {
    MC_TRY(Socket socket, ports_.empty()
                              ? Socket::listen(kind_, address_)
                              : Socket::listen_beside(ports_.front()->socket, keys_.first));
    add(std::move(socket));
  }
  if (ports_.size() == 1) return {};
  const auto at = static_cast<size_t>(by_first() - ports_.begin());
  return ports_[at]->socket.take_connections(at);
}

// The last takes the place of one that is closed, as in the kernel. Where no socket could be opened
// beside that of a revoked key, none is left, and the next look listens anew.
void Listener::close_revoked() {
  for (size_t i = ports_.size(); i-- > 0;) {
    if (keys_.has(ports_[i]->socket.key())) continue;
    loop_.unwatch(ports_[i]->watch);
    std::swap(ports_[i], ports_.back());
    ports_.pop_back();
  }
}

}  // namespace mc::rpc
