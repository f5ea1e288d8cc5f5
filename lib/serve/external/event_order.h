// Puts an engine's event batches in order. They are published with consecutive numbers from 0 on;
// the publisher keeps the last of them and sends them again when asked from a number on, ending
// with number -1. A number that is skipped is asked for while what follows waits; what the
// publisher no longer has is lost, and with it everything known of that cache. The last batch
// applied is asked for too: one that comes back with other contents, or not at all, is another
// publisher's, which counts from 0 again. After silence the next number is asked for, so that a
// lost last one is found.
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
  static constexpr int kTries = 3;              // questions before a gap is given up
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
  // The number to ask for from, when it is time to; once. From then on replayed() must get nothing
  // of earlier answers.
  std::optional<uint64_t> ask();
  // The engine was away: all is forgotten, and everything asked for again.
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
