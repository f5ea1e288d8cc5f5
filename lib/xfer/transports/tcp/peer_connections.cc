#include "xfer/transports/tcp/peer_connections.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/log.h"
#include "io/thread.h"

namespace mc::xfer::tcp {
namespace {

constexpr size_t kSparesMax = 8;
constexpr uint64_t kGroupBytes = 1u << 20;  // sent together, of small ones
constexpr Duration kFresh = std::chrono::milliseconds(1);

bool is_write(const AttemptPtr& attempt) { return attempt->slice->op == Op::kWrite; }

RailQueue::Config queue_config(const TcpTransport::Config& config, const Peer& peer) {
  RailQueue::Config out;
  out.spray = config.spray;
  out.peer_timeout = config.peer_timeout;
  if (config.nic_inflight != nullptr) out.qos = config.nic_inflight->qos();
  if (!peer.same_net)
    out.nic_inflight = config.nic_inflight;  // on loopback there is no link to share
  return out;
}

}  // namespace

TcpTransport::PeerConnections::PeerConnections(PeerPtr peer, std::vector<AddressPair> routes,
                                               Sink& sink, const Clock& clock, const Config& config,
                                               EndpointPool& pool)
    : peer_(std::move(peer)),
      routes_(std::move(routes)),
      clock_(clock),
      config_(config),
      pool_(pool),
      queue_(sink, clock, queue_config(config, *peer_), peer_) {
  for (const AddressPair& route : routes_)
    queue_.add_rail(route.info, [this](const AttemptPtr& a) { cancel_attempt(a); });
}

Result<> TcpTransport::PeerConnections::add_connections(bool mapped) {
  Lock lock(mutex_);
  if (draining_) return {};
  const uint32_t each = mapped ? std::max(1u, config_.connections) : 1;
  const auto add = [&](RailIndex rail, bool reserved) MC_REQUIRES(mutex_) -> Result<> {
    auto made =
        std::make_unique<Connection>(rail, peer_, routes_[rail], clock_, config_.peer_timeout);
    made->reserved = reserved;
    connections_.reserve(connections_.size() + 1);
    threads_.reserve(threads_.size() + 1);
    MC_TRY(auto thread, io::start_thread([this, c = made.get()] { run(*c); }));
    connections_.push_back(std::move(made));
    threads_.push_back(std::move(thread));
    return {};
  };
  size_t spares = 0;
  for (RailIndex r = 0; r < routes_.size(); ++r) {
    if (routes_[r].info.mapped != mapped) continue;
    if (!mapped && spares++ == kSparesMax) break;
    MC_TRY_(add(r, each > 1));
    for (uint32_t i = 1; i < each; ++i)
      if (auto added = add(r, false); !added) {
        log_warn("xfer", "%u of %u connections to %s: %s", i, each, peer_->descriptor.node.c_str(),
                 added.error().what.c_str());
        break;
      }
  }
  return {};
}

TcpTransport::PeerConnections::~PeerConnections() {
  const bool replaced = peer_->state.load() == PeerState::kReplaced;
  std::vector<std::thread> threads;
  {
    Lock lock(mutex_);
    draining_ = true;
    stopping_.store(!replaced);
    threads.swap(threads_);
  }
  returned_.notify_all();
  auto open = still_open(*peer_);
  if (open) open = fail(Code::kUnavailable, "shutting down");
  queue_.close(open.error(), !replaced);
  for (auto& t : threads) t.join();
  Lock lock(mutex_);
  for (auto& c : connections_) pool_.remove(c->endpoint);
}

// ---- callers that carry their slice themselves

// `connects`: one that is not connected will do.
TcpTransport::PeerConnections::Connection* TcpTransport::PeerConnections::borrow(bool connects) {
  Lock lock(mutex_);
  if (draining_) return nullptr;
  Connection* best = nullptr;
  for (auto& c : connections_) {
    if (c->busy || c->borrowed || c->left.load() || !routes_[c->rail].info.mapped) continue;
    if (!connects && c->endpoint == 0) continue;
    if (best == nullptr || (routes_.size() > 1 && queue_.predicted_seconds(c->rail, kShort) <
                                                      queue_.predicted_seconds(best->rail, kShort)))
      best = c.get();
  }
  if (best != nullptr) best->borrowed = true;
  return best;
}

bool TcpTransport::PeerConnections::Connection::still_open(EndpointPool& pool, Time now) {
  if (!pool.claim(endpoint)) endpoint = 0;  // evicted: it is closed
  return endpoint != 0 && link.is_open() && !(now - used > kFresh && link.ended());
}

// With flights that are left, its thread goes on.
void TcpTransport::PeerConnections::give_back(Connection& c) {
  const bool left = !c.flights.empty();
  if (!left) c.rest(pool_);
  {
    Lock lock(mutex_);
    c.left.store(left);
    c.borrowed = false;
  }
  returned_.notify_all();
  if (left) queue_.wake();
}

void TcpTransport::PeerConnections::push(std::span<SlicePtr> slices, Time awaited) {
  if (awaited == Time{}) return queue_.push(slices);
  Connection* c = borrow(awaited == Time::max());
  if (c != nullptr && awaited != Time::max() && !c->still_open(pool_, clock_.now())) {
    give_back(*c);  // to connect may take long: that is for its thread
    c = nullptr;
  }
  for (SlicePtr& slice : slices) {
    if (c == nullptr || slice->piece.total() > kShort) {
      queue_.push(std::move(slice));
      continue;
    }
    AttemptPtr attempt = queue_.push_or_carry(std::move(slice), c->rail);
    if (attempt == nullptr) continue;  // it is queued
    c->group.push_back(std::move(attempt));
    if (c->group.size() < Link::kTogether || carry_borrowed(*c, awaited)) continue;
    give_back(*c);
    c = nullptr;
  }
  if (c == nullptr) return;
  (void)carry_borrowed(*c, awaited);
  give_back(*c);
}

// Sends the group and receives the answers, so that the rail's window is empty for the next group.
// False: they were late, and are in flight.
bool TcpTransport::PeerConnections::carry_borrowed(Connection& c, Time awaited) {
  if (!c.group.empty()) carry(c, true);
  while (!c.flights.empty()) {
    c.link.eager(true);
    if (awaited != Time::max() && !c.link.answers_by(c.flights.front().asked(), awaited))
      return false;
    receive(c);
  }
  return true;
}

// ---- the connections' threads

// Blocks an idle connection. It may be borrowed meanwhile, and is skipped until it is back: idle,
// or with flights that were left to it.
AttemptPtr TcpTransport::PeerConnections::wait_for_work(Connection& c) {
  c.rest(pool_);
  {
    Lock lock(mutex_);
    c.busy = false;
  }
  AttemptPtr attempt =
      queue_.pull(c.rail, {true, true, c.reserved, kAllClasses, &c.left}, RailQueue::Wait::kYes);
  Lock lock(mutex_);
  while (c.borrowed) returned_.wait(mutex_);
  c.left.store(false);
  c.busy = true;
  return attempt;
}

bool TcpTransport::PeerConnections::has_room(Connection& c) const {
  if (2 * c.flights.size() <= c.full && 2 * c.bytes <= c.full_bytes) c.full = 0;
  const bool limit = c.flights.size() >= kFlightsMax ||
                     (c.flights.size() >= kFlightsMin && c.bytes >= kBytesInFlight);
  if (limit) c.fill_anew();
  return !limit && !stopping_.load();
}

void TcpTransport::PeerConnections::Connection::fill_anew() {
  if (flights.size() <= 2 * kFlightsMin || full != 0) return;
  full = flights.size();
  full_bytes = bytes;
}

// Adds to what is in flight. Reads and writes are not in flight together: each end could then wait
// for the other to read. Nor are more writes, while a connection is to be retired first.
AttemptPtr TcpTransport::PeerConnections::more_work(Connection& c) {
  if (!has_room(c)) return nullptr;
  const bool writes = is_write(c.flights.front().attempt);
  if (writes && !nothing_given_up()) return nullptr;
  const ClassMask only = c.full == 0 ? kAllClasses : mask_of(Priority::kHigh);
  return queue_.pull(c.rail, {!writes, writes, c.reserved, only}, RailQueue::Wait::kNo);
}

// Small ones that wait are sent together: a frame alone costs as much as 16 KiB. Returns: more of
// them would have been, if the rail took more now.
bool TcpTransport::PeerConnections::gather(Connection& c, AttemptPtr first) {
  const bool writes = is_write(first);
  uint64_t bytes = first->piece.total();
  const uint64_t under_way = c.bytes + bytes;
  c.group.push_back(std::move(first));
  const size_t flights = c.flights.size() + 1;
  if (c.full != 0 || (writes && !nothing_given_up()) || flights >= kFlightsMax ||
      bytes >= kGroupBytes || under_way >= kBytesInFlight)
    return false;
  const size_t most = std::min(Link::kTogether - 1, kFlightsMax - flights);
  const uint64_t most_bytes = std::min(kGroupBytes - bytes, kBytesInFlight - under_way);
  auto others = queue_.pull_some(c.rail, {!writes, writes, c.reserved}, most, most_bytes);
  bytes = 0;
  for (AttemptPtr& next : others) {
    bytes += next->piece.total();
    c.group.push_back(std::move(next));
  }
  return others.size() < most && bytes < most_bytes && queue_.wanting();
}

void TcpTransport::PeerConnections::run(Connection& c) {
  for (bool idle = true;; idle = c.flights.empty()) {
    AttemptPtr attempt = idle ? wait_for_work(c) : more_work(c);
    if (attempt == nullptr) {
      if (c.flights.empty()) return;  // stopping, and nothing is queued
      receive(c);
      continue;
    }
    while (idle && !c.flights.empty()) receive(c);  // they were left: the new one may not mix
    if (idle) c.full = 0;
    const bool cut = gather(c, std::move(attempt));
    carry(c);
    if (cut) c.fill_anew();
  }
}

// Sends the group, less what is over by now.
void TcpTransport::PeerConnections::carry(Connection& c, bool by_caller) {
  std::erase_if(c.group, [&](const AttemptPtr& attempt) {
    auto early = cancelled_or_expired(*attempt);
    if (early) early = still_open(*peer_);
    if (early) return false;
    queue_.complete(attempt, std::move(early));
    return true;
  });
  if (c.group.empty()) return;
  auto sent = start(c, by_caller);
  c.group.clear();
  if (!sent) drop(c, sent.error());
}

// A connection that is open, and the pool's to use.
Result<> TcpTransport::PeerConnections::ready(Connection& c, const Stream::GiveUp& give_up) {
  if (c.endpoint != 0 && !pool_.claim(c.endpoint)) c.endpoint = 0;  // evicted: it is closed
  // A kept connection that the peer closed meanwhile reads as ended: make a new one.
  if (c.link.is_open() && clock_.now() - c.used > kFresh && c.link.ended()) c.link.close();
  if (c.link.is_open()) return {};
  if (c.endpoint == 0) {
    MC_TRY(c.endpoint, pool_.add([&c] { c.link.close(); }, clock_, config_.peer_timeout));
  }
  Duration round_trip{};
  MC_TRY_(c.link.open(give_up, &round_trip));
  queue_.connected(c.rail, round_trip);
  return {};
}

// A caller has little time to wait for an answer, and takes each by itself.
Result<> TcpTransport::PeerConnections::start(Connection& c, bool by_caller) {
  {
    Lock lock(mutex_);
    for (const AttemptPtr& a : c.group) a->carrier = &c;
  }
  const bool first = c.flights.empty();
  std::array<Link::Asked, Link::kTogether> asked;
  for (size_t i = 0; i < c.group.size(); ++i) {
    c.bytes += c.group[i]->piece.total();
    c.flights.push_back({c.group[i], c.next_id++});
    asked[i] = c.flights.back().asked();
  }
  const Stream::GiveUp give_up = watch(c);
  if (first) {
    MC_TRY_(ready(c, give_up));
    if (is_write(c.group.front())) MC_TRY_(retire_given_up(c.link, give_up));
  }
  for (const AttemptPtr& a : c.group) {
    MC_TRY_(cancelled_or_expired(*a));  // cancelled before there was a socket to shut
    a->reached = true;
  }
  MC_TRY_(c.link.send(std::span(asked).first(c.group.size()), !by_caller, give_up));
  const size_t before = c.flights.size() - c.group.size();
  for (size_t i = 0; i < c.group.size(); ++i) c.flights[before + i].shares = asked[i].shares;
  return {};
}

// The next answer. Returns: how many of the first flights it was for; their outcomes are listed.
Result<size_t> TcpTransport::PeerConnections::receive_next(Connection& c) {
  const Flight& first = c.flights.front();
  const Stream::GiveUp give_up = watch(c);
  size_t n = 1;
  if (first.shares) {
    MC_TRY(n, c.link.answered_together(give_up));
  }
  const bool more = c.flights.size() > n;
  if (n == 1) {
    c.link.eager(c.bytes <= kShort);
    Link::Answer answer;
    MC_TRY_(c.link.receive(first.asked(), more, give_up, &answer));
    first.attempt->refused = !answer.outcome;
    first.attempt->digest = answer.digest;
    c.answered.push_back({first.attempt, std::move(answer.outcome)});
    return n;
  }
  std::array<Link::Asked, Link::kTogether> asked;
  if (n > std::min(c.flights.size(), asked.size()))
    return fail(Code::kCorrupt, "%s answered %zu reads at once", peer_->descriptor.node.c_str(), n);
  for (size_t i = 0; i < n; ++i) {
    asked[i] = c.flights[i].asked();
    if (!asked[i].shares)
      return fail(Code::kCorrupt, "%s answered another read", peer_->descriptor.node.c_str());
  }
  Result<> outcome;
  MC_TRY_(c.link.receive_many(std::span(asked).first(n), more, give_up, &outcome));
  for (size_t i = 0; i < n; ++i) {
    c.flights[i].attempt->refused = !outcome;
    c.answered.push_back({c.flights[i].attempt, outcome});
  }
  return n;
}

// The next answer, with those that came with it, or the end of the connection.
void TcpTransport::PeerConnections::receive(Connection& c) {
  std::optional<Error> broken;
  do {
    const auto n = receive_next(c);
    if (!n) {
      broken = n.error();
      break;
    }
    for (size_t i = 0; i < *n; ++i) {
      c.bytes -= c.flights.front().attempt->piece.total();
      c.flights.pop_front();
    }
  } while (!c.flights.empty() && c.link.has_answer(c.flights.front().asked()));
  if (c.flights.empty()) c.used = clock_.now();
  if (!c.answered.empty()) {
    {
      Lock lock(mutex_);
      for (const auto& each : c.answered) each.attempt->carrier = nullptr;
    }
    queue_.complete(c.answered);
    c.answered.clear();
  }
  if (broken) drop(c, *broken);
}

// Closes a broken connection. What was in flight is queued again, the writes behind a fence.
void TcpTransport::PeerConnections::drop(Connection& c, const Error& why) {
  const bool opened = c.link.is_open();
  std::deque<Flight> flights;
  flights.swap(c.flights);
  c.bytes = 0;
  c.full = 0;
  c.link.abort();
  pool_.remove(std::exchange(c.endpoint, 0));
  const auto ended = [&](const Flight& f) { return !cancelled_or_expired(*f.attempt); };
  bool ours = std::any_of(flights.begin(), flights.end(), ended);
  const bool wrote = opened && is_write(flights.front().attempt);
  {
    Lock lock(mutex_);
    for (const Flight& f : flights) f.attempt->carrier = nullptr;
    if (wrote) given_up_.push_back(c.link.nonce());
    ours = ours || c.shut;
    c.shut = false;
  }
  std::vector<Flight> fenced;
  for (const Flight& f : flights) {
    // Silent is not lost: the request is not repeated to a peer that does not answer.
    f.attempt->reached = f.attempt->reached && why.code != Code::kTimeout;
    if (wrote && cancelled_or_expired(*f.attempt->slice)) {
      fenced.push_back(f);
      continue;
    }
    if (ours) f.attempt->recalled.store(true);  // no fault of the rail
    queue_.complete(f.attempt, fail(why));
  }
  if (fenced.empty()) return;
  const bool done = fence(c.rail, fenced);
  for (const Flight& f : fenced) {
    if (ours) f.attempt->recalled.store(true);
    // Its time may be over by now: then it ends as that, whatever lands.
    f.attempt->unfenced = !done && cancelled_or_expired(*f.attempt->slice);
    queue_.complete(f.attempt,
                    fail(f.attempt->unfenced
                             ? Error{Code::kTimeout,
                                     why.what + "; " + "bytes of the write may still land there"}
                             : why));
  }
}

void TcpTransport::PeerConnections::cancel_attempt(const AttemptPtr& attempt) {
  Lock lock(mutex_);  // held meanwhile: the connection may not go on to other work first
  if (attempt->carrier == nullptr) return;
  auto& c = *static_cast<Connection*>(attempt->carrier);
  c.shut = true;
  c.link.shut_down();
}

Result<> TcpTransport::PeerConnections::cancelled_or_expired(const Slice& slice) const {
  if (stopping_.load()) return fail(Code::kUnavailable, "shutting down");
  if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
  if (slice.deadline != Time::max() && clock_.now() >= slice.deadline)
    return fail(expired_error(slice));
  if (peer_->state.load() == PeerState::kClosed) return still_open(*peer_);
  return {};
}

Result<> TcpTransport::PeerConnections::cancelled_or_expired(const Attempt& attempt) const {
  if (attempt.recalled.load()) return fail(Code::kUnavailable, "recalled");
  return cancelled_or_expired(*attempt.slice);
}

// Called a few times a second while a connection waits.
Stream::GiveUp TcpTransport::PeerConnections::watch(const Connection& c) {
  return [this, &c]() -> Result<> {
    for (const Flight& f : c.flights) MC_TRY_(cancelled_or_expired(*f.attempt));
    return {};
  };
}

void TcpTransport::PeerConnections::describe(uint64_t bytes, Path& path) const {
  queue_.describe(bytes, path);
}

// ---- the transport's timer

std::vector<RailIndex> TcpTransport::PeerConnections::tick() {
  auto to_ping = queue_.tick();
  bool all_good = true;
  const auto rails = queue_.view();
  for (const RailView& v : rails) all_good = all_good && (!v.info.mapped || v.errors == 0);
  {
    Lock lock(mutex_);
    if (all_good || spares_) return to_ping;
    spares_ = true;  // a rail of the map failed: those outside of it may be needed
  }
  if (auto added = add_connections(false); !added)
    log_warn("xfer", "rails outside the map to %s: %s", peer_->descriptor.node.c_str(),
             added.error().what.c_str());
  return to_ping;
}

void TcpTransport::PeerConnections::ping(RailIndex rail) {
  Link link(peer_, routes_[rail], clock_, kPingTime);
  Duration round_trip{};
  const auto give_up = [this]() -> Result<> {
    if (stopping_.load()) return fail(Code::kUnavailable, "shutting down");
    return {};
  };
  auto opened = link.open(give_up, &round_trip);
  if (opened)
    queue_.pinged(rail, round_trip);
  else
    queue_.pinged(rail, fail(opened.error()));
}

}  // namespace mc::xfer::tcp
