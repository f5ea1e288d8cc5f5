#include "rpc/client.h"

#include <algorithm>

#include "base/units.h"
#include "rpc/probe.h"

namespace mc::rpc {
namespace {

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

Error no_answer(const std::string& address, const char* type, Duration budget, bool answered) {
  if (answered)
    return {Code::kTimeout,
            strf("%s to %s: no answer within %s", type, address.c_str(), to_text(budget).c_str())};
  return {Code::kUnavailable,
          strf("%s to %s: no answer within %s: is it running there, with the same cluster key?",
               type, address.c_str(), to_text(budget).c_str())};
}

constexpr int kHopsMax = 4;  // of one call, from server to server

}  // namespace

namespace detail {

Answered answer_of(std::vector<std::string> frames) {
  Answered out;
  const auto read = [&]() -> Result<std::string> {
    if (frames.size() != 2) return fail(Code::kCorrupt, "reply of %zu frames", frames.size());
    MC_TRY(const Envelope envelope, wire::decode<Envelope>(frames[0]));
    out.id = envelope.id;
    if (envelope.type == "ok" && envelope.version == kProtocolVersion) return std::move(frames[1]);
    if (envelope.type != "error")
      return fail(
          Code::kUnsupported, "reply of type '%s', protocol version %u: want ok or error, %u",
          shown(envelope.type).c_str(), unsigned{envelope.version}, unsigned{kProtocolVersion});
    MC_TRY(const ErrorBody error, wire::decode<ErrorBody>(frames[1]));
    out.elsewhere = error.elsewhere;
    out.instead = error.instead;
    return fail(Error{code_from_wire(error.code), error.what});
  };
  out.body = read();
  return out;
}

}  // namespace detail

Result<std::unique_ptr<Client>> Client::connect(io::Loop& loop, const std::string& addresses) {
  MC_TRY(Route route, Route::parse(addresses));
  auto client = std::unique_ptr<Client>(new Client(loop, std::move(route)));
  MC_TRY_(client->open_link(0));
  return client;
}

Client::Client(io::Loop& loop, Route route) : loop_(loop), route_(std::move(route)) {}

Client::~Client() {
  for (size_t at = 0; at < links_.size(); ++at) close_link(at);
  for (auto& [id, pending] : pending_) loop_.cancel(pending.timer);
}

Result<> Client::open_link(size_t at) {
  if (links_.size() < route_.size()) links_.resize(route_.size());
  Link& link = links_[at];
  if (link.to != route_.address(at)) close_link(at);
  if (link.socket) return {};
  link.to = route_.address(at);
  MC_TRY(link.socket, Socket::connect(Socket::Kind::kDealer, link.to));
  link.watch = loop_.watch_socket(link.socket->handle(), [this, at] { receive(at); });
  return {};
}

void Client::close_link(size_t at) {
  Link& link = links_[at];
  if (!link.socket) return;
  loop_.unwatch(link.watch);
  link.socket.reset();
}

Result<> Client::send(uint64_t id, Pending& call) {
  const size_t at = route_.current();
  MC_TRY_(open_link(at));
  const std::string envelope =
      envelope_of(call.type, id, call.deadline - loop_.clock().now(), call.trace_id);
  MC_TRY_(links_[at].socket->send({envelope, call.body}));
  call.link = at;
  ++links_[at].in_flight;
  return {};
}

void Client::call_raw(const char* type, std::string body, Duration budget,
                      const std::string& trace_id, Done done) {
  const uint64_t id = next_id_++;
  Pending& call = pending_[id];
  call = {std::move(done), 0, type, std::move(body), trace_id, loop_.clock().now() + budget, 0, 0};
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
  if (!route_.refused(call.link, refusal.instead) || ++call.hops > kHopsMax) return false;
  return send(id, call).has_value();
}

void Client::receive(size_t at) {
  const std::weak_ptr<bool> alive = alive_;
  while (links_[at].socket) {
    auto frames = links_[at].socket->receive();
    if (frames.empty()) return;
    const auto answer = detail::answer_of(std::move(frames));
    auto it = pending_.find(answer.id);
    if (it == pending_.end() || it->second.link != at) continue;  // came after its deadline
    answered_ = true;
    --links_[at].in_flight;
    if (answer.elsewhere && send_on(answer.id, it->second, answer)) continue;
    const Done done = std::move(it->second.done);
    loop_.cancel(it->second.timer);
    pending_.erase(it);
    done(answer.body);
    if (alive.expired()) return;  // the callback destroyed this client
  }
}

void Client::expire(uint64_t id, Duration budget) {
  auto it = pending_.find(id);
  if (it == pending_.end()) return;
  const Pending call = std::move(it->second);
  pending_.erase(it);
  const std::string& silent = links_[call.link].to;
  const Error error = no_answer(silent, call.type, budget, answered_);
  // What lies queued for a peer that is not there was given up: a new socket forgets it, so that a
  // server that comes later does not do work nobody waits for.
  if (--links_[call.link].in_flight == 0) {
    close_link(call.link);
    (void)open_link(call.link);
  }
  route_.pass_over(call.link);
  call.done(Result<std::string>(fail(error)));
}

Result<std::unique_ptr<SyncClient>> SyncClient::connect(const std::string& addresses,
                                                        const Clock& clock) {
  MC_TRY(Route route, Route::parse(addresses));
  auto client = std::unique_ptr<SyncClient>(new SyncClient(std::move(route), clock));
  return client;
}

SyncClient::SyncClient(Route route, const Clock& clock)
    : clock_(clock), address_(route.text()), route_(std::move(route)) {}

// Of several, the first that listens is asked; where none does, the one whose turn it is.
void SyncClient::look_around(Time deadline) {
  constexpr Duration kLook = std::chrono::milliseconds(250);
  if (socket_ || route_.size() < 2) return;
  std::vector<std::string> turn;
  for (size_t i = 0; i < route_.size(); ++i)
    turn.push_back(route_.address((route_.current() + i) % route_.size()));
  const size_t first = first_listening(turn, std::min(kLook, deadline - clock_.now()), clock_);
  if (first < turn.size()) route_.choose((route_.current() + first) % route_.size());
}

Result<> SyncClient::connect() {
  const std::string& to = route_.address(route_.current());
  if (socket_ && connected_ == to) return {};
  MC_TRY(socket_, Socket::connect(Socket::Kind::kDealer, to));
  connected_ = to;
  return {};
}

void SyncClient::pass_over() {
  Lock lock(mutex_);
  route_.pass_over(route_.current());
}

std::optional<detail::Answered> SyncClient::wait(uint64_t id, Time deadline) {
  for (;;) {
    const Duration left = deadline - clock_.now();
    if (left.count() <= 0) return std::nullopt;
    if (!socket_->wait_readable(static_cast<int>(left.count() / 1'000'000 + 1))) continue;
    for (auto frames = socket_->receive(); !frames.empty(); frames = socket_->receive()) {
      auto answer = detail::answer_of(std::move(frames));
      if (answer.id == id) return answer;  // others are of calls that were given up
    }
  }
}

Result<std::string> SyncClient::call_raw(const char* type, const std::string& body,
                                         Duration budget) {
  Lock lock(mutex_);
  const Time deadline = clock_.now() + budget;
  if (body.size() > wire::kMessageBytesMax)
    return fail(Code::kInvalid, "%s: message of %zu bytes is over the limit", type, body.size());
  for (int hop = 0;; ++hop) {
    look_around(deadline);
    const size_t at = route_.current();
    MC_TRY_(connect());
    const uint64_t id = next_id_++;
    MC_TRY_(socket_->send({envelope_of(type, id, deadline - clock_.now(), {}), body}));
    auto answer = wait(id, deadline);
    if (!answer) {
      socket_.reset();  // a new one forgets what is queued, as in Client::expire
      route_.pass_over(at);
      const bool any = route_.size() > 1 && !answered_;
      return fail(no_answer(any ? "any of " + address_ : connected_, type, budget, answered_));
    }
    answered_ = true;
    const bool again = answer->elsewhere && route_.refused(at, answer->instead);
    if (!again || hop == kHopsMax) return std::move(answer->body);
  }
}

}  // namespace mc::rpc
