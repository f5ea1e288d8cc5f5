// Decides how many prefill and decode workers the cluster should have.
//
// It samples the loads of the live workers, decides as sched::PdControl does, and publishes the
// wanted numbers: on /cluster, as metrics, and to the operator's command (--scale-hook). It logs
// every decision with its inputs. Its owner moves the workers (on_move,
// serve/conductor/role_rebalancer.h). It decides nothing while a worker moves, or while another
// conductor leads; a new leader first looks on for an interval.
//
// Thread: the conductor's loop. Source: Mooncake paper, section 5.1.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "base/json_fwd.h"
#include "base/metrics.h"
#include "base/options.h"
#include "sched/pd_control.h"
#include "serve/conductor/scale_hook.h"

namespace mc::serve {

struct PdAutoscalerOptions {
  bool enabled = false;
  sched::PdOptions pd;
  std::string moves = "on";
  std::string scale_hook;
  void describe(OptionList& v);
  Result<> check() const;
};

// Means over the workers that are alive and not draining.
struct PoolLoads {
  size_t prefill_nodes = 0, decode_nodes = 0;
  double prefill = 0, decode = 0;
};

class PdAutoscaler {
 public:
  static constexpr Duration kSample = std::chrono::milliseconds(100);
  static constexpr Duration kIntervalMin = 10 * kSample;
  PdAutoscaler(const PdAutoscalerOptions& options, Metrics& metrics);
  Time deadline() const { return sample_at_; }
  void tick(const PoolLoads& loads, Time now);
  Json state() const;
  // The side that needs workers most, by the last loads; kNone within the dead band.
  sched::PdMove pressure() const;

  std::function<bool(Time now)> is_moving;  // whether a worker moves
  std::function<bool()> leads;              // whether it is for this conductor to decide
  // Carries a move out. Returns: the worker's name; empty when none can move.
  std::function<std::string(const sched::PdDecision& decision, Time now)> on_move;

 private:
  void decide(const PoolLoads& loads, Time now);
  const PdAutoscalerOptions options_;
  sched::PdControl control_;
  ScaleHook hook_;
  Metrics& metrics_;
  PoolLoads loads_;
  sched::PdDecision last_;
  size_t wanted_prefill_ = 0, wanted_decode_ = 0;
  Time sample_at_{}, first_{};
};

}  // namespace mc::serve
