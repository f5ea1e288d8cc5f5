// How many workers of each kind the cluster should have: samples the loads of the live workers,
// decides as sched::PdControl does, and publishes what is wanted, for people (/cluster), as metrics
// and to a command of the operator's (--scale-hook). Every decision is logged with its inputs. Who
// owns it moves the workers (on_move, serve/conductor/role_rebalancer.h); while one moves nothing
// is decided.
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
  // Where workers are missed most by the loads seen last: kNone within the dead band.
  sched::PdMove pressure() const;

  std::function<bool(Time now)> is_moving;  // a worker
  // To be carried out; the name of the worker, empty: none can.
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
