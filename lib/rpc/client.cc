#include "rpc/client.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "base/units.h"
#include "rpc/client_impl.h"

namespace mc::rpc {
namespace {
constexpr Duration kLoopLate = std::chrono::milliseconds(500);
constexpr int kAnswersPerTurn = 256;  // messages that are read before others have their turn
// To a server: one for the next calls, and silent ones with calls in flight.
constexpr size_t kConnectionsMax = 8;
}  // namespace

namespace detail {

std::string envelope_of(const char* type, uint64_t id, Duration budget,
                        const std::string& trace_id) {
  Envelope e;
  e.type = type;
  e.id = id;
  e.budget_ms =
      static_cast<uint32_t>(std::clamp<int64_t>(budget.count() / 1'000'000, 1, 3'600'000));
  e.trace_id.bytes = trace_id;
  return wire::encode(e);
}

Duration pause_after(int refusals) {
  constexpr std::chrono::milliseconds kLeast(20), kMost(500);
  return refusals == 0 ? Duration::zero()
                       : std::min<Duration>(kLeast * (1 << std::min(refusals - 1, 8)), kMost);
}

Error no_answer(const std::string& address, const char* type, Duration budget, bool answered) {
  if (answered)
    return {Code::kTimeout, strf("%s to %s: no answer within %s", type, address.c_str(),
                                 rounded_text(budget).c_str())};
  return {Code::kUnavailable,
          strf("%s to %s: no answer within %s: is it running there, with the same cluster key?",
               type, address.c_str(), rounded_text(budget).c_str())};
}

Error nameless(const std::string& address, const char* type, Duration budget) {
  return {Code::kUnavailable, strf("%s to %s: its name had no address within %s: is it right?",
                                   type, address.c_str(), rounded_text(budget).c_str())};
}

Error gone(const std::string& address, const char* type) {
  return {Code::kUnavailable,
          strf("%s to %s: the server ended before it answered: retry", type, address.c_str())};
}

Answered answer_of(const std::vector<std::string>& frames) {
  if (frames.size() == 2) return answer_of(frames[0], frames[1]);
  Answered out;
  out.body = fail(Code::kCorrupt, "reply of %zu frames", frames.size());
  return out;
}

Answered answer_of(std::string_view head, std::string_view body) {
  Answered out;
  const auto read = [&]() -> Result<std::string> {
    MC_TRY(const Envelope envelope, wire::decode<Envelope>(head));
    out.id = envelope.id;
    if (envelope.type == "ok" && envelope.version == kProtocolVersion) return std::string(body);
    if (envelope.type != "error")
      return fail(
          Code::kUnsupported, "reply of type '%s', protocol version %u: want ok or error, %u",
          escape(envelope.type).c_str(), unsigned{envelope.version}, unsigned{kProtocolVersion});
    MC_TRY(const ErrorBody error, wire::decode<ErrorBody>(body));
    out.elsewhere = error.elsewhere;
    out.instead = error.instead;
    return fail(Error{code_from_wire(error.code), error.what});
  };
  out.body = read();
  return out;
}

}  // namespace detail

Result<std::unique_ptr<Client>> Client::connect(io::Loop& loop, const std::string& addresses,
                                                Channel channel) {
  MC_TRY(ServerList servers, ServerList::parse(addresses));
  auto client = std::unique_ptr<Client>(new Client(loop, std::move(servers), channel));
  MC_TRY_(client->open_link(0));
  return client;
}

Client::Client(io::Loop& loop, ServerList servers, Channel channel)
    : loop_(loop), servers_(std::move(servers)), channel_(channel) {
  if (cluster_key_reloads()) keys_timer_ = loop_.every(kKeyLook, [this] { follow_keys(); });
}

Client::~Client() {
  loop_.cancel(keys_timer_);
  for (size_t at = 0; at < links_.size(); ++at) close_link(at);
  for (auto& [id, pending] : pending_) loop_.cancel(pending.timer);
}

Result<> Client::open_link(size_t at) {
  if (links_.size() < servers_.size()) links_.resize(servers_.size());
  Link& link = links_[at];
  if (link.to != servers_.address(at)) close_link(at);
  if (!link.connections.empty()) return {};
  link.to = servers_.address(at);
  MC_TRY_(add_connection(at));
  try_shm(at);
  return {};
}

Result<> Client::add_connection(size_t at) {
  const ClusterKeys keys = cluster_keys();
  const ClusterKey* const key = keys.has(links_[at].key) ? links_[at].key : keys.first;
  MC_TRY(auto made, make_connection(at, key));
  links_[at].connections.push_back(std::move(made));
  return {};
}

Result<std::unique_ptr<Client::Connection>> Client::make_connection(size_t at,
                                                                    const ClusterKey* key) {
  MC_TRY(Socket socket, Socket::connect(Socket::Kind::kDealer, links_[at].to, key));
  auto made = std::make_unique<Connection>(loop_, std::move(socket), ++connections_);
  made->watch = loop_.watch_socket(
      made->socket.handle(), [this, at, number = connections_] { (void)receive(at, number); },
      made->socket.uses());
  if (made->socket.tells())
    made->fate_watch = loop_.watch_socket(
        made->socket.monitor(), [this, at, number = connections_] { learn_fate(at, number); },
        made->socket.monitor_uses());
  return made;
}

Client::Connection* Client::Link::find(uint64_t number) const {
  for (const auto& connection : connections)
    if (connection->number == number) return connection.get();
  return candidate != nullptr && candidate->number == number ? candidate.get() : nullptr;
}

void Client::close_link(size_t at) {
  Link& link = links_[at];
  loop_.unwatch(link.shm_watch);
  loop_.unwatch(link.poll_watch);
  link.shm_watch = link.poll_watch = 0;
  link.handshake.reset();
  link.shm.reset();
  loop_.cancel(link.retry);
  link.retry = 0;
  link.candidate.reset();
  link.connections.clear();
}

// Calls made after the handshake use the channel.
void Client::try_shm(size_t at) {
  Link& link = links_[at];
  const Time now = loop_.clock().now();
  if (channel_ != Channel::kShm || link.shm || link.handshake ||
      now < link.shm_tried + detail::kShmRetry)
    return;
  link.shm_tried = now;
  auto handshake = ShmHandshake::to(link.to);
  if (!handshake) return;
  link.handshake = std::move(*handshake);
  link.shm_watch = loop_.watch_fd(link.handshake->fd(), [this, at] { shake_hands(at); });
}

void Client::shake_hands(size_t at) {
  Link& link = links_[at];
  auto end = link.handshake->step();
  if (end && !*end) return;
  loop_.unwatch(link.shm_watch);
  link.shm_watch = 0;
  link.handshake.reset();
  if (!end) return;
  link.shm = std::move(**end);
  link.shm_watch = loop_.watch_fd(link.shm->fd(), [this, at] {
    links_[at].shm->woken();
    receive_shm(at);
  });
  link.poll_watch =
      loop_.watch_memory([this, at] { return poll_shm(at); }, [this, at] { receive_shm(at); });
  link.hot = false;
  if (!link.shm->arm()) receive_shm(at);
}

// Polls after an answer: the next one may follow at once, as that of a heartbeat that waits for
// work.
bool Client::poll_shm(size_t at) {
  Link& link = links_[at];
  if (!link.hot || !link.shm) return false;
  const auto outcome = link.poller.poll(loop_.clock(), [&link] { return link.shm->has_input(); });
  if (outcome != BusyPoller::Outcome::kSleep) return true;
  link.hot = false;
  return !link.shm->arm();
}

// A server that sends without end gets a turn of the loop, as one over ZeroMQ does: the time limits
// of calls pass between turns.
void Client::receive_shm(size_t at) {
  const std::weak_ptr<bool> alive = alive_;
  for (int i = 0; links_[at].shm; ++i) {
    Link& link = links_[at];
    if (i == kAnswersPerTurn) {  // the rest in the next turn, without a wait
      link.hot = true;
      return link.poller.restart();
    }
    if (const auto message = link.shm->receive()) {
      link.hot = true;
      link.poller.restart();
      (void)answer(at, detail::answer_of(message->envelope, message->body));
      if (alive.expired()) return;  // the callback destroyed this client
      continue;
    }
    if (link.shm->broken()) return lose_shm(at);
    if (link.hot || link.shm->arm()) return;
  }
}

// The server ended, or the channel broke.
void Client::lose_shm(size_t at) {
  Link& link = links_[at];
  loop_.unwatch(link.shm_watch);
  loop_.unwatch(link.poll_watch);
  link.shm_watch = link.poll_watch = 0;
  link.shm.reset();
  fail_lost(at, 0);
}

// Fails the calls in flight over connection `number`, or over shared memory for 0.
void Client::fail_lost(size_t at, uint64_t number) {
  const std::weak_ptr<bool> alive = alive_;
  const std::string to = links_[at].to;
  std::vector<Pending> lost;
  for (auto it = pending_.begin(); it != pending_.end();) {
    Pending& call = it->second;
    if (call.link != at || call.shm != (number == 0) || (!call.shm && call.connection != number)) {
      ++it;
      continue;
    }
    loop_.cancel(call.timer);
    left(call);
    lost.push_back(std::move(call));
    it = pending_.erase(it);
  }
  if (!lost.empty()) servers_.skip(at);
  for (const Pending& call : lost) {
    call.done(fail(detail::gone(to, call.type)));
    if (alive.expired()) return;
  }
}

Result<> Client::send(uint64_t id, Pending& call) {
  const size_t at = servers_.current();
  MC_TRY_(open_link(at));
  const std::string envelope =
      detail::envelope_of(call.type, id, call.deadline - loop_.clock().now(), call.trace_id);
  try_shm(at);
  Link& link = links_[at];
  call.shm = false;
  if (link.shm && link.by_zeromq == 0 && link.shm->key() == cluster_keys().first) {
    call.shm = link.shm->send(envelope, call.body);
    if (!call.shm && !link.shm->broken())  // over ZeroMQ it would overtake earlier calls
      return fail(Code::kBusy, "%s to %s: the server does not read its messages: retry later",
                  call.type, link.to.c_str());
  }
  if (!call.shm) {
    MC_TRY_(send_over(at, envelope, call.body));
    Connection& connection = *link.connections.back();
    call.connection = connection.number;
    ++connection.in_flight;
    ++link.by_zeromq;
  }
  call.link = at;
  call.sent = loop_.clock().now();
  ++link.in_flight;
  return {};
}

// The call was answered or given up. Of several connections a silent one is closed with its last.
void Client::left(const Pending& call) {
  Link& link = links_[call.link];
  --link.in_flight;
  if (call.shm) return;
  --link.by_zeromq;
  Connection* const over = links_[call.link].find(call.connection);
  if (over != nullptr) --over->in_flight;
  link.close_unused();
}

void Client::Link::close_unused() {
  for (size_t i = connections.size(); i-- > 0;) {
    if (connections[i]->in_flight > 0 || i + 1 == connections.size()) continue;
    connections.erase(connections.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Client::call_raw(const char* type, std::string body, Duration budget,
                      const std::string& trace_id, Done done) {
  const uint64_t id = next_id_++;
  Pending& call = pending_[id];
  const Time now = loop_.clock().now();
  call = {std::move(done), 0, type, std::move(body), trace_id, now, now + budget};
  Result<> sent;
  if (pending_.size() > kInFlightMax)
    sent = fail(Code::kBusy, "%s to %s: %zu calls in flight already", type, address().c_str(),
                pending_.size() - 1);
  else if (call.body.size() > wire::kMessageBytesMax)
    sent = fail(Code::kInvalid, "%s to %s: message of %zu bytes is over the limit", type,
                address().c_str(), call.body.size());
  else
    sent = send(id, call);
  if (sent)
    call.timer = loop_.after(budget, [this, id, budget] { expire(id, budget); });
  else  // answer on a later turn: callers need not expect a call back inside call()
    call.timer = loop_.at(loop_.now(), [this, id, error = sent.error()] {
      const auto it = pending_.find(id);
      const Done refused = std::move(it->second.done);
      pending_.erase(it);
      refused(Result<std::string>(fail(error)));
    });
}

// The call was refused by a server that is not the one: to the one that is.
bool Client::send_on(uint64_t id, Pending& call, const detail::Answered& refusal) {
  if (!servers_.refused(call.link, refusal.instead) || ++call.hops > detail::kHopsMax) return false;
  return send(id, call).has_value();
}

// True when it read as many answers as it may in a turn: there may be more.
bool Client::receive(size_t at, uint64_t number) {
  const std::weak_ptr<bool> alive = alive_;
  for (int i = 0; i < kAnswersPerTurn; ++i) {
    Connection* const connection = links_[at].find(number);
    if (connection == nullptr) return false;
    const auto frames = connection->socket.receive();
    if (frames.empty()) return false;
    connection->heard = loop_.clock().now();
    if (!answer(at, detail::answer_of(frames))) continue;
    if (alive.expired()) return false;  // the callback destroyed this client
  }
  return true;
}

// True when it ran a callback.
bool Client::answer(size_t at, const detail::Answered& answer) {
  const auto it = pending_.find(answer.id);
  if (it == pending_.end() || it->second.link != at) return false;  // came after its deadline
  answered_ = true;
  left(it->second);
  if (answer.elsewhere && send_on(answer.id, it->second, answer)) return false;
  const Done done = std::move(it->second.done);
  loop_.cancel(it->second.timer);
  pending_.erase(it);
  done(answer.body);
  return true;
}

// A network may have forgotten the connection of a call that is over, without a word to either end.
// The next calls go over a new one. Those that it still carries keep it: the server may be slow.
void Client::renew_silent(const Pending& call) {
  Link& link = links_[call.link];
  const Connection* const over = call.shm ? nullptr : links_[call.link].find(call.connection);
  if (over == nullptr || over != link.connections.back().get() || over->heard >= call.sent ||
      link.connections.size() >= kConnectionsMax)
    return;
  if (add_connection(call.link)) link.close_unused();
}

void Client::expire(uint64_t id, Duration budget) {
  auto it = pending_.find(id);
  if (it == pending_.end()) return;
  // The loop itself stood still, and the answer may lie unread: as much time again, once.
  const Duration late = loop_.now() - it->second.deadline;
  if (late > kLoopLate && !std::exchange(it->second.extended, true)) {
    it->second.timer =
        loop_.after(std::min(late, budget), [this, id, budget] { expire(id, budget); });
    return;
  }
  const Pending call = std::move(it->second);
  pending_.erase(it);
  const std::string& silent = links_[call.link].to;
  const Error error = detail::no_answer(silent, call.type, budget, answered_);
  // The socket still queues calls that were given up. A new socket drops them, so that a server
  // that starts later does no work that no caller waits for.
  left(call);
  if (links_[call.link].in_flight == 0) {
    close_link(call.link);
    (void)open_link(call.link);
  } else {
    renew_silent(call);
  }
  servers_.skip(call.link);
  call.done(Result<std::string>(fail(error)));
}

}  // namespace mc::rpc
