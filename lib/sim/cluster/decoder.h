// Simulates a node's decode side in virtual time.
// Requests join between steps. Each step gives every request a token and lasts as the model says
// for the batch and its contexts. Steps between two changes of the batch are computed at once
// (their times rise linearly with the contexts), so the cost is per request, not per token.
//
// Three engines:
//   disaggregated  a joining request's KV must be loaded; a share of that time stalls the others;
//                  with `memory`, who joins and who has blocks is decided by a live worker's own
//                  objects (decoder_memory.h), else each request takes room for prompt and answer
//                  when it joins
//   coupled        prompts are computed here too, before any further step (vLLM without chunks)
//   chunked        the same in chunks, one with each step
//
// Thread: one owner. Pure: time is an argument. Units: tokens, seconds.
// Source: the step model of cost/model_spec.h; Mooncake, section 7.1 (baselines).
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/time.h"
#include "cost/model_spec.h"
#include "sim/cluster/decoder_memory.h"
#include "sim/cluster/step_plan.h"

namespace mc::sim {

enum class Engine { kDisaggregated, kCoupled, kChunked };

struct DecoderOptions {
  Engine engine = Engine::kDisaggregated;
  uint64_t capacity_tokens = 1'200'000;  // of KV in fast memory: contexts plus answers to come
  double join_share = 0.7;               // of the load time that stalls a running batch
  double load_bytes_per_s = 100e9;
  uint64_t chunk_tokens = 1536;
  double chunk_penalty = 1.22;                   // cost of a chunked prompt relative to a whole one
  std::optional<DecoderMemoryOptions> memory{};  // disaggregated
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
  uint64_t blocks = 0;            // that it had, with memory
};

struct DecoderTotals {
  double busy_s = 0;
  uint64_t steps = 0, token_steps = 0;  // token_steps: sum of batch sizes over steps
};

class Decoder {
 public:
  Decoder(const cost::ModelSpec& spec, DecoderOptions options, bool keep_gaps)
      : spec_(spec), options_(std::move(options)), keep_gaps_(keep_gaps) {
    drop();
  }

  // With memory: blocks for a request whose KV will come. Errors: as serve::DecodeBlocks::reserve.
  Result<> reserve(const Decoding& request, Time now);
  // With memory: a request that reserved is given up. It leaves the batch after the running step.
  void release(uint64_t id, Time now);
  void ready(const Decoding& request, Time now);  // its KV is here (coupled: its prompt)
  Time deadline() const {
    return memory_ ? std::min(plan_.ends(), memory_->deadline()) : plan_.ends();
  }
  // Completes the steps up to the deadline. Appends the requests that ended, and to `begun` those
  // that got their first token (disaggregated engines only).
  void tick(Time now, std::vector<Decoded>& ended, std::vector<uint64_t>* begun = nullptr);
  // Drops all requests and returns their ids: the node failed.
  std::vector<uint64_t> drop();

  size_t running() const { return running_.size(); }
  size_t waiting() const { return pending_.size() + out_.size(); }
  uint64_t context() const { return context_; }  // of the batch
  uint64_t waiting_tokens() const {
    uint64_t tokens = waiting_tokens_;
    for (const Running& r : out_) tokens += r.request.context;
    return tokens;
  }
  const DecoderMemory* memory() const { return memory_.get(); }
  uint64_t reserved() const { return reserved_; }
  const DecoderTotals& totals() const { return totals_; }

 private:
  struct Running {
    Decoding request;
    uint64_t left;
    uint64_t segment, skip;  // its gaps begin `skip` steps into this segment
    Time joined, first_token;
    double busy_s;
    double before_s;  // of the first gap's waiting: before it joined
    DecoderMemory::KvPtr kv{};
    std::vector<double> earlier{};  // gaps before it was out
    Time out = Time::max();         // since when it has no block for its next token
    bool gone = false;              // given up during a step
  };
  struct Prompt {  // coupled and chunked: what is computed of pending_[0]
    bool running = false;
    uint64_t tokens = 0;  // that are done after this step
    double seconds = 0;
  };
  void begin(Time now);
  void plan(Time now, const Steps& steps) { plan_.begin(now, stall_s_, steps); }
  bool fits(const Decoding& request) const;
  std::vector<double> gaps(const Running& r) const;
  void join(Time now);
  // With memory.
  void catch_up(Time now);
  uint64_t affordable(uint64_t most) const;
  bool allot(Time now);
  void wake(Time now);
  bool prompt(Time now);  // coupled and chunked: plans a piece of a prompt; false: none waits
  void end(Running& r, Time now, std::vector<Decoded>& ended);

  const cost::ModelSpec& spec_;
  DecoderOptions options_;
  bool keep_gaps_;
  std::deque<Decoding> pending_;
  std::vector<Running> running_;
  std::unique_ptr<DecoderMemory> memory_;
  std::vector<Running> out_;  // preempted, or without a block for the next token
  uint64_t context_ = 0, reserved_ = 0, waiting_tokens_ = 0;
  StepPlan plan_;
  StepRecord record_;
  bool fresh_ = false;  // joined ones await the first step's end
  Prompt prompt_;
  double stall_s_ = 0;   // the step that runs begins with this pause
  double waited_s_ = 0;  // since the last step, for prompts
  DecoderTotals totals_;
};

}  // namespace mc::sim
