#include "xfer/transports/rdma/peer_connections.h"

#include <algorithm>

namespace mc::xfer::rdma {
namespace {

constexpr size_t kBatch = 16;  // attempts a post
constexpr uint64_t kBatchBytes = 4u << 20;
constexpr int kRounds = 64;

RailQueue::Config queue_config(const RdmaConfig& config) {
  RailQueue::Config out;
  out.spray = config.spray;
  out.peer_timeout = config.peer_timeout;
  if (config.nic_inflight != nullptr) out.qos = config.nic_inflight->qos();
  out.nic_inflight = config.nic_inflight;
  out.resends_lost = true;
  return out;
}

}  // namespace

PeerConnections::PeerConnections(RdmaTransport& transport, PeerPtr peer,
                                 std::vector<NicPair> routes, Sink& sink)
    : transport_(transport),
      peer_(std::move(peer)),
      clock_(transport.clock()),
      peer_timeout_(transport.host().config().peer_timeout),
      queue_(sink, clock_, queue_config(transport.host().config()), peer_) {
  for (NicPair& route : routes) endpoints_.push_back(std::make_unique<Endpoint>(std::move(route)));
}

void PeerConnections::start() {
  NicInflight* const nic_inflight = transport_.host().config().nic_inflight;
  for (RailIndex r = 0; r < endpoints_.size(); ++r)
    queue_.add_rail(endpoints_[r]->route.info, [this](const AttemptPtr& a) { cancel_attempt(a); });
  for (RailIndex r = 0; r < endpoints_.size(); ++r) {
    if (!nic_of(r).up()) queue_.down(r);
    if (nic_inflight == nullptr) continue;
    // Room on the NIC that one peer frees serves another, at its next tick at the latest.
    nic_inflight->on_room(nic_inflight->nic(endpoints_[r]->route.info.local), weak_from_this(),
                          [this] { roomy_.store(true); });
  }
}

Nic& PeerConnections::nic_of(RailIndex rail) const {
  return *transport_.host().nics()[endpoints_[rail]->route.nic];
}

bool PeerConnections::busy() const {
  if (farewells_.load() > 0) return true;
  for (const auto& e : endpoints_) {
    Lock lock(e->mutex);
    if (e->state == State::kConnecting || e->replaced != nullptr) return true;
  }
  return false;
}

// What several slices need is done once for all of them: they are posted together.
void PeerConnections::push(SlicePtr slice) {
  const bool more = slice->more_follow && followed_.fetch_add(1) % kBatch != kBatch - 1;
  const std::shared_ptr<Task> awaited = slice->awaited ? slice->task : nullptr;
  if (awaited == nullptr && more) {
    queue_.push(std::move(slice));
    if (!held_.exchange(true)) transport_.held(shared_from_this());
    return;
  }
  const Attending here(*this);
  if (awaited == nullptr || !carry(slice)) queue_.push(std::move(slice));
  go();
  if (awaited != nullptr) transport_.await(*awaited, *this);
}

void PeerConnections::release() {
  held_.store(false);
  const Attending here(*this);
  go();
}

// Posts what the rails take, as long as what has completed makes room for more.
void PeerConnections::go() {
  for (int round = 0; round < kRounds; ++round) {
    const bool posted = queue_.wanting() && pump(false);
    if (!drain() && !posted) return;
  }
}

bool PeerConnections::pump(bool kick) {
  const auto rails = static_cast<RailIndex>(endpoints_.size());
  const RailIndex first = rails > 1 ? first_.load(std::memory_order_relaxed) : 0;
  bool any = false;
  for (RailIndex i = 0; i < rails && queue_.wanting(); ++i)
    any = pump_rail((first + i) % rails, kick) || any;
  return any;
}

// One thread at a time feeds a rail; another caller makes that one check once more.
bool PeerConnections::pump_rail(RailIndex rail, bool kick) {
  Endpoint& e = *endpoints_[rail];
  if (e.pumps.fetch_add(1) > 0) return false;
  bool any = false;
  for (uint32_t asked = 1; asked > 0;) {
    any = feed(rail) || any;
    asked = e.pumps.fetch_sub(asked) - asked;
  }
  if (!any) return false;
  first_.store(rail, std::memory_order_relaxed);
  if (kick) nic_of(rail).kick();
  return true;
}

std::vector<AttemptPtr> PeerConnections::take(RailIndex rail, size_t most) {
  return queue_.pull_some(rail, {true, barriers_.load() == 0, false}, most, kBatchBytes);
}

// The short way of a slice that its submitter waits for, where nothing waits before it. False: it
// is still the caller's.
bool PeerConnections::carry(SlicePtr& slice) {
  const RailIndex rail = first_.load(std::memory_order_relaxed);
  Endpoint& e = *endpoints_[rail];
  if (!nic_of(rail).up() || barriers_.load() > 0 || e.pumps.fetch_add(1) > 0) return false;
  bool ready = false;
  {
    Lock lock(e.mutex);
    ready = e.state == State::kReady && !e.connection->full();
  }
  AttemptPtr attempt;
  if (ready) attempt = queue_.push_or_carry(std::move(slice), rail);
  if (attempt != nullptr) launch(rail, {attempt});
  // Calls meanwhile asked for one more check: make it.
  for (uint32_t asked = 1; (asked = e.pumps.fetch_sub(asked) - asked) > 0;) feed(rail);
  return ready;
}

// True: something was posted.
bool PeerConnections::feed(RailIndex rail) {
  Endpoint& e = *endpoints_[rail];
  bool any = false;
  for (const bool replaced : {false, true}) {
    uint32_t broken = 0;
    Error why;
    {
      Lock lock(e.mutex);
      Connection* const c = replaced ? e.replaced.get() : e.connection.get();
      if (c != nullptr && c->unposted()) {  // it found no room on the device
        any = true;
        if (auto posted = c->post(); !posted) {
          broken = c->id();
          why = posted.error();
        }
      }
    }
    if (broken != 0) give_up(rail, broken, why, false);
  }
  while (queue_.wanting() && nic_of(rail).up()) {
    size_t most = 1;  // of a rail that is not connected: it shows that the rail is wanted
    {
      Lock lock(e.mutex);
      if (e.state == State::kConnecting || e.state == State::kClosing) return any;
      if (e.state == State::kReady) {
        const size_t flying = e.connection->flights().size();
        most =
            std::min(kBatch, Connection::kFlightsMax - std::min(flying, Connection::kFlightsMax));
      }
    }
    auto attempts = take(rail, most);
    if (attempts.empty()) break;
    launch(rail, std::move(attempts));
    any = true;
  }
  rest(rail);
  return any;
}

// In use, as far as the pool is concerned; `use`: once more, should it be already. False: it was
// evicted.
bool PeerConnections::claim(RailIndex rail, bool use) {
  Endpoint& e = *endpoints_[rail];
  EndpointPool::Id id = 0;
  {
    Lock lock(e.mutex);
    if (e.state != State::kReady) return false;
    if (e.claimed) {
      e.again = e.again || use;
      return true;
    }
    id = e.pooled;
  }
  if (!transport_.pool().claim(id)) return false;
  {
    Lock lock(e.mutex);
    if (e.state == State::kReady && e.pooled == id) {
      e.claimed = true;
      return true;
    }
  }
  transport_.pool().release(id);
  return false;
}

void PeerConnections::rest(RailIndex rail) {
  Endpoint& e = *endpoints_[rail];
  EndpointPool::Id id = 0;
  bool again = false;
  {
    Lock lock(e.mutex);
    if (e.state != State::kReady || !e.claimed || !e.connection->flights().empty()) return;
    e.claimed = false;
    again = std::exchange(e.again, false);
    id = e.pooled;
  }
  transport_.pool().release(id, again);
}

void PeerConnections::give_back(const AttemptPtr& attempt, const Error& why, bool recalled) {
  if (recalled) attempt->recalled.store(true);
  queue_.complete(attempt, fail(why));
}

Result<> PeerConnections::cancelled_or_expired(const Slice& slice) const {
  if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
  if (slice.deadline != Time::max() && clock_.now() >= slice.deadline)
    return fail(expired_error(slice));
  if (peer_->state.load() == PeerState::kClosed) return still_open(*peer_);
  return {};
}

Result<> PeerConnections::cancelled_or_expired(const Attempt& attempt) const {
  if (attempt.recalled.load()) return fail(Code::kUnavailable, "recalled");
  MC_TRY_(cancelled_or_expired(*attempt.slice));
  return still_open(*peer_);
}

void PeerConnections::launch(RailIndex rail, std::vector<AttemptPtr> attempts) {
  Endpoint& e = *endpoints_[rail];
  std::vector<std::pair<AttemptPtr, Error>> refused;
  std::erase_if(attempts, [&](const AttemptPtr& a) {
    if (auto ended = cancelled_or_expired(*a); !ended) {
      give_back(a, ended.error(), false);
      return true;
    }
    const bool raises = a->slice->advances_guard;  // the slice may be gone once that was asked for
    if (raises) raise(rail, a);
    return raises;
  });
  if (attempts.empty()) return;
  const bool ready = claim(rail);
  bool wanted = false, missed = false;
  uint32_t broken = 0, inline_max = 0;
  DevicePtr device;
  {
    Lock lock(e.mutex);
    if (ready && e.state == State::kReady) {
      device = e.connection->device();
      inline_max = e.connection->inline_max();
    }
  }
  std::vector<Result<FlightPtr>> flights;
  if (device != nullptr)
    for (const AttemptPtr& a : attempts)
      flights.push_back(prepare(
          rail, device, inline_max,
          {a->slice->op, a->local, a->piece, a->slice->guard, a->slice->device != nullptr}));
  Error why;
  {
    Lock lock(e.mutex);
    // Connected just now: nothing looks at `waiting`.
    missed = e.state == State::kReady && (!ready || e.connection->device() != device);
    if (e.state != State::kReady) {
      for (AttemptPtr& a : attempts) e.waiting.push_back(std::move(a));
      wanted = true;
    } else if (!missed) {
      Connection& c = *e.connection;
      for (size_t i = 0; i < attempts.size(); ++i) {
        const AttemptPtr& a = attempts[i];
        Result<> added = flights[i] ? find(e.route, c, a->slice->guard, **flights[i])
                                    : Result<>(fail(flights[i].error()));
        // cancel_attempt() may have been here before it was: it would not come again.
        if (a->recalled.load()) added = fail(Code::kUnavailable, "recalled");
        if (added) {
          (*flights[i])->attempt = a;
          added = c.add(*flights[i]);
        }
        if (!added) refused.emplace_back(a, added.error());
      }
      if (auto posted = c.post(); !posted) {
        broken = c.id();
        why = posted.error();
      }
    }
    flights.clear();  // none keeps its memory registered for longer than it flies
  }
  if (missed)  // they are taken again
    for (const AttemptPtr& a : attempts) give_back(a, {Code::kUnavailable, "not sent yet"}, true);
  if (wanted) want_connection(rail);
  if (broken != 0) give_up(rail, broken, why, false);
  for (const auto& [a, error] : refused) give_back(a, error, error.code == Code::kBusy);
}

Result<> PeerConnections::find(const NicPair& route, const Connection& connection,
                               const Guard& guard, Flight& f) const {
  const Piece& p = f.piece;
  MC_TRY(const BufferInfo* buffer,
         peer_->buffer(p.remote, span_of(p.bytes, p.rows, p.remote_stride)));
  if (f.op == Op::kWrite && !buffer->writable)
    return fail(Code::kDenied, "the memory of %s at %llu is read-only",
                peer_->descriptor.node.c_str(), static_cast<unsigned long long>(p.remote));
  f.remote = buffer->rdma_addr + (p.remote - buffer->offset);
  f.buffer = buffer->offset;
  if (connection.remote.has_keys) {
    const auto key = connection.remote.keys.find(buffer->offset);
    if (key == connection.remote.keys.end())
      return fail(Code::kStale, "%s does not offer the bytes at %llu any more",
                  peer_->descriptor.node.c_str(), static_cast<unsigned long long>(p.remote));
    f.rkey = key->second;
  } else if (route.remote < buffer->rkeys.size()) {
    f.rkey = buffer->rkeys[route.remote];
  }
  if (f.rkey == 0)
    return fail(Code::kUnavailable, "%s has not registered that memory on %s",
                peer_->descriptor.node.c_str(), route.info.remote.c_str());
  // The guard's word, which is read again, is in the same memory.
  f.settles = f.op == Op::kWrite && of_device(*buffer) && guard.offset == Guard::kNone;
  if (guard.offset == Guard::kNone) return {};
  if (guard.offset < buffer->offset || buffer->bytes < 8 ||
      guard.offset - buffer->offset > buffer->bytes - 8)
    return fail(Code::kInvalid, "the guard is not in the buffer it guards");
  f.guarded = true;
  f.expected = guard.expected;
  f.guard_at = buffer->rdma_addr + (guard.offset - buffer->offset);
  if (f.guard_at % 8 != 0) return fail(Code::kInvalid, "the guard is not 8-byte aligned in memory");
  return {};
}

Result<FlightPtr> PeerConnections::prepare(RailIndex rail, const DevicePtr& device,
                                           uint32_t inline_max, const Cargo& cargo) const {
  const Piece& p = cargo.piece;
  const NicPair& route = endpoints_[rail]->route;
  auto flight = std::make_shared<Flight>();
  flight->op = cargo.op;
  flight->local = cargo.local;
  flight->piece = p;
  flight->since = clock_.now();
  const bool small = p.rows == 1 && p.bytes <= inline_max && !cargo.device;
  if (flight->op == Op::kWrite && small) return flight;
  Regions& regions = transport_.host().regions();
  const uint64_t span = span_of(p.bytes, p.rows, p.local_stride);
  auto region = regions.known(route.nic, device, cargo.local, span, flight->op == Op::kRead);
  if (region && *region == nullptr) {
    const Attending::Pause pause;
    region = regions.local(device, cargo.local, span, flight->op == Op::kRead);
  }
  if (region) {
    flight->region = std::move(*region);
    return flight;
  }
  if (flight->op == Op::kWrite || cargo.device) return fail(region.error());
  // A file's pages, mostly: the bytes go there from memory that the NIC may write to.
  const Attending::Pause pause;
  MC_TRY(BouncePtr bounce, regions.bounce(route.nic, device, p.bytes * p.rows));
  flight->bounce = BouncePtr(bounce.get(), [bounce, &regions, nic = route.nic](Bounce*) {
    regions.give_back(nic, bounce);
  });
  flight->region = bounce->region;
  flight->into = cargo.local;
  flight->into_stride = p.local_stride;
  flight->local = bounce->data.get();
  flight->piece.local_stride = p.bytes;
  return flight;
}

// The owner raises it: two requesters cannot compare and swap what its own threads change.
void PeerConnections::raise(RailIndex, const AttemptPtr& attempt) {
  const auto done = [self = shared_from_this(), attempt](const Result<GuardRaised>& reply) {
    if (reply) return self->queue_.complete(attempt, {});
    const Code code = reply.error().code;
    attempt->refused = code != Code::kUnavailable && code != Code::kTimeout;
    self->queue_.complete(attempt, fail(reply.error()));
  };
  const bool posted = transport_.host().post([self = shared_from_this(), attempt, done] {
    auto client = self->transport_.host().client(self->peer_->descriptor.rdma_control);
    if (!client) return done(fail(client.error()));
    const Guard& guard = attempt->slice->guard;
    const Duration left = attempt->slice->deadline == Time::max()
                              ? self->peer_timeout_
                              : attempt->slice->deadline - self->clock_.now();
    (*client)->call(RaiseGuard{self->peer_->descriptor.secret, self->peer_->descriptor.generation.n,
                               guard.offset, guard.expected},
                    std::clamp(left, Duration(1), self->peer_timeout_), done);
  });
  if (!posted) done(fail(Code::kBusy, "too many jobs wait for the control thread of rdma"));
}

void PeerConnections::cancel_attempt(const AttemptPtr& attempt) {
  Endpoint& e = *endpoints_[attempt->rail];
  bool over = false;
  {
    Lock lock(e.mutex);
    over = std::erase(e.waiting, attempt) > 0;
    for (Connection* const c : {e.connection.get(), e.replaced.get()})
      if (c != nullptr && !over)
        over = c->drop(attempt, clock_.now()) == Connection::Dropped::kOver;
  }
  if (over) give_back(attempt, {Code::kUnavailable, "recalled"}, true);
}

// ---- completions

bool PeerConnections::drain() {
  bool any = false;
  each_nic([&](Nic& nic) { any = transport_.drain(nic, false) || any; });
  return any;
}

void PeerConnections::kick() {
  each_nic([](Nic& nic) { nic.kick(); });
}

void PeerConnections::completed(RailIndex rail, const ibv_wc& wc, Outbox& out) {
  Endpoint& e = *endpoints_[rail];
  auto& done = out.done;
  done.clear();
  Lock lock(e.mutex);
  const auto id = static_cast<uint32_t>(wc.wr_id >> 32);
  Connection* const connection = e.with(id);
  if (connection == nullptr) return;
  if (!connection->completed(wc, &done) || !connection->post())
    out.broken.push_back({shared_from_this(), rail, id});
  const Time now = connection->heard = clock_.now();
  for (Connection::Done& d : done) {
    e.patience.ended(now - d.flight->since);
    if (d.flight->unwanted != Time{}) e.patience.ended_unwanted(now - d.flight->unwanted);
    if (d.flight->ping) {
      out.pinged.push_back({shared_from_this(), rail, now - d.flight->since});
      continue;
    }
    d.flight->attempt->refused = !d.outcome && !d.flight->cut;
    out.ended.push_back({shared_from_this(), d.flight->attempt, std::move(d.outcome)});
  }
  done.clear();  // deregisters the local memory before the transfer is reported
}

void PeerConnections::pinged(RailIndex rail, Duration took) { queue_.pinged(rail, took); }

void PeerConnections::broke(RailIndex rail, uint32_t connection) {
  give_up(rail, connection, {Code::kUnavailable, ""}, false);
}

void PeerConnections::describe(uint64_t bytes, Path& path) const { queue_.describe(bytes, path); }

}  // namespace mc::xfer::rdma
