// Calls a server, or the one of several servers that answers (rpc/server_list.h):
// "host:port,host:port". Client answers through callbacks on a loop. SyncClient blocks its caller.
// Before it connects to one of several servers it probes which of them listen, so that dead ones
// cost no time.
//
//   client.call(PutStart{...}, 1s, [](Result<PutStarted> reply) {...});
//   MC_TRY(PutStarted reply, sync.call(PutStart{...}, 1s));
//
// Every call has a budget. ZeroMQ reconnects lost connections; calls in flight then run into their
// deadline; one that passed while the caller's own loop stood still is extended once. No call is
// sent twice, except one that a server refused because another server answers. A Client whose
// connection brought nothing since a call was sent that is over makes a new one for the next calls:
// a network may forget a connection that both ends hold open. The old one is kept for the answers
// to the others that it carried, and closed with the last of them.
//
// Where the cluster key has a file, a SyncClient's next call makes a lost connection anew: ZeroMQ
// would try a revoked key for ever between calls. It sends once the server knows the key.
//
// While two cluster keys stand (rpc/access/cluster_key.h), a connection whose key the server
// refused is made anew with the other key. Its calls have not left, and are sent over that one.
// When the server knows the first key, the next calls go over a new connection by it.
//
// `Channel::kShm` tries shared memory (rpc/shm_channel.h) to a server of the same host and user. It
// falls back to ZeroMQ. Calls to one server are handled in the order of sending: shared memory is
// used once all calls sent over ZeroMQ are answered. Only those of a new connection may be handled
// before those of the silent one, or of that by another key.
//
// A SyncClient's calls are steps of its caller's trace (base/step_trace.h), whose id they carry. A
// Client's carry the id that they are given.
//
// Errors: kTimeout: the server answered earlier calls but not this one. kUnavailable: it never
// answered, or it ended while a call over shared memory was in flight.
// Thread: each class says its own.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "io/loop.h"
#include "rpc/busy_poll.h"
#include "rpc/envelope.h"
#include "rpc/server_list.h"
#include "rpc/shm_channel.h"
#include "rpc/socket.h"

namespace mc::rpc {

enum class Channel : uint8_t { kZeroMq, kShm };

namespace detail {
// A reply: its error or its body. `elsewhere`: another server answers such calls, at `instead`.
struct Answered {
  uint64_t id = 0;
  bool elsewhere = false;
  std::string instead;
  Result<std::string> body;
};
Answered answer_of(std::string_view envelope, std::string_view body);
Answered answer_of(const std::vector<std::string>& frames);
template <class R>
Result<R> decode_reply(const Result<std::string>& body) {
  if (!body) return fail(body.error());
  return wire::decode<R>(*body);
}
}  // namespace detail

// Thread: the loop's. Destroying it drops the calls in flight without calling back.
class Client {
 public:
  static Result<std::unique_ptr<Client>> connect(io::Loop& loop, const std::string& addresses,
                                                 Channel channel = Channel::kZeroMq);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& address() const { return servers_.address(servers_.current()); }
  // Calls the next of several servers from now on; the current one gave no useful answer.
  void skip_server() { servers_.skip(servers_.current()); }
  template <class M>
  void call(const M& message, Duration budget, std::function<void(Result<typename M::Reply>)> done,
            const std::string& trace_id = {}) {
    call_raw(M::kName, wire::encode(message), budget, trace_id,
             [done = std::move(done)](const Result<std::string>& body) {
               done(detail::decode_reply<typename M::Reply>(body));
             });
  }
  // Decodes the reply into `reply` and reuses its memory: for calls that repeat for ever, one at a
  // time. `reply` must outlive this client; after an error its content is invalid.
  template <class M>
  void call_over(const M& message, Duration budget, typename M::Reply& reply,
                 std::function<void(const Result<>&)> done) {
    call_raw(M::kName, wire::encode(message), budget, {},
             [&reply, done = std::move(done)](const Result<std::string>& body) {
               done(body ? wire::decode_over(*body, reply) : fail(body.error()));
             });
  }
  size_t in_flight() const { return pending_.size(); }
  static constexpr size_t kInFlightMax = 1 << 16;

