// Simulates a node's prefill side in virtual time: which prompt it computes, and until when.
// serve::PrefillQueue chooses as on a live worker, anew at each chunk. Its choice stays what it is
// until a prompt comes, or KV for one. So all chunks of a prompt are planned at once, and the queue
// hears of those that were computed when it changes: the cost is per prompt, not per chunk.
//
//   push -> (came) -> head -> (waits -> again) -> (loads -> came, or loaded) -> (found) -> begin or
//   resume -> tick, at each deadline
//
// Thread: one owner. Pure: time is an argument. Units: tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <set>

#include "serve/batch/batcher.h"

namespace mc::sim {

// Chunks of so many tokens, up to whole blocks: one at least.
uint32_t whole_blocks(uint64_t chunk_tokens, uint64_t block_tokens);

class Prefiller {
 public:
  // Requires: whole blocks.
  Prefiller(const serve::Timing& timing, uint32_t chunk_tokens, uint32_t block_tokens,
            const serve::PrefillOrder& order);

  // `reused`: leading tokens that need no computing. Not `ready`: KV of these is still to come.
  void push(uint64_t id, uint64_t tokens, uint64_t reused, bool ready, Time now);
  void waits(uint64_t id);            // the head: KV that comes for another is to come first
  void again(uint64_t id, Time now);  // it came, or will not
  void loads(uint64_t id);            // the head: KV of it is to come from the pool first
  void loaded(uint64_t id);           // the head: none is
  void came(uint64_t id, uint64_t reused, Time now);  // it came, or will not: so much is here
  // It is given up. If it runs, its chunk is computed all the same.
  void remove(uint64_t id, Time now);
  // Until a prompt that comes now would begin, as the queue predicts.
  Duration queue_time(Time now, uint64_t tokens, uint64_t reused);

  struct Head {
    uint64_t id = 0, done = 0;  // done: computed, or reused
    bool started = false;
  };
  // Who is next, while none runs. No prompt that may have to load, while as many load as may.
  std::optional<Head> head(Time now) const;
  // So much of the head turned out to be here: more or less than before. It may lose its place.
  void found(uint64_t id, uint64_t reused);
  // The head begins. All of it takes so long, if nothing goes before it.
  void begin(Time now, Duration takes);
  void resume(Time now, uint64_t done);  // the head goes on, behind so many tokens

  bool running() const { return running_; }
  bool given_up() const { return given_up_; }
  // Of the one that runs, or was the last to:
  uint64_t runs() const { return id_; }
  Time since() const { return since_; }  // it began, or went on
  uint64_t done(Time now);               // its tokens by now

  enum class Outcome : uint8_t { kRuns, kEnded, kOvertaken, kGivenUp };
  Time deadline() const { return running_ ? check_ : Time::max(); }
  Outcome tick(Time now);  // at the deadline: what has become of the prompt that ran

 private:
  Time chunk_ends(uint64_t end) const;
  bool may_load() const { return loading_.size() < serve::PrefillQueue::kLoadsMax; }
  void look();
  void advance(Time now);
  void forward(uint64_t begin);

  const serve::Timing timing_;
  const uint32_t chunk_tokens_;
  const bool srpf_;
  serve::PrefillQueue queue_;
  std::set<uint64_t> loading_;
  bool running_ = false, given_up_ = false;
  bool looks_ = false;  // at the end of the chunk the queue may choose another
  uint64_t id_ = 0, tokens_ = 0;
  serve::PrefillChunk chunk_;        // that runs, as far as the queue knows
  Time since_{}, ends_{}, check_{};  // check: the deadline
};

}  // namespace mc::sim
