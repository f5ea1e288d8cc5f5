#include "serve/runtime/heartbeat.h"

#include <utility>

#include "base/log.h"

namespace mc::serve {
namespace {
constexpr Duration kNudge = std::chrono::milliseconds(5);

Heartbeat of_this_release(Heartbeat me) {
  me.release = wire::this_release();
  return me;
}

// A conductor of another release answers what this worker cannot use.
Result<HeartbeatAck> checked(const Result<HeartbeatAck>& ack) {
  if (ack) MC_TRY_(wire::check_release("the conductor", ack->release, "this worker"));
  return ack;
}
}  // namespace

Heartbeats::Heartbeats(io::Loop& loop, Heartbeat me, Duration period, const BlockManager* cache,
                       Fill fill, Metrics& metrics)
    : loop_(loop),
      me_(of_this_release(std::move(me))),
      period_(period),
      cache_(cache),
      fill_(std::move(fill)),
      sent_(metrics.counter("mc_engine_heartbeats_total", "heartbeats sent to conductors")),
      failed_(metrics.counter("mc_engine_heartbeats_failed_total",
                              "heartbeats that were not acknowledged")) {}

Result<std::unique_ptr<Heartbeats>> Heartbeats::open(io::Loop& loop, Heartbeat me,
                                                     const std::vector<std::string>& conductors,
                                                     Duration period, const BlockManager* cache,
                                                     Fill fill, Metrics& metrics) {
  auto self = std::unique_ptr<Heartbeats>(
      new Heartbeats(loop, std::move(me), period, cache, std::move(fill), metrics));
  for (const std::string& address : conductors) {
    MC_TRY(auto client, rpc::Client::connect(loop, address, rpc::Channel::kShm));
    self->peers_.emplace_back().client = std::move(client);
  }
  self->timer_ = loop.every(period, [raw = self.get()] { raw->beat_all(); });
  self->nudge();
  return self;
}

Heartbeats::~Heartbeats() {
  loop_.cancel(timer_);
  loop_.cancel(nudge_);
}

void Heartbeats::nudge() {
  if (nudge_ != 0) return;
  nudge_ = loop_.after(kNudge, [this] {
    nudge_ = 0;
    beat_all();
  });
}

void Heartbeats::beat_all() {
  for (size_t i = 0; i < peers_.size(); ++i) beat(i);
}

void Heartbeats::beat(size_t i) {
  Peer& peer = peers_[i];
  if (peer.in_flight) {
    peer.again = true;
    return;
  }
  Heartbeat beat = me_;
  fill_(beat, peers_.size() > 1 ? peer.control : "");
  beat.conductors = static_cast<uint32_t>(peers_.size());
  for (const Peer& p : peers_)
    if (p.joined) beat.joined.push_back(p.epoch);
  if (cache_ != nullptr) {
    beat.events_last = cache_->events_last();
    beat.digested = true;
    beat.digest = cache_->digest();
    auto events = cache_->events_since(peer.seen, kEventsPerBeat);
    beat.events_first = peer.seen + 1;
    if (!events && beat.events_last > 0) {  // dropped here: the newest number shows the gap
      events = cache_->events_since(beat.events_last - 1, 1);
      beat.events_first = beat.events_last;
    }
    if (events) beat.events = std::move(*events);
  }
  peer.in_flight = true;
  sent_.add();
  peer.client->call(beat, period_ * 4,
                    [this, i](const Result<HeartbeatAck>& reply) { answered(i, reply); });
}

void Heartbeats::answered(size_t i, const Result<HeartbeatAck>& answer) {
  Peer& peer = peers_[i];
  const std::string& address = peer.client->address();
  const Result<HeartbeatAck> reply = checked(answer);
  peer.in_flight = false;
  const bool again = std::exchange(peer.again, false);
  if (!reply) {
    failed_.add();
    if (peer.joined || peer.error != reply.error().what)
      log_warn("serve", "conductor %s: %s: retrying", address.c_str(), reply.error().what.c_str());
    peer.joined = false;
    peer.error = reply.error().what;
    return;
  }
  if (!peer.joined) log_info("serve", "joined conductor %s", address.c_str());
  peer.joined = true;
  peer.error.clear();
  peer.epoch = reply->conductor_epoch;
  peer.control = reply->control;
  const bool progress = reply->events_seen > peer.seen;
  peer.seen = reply->events_seen;
  if (cache_ == nullptr) return;
  // More events than one beat holds, or new ones since it left.
  if ((progress || again) && peer.seen < cache_->events_last()) beat(i);
}

size_t Heartbeats::joined() const {
  size_t n = 0;
  for (const Peer& p : peers_) n += p.joined;
  return n;
}

std::string Heartbeats::last_error() const {
  std::string error;
  for (const Peer& p : peers_)
    if (!p.error.empty()) error = p.client->address() + ": " + p.error;
  return error;
}

}  // namespace mc::serve
