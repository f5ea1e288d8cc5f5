// A connected queue pair and the transfers on it. Private to rdma/*.cc. It turns each transfer
// into linked work requests, posts them with one doorbell, requests one completion a transfer, and
// reports which transfers are done.
//
// A guarded read is three parts in one post: the guard word, the bytes, the word again, each
// behind a fence. A guarded write first reads the word in a post of its own, and again after its
// bytes.
//
// A write to memory of a device ends with a read of its last byte: NICs answer before such memory
// has what they wrote, and a read pushes earlier writes along. So a peer that hears of the bytes,
// in whatever way, finds them. One that is cut short reads it too, after what was posted.
//
// Thread: one at a time (its owner's mutex).
#pragma once
#include <array>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "xfer/rails/patience.h"
#include "xfer/rails/rail_queue.h"
#include "xfer/transports/rdma/regions.h"

namespace mc::xfer::rdma {

struct Flight {
  AttemptPtr attempt;  // null: a ping, or one that only its caller knows of
  bool ping = false;   // reads a byte of the peer, for its round trip alone
  Op op = Op::kRead;
  std::byte* local = nullptr;
  Piece piece;
  uint64_t remote = 0;  // address at the owner of the first byte
  uint64_t buffer = 0;  // its offset in the segment
  uint32_t rkey = 0;
  bool guarded = false;
  uint64_t guard_at = 0, expected = 0;
  bool settles = false;       // a write to memory of a device
  RegionPtr region;           // of the local memory; null: inline
  BouncePtr bounce;           // what is read arrives there first; null: at its place
  std::byte* into = nullptr;  // then this is its place
  uint64_t into_stride = 0;
  Time since{};
  // ---- the connection's
  Time unwanted{};               // since when its result is; {}: it is wanted
  bool cut = false;              // for that reason not all of it was posted
  bool checking = false;         // the guard, before a write
  bool started = false;          // posted, at least in part
  uint64_t next = 0, total = 0;  // requests of this part
  uint32_t unanswered = 0;
  int slot = -1;  // of the words that guards, and single bytes, are read into
};
using FlightPtr = std::shared_ptr<Flight>;

class Connection {
 public:
  static constexpr size_t kFlightsMax = 64;  // beside them one ping

  Connection(uint32_t id, DevicePtr device, std::unique_ptr<QueuePair> pair)
      : id_(id), device_(std::move(device)), pair_(std::move(pair)), free_(pair_->depth()) {}
  ~Connection();  // nothing of it moves any more
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  uint32_t id() const { return id_; }
  const DevicePtr& device() const { return device_; }
  QueuePair& pair() { return *pair_; }
  uint32_t inline_max() const { return pair_->inline_max(); }
  bool unposted() const { return !unposted_.empty(); }  // waits for room, here or on the device
  bool full() const { return flights_.size() >= kFlightsMax; }
  const std::vector<FlightPtr>& flights() const { return flights_; }

  // Errors: the local memory for guards cannot be registered; kBusy, there are too many flights.
  // Posted by post().
  Result<> add(const FlightPtr& flight);
  Result<> post();  // an error: the connection is broken
  struct Done {
    FlightPtr flight;
    Result<> outcome;
  };
  // Handles a completion, identified by its sequence number. False: it failed, and the connection
  // is broken; failed() is the transfer.
  bool completed(const ibv_wc& wc, std::vector<Done>* done);
  // Nobody wants this transfer any more.
  enum class Dropped : uint8_t {
    kUnknown,  // it is not here
    kOver,     // nothing of it is under way: it is not here any more
    kEnding    // what was posted ends by itself, and no more of its bytes is posted
  };
  Dropped drop(const AttemptPtr& attempt, Time now);
  Patience::Pair state() const;
  const FlightPtr& failed() const { return failed_; }
  ibv_wc_status status() const { return status_; }
  std::vector<FlightPtr> take_all();  // what has not ended
  Time heard{};                       // when something last completed

  struct Remote {  // the owner's end, as of when this was made
    uint32_t number = 0;
    uint64_t epoch = 0;
    std::unordered_map<uint64_t, uint32_t> keys;  // by offset; used instead of the descriptor's
    bool has_keys = false;
  };
  Remote remote;

 private:
  struct Mark {  // a request whose completion was asked for, with those before it
    uint32_t seq;
    uint32_t requests;
    FlightPtr flight;
  };
  static constexpr uint32_t kChain = 32;  // requests a doorbell
  static constexpr uint64_t kMessage = 512u << 20;
  using Requests = std::array<ibv_send_wr, kChain>;
  using Pieces = std::array<ibv_sge, kChain>;
  Result<> find_slot(Flight& flight);
  void begin(Flight& flight);
  void fill(const Flight& flight, uint64_t i, ibv_send_wr& wr, ibv_sge& sge) const;
  void ended(const FlightPtr& flight, std::vector<Done>* done);
  void forget(const FlightPtr& flight);
  Result<> verdict(const Flight& flight) const;

  const uint32_t id_;
  const DevicePtr device_;
  std::unique_ptr<QueuePair> pair_;
  uint32_t free_, next_seq_ = 1;
  std::deque<Mark> marks_;
  std::deque<FlightPtr> unposted_;
  std::vector<FlightPtr> flights_;
  std::vector<uint64_t> words_;  // two for each slot
  RegionPtr words_region_;
  std::vector<int> free_slots_;
  FlightPtr failed_;
  ibv_wc_status status_ = IBV_WC_SUCCESS;
};

}  // namespace mc::xfer::rdma
