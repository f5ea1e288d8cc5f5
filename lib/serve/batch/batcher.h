// Decides what a worker computes next: the prefill queue and the decode batch.
// The queue chooses a prompt anew for each chunk. Requests join the batch between steps and
// leave it when they end.
//
// Thread: one owner (the loop's). Pure: no clock, no I/O. Units: tokens.
// Source: Mooncake paper sections 5.1 and 6 (chunked prefill, decode admission by TBT); continuous
// batching: Orca (OSDI 2022).
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cost/timing.h"
#include "sched/prefill_order.h"

namespace mc::serve {

using cost::Timing;

// The place of a prompt among those of its conductor, which predicts times from it.
struct PrefillTurn {
  std::string conductor;
  uint64_t number = 0;  // 0: as it came
};

struct PrefillItem {
  std::string request;
  uint64_t tokens = 0;  // of the prompt; above 0
  uint64_t reused = 0;  // leading tokens that need no computing; below `tokens`
  uint64_t done = 0;    // tokens that are reused or computed
  bool started = false;
  bool loaded = false;  // its reused KV is here: it needs nothing but computing
  bool ready = true;    // it waits for no KV of another process
  Time since{};         // queued at
  int64_t priority = 0;
  PrefillTurn turn{};
};

using sched::PrefillOrder;

struct PrefillChunk {
  std::string request;
  uint64_t begin = 0, end = 0;       // tokens
  bool first = false, last = false;  // of its prompt
  Duration predicted{};              // its computation
};

// Queues prompts, and chooses one for each chunk: the one with the lowest priority number; of
// those, the one that came first or has the least left to compute (sched/prefill_order.h). So a
// prompt that goes before others waits for one chunk of theirs. Among equals a prompt runs to its
// end. Prompts of one conductor with none of another's between them count as having come in the
// order in which it decided on them, whatever was late on the way.
//
//   while (const auto* item = queue.head(now)) { rematch it; queue.set_reused(...);
//     queue.next(now); ... } when the chunk is computed: queue.finished();
class PrefillQueue {
 public:
  static constexpr size_t kLoadsMax = 8;  // prompts whose KV comes from the pool at a time

  // Errors: kInvalid when chunk_tokens is not a positive multiple of block_tokens.
  static Result<PrefillQueue> create(Timing timing, uint32_t chunk_tokens, uint32_t block_tokens,
                                     PrefillOrder order = {});

  void push(const std::string& request, uint64_t tokens, uint64_t reused, Time now,
            int64_t priority = 0, PrefillTurn turn = {});
  // Whether its remote KV is here. Others may go before it while it is not.
  void set_ready(const std::string& request, bool ready);
  // Its reused KV is here. Before that it is chosen only if `unloaded` may be: if fewer than
  // kLoadsMax load.
  void set_loaded(const std::string& request);
  // The prompt whose chunk is next. nullptr: none is ready, or a chunk runs.
  const PrefillItem* head(Time now, bool unloaded = true) const;
  // More (or fewer) tokens turned out to be reusable; before the first chunk only.
  void set_reused(const std::string& request, uint64_t reused);
  // Others computed its first `tokens` while it waited for its first chunk, or between two.
  void skip_to(const std::string& request, uint64_t tokens);
  // The next chunk to compute, of head(), now running; nothing while one runs or when all is done.
  std::optional<PrefillChunk> next(Time now, bool unloaded = true);
  // The running chunk is computed. A prompt leaves the queue with its last one.
  void finished();
  // Drops a request; finished() must still follow for its running chunk. False: unknown.
  bool remove(const std::string& request);

  bool running() const { return running_.has_value(); }
  size_t size() const { return items_.size(); }  // prompts not yet computed to their end
  uint64_t queued_tokens() const;                // still to be computed
  // Predicted wait of a prompt that is queued now and served last: the rest of the running chunk
  // and all queued prompts.
  Duration queue_time(Time now) const;
  // The same for this prompt: of those that it would overtake, only the running chunk counts.
  Duration queue_time(Time now, uint64_t tokens, uint64_t reused, int64_t priority,
                      const PrefillTurn& turn = {}) const;
  // Of all that, the prompts for which `is` is true.
  Duration work_of(const std::function<bool(const std::string& request)>& is) const;

 private:
  PrefillQueue(Timing timing, uint32_t chunk_tokens, PrefillOrder order)
      : timing_(std::move(timing)), chunk_tokens_(chunk_tokens), order_(order) {}
  size_t place(const PrefillTurn& turn) const;
  Time since(size_t place, Time now) const;
  Duration remaining(const PrefillItem& item) const;
  sched::PrefillWork work(const PrefillItem& item) const;

  Timing timing_;
  uint64_t chunk_tokens_;
  PrefillOrder order_;
  std::deque<PrefillItem> items_;  // as they came, or should have
  std::optional<PrefillChunk> running_;
  Time running_since_{};
};

enum class DecodeState : uint8_t { kWaitingForKv, kReady, kRunning, kPreempted };

struct DecodeOptions {
  Duration tbt_slo{};      // predicted time of a step must stay within; zero: none
  uint32_t batch_max = 0;  // 0: no limit
};

// The requests of a decode worker. One whose KV has not arrived is never in the batch.
//
//   wait -> (in_time) -> kv_arrived -> (admit, between steps) running -> advanced ... -> remove
//                      preempt, from there on -> restored -> (admit) running
class DecodeBatch {
 public:
  DecodeBatch(Timing timing, DecodeOptions options)
      : timing_(std::move(timing)), options_(options) {}

  // Errors: kExists.
  Result<> wait(const std::string& request, uint64_t context_tokens, Time kv_deadline);
  // Its KV came in time: what it waits for from here on has no deadline.
  void in_time(const std::string& request);
  // Its KV is here. False: unknown (aborted, expired) or called before.
  bool kv_arrived(const std::string& request);
  // Between steps: ready requests that join now, in the order they became ready, while the
  // predicted step stays within the SLO. An empty batch takes one regardless of its cost.
  std::vector<std::string> admit();
  const std::vector<std::string>& batch() const { return running_; }  // in order of admission
  void advanced(const std::string& request, uint64_t tokens = 1);     // its context grew
  // Its blocks are needed by others: out of the batch. False: it is neither ready nor running.
  bool preempt(const std::string& request);
  // Its KV is back: the next to join. False: it was not preempted.
  bool restored(const std::string& request);
  bool remove(const std::string& request);  // it ended or was aborted, in any state; false: unknown

  // Requests whose KV did not come in time; they are removed.
  std::vector<std::string> expire(Time now);
  std::optional<Time> deadline() const;

  std::optional<DecodeState> state(const std::string& request) const;
  uint64_t context_tokens() const { return running_context_; }  // of the batch
  size_t waiting_for_kv() const { return waiting_.size(); }
  size_t ready() const { return ready_.size(); }
  size_t preempted() const { return preempted_; }
  Duration step_time() const;  // predicted, of the present batch
  // Predicted with all waiting requests in the batch; the conductor plans with this.
  Duration step_time_all() const;

 private:
  struct Entry {
    DecodeState state = DecodeState::kWaitingForKv;
    uint64_t context = 0;
    Time deadline{};
  };
  void leave(const std::string& request, const Entry& entry);

  Timing timing_;
  DecodeOptions options_;
  std::map<std::string, Entry> entries_;
  std::set<std::pair<Time, std::string>> waiting_;
  std::deque<std::string> ready_;
  std::vector<std::string> running_;
  uint64_t running_context_ = 0, all_context_ = 0;
  size_t preempted_ = 0;
};

}  // namespace mc::serve
