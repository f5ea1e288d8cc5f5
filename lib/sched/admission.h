// Decides whether to accept a request, by the latencies predicted for it.
//
//   none      accepts every request
//   baseline  checks each side when a request reaches it: the TTFT at arrival; the time between
//             tokens when the prompt is computed, on its decode node as loaded then. A prefill that
//             is refused there was wasted
//   early     checks both at arrival only, against the present load of the decode nodes. By the
//             time the prompt is computed, requests that decode now have ended and prompts that are
//             computed now have arrived, so prefill and decode load swing against each other
//   predict   as `early`, with the decode load predicted for the time when the prompt is computed:
//             requests whose prefill ends by then are added, those that will have decoded for
//             longer than t_d by then count as ended
//
// t_d, one for all, is the time within which 95 % of the recent requests decoded. The mean would
// free places that slower requests still hold. It would see more such places the later a prompt
// ends, so that long prompts would reserve what short ones are given meanwhile.
//
// Thread: one owner. Pure: time is an argument.
// Source: Mooncake (arXiv 2407.00079), sections 4.3.2 to 4.3.4; Table 4.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/time.h"
#include "sched/cost.h"
#include "sched/policy.h"
#include "sched/time_sums.h"

namespace mc::sched {

struct AdmissionOptions {
  std::string admission = "none";
  Duration ttft_slo{0}, tbt_slo{0};                // 0: no promise
  Duration decode_time{std::chrono::seconds(12)};  // t_d, until it was observed
  void describe(OptionList& v);
};

inline const std::vector<std::string> kAdmissions = {"none", "baseline", "early", "predict"};

// The decode pool's requests over time: those that decode and those that will.
class DecodeForecast {
 public:
  explicit DecodeForecast(Duration decode_time) : decode_time_(decode_time) {}

  void dispatched(uint64_t job, uint64_t tokens, Time decodes_from);  // its prompt ends then
  void decoding(uint64_t job, Time now);
  void ended(uint64_t job, Time now);  // in any state; ignores unknown jobs
  struct Load {
    double requests = 0, context_tokens = 0;  // whole numbers
  };
  void tell_others(const Load& load) { others_ = load; }  // of other conductors, from now on
  Load now() const {
    return {decoding_.requests + others_.requests,
            decoding_.context_tokens + others_.context_tokens};
  }
  // Predicted.
  Load at(Time then, Time now) const;
  Duration decode_time() const;  // t_d

 private:
  struct Job {
    uint64_t tokens;
    Time from;
  };
  class Jobs {
   public:
    void put(uint64_t id, Job job);
    std::optional<Job> take(uint64_t id);
    Load until(Time from) const;  // of those that began, or will, by then

   private:
    std::unordered_map<uint64_t, Job> by_id_;
    TimeSums by_time_;
  };
  Jobs coming_, decoding_jobs_;
  Load decoding_, others_;
  Duration decode_time_;            // until enough is known
  std::deque<Duration> lately_;     // decode times, oldest first
  std::vector<Duration> in_order_;  // the same, sorted
};

// Time between tokens if a load is spread evenly over `nodes`, with one more request.
double pool_tbt_ms(const DecodeForecast::Load& load, size_t nodes, uint64_t tokens,
                   const Cost& cost);

// At arrival: `decision` is what choose() found (without promises of its own).
Verdict admit(const Decision& decision, uint64_t tokens, const AdmissionOptions& options,
              const DecodeForecast& forecast, size_t decode_nodes, const Cost& cost, Time now);
// The refusal for the client: why, and when to retry. For TTFT: after the excess over the promise.
// For the time between tokens: when the forecast has room, kForecast at most.
struct Refusal {
  std::string why;
  Duration retry_after;
};
inline constexpr Duration kForecast = std::chrono::seconds(30);
Refusal refusal(const Decision& decision, Verdict verdict, uint64_t tokens,
                const AdmissionOptions& options, const DecodeForecast& forecast,
                size_t decode_nodes, const Cost& cost, Time now);
// When the prompt is computed: `node` as it is now.
Verdict admit_decode(const DecodeView& node, uint64_t tokens, const AdmissionOptions& options,
                     const Cost& cost);

}  // namespace mc::sched
