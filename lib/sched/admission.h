// Whether a request is taken, by what it is predicted to see.
//
//   none      everything is taken
//   baseline  each side is asked when a request reaches it: refused at arrival when its TTFT would
//             break the promise, and when the prompt is computed and its decode node, as loaded
//             then, would break that for the time between tokens: such a prefill is wasted
//   early     both at arrival, and never again: but what is decoding now has left when the prompt
//             is computed, and what is being prefilled now will have come, so that prefill and
//             decode load swing against each other
//   predict   as `early`, with the decode load predicted for the time when the prompt is computed:
//             requests whose prefill ends by then are added, those that will have decoded for
//             longer than t_d by then are taken as ended
//
// t_d, one for all, is how long nearly all (95 %) decoded lately. With the mean the forecast counts
// on places that slower requests still have; and the further off a prompt's end is the more such
// places it sees, so that long prompts book what short ones, meanwhile, are given too.
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
  void ended(uint64_t job, Time now);  // in any state; unknown ones are fine

  struct Load {
    double requests = 0, context_tokens = 0;  // whole numbers
  };
  Load now() const { return decoding_; }
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
  Load decoding_;
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
// A refusal for the one who is refused: why, and when to come back. After what TTFT is over the
// promise; or, for the time between tokens, when the forecast holds it, as far as kForecast.
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
