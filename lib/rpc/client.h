// Calls one server. Client answers through callbacks on a loop; SyncClient blocks its caller.
// Every call has a budget; a peer that never answered at all is kUnavailable, one that answered
// before but not this time is kTimeout. Lost connections are re-made by ZeroMQ; calls in flight
// then run into their deadline. A call is never sent twice.
//
//   client.call(PutStart{...}, 1s, [](Result<PutStarted> reply) {...});
//   MC_TRY(PutStarted reply, sync.call(PutStart{...}, 1s));
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "io/loop.h"
#include "rpc/envelope.h"
#include "rpc/socket.h"

namespace mc::rpc {

namespace detail {
// The error a reply carries, or its body.
Result<std::string> body_of(const std::vector<std::string>& frames, uint64_t* id);
template <class R>
Result<R> decode_reply(const Result<std::string>& body) {
  if (!body) return fail(body.error());
  return wire::decode<R>(*body);
}
}  // namespace detail

// Thread: the loop's. Destroying it drops the calls in flight without calling back.
class Client {
 public:
  static Result<std::unique_ptr<Client>> connect(io::Loop& loop, const std::string& address);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& address() const { return socket_.address(); }
  template <class M>
  void call(const M& message, Duration budget, std::function<void(Result<typename M::Reply>)> done,
            const std::string& trace_id = {}) {
    call_raw(M::kName, wire::encode(message), budget, trace_id,
             [done = std::move(done)](const Result<std::string>& body) {
               done(detail::decode_reply<typename M::Reply>(body));
             });
  }
  size_t in_flight() const { return pending_.size(); }
  static constexpr size_t kInFlightMax = 1 << 16;

 private:
  using Done = std::function<void(const Result<std::string>&)>;
  struct Pending {
    Done done;
    io::Loop::Handle timer;
  };
  Client(io::Loop& loop, Socket socket);
  void call_raw(const char* type, const std::string& body, Duration budget,
                const std::string& trace_id, Done done);
  void receive();
  void expire(uint64_t id, const std::string& type, Duration budget);

  io::Loop& loop_;
  Socket socket_;
  io::Loop::Handle watch_ = 0;
  uint64_t next_id_ = 1;
  bool answered_ = false;
  std::unordered_map<uint64_t, Pending> pending_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Thread: any; one call at a time, the others wait for it (make several for parallel calls).
class SyncClient {
 public:
  static Result<std::unique_ptr<SyncClient>> connect(const std::string& address,
                                                     const Clock& clock);
  const std::string& address() const { return address_; }
  template <class M>
  Result<typename M::Reply> call(const M& message, Duration budget) {
    return detail::decode_reply<typename M::Reply>(
        call_raw(M::kName, wire::encode(message), budget));
  }

 private:
  SyncClient(Socket socket, const Clock& clock);
  Result<std::string> call_raw(const char* type, const std::string& body, Duration budget);

  const Clock& clock_;
  const std::string address_;
  Mutex mutex_;
  Socket socket_ MC_GUARDED_BY(mutex_);
  uint64_t next_id_ MC_GUARDED_BY(mutex_) = 1;
  bool answered_ MC_GUARDED_BY(mutex_) = false;
};

}  // namespace mc::rpc
