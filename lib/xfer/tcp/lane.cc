#include "xfer/tcp/lane.h"

#include <algorithm>

namespace mc::xfer::tcp {

TcpTransport::Lane::Lane(PeerPtr peer, Sink& sink, const Clock& clock, uint32_t connections,
                         Duration peer_timeout, const std::vector<Nic>& nics)
    : peer_(std::move(peer)), sink_(sink), clock_(clock), peer_timeout_(peer_timeout), nics_(nics) {
  for (uint32_t i = 0; i < std::max(1u, connections); ++i)
    connections_.push_back(std::make_unique<Connection>());
  for (auto& c : connections_) threads_.emplace_back([this, &c = *c] { run(c); });
}

TcpTransport::Lane::~Lane() {
  {
    Lock lock(mutex_);
    draining_ = true;
    stopping_.store(peer_->fate.load() != Peer::Fate::kReplaced);
  }
  changed_.notify_all();
  for (auto& t : threads_) t.join();
}

bool TcpTransport::Lane::run_here(SlicePtr& slice) {
  Connection* c = nullptr;
  {
    Lock lock(mutex_);
    if (draining_ || !queue_.empty()) return false;
    for (auto& each : connections_)
      if (!each->busy && !each->borrowed) c = each.get();
    if (c == nullptr) return false;
    c->borrowed = true;
  }
  carry(*c, std::move(slice));
  while (!c->flights.empty())
    if (auto received = receive(*c); !received) drop(*c, received.error());
  Lock lock(mutex_);
  c->borrowed = false;
  if (!queue_.empty() || draining_) changed_.notify_all();  // its own thread, too, may go on
  return true;
}

void TcpTransport::Lane::push(SlicePtr slice) {
  if (slice->awaited && slice->piece.total() <= kShort && run_here(slice)) return;
  {
    Lock lock(mutex_);
    queue_.push_back(std::move(slice));
  }
  changed_.notify_one();
}

Result<> TcpTransport::Lane::over(const Slice& slice) const {
  if (stopping_.load()) return fail(Code::kUnavailable, "shutting down");
  if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
  if (slice.deadline != Time::max() && clock_.now() >= slice.deadline)
    return fail(expired_error(slice));
  if (peer_->fate.load() == Peer::Fate::kClosed) return still_open(*peer_);
  return {};
}

void TcpTransport::Lane::sweep() {
  std::vector<std::pair<SlicePtr, Error>> ended;
  {
    Lock lock(mutex_);
    for (SlicePtr& slice : queue_)
      if (auto outcome = over(*slice); !outcome)
        ended.emplace_back(std::move(slice), outcome.error());
    std::erase(queue_, nullptr);
  }
  for (auto& [slice, error] : ended) sink_.finished(std::move(slice), fail(error));
}

// Asked a few times a second while a connection waits. Whatever is over ends the wait, also behind
// others: they are sent again.
Stream::GiveUp TcpTransport::Lane::watch(const Connection& c) {
  return [this, &c]() -> Result<> {
    sweep();
    for (const Flight& f : c.flights) MC_TRY_(over(*f.slice));
    return {};
  };
}

// The next slice this connection may start. Reads and writes are not in flight together: each end
// could then wait for the other to read. Nor is anything, while a connection is to be retired
// first.
SlicePtr TcpTransport::Lane::pop(bool wait, Connection& c) {
  if (!wait && (c.flights.size() >= kFlightsMax ||
                (c.flights.size() >= kFlightsMin && c.bytes >= kBytesInFlight)))
    return nullptr;
  Lock lock(mutex_);
  if (wait) c.busy = false;
  while (wait && (c.borrowed || (queue_.empty() && !draining_))) changed_.wait(mutex_);
  if (queue_.empty() || (stopping_.load() && !wait)) return nullptr;
  const Slice& next = *queue_.front();
  if (!c.flights.empty() && c.flights.front().slice->op != next.op) return nullptr;
  if (!c.flights.empty() && next.op == Op::kWrite && !given_up_.empty()) return nullptr;
  SlicePtr slice = std::move(queue_.front());
  queue_.pop_front();
  c.busy = true;
  return slice;
}

void TcpTransport::Lane::carry(Connection& c, SlicePtr slice) {
  auto early = over(*slice);
  if (early) early = still_open(*peer_);
  if (!early)
    sink_.finished(std::move(slice), std::move(early));
  else if (auto sent = start(c, std::move(slice)); !sent)
    drop(c, sent.error());
}

void TcpTransport::Lane::run(Connection& c) {
  // While idle, the connection may be borrowed: not to be looked at.
  for (bool idle = true;; idle = c.flights.empty()) {
    if (SlicePtr slice = pop(idle, c)) {
      carry(c, std::move(slice));
      continue;
    }
    if (idle) return;  // stopping, and nothing is queued
    if (auto received = receive(c); !received) drop(c, received.error());
  }
}

Result<> TcpTransport::Lane::start(Connection& c, SlicePtr slice) {
  Slice& s = *slice;
  c.bytes += s.piece.total();
  c.flights.push_back({std::move(slice), c.next_id++});
  const Stream::GiveUp give_up = watch(c);
  // A kept connection that the peer closed meanwhile reads as ended: make a new one.
  if (c.flights.size() == 1 && c.link && clock_.now() - c.used > kFresh && c.link->ended())
    c.link.reset();
  if (c.link == nullptr) {
    MC_TRY_(open(c, give_up));
  }
  if (s.op == Op::kWrite && c.flights.size() == 1) {
    MC_TRY_(retire_others(c, give_up));
  }
  return c.link->send(s, c.flights.back().id, give_up);
}

Result<> TcpTransport::Lane::open(Connection& c, const Stream::GiveUp& give_up) {
  MC_TRY(auto routes, routes_to(*peer_, nics_));
  Result<> outcome;
  for (Route& route : routes) {
    auto link = std::make_unique<Link>(peer_, std::move(route), clock_, peer_timeout_);
    outcome = link->open(give_up);
    if (!outcome) continue;
    c.link = std::move(link);
    return {};
  }
  return outcome;
}

Result<> TcpTransport::Lane::retire_others(Connection& c, const Stream::GiveUp& give_up) {
  for (;;) {
    Nonce nonce;
    {
      Lock lock(mutex_);
      if (given_up_.empty()) return {};
      nonce = given_up_.back();
    }
    MC_TRY_(c.link->retire(nonce, give_up));
    Lock lock(mutex_);
    std::erase(given_up_, nonce);
  }
}

Result<> TcpTransport::Lane::receive(Connection& c) {
  Flight& flight = c.flights.front();
  c.link->eager(c.bytes <= kShort);
  Result<> outcome;
  MC_TRY_(c.link->receive(*flight.slice, flight.id, watch(c), &outcome));
  SlicePtr done = std::move(flight.slice);
  c.bytes -= done->piece.total();
  c.flights.pop_front();
  if (c.flights.empty()) c.used = clock_.now();
  sink_.finished(std::move(done), std::move(outcome));
  return {};
}

// The connection is of no more use. What is over ends so; the rest is sent again over another
// connection, unless it is the peer that failed and it is silent or has been tried often enough.
void TcpTransport::Lane::drop(Connection& c, const Error& why) {
  std::deque<Flight> flights;
  flights.swap(c.flights);
  c.bytes = 0;
  const std::unique_ptr<Link> link = std::move(c.link);
  const bool opened = link != nullptr;
  if (opened) link->close();
  std::vector<Result<>> own;
  for (const Flight& f : flights) own.push_back(over(*f.slice));
  const bool ours = std::any_of(own.begin(), own.end(), [](const auto& o) { return !o; });
  const bool silent = why.code == Code::kTimeout && !ours;
  const Error lost{Code::kUnavailable, peer_->descriptor.node + ": " + why.what};
  std::vector<std::pair<SlicePtr, Error>> ended;
  {
    Lock lock(mutex_);
    if (opened && flights.front().slice->op == Op::kWrite) given_up_.push_back(link->nonce());
    if (given_up_.size() > kGivenUpMax) given_up_.pop_front();
    for (size_t i = flights.size(); i-- > 0;) {
      SlicePtr& slice = flights[i].slice;
      if (!own[i]) {
        ended.emplace_back(std::move(slice), own[i].error());
      } else if (!ours && (!opened || silent || slice->resends >= kResendsMax)) {
        ended.emplace_back(std::move(slice), silent ? lost : why);
      } else {
        if (!ours) ++slice->resends;
        queue_.push_front(std::move(slice));
      }
    }
  }
  changed_.notify_all();
  for (auto& [slice, error] : ended) sink_.finished(std::move(slice), fail(error));
}

// ---- the transport: a lane per peer

TcpTransport::TcpTransport(Sink& sink, const Clock& clock, Config config)
    : sink_(sink), clock_(clock), config_(std::move(config)) {}

bool TcpTransport::reaches(const Peer& peer, uint64_t, Op) const {
  return !peer.same_process && !peer.descriptor.tcp.empty();
}

Result<std::shared_ptr<TcpTransport::Lane>> TcpTransport::lane(const PeerPtr& peer) {
  Lock lock(mutex_);
  if (stopping_) return fail(Code::kUnavailable, "shutting down");
  MC_TRY_(still_open(*peer));  // else forget() was here already, and nobody would drop this lane
  auto& known = lanes_[peer.get()];
  if (known == nullptr)
    known = std::make_shared<Lane>(peer, sink_, clock_, config_.connections, config_.peer_timeout,
                                   config_.nics);
  return known;
}

void TcpTransport::submit(SlicePtr slice) {
  if (auto to = lane(slice->peer))
    (*to)->push(std::move(slice));
  else
    sink_.finished(std::move(slice), fail(to.error()));
}

void TcpTransport::forget(const PeerPtr& peer) {
  std::shared_ptr<Lane> gone;  // its threads are joined here, outside the lock
  Lock lock(mutex_);
  auto it = lanes_.find(peer.get());
  if (it == lanes_.end()) return;
  gone = std::move(it->second);
  lanes_.erase(it);
}

void TcpTransport::stop() {
  std::map<const Peer*, std::shared_ptr<Lane>> gone;
  {
    Lock lock(mutex_);
    stopping_ = true;
    gone.swap(lanes_);
  }
}

}  // namespace mc::xfer::tcp
