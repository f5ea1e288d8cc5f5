// Holds the batch of a simulated decode node, and its KV blocks.
// A live worker's own objects decide: serve::DecodeBatch who joins, serve::DecodeBlocks who has
// blocks, who is preempted, who returns. Here KV is moved in virtual time: copies to and from host
// memory at one rate, computing as the model says. Both run beside the steps. There is no pool.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cost/timing.h"
#include "serve/batch/decode_blocks.h"

namespace mc::sim {

struct DecoderMemoryOptions {
  uint64_t blocks = 1;
  uint32_t block_tokens = 512;
  std::string preempt = "auto";  // of serve::kPreemptModes
  double watermark = 0.01;
  uint64_t swap_bytes = 0;
  double copy_bytes_per_s = 100e9;
  Duration tbt_slo{0};  // as of serve::DecodeOptions
};

struct Preemption {
  uint64_t id = 0;         // the request
  uint64_t generated = 0;  // tokens that it had
  serve::KvWay way{};
  uint64_t step = 0;  // of the node, as the decoder counts them
};

class DecoderMemory : private serve::KvMover {
 public:
  struct Kv : serve::DecodeKv {
    uint64_t id = 0, tokens = 0;  // tokens: prompt and answer so far
    serve::TxId first_tx = 0;     // of the blocks into which its prompt's KV came
    size_t length() const override { return tokens; }
    // No two requests share blocks here; each finds its own again.
    BlockHash block_key(size_t block, uint32_t block_tokens) const override;
  };
  using KvPtr = std::shared_ptr<Kv>;

  // `earlier`: preemptions of a memory that this one replaces.
  DecoderMemory(const cost::ModelSpec& spec, const DecoderMemoryOptions& options,
                std::vector<Preemption> earlier = {});

  // As DecodeBlocks::reserve.
  Result<> reserve(uint64_t id, uint64_t prompt, uint64_t answer, Time now);
  KvPtr find(uint64_t id) const;  // nullptr: it has no reservation
  void arrived(uint64_t id);      // its prompt's KV is here
  // Between steps: begins to bring back those that fit. Returns who joins the batch now, some of
  // them again.
  std::vector<uint64_t> admit(Time now);
  bool in_batch(const Kv& s) const {
    return batch_.state(s.request) == serve::DecodeState::kRunning;
  }
  void advanced(const Kv& s, uint64_t tokens) { batch_.advanced(s.request, tokens); }
  // It has a block for each of its tokens.
  bool suffice(const Kv& s) const { return s.blocks.size() * options_.block_tokens >= s.tokens; }
  // As DecodeBlocks::grow. `step`: for the record.
  void grow(const std::vector<KvPtr>& running, uint64_t step);
  // It ended, or is given up: its blocks are free as soon as nothing moves its KV.
  void release(uint64_t id);

  Time deadline() const { return jobs_.empty() ? Time::max() : jobs_.begin()->first; }
  void tick(Time now);  // what was moved by now has arrived

  uint64_t available() const { return blocks_.available(); }
  uint64_t growth() const { return blocks_.growth(); }
  uint64_t blocks_of(uint64_t tokens) const { return blocks_.blocks_of(tokens); }
  size_t preempted() const { return batch_.preempted(); }
  const std::vector<Preemption>& preemptions() const { return preemptions_; }

 private:
  enum class Job : uint8_t { kOut, kIn, kCompute };
  std::byte* memory(serve::BlockId) override { return nullptr; }
  double compute_seconds(size_t begin, size_t end) const override;
  void preempted(const serve::DecodeKvPtr& s, serve::KvWay way) override;
  bool copy_out(const serve::DecodeKvPtr& s) override;
  void copy_in(const serve::DecodeKvPtr& s, size_t first) override;
  void compute(const serve::DecodeKvPtr& s, size_t begin) override;
  double copy_seconds(uint64_t blocks) const;
  void keep(const Kv& s);
  void begin(Job job, const serve::DecodeKvPtr& s, Duration takes);

  const DecoderMemoryOptions options_;
  const cost::Timing timing_;
  const uint64_t block_bytes_;
  serve::BlockManager manager_;
  serve::DecodeBatch batch_;
  serve::DecodeBlocks blocks_;
  std::unordered_map<uint64_t, KvPtr> by_id_;
  std::multimap<Time, std::pair<Job, KvPtr>> jobs_;  // by when they end
  std::vector<Preemption> preemptions_;
  uint64_t step_ = 0;
  Time now_{};
};

}  // namespace mc::sim
