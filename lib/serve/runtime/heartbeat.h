// Sends heartbeats to every conductor: load, state and KV cache events.
// A conductor may be absent at the start, go and come back. Each acknowledges the KV events it has
// seen by number. A conductor that missed some gets them again, or finds the gap and asks for a
// snapshot.
//
// A beat without an answer within 4 x `period` has failed; the next one is sent all the same.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "io/loop.h"
#include "rpc/client.h"
#include "serve/kvcache/block_manager.h"
#include "serve/protocol/messages.h"

namespace mc::serve {

class Heartbeats {
 public:
  using Fill = std::function<void(Heartbeat&, const std::string& conductor)>;
  // `me` has the constant fields; `fill` sets load and draining of each beat to that conductor, by
  // the address in its answers (empty: not known, or the only one). `cache` outlives this, or is
  // nullptr (a worker that caches nothing). Beats start at once. Errors: kInvalid for a malformed
  // address.
  static Result<std::unique_ptr<Heartbeats>> open(io::Loop& loop, Heartbeat me,
                                                  const std::vector<std::string>& conductors,
                                                  Duration period, const BlockManager* cache,
                                                  Fill fill, Metrics& metrics);
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  // Sends a beat soon because the state changed; several changes share one beat.
  void nudge();
  // Conductors that answered their last beat.
  size_t joined() const;
  size_t conductors() const { return peers_.size(); }
  std::string last_error() const;  // of the conductor that failed last; empty: none fails

 private:
  struct Peer {
    std::unique_ptr<rpc::Client> client;
    uint64_t seen = 0;       // events it has acknowledged
    bool in_flight = false;  // a beat; one at a time keeps events in order
    bool again = false;      // the state changed meanwhile
    bool joined = false;
    uint64_t epoch = 0;   // as it answered
    std::string control;  // the same
    std::string error;
  };
  Heartbeats(io::Loop& loop, Heartbeat me, Duration period, const BlockManager* cache, Fill fill,
             Metrics& metrics);
  void beat_all();
  void beat(size_t peer);
  void answered(size_t peer, const Result<HeartbeatAck>& reply);

  io::Loop& loop_;
  const Heartbeat me_;
  const Duration period_;
  const BlockManager* const cache_;
  const Fill fill_;
  std::vector<Peer> peers_;
  io::Loop::Handle timer_ = 0, nudge_ = 0;
  Counter &sent_, &failed_;
};

}  // namespace mc::serve
