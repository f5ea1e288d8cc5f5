#include "xfer/tcp/lane.h"

#include <algorithm>

namespace mc::xfer::tcp {

TcpTransport::Lane::Lane(PeerPtr peer, Sink& sink, const Clock& clock, uint32_t connections,
                         Duration peer_timeout)
    : peer_(std::move(peer)), sink_(sink), clock_(clock), peer_timeout_(peer_timeout) {
  for (uint32_t i = 0; i < std::max(1u, connections); ++i) threads_.emplace_back([this] { run(); });
}

TcpTransport::Lane::~Lane() {
  {
    Lock lock(mutex_);
    stopping_ = true;
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

bool TcpTransport::Lane::stopping() {
  Lock lock(mutex_);
  return stopping_;
}

Stream::GiveUp TcpTransport::Lane::watch(const Slice& slice) {
  return [this, &slice]() -> Result<> {
    if (stopping()) return fail(Code::kUnavailable, "shutting down");
    if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
    if (slice.deadline != Time::max() && clock_.now() >= slice.deadline)
      return fail(expired_error(slice));
    return {};
  };
}

// The next slice this connection may start. Reads and writes are not in flight together: each end
// could then wait for the other to read.
SlicePtr TcpTransport::Lane::pop(bool wait, const Connection& c) {
  Lock lock(mutex_);
  while (wait && queue_.empty() && !stopping_) changed_.wait(mutex_);
  if (queue_.empty() || (stopping_ && !wait)) return nullptr;
  if (!c.flights.empty() && c.flights.front().slice->op != queue_.front()->op) return nullptr;
  SlicePtr slice = std::move(queue_.front());
  queue_.pop_front();
  return slice;
}

void TcpTransport::Lane::run() {
  Connection c;
  for (;;) {
    const bool idle = c.flights.empty();
    SlicePtr slice = c.flights.size() < kFlightsMax ? pop(idle, c) : nullptr;
    if (slice != nullptr) {
      if (stopping()) {
        sink_.finished(std::move(slice), fail(Code::kUnavailable, "shutting down"));
        continue;
      }
      if (auto early = watch(*slice)(); !early) {
        sink_.finished(std::move(slice), std::move(early));
        continue;
      }
      // A kept connection that the peer closed meanwhile reads as ended: make a new one.
      if (c.flights.empty() && c.stream && c.stream.readable_now()) c.stream = {};
      Result<> sent = c.stream ? Result<>() : open(c.stream, watch(*slice));
      if (!sent) {
        c.stream = {};
        sink_.finished(std::move(slice), std::move(sent));
        continue;
      }
      sent = send(c, std::move(slice));
      if (!sent) drop(c, sent.error());
      continue;
    }
    if (idle) return;  // stopping, and nothing is queued
    if (auto received = receive(c); !received) drop(c, received.error());
  }
}

Result<> TcpTransport::Lane::open(Stream& stream, const Stream::GiveUp& give_up) {
  Result<> outcome =
      fail(Code::kUnavailable, "%s offers no data address", peer_->descriptor.node.c_str());
  for (const std::string& address : peer_->descriptor.tcp) {
    auto connected = Stream::connect(address, clock_, peer_timeout_, give_up);
    if (!connected) {
      outcome = fail(connected.error().code, "%s: %s", peer_->descriptor.node.c_str(),
                     connected.error().what.c_str());
      continue;
    }
    stream = std::move(*connected);
    std::array<uint8_t, kNonceBytes> nonce{};
    MC_TRY_(stream.receive(nonce.data(), nonce.size(), give_up));
    HelloBody hello = prove(peer_->descriptor.secret.bytes, nonce);
    Header header = make_header(Kind::kHello, 0, &hello, sizeof hello);
    iovec parts[2] = {{&header, sizeof header}, {&hello, sizeof hello}};
    MC_TRY_(stream.send(parts, give_up));
    MC_TRY_(receive_reply(stream, 0, give_up, &outcome));
    return outcome;
  }
  return outcome;
}

Result<> TcpTransport::Lane::send(Connection& c, SlicePtr slice) {
  const Piece& p = slice->piece;
  Descriptor d{peer_->descriptor.generation.n,
               p.remote,
               p.bytes,
               p.rows,
               p.remote_stride,
               slice->guard.offset,
               slice->guard.expected};
  const uint64_t id = c.next_id++;
  const Kind kind = slice->raise             ? Kind::kRaise
                    : slice->op == Op::kRead ? Kind::kRead
                                             : Kind::kWrite;
  Header header = make_header(kind, id, &d, sizeof d);
  const Stream::GiveUp give_up = watch(*slice);
  Slice& moved = *slice;
  c.flights.push_back({std::move(slice), id});
  iovec parts[2] = {{&header, sizeof header}, {&d, sizeof d}};
  MC_TRY_(c.stream.send(parts, give_up));
  if (kind != Kind::kWrite) return {};
  RowWalk rows(moved.local, moved.piece.bytes, moved.piece.rows, moved.piece.local_stride);
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
  const Stream::GiveUp give_up = watch(slice);
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
  c.flights.pop_front();
  sink_.finished(std::move(done), std::move(outcome));
  return {};
}

// The connection is of no more use: what was in flight on it failed for the one reason, except what
// was itself cancelled or too late.
void TcpTransport::Lane::drop(Connection& c, const Error& why) {
  c.stream = {};
  std::deque<Flight> flights;
  flights.swap(c.flights);
  bool first = true;
  for (Flight& f : flights) {
    Error error = why;
    if (auto own = watch(*f.slice)(); !own)
      error = own.error();
    else if (why.code == Code::kTimeout || !first)  // another slice's deadline is not this one's
      error = {Code::kUnavailable, "connection to " + peer_->descriptor.node + " was given up"};
    first = false;
    sink_.finished(std::move(f.slice), fail(error));
  }
}

// ---- the transport: a lane per peer

TcpTransport::TcpTransport(Sink& sink, const Clock& clock, uint32_t connections,
                           Duration peer_timeout)
    : sink_(sink), clock_(clock), connections_(connections), peer_timeout_(peer_timeout) {}
TcpTransport::~TcpTransport() = default;

bool TcpTransport::reaches(const Peer& peer, uint64_t) const {
  return !peer.descriptor.tcp.empty();
}

std::shared_ptr<TcpTransport::Lane> TcpTransport::lane(const PeerPtr& peer) {
  Lock lock(mutex_);
  auto& known = lanes_[peer.get()];
  if (known == nullptr)
    known = std::make_shared<Lane>(peer, sink_, clock_, connections_, peer_timeout_);
  return known;
}

void TcpTransport::submit(SlicePtr slice) {
  const auto to = lane(slice->peer);
  to->push(std::move(slice));
}

void TcpTransport::forget(const PeerPtr& peer) {
  std::shared_ptr<Lane> gone;  // its threads are joined here, outside the lock
  Lock lock(mutex_);
  auto it = lanes_.find(peer.get());
  if (it == lanes_.end()) return;
  gone = std::move(it->second);
  lanes_.erase(it);
}

}  // namespace mc::xfer::tcp
