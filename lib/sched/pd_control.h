// Balances the numbers of prefill and decode nodes by their measured loads.
//
// A sample has the load of both pools. Once an interval the factor
//   f = (decode + 1) / (prefill + 1)
// of the trimmed mean loads says which pool needs nodes. One node moves at a time, and only when
// the move helps:
//   - f is outside the dead band [1 / band, band], and the pool that would grow is loaded to
//     `busy` or more: an idle cluster needs no moves;
//   - the last move was at least `cooldown` ago;
//   - the donor keeps at least one node, and its load after the move, N / (N - 1) of what it is,
//     does not put f outside the band on the other side.
// When the cluster grows, the busier pool gets the node; when it shrinks, the idler one gives it.
//
// Thread: one owner. Pure: time is an argument. Loads: 1 is full, from 0 up.
// Source: Mooncake, section 5.1.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"

namespace mc::sched {

struct PdOptions {
  Duration interval{std::chrono::seconds(10)};  // between decisions
  Duration cooldown{std::chrono::seconds(60)};
  double band = 1.25;
  double busy = 0.6;
  double trim = 0.1;  // of the samples, at each end
};

enum class PdMove { kNone, kToDecode, kToPrefill };
const char* name(PdMove move);  // "none", "to_decode", "to_prefill"

struct PdDecision {
  PdMove move = PdMove::kNone;
  double prefill_load = 0, decode_load = 0, factor = 1;
  std::string reason;  // one phrase, with the numbers it was made from
};

class PdControl {
 public:
  explicit PdControl(PdOptions options) : options_(options) {}
  void sample(double prefill_load, double decode_load);
  Time deadline() const { return next_; }
  // Decides from the samples since the last decision, which it forgets.
  PdDecision decide(size_t prefill_nodes, size_t decode_nodes, Time now);
  // For a node that moves: drops the samples, and decides nothing for an interval.
  void hold(Time now);

 private:
  PdOptions options_;
  std::vector<double> prefill_, decode_;
  Time next_{}, quiet_until_{};
};

// The side that needs nodes most, by its load; kNone within the dead band.
PdMove pressure(double prefill_load, double decode_load, double band);

// The mean of what is left when the lowest and highest `trim` of the values are dropped.
double trimmed_mean(std::vector<double> values, double trim);

}  // namespace mc::sched