 private:
  using Done = std::function<void(const Result<std::string>&)>;
  struct Connection {  // over ZeroMQ
    Connection(io::Loop& l, Socket s, uint64_t n) : loop(l), socket(std::move(s)), number(n) {}
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    ~Connection() {
      loop.unwatch(watch);
      loop.unwatch(fate_watch);
    }
    io::Loop& loop;
    Socket socket;
    const uint64_t number;  // counts the client's connections
    io::Loop::Handle watch = 0, fate_watch = 0;
    size_t in_flight = 0;
    Time heard = Time::min();  // its last message
  };
  struct Link {  // to one address of the list
    Connection* find(uint64_t number) const;
    void close_unused();
    std::string to;
    std::vector<std::unique_ptr<Connection>> connections;  // calls are sent over the last
    size_t in_flight = 0;                                  // over either channel
    size_t by_zeromq = 0;                                  // of these
    std::optional<ShmHandshake> handshake;
    std::optional<ShmChannel> shm;
    io::Loop::Handle shm_watch = 0, poll_watch = 0;
    bool hot = false;  // polled, not waited for
    BusyPoller poller{std::chrono::microseconds(60)};
    Time shm_tried = Time::min();
    const ClusterKey* key = nullptr;        // the last one that the server knew
    std::unique_ptr<Connection> candidate;  // by the first key; becomes the last if it is proven
    Time candidate_tried = Time::min();
    io::Loop::Handle retry = 0;
    int refusals = 0;  // since a key was proven
  };
  struct Pending {
    Done done;
    io::Loop::Handle timer = 0;
    const char* type = "";
    std::string body, trace_id;
    Time sent, deadline;
    size_t link = 0;
    uint64_t connection = 0;  // its number, over ZeroMQ
    bool shm = false, extended = false;
    int hops = 0;
  };
  Client(io::Loop& loop, ServerList servers, Channel channel);
  void call_raw(const char* type, std::string body, Duration budget, const std::string& trace_id,
                Done done);
  Result<> send(uint64_t id, Pending& call);
  Result<> open_link(size_t at);
  void close_link(size_t at);
  Result<> add_connection(size_t at);
  Result<std::unique_ptr<Connection>> make_connection(size_t at, const ClusterKey* key);
  Result<> send_over(size_t at, const std::string& envelope, const std::string& body);
  void learn_fate(size_t at, uint64_t number);
  void send_again(size_t at);
  void follow_keys();
  void renew_silent(const Pending& call);
  bool send_on(uint64_t id, Pending& call, const detail::Answered& refusal);
  bool receive(size_t at, uint64_t number);
  bool answer(size_t at, const detail::Answered& answer);
  void expire(uint64_t id, Duration budget);
  void left(const Pending& call);
  void try_shm(size_t at);
  void shake_hands(size_t at);
  bool poll_shm(size_t at);
  void receive_shm(size_t at);
  void lose_shm(size_t at);
  void fail_lost(size_t at, uint64_t number);

  io::Loop& loop_;
  ServerList servers_;
  const Channel channel_;
  std::vector<Link> links_;
  uint64_t next_id_ = 1, connections_ = 0;
  bool answered_ = false;
  std::unordered_map<uint64_t, Pending> pending_;
  io::Loop::Handle keys_timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Thread: any; one call at a time. The others wait for it, within their own budgets. Make several
// clients for parallel calls.
class SyncClient {
 public:
  static Result<std::unique_ptr<SyncClient>> connect(const std::string& addresses,
                                                     const Clock& clock,
                                                     Channel channel = Channel::kZeroMq);
  const std::string& address() const { return address_; }  // the whole list
  void skip_server();                                      // as Client's
  template <class M>
  Result<typename M::Reply> call(const M& message, Duration budget) {
    return detail::decode_reply<typename M::Reply>(
        call_raw(M::kName, wire::encode(message), budget));
  }

 private:
  SyncClient(ServerList servers, const Clock& clock, Channel channel);
  Result<std::string> call_raw(const char* type, const std::string& body, Duration budget);
  Result<std::string> call_in_turn(const char* type, const std::string& body, Duration budget,
                                   const std::string& trace_id);
  // As call_in_turn, when it is this call's turn.
  Result<std::string> call_now(const char* type, const std::string& body,
                               const std::string& trace_id, Duration budget, Time deadline);
  bool take_turn(Time deadline);  // false: others' calls took until then
  void end_turn();
  Result<> connect() MC_REQUIRES(mutex_);
  void drop_ended() MC_REQUIRES(mutex_);
  // The server knows the socket's key. Asked after so many tries of this call.
  bool proven(int refusals, Time deadline) MC_REQUIRES(mutex_);
  // Sends call `id` when a server knows the key, and waits for its answer.
  Result<std::optional<detail::Answered>> exchange_zeromq(const char* type,
                                                          const std::string& envelope,
                                                          const std::string& body, uint64_t id,
                                                          Time deadline) MC_REQUIRES(mutex_);
  void choose_listening(Time deadline) MC_REQUIRES(mutex_);
  // Returns: the reply to call `id`, or nothing when none came by the deadline.
  std::optional<detail::Answered> wait(uint64_t id, Time deadline) MC_REQUIRES(mutex_);
  void try_shm(Time deadline) MC_REQUIRES(mutex_);
  // As wait(), over shared memory; the call has `bytes` bytes.
  std::optional<detail::Answered> wait_shm(uint64_t id, size_t bytes, Time deadline)
      MC_REQUIRES(mutex_);
  Result<std::optional<detail::Answered>> exchange(const char* type, const std::string& body,
                                                   const std::string& trace_id, Time deadline)
      MC_REQUIRES(mutex_);

  const Clock& clock_;
  const Channel channel_;
  const std::string address_;
  Mutex turn_mutex_;
  Condition turn_ended_;
  bool calling_ MC_GUARDED_BY(turn_mutex_) = false;
  Mutex mutex_;
  ServerList servers_ MC_GUARDED_BY(mutex_);
  std::optional<Socket> socket_ MC_GUARDED_BY(mutex_);
  std::string connected_ MC_GUARDED_BY(mutex_);  // to this address
  std::optional<ShmChannel> shm_ MC_GUARDED_BY(mutex_);
  std::string shm_to_ MC_GUARDED_BY(mutex_);  // the address last tried
  Time shm_tried_ MC_GUARDED_BY(mutex_) = Time::min();
  Time shm_heard_ MC_GUARDED_BY(mutex_){};                 // its last answer
  const ClusterKey* key_ MC_GUARDED_BY(mutex_) = nullptr;  // to connect by
  Time key_tried_ MC_GUARDED_BY(mutex_) = Time::min();     // the first, when another was known
  AdaptiveSpin spin_ MC_GUARDED_BY(mutex_);                // before it waits
  YieldBackoff backoff_ MC_GUARDED_BY(mutex_);
  uint64_t next_id_ MC_GUARDED_BY(mutex_) = 1;
  bool answered_ MC_GUARDED_BY(mutex_) = false;
};

}  // namespace mc::rpc
