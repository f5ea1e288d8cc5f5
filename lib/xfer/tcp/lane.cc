#include "xfer/tcp/lane.h"

#include <algorithm>

namespace mc::xfer::tcp {

TcpTransport::Lane::Lane(PeerPtr peer, Sink& sink, const Clock& clock, uint32_t connections,
                         Duration peer_timeout, const std::vector<Nic>& nics)
    : peer_(std::move(peer)), sink_(sink), clock_(clock), peer_timeout_(peer_timeout), nics_(nics) {
  for (uint32_t i = 0; i < std::max(1u, connections); ++i) threads_.emplace_back([this] { run(); });
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

void TcpTransport::Lane::push(SlicePtr slice) {
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
SlicePtr TcpTransport::Lane::pop(bool wait, const Connection& c) {
  if (c.flights.size() >= kFlightsMax ||
      (c.flights.size() >= kFlightsMin && c.bytes >= kBytesInFlight))
    return nullptr;
  Lock lock(mutex_);
  while (wait && queue_.empty() && !draining_) changed_.wait(mutex_);
  if (queue_.empty() || (stopping_.load() && !wait)) return nullptr;
  const Slice& next = *queue_.front();
  if (!c.flights.empty() && c.flights.front().slice->op != next.op) return nullptr;
  if (!c.flights.empty() && next.op == Op::kWrite && !given_up_.empty()) return nullptr;
  SlicePtr slice = std::move(queue_.front());
  queue_.pop_front();
  return slice;
}

void TcpTransport::Lane::run() {
  Connection c;
  for (;;) {
    const bool idle = c.flights.empty();
    if (SlicePtr slice = pop(idle, c)) {
      auto early = over(*slice);
      if (early) early = still_open(*peer_);
      if (!early)
        sink_.finished(std::move(slice), std::move(early));
      else if (auto sent = start(c, std::move(slice)); !sent)
        drop(c, sent.error());
      continue;
    }
    if (idle) return;  // stopping, and nothing is queued
    if (auto received = receive(c); !received) drop(c, received.error());
  }
}

Result<> TcpTransport::Lane::start(Connection& c, SlicePtr slice) {
  // A kept connection that the peer closed meanwhile reads as ended: make a new one.
  if (c.flights.empty() && c.stream && c.stream.readable_now()) c.stream = {};
  Slice& s = *slice;
  c.bytes += s.piece.total();
  c.flights.push_back({std::move(slice), c.next_id++});
  const Stream::GiveUp give_up = watch(c);
  if (!c.stream) {
    MC_TRY_(open(c, give_up));
  }
  if (s.op == Op::kWrite && c.flights.size() == 1) {
    MC_TRY_(retire_others(c, give_up));
  }
  return send(c, c.flights.back());
}

Result<> TcpTransport::Lane::open(Connection& c, const Stream::GiveUp& give_up) {
  MC_TRY(const auto routes, routes_to(*peer_, nics_));
  Result<> outcome;
  for (const Route& route : routes) {
    outcome = connect(c, route, give_up);
    if (outcome) return {};
  }
  return outcome;
}

// Connects and proves to be entitled; errors say which advertised address failed, and what to set.
Result<> TcpTransport::Lane::connect(Connection& c, const Route& route,
                                     const Stream::GiveUp& give_up) {
  const std::string advertised =
      peer_->descriptor.node + " advertises the data address " + route.remote;
  auto connected =
      Stream::connect(route.remote, clock_, peer_timeout_, give_up, {route.bind, route.device});
  if (!connected)
    return fail(connected.error().code,
                "%s: %s (is it running, and is this an address of its that is reached from here? "
                "Its --data sets it)",
                advertised.c_str(), connected.error().what.c_str());
  Stream stream = std::move(*connected);
  MC_TRY_(stream.receive(c.nonce.data(), c.nonce.size(), give_up));
  HelloBody hello = prove(peer_->descriptor.secret.bytes, c.nonce);
  Header header = make_header(Kind::kHello, 0, &hello, sizeof hello);
  iovec parts[2] = {{&header, sizeof header}, {&hello, sizeof hello}};
  MC_TRY_(stream.send(parts, give_up));
  Result<> outcome;
  if (auto replied = receive_reply(stream, 0, give_up, &outcome); !replied) {
    if (replied.error().code != Code::kCorrupt) return replied;
    return fail(Code::kUnavailable, "%s: something else answers there: its --data sets it",
                advertised.c_str());
  }
  if (!outcome)
    return fail(outcome.error().code, "%s: who answers there: %s (another node, or restarted?)",
                advertised.c_str(), outcome.error().what.c_str());
  c.stream = std::move(stream);
  return {};
}

Result<> TcpTransport::Lane::retire_others(Connection& c, const Stream::GiveUp& give_up) {
  for (;;) {
    Nonce nonce;
    {
      Lock lock(mutex_);
      if (given_up_.empty()) return {};
      nonce = given_up_.back();
    }
    Header header = make_header(Kind::kRetire, 0, &nonce, sizeof nonce);
    iovec parts[2] = {{&header, sizeof header}, {&nonce, sizeof nonce}};
    MC_TRY_(c.stream.send(parts, give_up));
    Result<> outcome;
    MC_TRY_(receive_reply(c.stream, 0, give_up, &outcome));
    MC_TRY_(std::move(outcome));
    Lock lock(mutex_);
    std::erase(given_up_, nonce);
  }
}

Result<> TcpTransport::Lane::send(Connection& c, const Flight& flight) {
  const Slice& slice = *flight.slice;
  const Piece& p = slice.piece;
  Descriptor d{peer_->descriptor.generation.n,
               p.remote,
               p.bytes,
               p.rows,
               p.remote_stride,
               slice.guard.offset,
               slice.guard.expected};
  const Kind kind = slice.raise ? Kind::kRaise : slice.op == Op::kRead ? Kind::kRead : Kind::kWrite;
  Header header = make_header(kind, flight.id, &d, sizeof d);
  const Stream::GiveUp give_up = watch(c);
  iovec parts[2] = {{&header, sizeof header}, {&d, sizeof d}};
  MC_TRY_(c.stream.send(parts, give_up));
  if (kind != Kind::kWrite) return {};
  RowWalk rows(slice.local, p.bytes, p.rows, p.local_stride);
  for (auto part = rows.next(); !part.empty(); part = rows.next())
    MC_TRY_(c.stream.send(part, give_up));
  return {};
}

Result<> TcpTransport::Lane::receive_reply(Stream& stream, uint64_t id,
                                           const Stream::GiveUp& give_up, Result<>* outcome) {
  Header header;
  MC_TRY_(stream.receive(&header, sizeof header, give_up));
  MC_TRY_(check_header(header));
  if (header.kind != Kind::kReply || header.id != id || header.body_bytes > kTextMax)
    return fail(Code::kCorrupt, "%s answered what was not asked", peer_->descriptor.node.c_str());
  std::string text(header.body_bytes, '\0');
  MC_TRY_(stream.receive(text.data(), text.size(), give_up));
  *outcome = {};
  if (header.code != 0)
    *outcome =
        fail(code_from_wire(header.code), "%s: %s", peer_->descriptor.node.c_str(), text.c_str());
  return {};
}

Result<> TcpTransport::Lane::receive(Connection& c) {
  Flight& flight = c.flights.front();
  Slice& slice = *flight.slice;
  const Stream::GiveUp give_up = watch(c);
  Result<> outcome;
  MC_TRY_(receive_reply(c.stream, flight.id, give_up, &outcome));
  if (outcome && slice.op == Op::kRead) {
    RowWalk rows(slice.local, slice.piece.bytes, slice.piece.rows, slice.piece.local_stride);
    for (auto part = rows.next(); !part.empty(); part = rows.next())
      MC_TRY_(c.stream.receive(part, give_up));
    Trailer trailer;
    MC_TRY_(c.stream.receive(&trailer, sizeof trailer, give_up));
    if (trailer.code != 0)
      outcome = fail(code_from_wire(trailer.code), "%s: the bytes changed owner while being read",
                     peer_->descriptor.node.c_str());
  }
  SlicePtr done = std::move(flight.slice);
  c.bytes -= done->piece.total();
  c.flights.pop_front();
  sink_.finished(std::move(done), std::move(outcome));
  return {};
}

// The connection is of no more use. What is over ends so; the rest is sent again over another
// connection, unless it is the peer that failed and it is silent or has been tried often enough.
void TcpTransport::Lane::drop(Connection& c, const Error& why) {
  std::deque<Flight> flights;
  flights.swap(c.flights);
  c.bytes = 0;
  const bool opened = static_cast<bool>(c.stream);
  c.stream = {};
  std::vector<Result<>> own;
  for (const Flight& f : flights) own.push_back(over(*f.slice));
  const bool ours = std::any_of(own.begin(), own.end(), [](const auto& o) { return !o; });
  const bool silent = why.code == Code::kTimeout && !ours;
  const Error lost{Code::kUnavailable, peer_->descriptor.node + ": " + why.what};
  std::vector<std::pair<SlicePtr, Error>> ended;
  {
    Lock lock(mutex_);
    if (opened && flights.front().slice->op == Op::kWrite) given_up_.push_back(c.nonce);
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
