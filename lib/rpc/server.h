// Answers control messages at one address (rpc/listener.h).
//
//   MC_TRY(auto server, rpc::Server::open(loop, "127.0.0.1:0", metrics));
//   server->on<PutStart>([&](const PutStart& m, const rpc::Call& call) -> Result<PutStarted>
//   {...}); server->on_later<GetReplicas>([&](const GetReplicas& m, const rpc::Call&,
//                                     rpc::Reply<Replicas> reply) { waiting.push_back(reply); });
//
// A message type M names its reply: `using Reply = ...;`. Unknown types, versions and malformed
// bodies get a typed error, and the server keeps serving. Limits: docs/architecture.md.
//
// Thread: the loop's. A Reply may be kept and used later, on the loop's thread, while the server
// lives. One dropped unused answers kInternal. An answer after the caller's deadline does no harm.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/step_trace.h"
#include "io/loop.h"
#include "rpc/envelope.h"
#include "rpc/listener.h"
#include "rpc/shm_listener.h"

namespace mc::rpc {

struct Call {
  Time now;              // when it was received
  Time deadline;         // the caller waits until then
  std::string trace_id;  // telemetry/trace_context.h
};

class Server;

namespace detail {
struct Caller {
  std::string peer;   // ROUTER's identity of it
  uint64_t port = 0;  // the number of its socket at the Listener
  uint64_t shm = 0;   // or its number at the ShmListener; 0: over ZeroMQ
};
class RawReply {  // answers once; shared by the copies of a Reply
 public:
  RawReply(std::weak_ptr<Server*> server, Caller peer, uint64_t id)
      : server_(std::move(server)), peer_(std::move(peer)), id_(id) {}
  ~RawReply();
  void send(const char* type, const std::string& body);
  // The answer is a step of a trace: it ends when it is sent.
  void trace(std::shared_ptr<StepTrace> step, const std::string& type) {
    step_ = std::move(step);
    if (step_ != nullptr) type_ = type;
  }

 private:
  std::weak_ptr<Server*> server_;
  Caller peer_;
  uint64_t id_;
  std::shared_ptr<StepTrace> step_;
  std::string type_;  // of the call that it answers
  bool sent_ = false;
};
}  // namespace detail

template <class R>
class Reply {
 public:
  explicit Reply(std::shared_ptr<detail::RawReply> raw) : raw_(std::move(raw)) {}
  void operator()(const Result<R>& result) const {
    if (result)
      raw_->send("ok", wire::encode(*result));
    else
      error(result.error());
  }
  void error(const Error& e) const {
    raw_->send("error",
               wire::encode(ErrorBody{
                   static_cast<uint8_t>(e.code), name(e.code), e.what.substr(0, 4096), false, {}}));
  }
  // Refers the caller to another server, `instead`, or to none yet. Callers repeat the call there.
  void elsewhere(const std::string& instead, const std::string& what) const {
    const Code code = Code::kUnavailable;
    raw_->send("error", wire::encode(ErrorBody{static_cast<uint8_t>(code), name(code), what, true,
                                               instead}));
  }

 private:
  std::shared_ptr<detail::RawReply> raw_;
};

class Server {
 public:
  static Result<std::unique_ptr<Server>> open(io::Loop& loop, const std::string& listen,
                                              Metrics& metrics);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const std::string& address() const { return listener_->address(); }  // "host:port", resolved
  // Accepts callers of this host and user over shared memory too (rpc/shm_channel.h).
  Result<> listen_shm();
  void offer_shm(const char* area);  // as listen_shm(), but a failure is only logged
  size_t shm_callers() const { return shm_ == nullptr ? 0 : shm_->peers(); }

  // Calls that carry a trace's id are steps of that trace, named by their type. `begin` gets the id
  // (Call::trace_id); nullptr: not recorded.
  using BeginAnswer = std::function<std::shared_ptr<StepTrace>(const std::string& trace_id)>;
  void trace_calls(BeginAnswer begin) { begin_answer_ = std::move(begin); }

  template <class M>
  void on(std::function<Result<typename M::Reply>(const M&, const Call&)> handler) {
    on_later<M>([handler = std::move(handler)](const M& m, const Call& call,
                                               const Reply<typename M::Reply>& reply) {
      reply(handler(m, call));
    });
  }
  template <class M>
  void on_later(
      std::function<void(const M&, const Call&, const Reply<typename M::Reply>&)> handler) {
    add(M::kName, [handler = std::move(handler), last = M{}](
                      std::string_view body, const Call& call,
                      std::shared_ptr<detail::RawReply> raw) mutable {
      const Reply<typename M::Reply> reply(std::move(raw));
      M large;
      M& message = body.size() > kKeptBytesMax ? large : last;  // no memory of large ones is kept
      if (auto read = wire::decode_over(body, message); !read)
        reply.error(read.error());
      else
        handler(message, call, reply);
    });
  }

 private:
  static constexpr size_t kKeptBytesMax = 64 * kKiB;
  friend class detail::RawReply;
  using Handler =
      std::function<void(std::string_view, const Call&, std::shared_ptr<detail::RawReply>)>;
  struct Entry {
    Handler handler;
    Counter* requests;
  };
  Server(io::Loop& loop, Metrics& metrics);
  void add(const char* type, Handler handler);
  void receive();
  void dispatch(detail::Caller peer, std::string_view envelope, std::string_view body);
  void send(const detail::Caller& peer, uint64_t id, const char* type, const std::string& body);

  io::Loop& loop_;
  std::unique_ptr<Listener> listener_;
  Metrics& metrics_;
  Counter& malformed_;
  Counter& dropped_replies_;
  std::map<std::string, Entry, std::less<>> handlers_;
  std::unique_ptr<ShmListener> shm_;
  BeginAnswer begin_answer_;
  std::shared_ptr<Server*> self_;  // null for replies that outlive the server
};

}  // namespace mc::rpc
