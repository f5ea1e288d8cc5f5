// Makes and closes connections to a peer.
#include <algorithm>

#include "base/log.h"
#include "xfer/core/host.h"
#include "xfer/transports/rdma/peer_connections.h"

namespace mc::xfer::rdma {
namespace {

constexpr Duration kAgain = std::chrono::milliseconds(2);  // when the pool is full
constexpr Duration kRoomTime = std::chrono::seconds(20);   // and it stays so
constexpr Duration kFenceTime = std::chrono::seconds(1);   // then writes fail instead
constexpr Duration kOneOfMany = std::chrono::seconds(1);   // rails, to be connected
constexpr Duration kFenceTry = std::chrono::milliseconds(300);
constexpr Duration kFencePause = std::chrono::milliseconds(20);
constexpr size_t kFailMax = 4096;
constexpr int kLooksMax = 256;  // at completions, before a queue pair is judged

bool is_write(const FlightPtr& f) { return f->op == Op::kWrite; }

QpAddress address_of(const QueuePairInfo& i) {
  return {i.number, i.psn, i.lid, i.mtu, i.reads, i.gid.bytes};
}

}  // namespace

// ---- making one

void PeerConnections::want_connection(RailIndex rail) {
  {
    Lock lock(endpoints_[rail]->mutex);
    if (endpoints_[rail]->state != State::kIdle) return;  // under way, or looked at when it ends
    endpoints_[rail]->state = State::kConnecting;
  }
  const bool posted = transport_.host().post([self = shared_from_this(), rail] {
    self->endpoints_[rail]->connecting = self->clock_.now();
    self->connect(rail);
  });
  if (!posted)
    not_connected(rail, {Code::kBusy, "too many jobs wait for the control thread of rdma"});
}

void PeerConnections::connect(RailIndex rail) {
  Endpoint& e = *endpoints_[rail];
  if (closed_.load()) return not_connected(rail, {Code::kUnavailable, "shutting down"});
  if (nic_comes_back(rail)) return;
  if (transport_.pool().full()) transport_.release_claimed();
  auto pooled = transport_.pool().add(
      [weak = weak_from_this(), rail] {
        if (const PeerConnectionsPtr self = weak.lock()) self->evict(rail);
      },
      clock_, Duration(0));
  if (!pooled) {
    if (clock_.now() - e.connecting > kRoomTime) return not_connected(rail, pooled.error());
    transport_.host().loop().after(kAgain,
                                   [self = shared_from_this(), rail] { self->connect(rail); });
    return;
  }
  if (auto asked = ask(rail, *pooled); !asked) {
    transport_.pool().remove(*pooled);
    if (!nic_comes_back(rail)) not_connected(rail, asked.error());
  }
}

// True if this is the only rail and its port is down, or the owner's device away: then its attempts
// keep waiting for a connection.
bool PeerConnections::nic_comes_back(RailIndex rail, bool peers_away) {
  Endpoint& e = *endpoints_[rail];
  if (endpoints_.size() > 1 || closed_.load()) return false;
  if (nic_of(rail).up() && !peers_away) return false;
  if (clock_.now() - e.connecting > peer_timeout_) return false;
  transport_.host().loop().after(peers_away ? kFencePause : kAgain,
                                 [self = shared_from_this(), rail] { self->connect(rail); });
  return true;
}

Result<> PeerConnections::ask(RailIndex rail, EndpointPool::Id pooled) {
  const NicPair& route = endpoints_[rail]->route;
  const DevicePtr device = nic_of(rail).device();
  if (device == nullptr || !nic_of(rail).up())
    return fail(Code::kUnavailable, "%s is down", nic_of(rail).name.c_str());
  MC_TRY(auto pair, device->make_queue_pair(false));
  auto connection =
      std::make_shared<Connection>(transport_.next_connection(), device, std::move(pair));
  MC_TRY(rpc::Client * client, transport_.host().client(peer_->descriptor.rdma_control));
  OpenQueuePair m;
  m.secret = peer_->descriptor.secret;
  m.nic = static_cast<uint32_t>(route.remote);
  m.epoch = peer_->descriptor.rdma[route.remote].epoch;
  const QpAddress mine = connection->pair().address();
  m.mine = {mine.number, mine.psn, mine.lid, mine.mtu, mine.reads, {mine.gid}};
  client->call(
      m, endpoints_.size() == 1 ? peer_timeout_ * 3 / 4 : std::min(peer_timeout_ / 2, kOneOfMany),
      [self = shared_from_this(), rail, pooled, connection](const Result<QueuePairOpened>& answer) {
        self->connected(rail, pooled, connection, answer);
      });
  return {};
}

void PeerConnections::connected(RailIndex rail, EndpointPool::Id pooled,
                                const std::shared_ptr<Connection>& connection,
                                const Result<QueuePairOpened>& answer) {
  Endpoint& e = *endpoints_[rail];
  Result<> made;
  const bool away = !answer && answer.error().code == Code::kBusy;
  if (!answer) {
    made = fail(Error{away ? Code::kUnavailable : answer.error().code, answer.error().what});
  } else {
    connection->remote.number = answer->mine.number;
    connection->remote.epoch = answer->epoch;
    connection->remote.has_keys = answer->epoch != peer_->descriptor.rdma[e.route.remote].epoch;
    const size_t keys = std::min(answer->offsets.size(), answer->rkeys.size());
    for (size_t i = 0; i < keys; ++i)
      connection->remote.keys[answer->offsets[i]] = answer->rkeys[i];
    made = connection->pair().connect(address_of(answer->mine), false, peer_timeout_);
    if (made && (connection->device() != nic_of(rail).device() || connection->pair().outdated()))
      made = fail(Code::kUnavailable, "%s went away", nic_of(rail).name.c_str());
  }
  transport_.made_connection(made.has_value());
  if (!made) {
    transport_.pool().remove(pooled);
    if (nic_comes_back(rail, away)) return;
    return not_connected(rail, made.error());
  }
  std::vector<AttemptPtr> waiting;
  bool wants_ping = false;
  {
    Lock lock(e.mutex);
    e.state = State::kReady;
    e.connection = connection;
    e.pooled = pooled;
    e.claimed = true;
    connection->heard = clock_.now();
    waiting.swap(e.waiting);
    wants_ping = std::exchange(e.ping, false);
  }
  transport_.expect(nic_of(rail), connection->id(), shared_from_this(), rail);
  transport_.host().kept().add({peer_->descriptor.rdma_control, peer_->descriptor.secret.bytes},
                               static_cast<uint32_t>(e.route.remote), connection->remote.number);
  // They go back to the head of the queue, to be sent from now on: what making a connection takes
  // is not the rail's rate.
  for (const AttemptPtr& a : waiting) give_back(a, {Code::kUnavailable, "not sent yet"}, true);
  if (wants_ping) send_ping(rail);
  pump();
  pump_rail(rail);
}

void PeerConnections::not_connected(RailIndex rail, const Error& why) {
  Endpoint& e = *endpoints_[rail];
  std::vector<AttemptPtr> waiting;
  bool pinged = false;
  {
    Lock lock(e.mutex);
    e.state = State::kIdle;
    waiting.swap(e.waiting);
    pinged = std::exchange(e.ping, false);
  }
  const Error told{why.code, e.route.info.local + "-" + e.route.info.remote + ": " + why.what};
  log_debug("xfer", "rdma: %s", told.what.c_str());
  if (pinged) queue_.pinged(rail, fail(told));
  for (const AttemptPtr& a : waiting) give_back(a, told, false);
  // On the only rail, the other attempts would fail alike, one after the other.
  if (endpoints_.size() == 1) fail_queued(rail, told);
  pump();
}

void PeerConnections::fail_queued(RailIndex rail, const Error& why) {
  for (size_t i = 0; i < kFailMax; ++i) {
    const AttemptPtr a = queue_.pull(rail, {}, RailQueue::Wait::kNo);
    if (a == nullptr) return;
    give_back(a, why, false);
  }
}

// ---- ending one

// Called by the pool while the endpoint is idle; on the control thread.
void PeerConnections::evict(RailIndex rail) {
  Endpoint& e = *endpoints_[rail];
  std::shared_ptr<Connection> connection;
  {
    Lock lock(e.mutex);
    if (e.state != State::kReady || e.claimed) return;
    e.state = State::kIdle;
    connection = std::move(e.connection);
    e.pooled = 0;
  }
  part(rail, std::move(connection), {Code::kUnavailable, "not used lately"}, true);
}

void PeerConnections::give_up(RailIndex rail, uint32_t connection, Error why, bool ours) {
  transport_.host().post([self = shared_from_this(), rail, connection, why = std::move(why), ours] {
    self->tear_down(rail, connection, why, ours);
  });
}

void PeerConnections::tear_down(RailIndex rail, uint32_t id, const Error& why, bool ours) {
  Endpoint& e = *endpoints_[rail];
  std::shared_ptr<Connection> connection, replaced;
  EndpointPool::Id pooled = 0;
  {
    Lock lock(e.mutex);
    if (e.replaced != nullptr && (id == 0 || e.replaced->id() == id))
      replaced = std::move(e.replaced);
    if (e.connection != nullptr && (id == 0 || e.connection->id() == id)) {
      connection = std::move(e.connection);
      e.state = State::kClosing;
      e.claimed = false;
      pooled = std::exchange(e.pooled, 0);
    }
  }
  if (replaced != nullptr) {
    part(rail, std::move(replaced), why, ours);
    if (connection == nullptr) pump();
  }
  if (connection == nullptr) return;
  transport_.pool().remove(pooled);
  part(rail, std::move(connection), why, ours);
  bool wanted = false;
  {
    Lock lock(e.mutex);
    e.state = State::kIdle;
    wanted = !e.waiting.empty() || e.ping;
  }
  if (wanted) want_connection(rail);
  pump();
}

// Transfers that nobody wants any more have had their time: their queue pair ends, or another takes
// over what comes, while the others on it go on.
void PeerConnections::end_unwanted(RailIndex rail, Time now) {
  using Verdict = Patience::Verdict;
  Endpoint& e = *endpoints_[rail];
  uint32_t over = 0;
  EndpointPool::Id pooled = 0;
  std::vector<AttemptPtr> unsent;
  const auto any = [&e] {
    Lock lock(e.mutex);
    for (const Connection* const c : {e.connection.get(), e.replaced.get()})
      if (c != nullptr && c->state().unwanted != Time::max()) return true;
    return false;
  };
  // A process that stood still for a while has not seen yet what completed meanwhile.
  for (int i = 0; i < kLooksMax && any() && transport_.drain(nic_of(rail), true); ++i) {
  }
  {
    Lock lock(e.mutex);
    if (e.replaced != nullptr) {
      if (e.patience.over(e.replaced->state(), e.replaced_since, now)) over = e.replaced->id();
    } else if (e.connection != nullptr) {
      const Patience::Pair pair = e.connection->state();
      Verdict verdict = e.patience.judge(pair, now);
      if (closed_.load() && pair.unwanted != Time::max() && !pair.others) verdict = Verdict::kEnd;
      if (verdict == Verdict::kEnd) over = e.connection->id();
      if (verdict == Verdict::kReplace) {
        e.replaced = std::move(e.connection);
        e.replaced_since = now;
        e.state = State::kIdle;
        e.claimed = false;
        pooled = std::exchange(e.pooled, 0);
        for (const FlightPtr& f : std::vector<FlightPtr>(e.replaced->flights()))
          if (!f->started && f->attempt != nullptr &&
              e.replaced->drop(f->attempt, now) == Connection::Dropped::kOver)
            unsent.push_back(f->attempt);
      }
    }
  }
  if (pooled != 0) transport_.pool().remove(pooled);
  for (const AttemptPtr& a : unsent) give_back(a, {Code::kUnavailable, "not sent yet"}, true);
  if (over != 0) tear_down(rail, over, {Code::kUnavailable, "recalled"}, true);
  if (pooled != 0) pump();
}

namespace {

bool about_memory(ibv_wc_status status) {  // the owner's: its key, range or right was refused
  return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR;
}
bool about_ours(ibv_wc_status status) {
  return status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_LEN_ERR ||
         status == IBV_WC_LOC_ACCESS_ERR;
}

}  // namespace

void PeerConnections::part(RailIndex rail, std::shared_ptr<Connection> connection, Error why,
                           bool ours) {
  const NicPair& route = endpoints_[rail]->route;
  transport_.forget_connection(nic_of(rail), connection->id());
  transport_.host().kept().remove({peer_->descriptor.rdma_control, peer_->descriptor.secret.bytes},
                                  static_cast<uint32_t>(route.remote), connection->remote.number);
  const auto flights = connection->take_all();
  const FlightPtr failed = connection->failed();
  const ibv_wc_status status = connection->status();
  const DevicePtr device = connection->device();
  auto farewell = std::make_shared<Farewell>();
  farewell->message.secret = peer_->descriptor.secret;
  farewell->message.nic = static_cast<uint32_t>(route.remote);
  farewell->message.number = connection->remote.number;
  farewell->epoch = connection->remote.epoch;
  connection.reset();                    // from here on nothing of it touches our memory
  transport_.drain(nic_of(rail), true);  // its room is for others
  if (status != IBV_WC_SUCCESS) why.what = device->verbs().wc_status_str(status);
  why.what = route.info.local + "-" + route.info.remote + ": " + why.what;
  if (!flights.empty()) log_debug("xfer", "rdma: %s", why.what.c_str());
  const bool own_fault = failed != nullptr && (about_memory(status) || about_ours(status));
  for (const FlightPtr& f : flights) {
    if (f->ping) {
      queue_.pinged(rail, fail(why));
      continue;
    }
    f->attempt->reached = true;
    const bool blameless = ours || (own_fault && f != failed);
    const bool live = cancelled_or_expired(*f->attempt->slice).has_value();
    if (blameless) f->attempt->recalled.store(true);
    if (own_fault && f == failed && about_memory(status) && live) {
      farewell->doubted = f;
    } else if (f->started && is_write(f) && live) {
      farewell->writes.push_back(f);
    } else {
      farewell->before = farewell->before || (f->started && is_write(f));
      const Code code = own_fault && f == failed ? Code::kUnsupported : why.code;
      queue_.complete(f->attempt, fail(Error{code, why.what}));
    }
  }
  if (farewell->doubted != nullptr) farewell->message.offsets = {farewell->doubted->buffer};
  farewell->why = std::move(why);
  farewell->until = clock_.now() + std::min<Duration>(peer_timeout_, kFenceTime);
  farewells_.fetch_add(1);
  if (farewell->before) barriers_.fetch_add(1);
  say_farewell(farewell);
}

void PeerConnections::say_farewell(const FarewellPtr& farewell) {
  const auto answered = [self = shared_from_this(),
                         farewell](const Result<QueuePairClosed>& answer) {
    if (!answer && process_alive(self->peer_->pid) && self->clock_.now() < farewell->until &&
        !self->closed_.load()) {
      self->transport_.host().loop().after(kFencePause,
                                           [self, farewell] { self->say_farewell(farewell); });
      return;
    }
    self->parted(farewell, answer);
  };
  auto client = transport_.host().client(peer_->descriptor.rdma_control);
  if (!client) return answered(fail(client.error()));
  (*client)->call(farewell->message, kFenceTry, answered);
}

void PeerConnections::parted(const FarewellPtr& farewell, const Result<QueuePairClosed>& answer) {
  // A dead process, or a successor in its place, applies no write.
  const bool fenced = answer || !process_alive(peer_->pid) || answer.error().code == Code::kDenied;
  const Error& why = farewell->why;
  for (const FlightPtr& f : farewell->writes) {
    f->attempt->unfenced = !fenced && cancelled_or_expired(*f->attempt->slice).has_value();
    queue_.complete(
        f->attempt,
        fail(f->attempt->unfenced
                 ? Error{Code::kTimeout, why.what + "; bytes of the write may still land there"}
                 : why));
  }
  if (const FlightPtr& f = farewell->doubted) {
    const bool same_device = answer && answer->epoch == farewell->epoch;
    const bool offered = same_device && !answer->rkeys.empty() && answer->rkeys[0] == f->rkey;
    if (same_device && !offered) {
      f->attempt->refused = true;
      queue_.complete(f->attempt, fail(Code::kStale, "%s withdrew the memory at %llu",
                                       peer_->descriptor.node.c_str(),
                                       static_cast<unsigned long long>(f->attempt->piece.remote)));
    } else {
      queue_.complete(f->attempt, fail(why));
    }
  }
  farewell->writes.clear();
  farewell->doubted = nullptr;
  if (!fenced && farewell->before && !closed_.load()) {  // until then no write may follow
    if (!std::exchange(farewell->stuck, true)) stuck_.fetch_add(1);
    farewell->until = clock_.now() + kFenceTime;
    transport_.host().loop().after(
        kFenceTry, [self = shared_from_this(), farewell] { self->say_farewell(farewell); });
    return;
  }
  if (farewell->stuck) stuck_.fetch_sub(1);
  if (farewell->before) barriers_.fetch_sub(1);
  farewells_.fetch_sub(1);
  pump();
}

// ---- time passes

void PeerConnections::release_claimed() {
  if (!loose_.exchange(false)) return;
  for (RailIndex r = 0; r < endpoints_.size(); ++r) pump_rail(r);
}

bool PeerConnections::wants_tick() {
  return loose_.exchange(false) || saw_down_ || next_check() != Time::max() || busy();
}

void PeerConnections::tick() {
  saw_down_ = false;
  for (const RailIndex rail : queue_.tick()) ping(rail);
  const Time now = clock_.now();
  for (RailIndex r = 0; r < endpoints_.size(); ++r) check(r, now);
  pump();
}

void PeerConnections::check(RailIndex rail, Time now) {
  Endpoint& e = *endpoints_[rail];
  Time oldest = Time::max(), heard{};
  uint32_t connection = 0;
  {
    Lock lock(e.mutex);
    if (e.connection != nullptr) {
      connection = e.connection->id();
      heard = e.connection->heard;
      for (const FlightPtr& f : e.connection->flights()) oldest = std::min(oldest, f->since);
    }
  }
  pump_rail(rail);  // releases what try_inline() claimed
  if (oldest != Time::max() && now - std::max(oldest, heard) > peer_timeout_)
    tear_down(rail, connection, {Code::kTimeout, "nothing completed for " + to_text(peer_timeout_)},
              false);
  end_unwanted(rail, now);
  if (nic_of(rail).up()) {
    e.down = {};
  } else if (e.down == Time{}) {
    e.down = now;
  } else if (now - e.down > peer_timeout_) {
    fail_queued(rail, {Code::kUnavailable, nic_of(rail).name + " is down"});
  }
  saw_down_ = saw_down_ || e.down != Time{};
  if (stuck_.load() > 0 && barriers_.load() > 0)
    fail_queued(rail,
                {Code::kUnavailable, "bytes of an earlier, abandoned write may still land there"});
}

// While its port is down a probe fails, and a connection that is there stays: the port may come
// back before the NIC gives up what it carries.
void PeerConnections::ping(RailIndex rail) {
  if (!nic_of(rail).up())
    return queue_.pinged(rail, fail(Code::kUnavailable, "%s is down", nic_of(rail).name.c_str()));
  Endpoint& e = *endpoints_[rail];
  bool ready = false;
  {
    Lock lock(e.mutex);
    ready = e.state == State::kReady;
    if (!ready) e.ping = true;
  }
  if (ready)
    send_ping(rail);
  else
    want_connection(rail);
}

// Reads a byte of what the peer offers.
void PeerConnections::send_ping(RailIndex rail) {
  Endpoint& e = *endpoints_[rail];
  const bool ready = claim(rail);
  bool posted = false;
  Result<> sent;
  {
    Lock lock(e.mutex);
    if (!ready || e.state != State::kReady) {
      sent = fail(Code::kUnavailable, "not connected");
    } else {
      auto flight = std::make_shared<Flight>();
      flight->ping = true;
      flight->piece.bytes = 1;
      flight->since = clock_.now();
      for (const BufferInfo& b : peer_->descriptor.buffers) {
        flight->remote = b.rdma_addr;
        const auto key = e.connection->remote.keys.find(b.offset);
        if (!e.connection->remote.has_keys && e.route.remote < b.rkeys.size())
          flight->rkey = b.rkeys[e.route.remote];
        else if (key != e.connection->remote.keys.end())
          flight->rkey = key->second;
        if (flight->rkey != 0) break;
      }
      if (flight->rkey != 0) {
        sent = e.connection->add(flight);
        if (sent) sent = e.connection->post();
        posted = sent.has_value();
      }  // else there is nothing to read: that it could be connected must do
    }
  }
  if (posted)
    nic_of(rail).kick();
  else if (sent)
    queue_.pinged(rail, Duration(0));
  else
    queue_.pinged(rail, fail(sent.error()));
}

// ---- what happens to NICs

void PeerConnections::port_changed(const Nic& nic, bool up) {
  bool others = false;
  for (const auto& e : endpoints_) others = others || e->route.nic != nic.index;
  for (RailIndex r = 0; r < endpoints_.size(); ++r) {
    Endpoint& e = *endpoints_[r];
    if (e.route.nic != nic.index) continue;
    if (up) {
      queue_.up(r);
      continue;
    }
    queue_.down(r);
    uint32_t connection = 0;
    {
      Lock lock(e.mutex);
      if (others && e.connection != nullptr) connection = e.connection->id();
    }
    // Retries on other rails at once; without another rail, the NIC keeps trying.
    if (connection != 0) give_up(r, connection, {Code::kUnavailable, "its port is down"}, true);
  }
  if (up) pump();
}

void PeerConnections::lost(const Nic& nic, const char* why) {
  for (RailIndex r = 0; r < endpoints_.size(); ++r) {
    if (endpoints_[r]->route.nic != nic.index) continue;
    if (!nic.up()) queue_.down(r);
    tear_down(r, 0, {Code::kUnavailable, nic.name + " " + why}, true);
  }
}

void PeerConnections::back(const Nic& nic) {
  for (RailIndex r = 0; r < endpoints_.size(); ++r)
    if (endpoints_[r]->route.nic == nic.index && nic.up()) queue_.up(r);
  pump();
}

void PeerConnections::close() {
  closed_.store(true);
  auto open = still_open(*peer_);
  if (open) open = fail(Code::kUnavailable, "shutting down");
  queue_.close(open.error(), peer_->state.load() != PeerState::kReplaced);
  pump();
}

void PeerConnections::disconnect() {
  for (RailIndex r = 0; r < endpoints_.size(); ++r)
    tear_down(r, 0, {Code::kUnavailable, "closed"}, true);
}

}  // namespace mc::xfer::rdma
