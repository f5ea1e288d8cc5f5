#include "sim/cluster/decoder_memory.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"

namespace mc::sim {
namespace {

constexpr size_t kEventsMax = 1;  // of the block manager: nobody reads them

DecoderMemory::KvPtr own(const serve::DecodeKvPtr& s) {
  return std::static_pointer_cast<DecoderMemory::Kv>(s);
}

uint32_t pool(uint64_t blocks) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 1, serve::kNoBlock - 1));
}

}  // namespace

BlockHash DecoderMemory::Kv::block_key(size_t block, uint32_t) const {
  BlockHash key;
  const uint64_t parts[] = {mix64(id * 0x9e3779b97f4a7c15 + block), id, block};
  static_assert(sizeof parts <= sizeof key.bytes);
  std::memcpy(key.bytes.data(), parts, sizeof parts);
  return key;
}

DecoderMemory::DecoderMemory(const cost::ModelSpec& spec, const DecoderMemoryOptions& options,
                             std::vector<Preemption> earlier)
    : options_(options),
      timing_{spec, 1},
      block_bytes_(options.block_tokens * spec.kv_bytes_per_token()),
      manager_(pool(options.blocks), options.block_tokens, 1, kEventsMax),
      batch_(timing_, {.tbt_slo = options.tbt_slo}),
      blocks_(manager_, batch_, *this,
              {options.preempt, options.watermark, options.swap_bytes, block_bytes_}),
      preemptions_(std::move(earlier)) {}

Result<> DecoderMemory::reserve(uint64_t id, uint64_t prompt, uint64_t answer, Time now) {
  now_ = now;
  const auto s = std::make_shared<Kv>();
  s->id = id;
  s->request = std::to_string(id);
  s->prompt = s->tokens = prompt;
  s->max_tokens = static_cast<uint32_t>(answer);
  MC_TRY_(blocks_.reserve(s, now));
  MC_CHECK(by_id_.emplace(id, s).second);
  return batch_.wait(s->request, prompt, Time::max());
}

DecoderMemory::KvPtr DecoderMemory::find(uint64_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

void DecoderMemory::arrived(uint64_t id) {
  const KvPtr& s = by_id_.at(id);
  s->settled = true;
  s->first_tx = s->tx;
  MC_CHECK(batch_.kv_arrived(s->request));
}

std::vector<uint64_t> DecoderMemory::admit(Time now) {
  now_ = now;
  blocks_.bring_back(now);
  std::vector<uint64_t> out;
  for (const std::string& request : batch_.admit()) out.push_back(std::stoull(request));
  return out;
}

void DecoderMemory::grow(const std::vector<KvPtr>& running, uint64_t step) {
  step_ = step;
  blocks_.grow({running.begin(), running.end()});
}

// A prompt's blocks stay cached after their sequence, as on a live worker. Nobody finds them, but
// they are taken after older ones, and those may be a preempted sequence's. While none is
// preempted they may as well be free: one is preempted only when no block is free or cached.
void DecoderMemory::keep(const Kv& s) {
  if (batch_.preempted() > 0 && s.tx == s.first_tx)
    manager_.computed(s.tx, s.prompt / options_.block_tokens);
}

void DecoderMemory::release(uint64_t id) {
  const KvPtr s = find(id);
  if (s == nullptr) return;
  s->ended = true;
  batch_.remove(s->request);
  by_id_.erase(id);
  if (s->busy > 0) return;
  keep(*s);
  blocks_.release(s);
}

// ---- moving KV

double DecoderMemory::compute_seconds(size_t begin, size_t end) const {
  return to_seconds(timing_.chunk(begin, end, begin));
}

double DecoderMemory::copy_seconds(uint64_t blocks) const {
  return static_cast<double>(blocks * block_bytes_) / options_.copy_bytes_per_s;
}

void DecoderMemory::preempted(const serve::DecodeKvPtr& s, serve::KvWay way) {
  preemptions_.push_back({own(s)->id, s->generated(), way, step_});
}

void DecoderMemory::begin(Job job, const serve::DecodeKvPtr& s, Duration takes) {
  ++s->busy;
  jobs_.emplace(now_ + takes, std::pair(job, own(s)));
}

bool DecoderMemory::copy_out(const serve::DecodeKvPtr& s) {
  begin(Job::kOut, s, from_seconds(copy_seconds(blocks_.blocks_of(s->written()))));
  return true;
}

void DecoderMemory::copy_in(const serve::DecodeKvPtr& s, size_t first) {
  begin(Job::kIn, s, from_seconds(copy_seconds(blocks_.blocks_of(s->written()) - first)));
}

void DecoderMemory::compute(const serve::DecodeKvPtr& s, size_t begin) {
  if (begin >= s->written()) return blocks_.returned(s);
  this->begin(Job::kCompute, s, timing_.chunk(begin, s->written(), 0));
}

void DecoderMemory::tick(Time now) {
  now_ = std::max(now_, now);
  while (deadline() <= now) {
    const auto [job, s] = jobs_.begin()->second;
    jobs_.erase(jobs_.begin());
    --s->busy;
    if (job == Job::kOut) {
      keep(*s);
      blocks_.copied_out(s, std::max(copy_seconds(blocks_.blocks_of(s->written())), 1e-6));
    }
    if (job == Job::kIn) blocks_.left_host(*s);
    if (s->ended)
      blocks_.release(s);
    else if (job != Job::kOut)
      blocks_.returned(s);
  }
}

}  // namespace mc::sim
