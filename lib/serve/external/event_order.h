// Puts the event batches of one publisher in order, and finds lost ones.
//
// A publisher numbers its batches from 0 and keeps the last of them. Asked to replay from a number,
// it sends them again and ends with number -1. When a number is missing, later batches wait for its
// replay. If the publisher no longer has it, it is lost, and with it all knowledge of that cache.
//
// Every replay starts at the last batch applied. If that one returns with other contents, or not at
// all, another publisher has taken over, which counts from 0 again. After silence the order asks
// for the next number, which finds a lost last batch.
//
//   for (auto& step : order.live(seq, payload, now)) ...   // clear, or a batch to apply
//   if (auto from = order.ask()) send(*from);
//
// Bounded: at most kWaitingMax batches and kWaitingBytes wait. Thread: one owner. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "base/units.h"

namespace mc::serve {

struct EventOrderOptions {
  bool can_ask = true;  // there is a replay socket
  Duration replay_timeout = std::chrono::seconds(2);
  Duration probe_after = std::chrono::seconds(2);  // without a batch
};

class EventOrder {
 public:
  static constexpr uint64_t kEnd = UINT64_MAX;  // -1: a replay is complete
  static constexpr int kTries = 3;              // requests for a replay before a gap is given up
  static constexpr size_t kWaitingMax = 4096;
  static constexpr size_t kWaitingBytes = 64 * kMiB;

  struct Step {
    bool clear = false;   // forget all that is known of this cache
    std::string payload;  // otherwise: apply this
  };
  using Steps = std::vector<Step>;

  EventOrder(EventOrderOptions options, Time now);  // asks for everything from 0 on

  Steps live(uint64_t seq, std::string payload, Time now);
  Steps replayed(uint64_t seq, std::string payload, Time now);
  Steps tick(Time now);
  // The number to replay from, once, when a replay is due. From then on replayed() must get nothing
  // of earlier replays.
  std::optional<uint64_t> ask();
  // For an engine that was away: forgets all, and asks for everything again.
  Steps reset(Time now);

  uint64_t next() const { return next_; }        // the number after the last one applied
  bool replaying() const { return replaying_; }  // waiting for an answer
  uint64_t gaps() const { return gaps_; }        // numbers found missing
  uint64_t clears() const { return clears_; }    // times that all was forgotten

 private:
  void ask_from_next(Time now);
  void apply(Steps& steps, uint64_t seq, std::string payload);
  void clear(Steps& steps);
  Steps replay_ends(Time now);
  void drain(Steps& steps, Time now);  // what waits and is next
  void give_up_gap(Steps& steps, Time now);

  const EventOrderOptions options_;
  uint64_t next_ = 0;
  bool anything_ = false;  // was applied since the last clear
  bool replaying_ = false;
  bool progress_ = false;  // the present replay brought something new
  int tries_ = 0;          // of the present question that were not answered
  bool same_ = false;      // or what was applied before: it is the same publisher
  std::optional<uint64_t> ask_;
  Time deadline_{}, heard_{};
  std::map<uint64_t, std::string> waiting_;
  std::map<uint64_t, uint64_t> applied_;  // the last numbers applied, with their contents' hash
  size_t waiting_bytes_ = 0;
  uint64_t gaps_ = 0, clears_ = 0;
};

}  // namespace mc::serve
