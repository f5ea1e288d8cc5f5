// Whether a request is taken, by what it is predicted to see.
//
//   none      everything is taken
//   baseline  refused at arrival when its TTFT would break the promise; the decode side is asked
//             only when the prompt is computed, and a refusal there wastes the prefill
//   early     refused at arrival also when decoding, as loaded *now*, would break the TBT promise:
//             but what is decoding now has left when the prompt is computed, and what is being
//             prefilled now will have come, so prefill and decode load swing against each other
//   predict   as `early`, with the decode load predicted for the time when the prompt is computed:
//             requests whose prefill ends by then are added, and of all that decode a share has
//             ended by then. The paper lets every request decode for the same time; answers differ
//             so much in length that here the times observed lately say how likely one that has
//             decoded for so long is to go on
//
// With all but `none` the decode side is asked again when the prompt is computed.
//
// Thread: one owner. Pure: time is an argument.
// Source: Mooncake (arXiv 2407.00079), sections 4.3.2 to 4.3.4; Table 4.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/time.h"
#include "sched/cost.h"
#include "sched/policy.h"

namespace mc::sched {

struct AdmissionOptions {
  std::string admission = "none";
  Duration ttft_slo{0}, tbt_slo{0};                // 0: no promise
  Duration decode_time{std::chrono::seconds(12)};  // until any was observed
  void describe(OptionList& v);
};

inline const std::vector<std::string> kAdmissions = {"none", "baseline", "early", "predict"};

// The decode pool's requests over time: those that decode and those that will.
class DecodeForecast {
 public:
  explicit DecodeForecast(Duration decode_time) : decode_s_(to_seconds(decode_time)) {}

  void dispatched(uint64_t job, uint64_t tokens, Time decodes_from);  // its prompt ends then
  void decoding(uint64_t job, Time now);
  void ended(uint64_t job, Time now);  // in any state; unknown ones are fine

  struct Load {
    double requests = 0, context_tokens = 0;
  };
  Load now() const { return decoding_; }
  Load at(Time then, Time now) const;     // predicted; linear in the requests known
  double survives(double seconds) const;  // the share of requests that decode for longer

 private:
  struct Job {
    uint64_t tokens;
    Time from;
  };
  std::map<uint64_t, Job> coming_, decoding_jobs_;  // in order: sums of doubles must not vary
  Load decoding_;
  double decode_s_;               // until enough is known
  std::deque<double> lately_;     // decode times, oldest first
  std::vector<double> in_order_;  // the same, sorted
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
