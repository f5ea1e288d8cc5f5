// Simulates a node's decode side in virtual time.
// Requests join between steps. Each step gives every request a token and lasts as the model says
// for the batch and its contexts. Steps between two changes of the batch are computed at once
// (their times rise linearly with the contexts), so the cost is per request, not per token.
//
// Three engines:
//   disaggregated  a joining request's KV must be loaded; a share of that time stalls the others
//   coupled        prompts are computed here too, before any further step (vLLM without chunks)
//   chunked        the same in chunks, one with each step
//
// Thread: one owner. Pure: time is an argument. Units: tokens, seconds.
// Source: the step model of cost/model_spec.h; Mooncake, section 7.1 (baselines).
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/time.h"
#include "cost/model_spec.h"

namespace mc::sim {

enum class Engine { kDisaggregated, kCoupled, kChunked };

struct DecoderOptions {
  Engine engine = Engine::kDisaggregated;
  uint64_t capacity_tokens = 1'200'000;  // of KV in fast memory: contexts plus answers to come
  double join_share = 0.7;               // of the load time that stalls a running batch
  double load_bytes_per_s = 100e9;
  uint64_t chunk_tokens = 1536;
  double chunk_penalty = 1.22;  // cost of a chunked prompt relative to a whole one
};

struct Decoding {  // a request
  uint64_t id = 0;
  uint64_t context = 0;  // tokens of its prompt
  uint64_t answer = 1;   // tokens to produce, at least 1
  uint64_t reused = 0;   // coupled, chunked: prompt tokens that need no computing
};

struct Decoded {
  uint64_t id = 0;
  Time joined{}, first_token{}, end{};
  double busy_s = 0;              // coupled, chunked: computing its prompt
  std::optional<double> tbt_s;    // mean of the longest tenth of its gaps; absent: a single token
  double gaps_s = 0;              // sum of its gaps
  std::vector<double> gaps_list;  // when they are kept
};

class Decoder {
 public:
  Decoder(const cost::ModelSpec& spec, DecoderOptions options, bool keep_gaps)
      : spec_(spec), options_(options), keep_gaps_(keep_gaps) {}

  void ready(const Decoding& request, Time now);  // its KV is here (coupled: its prompt)
  Time deadline() const { return stepping_ ? ends_ : Time::max(); }
  // Completes the steps up to the deadline. Appends the requests that ended, and to `begun` those
  // that got their first token (disaggregated engines only).
  void tick(Time now, std::vector<Decoded>& ended, std::vector<uint64_t>* begun = nullptr);
  // Drops all requests and returns their ids: the node failed.
  std::vector<uint64_t> drop();

  size_t running() const { return running_.size(); }
  size_t waiting() const { return pending_.size(); }
  uint64_t context() const { return context_; }  // of the batch
  uint64_t waiting_tokens() const { return waiting_tokens_; }
  uint64_t reserved() const { return reserved_; }
  double busy_s() const { return busy_s_; }
  uint64_t steps() const { return steps_; }
  uint64_t token_steps() const { return token_steps_; }  // sum of batch sizes over steps

 private:
  struct Running {
    Decoding request;
    uint64_t left;
    uint64_t segment, skip;  // its gaps begin `skip` steps into this segment
    Time joined, first_token;
    double busy_s;
    double before_s;  // of the first gap's waiting: before it joined
  };
  struct Segment {  // `count` gaps: first, first + rise, ...
    double first, rise;
    uint64_t count;
  };
  void begin(Time now);
  void plan(double first, double rise, uint64_t count);
  double sum(uint64_t count) const;
  uint64_t count_by(double seconds) const;  // steps until at least this long
  bool fits(const Decoding& request) const;
  void join(Time now);
  bool prompt(Time now);  // coupled and chunked: plans a piece of a prompt; false: none waits
  void end(Running& r, Time now, std::vector<Decoded>& ended);

  const cost::ModelSpec& spec_;
  DecoderOptions options_;
  bool keep_gaps_;
  std::deque<Decoding> pending_;
  std::vector<Running> running_;
  std::deque<Segment> segments_;
  uint64_t segments_gone_ = 0;
  uint64_t context_ = 0, reserved_ = 0, waiting_tokens_ = 0;
  bool stepping_ = false, fresh_ = false;  // fresh: joined ones await the first step's end
  bool prompting_ = false;                 // a piece of pending_[0] is in this step
  uint64_t prompted_ = 0;                  // tokens of it that are done
  double prompted_s_ = 0;
  double stall_s_ = 0;   // the step that runs begins with this pause
  double waited_s_ = 0;  // since the last step, for prompts
  Time starts_{}, ends_{};
  Segment now_{};
  double busy_s_ = 0;
  uint64_t steps_ = 0, token_steps_ = 0;
};

}  // namespace mc::sim
