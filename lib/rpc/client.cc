#include "rpc/client.h"

#include <algorithm>

#include "base/units.h"

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

}  // namespace

namespace detail {

Result<std::string> body_of(const std::vector<std::string>& frames, uint64_t* id) {
  *id = 0;
  if (frames.size() != 2) return fail(Code::kCorrupt, "reply of %zu frames", frames.size());
  MC_TRY(const Envelope envelope, wire::decode<Envelope>(frames[0]));
  *id = envelope.id;
  if (envelope.type == "ok" && envelope.version == kProtocolVersion) return frames[1];
  if (envelope.type != "error")
    return fail(Code::kUnsupported, "reply of type '%s', protocol version %u: want ok or error, %u",
                shown(envelope.type).c_str(), unsigned{envelope.version},
                unsigned{kProtocolVersion});
  MC_TRY(const ErrorBody error, wire::decode<ErrorBody>(frames[1]));
  return fail(Error{code_from_wire(error.code), error.what});
}

}  // namespace detail

Result<std::unique_ptr<Client>> Client::connect(io::Loop& loop, const std::string& address) {
  MC_TRY(Socket socket, Socket::connect(Socket::Kind::kDealer, address));
  return std::unique_ptr<Client>(new Client(loop, std::move(socket)));
}

Client::Client(io::Loop& loop, Socket socket) : loop_(loop), socket_(std::move(socket)) {
  watch_ = loop_.watch_socket(socket_.handle(), [this] { receive(); });
}

Client::~Client() {
  loop_.unwatch(watch_);
  for (auto& [id, pending] : pending_) loop_.cancel(pending.timer);
}

void Client::call_raw(const char* type, const std::string& body, Duration budget,
                      const std::string& trace_id, Done done) {
  const uint64_t id = next_id_++;
  Result<> sent;
  if (pending_.size() >= kInFlightMax)
    sent = fail(Code::kBusy, "%s to %s: %zu calls in flight already", type, address().c_str(),
                pending_.size());
  else if (body.size() > wire::kMessageBytesMax)
    sent = fail(Code::kInvalid, "%s to %s: message of %zu bytes is over the limit", type,
                address().c_str(), body.size());
  else
    sent = socket_.send({envelope_of(type, id, budget, trace_id), body});
  io::Loop::Handle timer = 0;
  if (sent)
    timer = loop_.after(budget,
                        [this, id, budget, type = std::string(type)] { expire(id, type, budget); });
  else  // answer on a later turn: callers need not expect a call back inside call()
    timer = loop_.at(loop_.now(), [this, id, error = sent.error()] {
      const auto it = pending_.find(id);
      const Done refused = std::move(it->second.done);
      pending_.erase(it);
      refused(Result<std::string>(fail(error)));
    });
  pending_.emplace(id, Pending{std::move(done), timer});
}

void Client::receive() {
  const std::weak_ptr<bool> alive = alive_;
  for (auto frames = socket_.receive(); !frames.empty(); frames = socket_.receive()) {
    uint64_t id = 0;
    const auto body = detail::body_of(frames, &id);
    auto it = pending_.find(id);
    if (it == pending_.end()) continue;  // came after its deadline
    answered_ = true;
    const Done done = std::move(it->second.done);
    loop_.cancel(it->second.timer);
    pending_.erase(it);
    done(body);
    if (alive.expired()) return;  // the callback destroyed this client
  }
}

void Client::expire(uint64_t id, const std::string& type, Duration budget) {
  auto it = pending_.find(id);
  if (it == pending_.end()) return;
  const Done done = std::move(it->second.done);
  pending_.erase(it);
  // What lies queued for a peer that is not there was given up: a new socket forgets it, so that a
  // server that comes later does not do work nobody waits for.
  if (pending_.empty())
    if (auto fresh = Socket::connect(Socket::Kind::kDealer, address())) {
      loop_.unwatch(watch_);
      socket_ = std::move(*fresh);
      watch_ = loop_.watch_socket(socket_.handle(), [this] { receive(); });
    }
  done(Result<std::string>(fail(no_answer(address(), type.c_str(), budget, answered_))));
}

Result<std::unique_ptr<SyncClient>> SyncClient::connect(const std::string& address,
                                                        const Clock& clock) {
  MC_TRY(Socket socket, Socket::connect(Socket::Kind::kDealer, address));
  return std::unique_ptr<SyncClient>(new SyncClient(std::move(socket), clock));
}

SyncClient::SyncClient(Socket socket, const Clock& clock)
    : clock_(clock), address_(socket.address()), socket_(std::move(socket)) {}

Result<std::string> SyncClient::call_raw(const char* type, const std::string& body,
                                         Duration budget) {
  Lock lock(mutex_);
  const Time deadline = clock_.now() + budget;
  const uint64_t id = next_id_++;
  if (body.size() > wire::kMessageBytesMax)
    return fail(Code::kInvalid, "%s: message of %zu bytes is over the limit", type, body.size());
  MC_TRY_(socket_.send({envelope_of(type, id, budget, {}), body}));
  for (;;) {
    const Duration left = deadline - clock_.now();
    if (left.count() <= 0) {  // a new socket forgets what is queued, as in Client::expire
      if (auto fresh = Socket::connect(Socket::Kind::kDealer, address_))
        socket_ = std::move(*fresh);
      return fail(no_answer(address_, type, budget, answered_));
    }
    if (!socket_.wait_readable(static_cast<int>(left.count() / 1'000'000 + 1))) continue;
    for (auto frames = socket_.receive(); !frames.empty(); frames = socket_.receive()) {
      uint64_t got = 0;
      auto reply = detail::body_of(frames, &got);
      if (got != id) continue;  // of a call that was given up
      answered_ = true;
      return reply;
    }
  }
}

}  // namespace mc::rpc
