#include "rpc/server.h"

#include <algorithm>

#include "base/log.h"

namespace mc::rpc {
namespace {
constexpr int kPerTurn = 256;  // messages handled before timers and other sockets get a turn
constexpr uint32_t kBudgetMaxMs = 3'600'000;
}  // namespace

namespace detail {

RawReply::~RawReply() {
  if (!sent_)
    send("error", wire::encode(ErrorBody{static_cast<uint8_t>(Code::kInternal),
                                         "internal",
                                         "the request was dropped without an answer",
                                         false,
                                         {}}));
}

void RawReply::send(const char* type, const std::string& body) {
  if (sent_) return;
  sent_ = true;
  if (step_ != nullptr) {
    StepFacts facts;
    if (std::string_view(type) == "error") {
      const auto error = wire::decode<ErrorBody>(body);
      facts.error = error ? error->what : "error";
    }
    step_->end(type_.c_str(), facts);
  }
  if (auto server = server_.lock()) (*server)->send(peer_, id_, type, body);
}

}  // namespace detail

Result<std::unique_ptr<Server>> Server::open(io::Loop& loop, const std::string& listen,
                                             Metrics& metrics) {
  auto server = std::unique_ptr<Server>(new Server(loop, metrics));
  MC_TRY(server->listener_, Listener::open(loop, Socket::Kind::kRouter, listen, metrics,
                                           [s = server.get()] { s->receive(); }));
  server->listener_->with([s = server.get()](const ClusterKeys& keys) {
    return s->shm_ == nullptr ? 0 : s->shm_->keep(keys);
  });
  return server;
}

Server::Server(io::Loop& loop, Metrics& metrics)
    : loop_(loop),
      metrics_(metrics),
      malformed_(metrics.counter("mc_rpc_malformed_total", "control messages refused unread")),
      dropped_replies_(metrics.counter("mc_rpc_dropped_replies_total",
                                       "replies whose peer was gone or whose queue was full")),
      self_(std::make_shared<Server*>(this)) {}

Server::~Server() { self_.reset(); }

void Server::add(const char* type, Handler handler) {
  Counter& requests =
      metrics_.counter("mc_rpc_requests_total", "control messages by type", {{"type", type}});
  handlers_[type] = {std::move(handler), &requests};
}

void Server::receive() {
  for (int i = 0; i < kPerTurn; ++i) {
    uint64_t port = 0;
    const auto frames = listener_->receive(port);
    if (frames.empty()) return;
    if (frames.size() == 3)
      dispatch({frames[0], port, 0}, frames[1], frames[2]);
    else
      malformed_.add();
  }
  loop_.post([this, alive = std::weak_ptr(self_)] {
    if (!alive.expired()) receive();
  });
}

Result<> Server::listen_shm() {
  MC_TRY(shm_, ShmListener::open(loop_, address(), ended_connections(metrics_),
                                 [this](uint64_t peer, const auto& message) {
                                   dispatch({{}, 0, peer}, message.envelope, message.body);
                                 }));
  return {};
}

void Server::offer_shm(const char* area) {
  if (const auto shm = listen_shm(); !shm)
    log_warn(area, "callers on this host are served over ZeroMQ only: %s",
             shm.error().what.c_str());
}

void Server::dispatch(detail::Caller peer, std::string_view head, std::string_view body) {
  auto envelope = wire::decode<Envelope>(head);
  if (!envelope) {  // without an id there is nothing to answer to
    malformed_.add();
    log_debug("rpc", "malformed envelope of %zu bytes dropped", head.size());
    return;
  }
  auto raw = std::make_shared<detail::RawReply>(self_, std::move(peer), envelope->id);
  if (envelope->version != kProtocolVersion) {
    Reply<Empty>(raw).error(
        {Code::kUnsupported,
         strf("protocol version %u: this server, mc %s, speaks %u", unsigned{envelope->version},
              MC_VERSION, unsigned{kProtocolVersion})});
    return;
  }
  auto it = handlers_.find(envelope->type);
  if (it == handlers_.end()) {
    Reply<Empty>(raw).error(
        {Code::kUnsupported, strf("unknown message type '%s' at %s", escape(envelope->type).c_str(),
                                  address().c_str())});
    return;
  }
  it->second.requests->add();
  if (begin_answer_ && !envelope->trace_id.bytes.empty())
    raw->trace(begin_answer_(envelope->trace_id.bytes), envelope->type);
  const Time now = loop_.now();
  const uint32_t budget = std::min(envelope->budget_ms, kBudgetMaxMs);
  it->second.handler(
      body, Call{now, now + std::chrono::milliseconds(budget), envelope->trace_id.bytes}, raw);
}

void Server::send(const detail::Caller& peer, uint64_t id, const char* type,
                  const std::string& body) {
  if (body.size() > wire::kMessageBytesMax) {
    const std::string what =
        strf("reply of %zu bytes is over the %llu limit: ask for less", body.size(),
             static_cast<unsigned long long>(wire::kMessageBytesMax));
    send(peer, id, "error",
         wire::encode(ErrorBody{static_cast<uint8_t>(Code::kInvalid), "invalid", what, false, {}}));
    return;
  }
  Envelope envelope;
  envelope.type = type;
  envelope.id = id;
  const std::string head = wire::encode(envelope);
  const bool sent = peer.shm != 0 ? shm_->send(peer.shm, head, body)
                                  : listener_->send(peer.port, {peer.peer, head, body}).has_value();
  if (!sent) dropped_replies_.add();
}

}  // namespace mc::rpc
