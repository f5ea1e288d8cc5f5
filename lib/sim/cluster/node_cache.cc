#include "sim/cluster/node_cache.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"

namespace mc::sim {

namespace {
constexpr auto kForEver = std::chrono::hours(100'000);
constexpr uint64_t kTxsMax = uint64_t{1} << 32;  // of a node's memory, until it is lost
}  // namespace

std::vector<BlockHash> block_hashes(const trace::TraceRequest& r, uint64_t block_tokens) {
  std::vector<BlockHash> out(trace::full_blocks(r.input_length, block_tokens));
  for (size_t k = 0; k < out.size(); ++k) {
    const uint64_t tag = mix64(r.hash_ids[k]);
    std::memcpy(out[k].bytes.data(), &tag, sizeof tag);
    std::memcpy(out[k].bytes.data() + 8, &r.hash_ids[k], 8);
  }
  return out;
}

void NodeCache::Lru::touch(const BlockHash& h) {
  const auto [at, fresh] = at_.try_emplace(h);
  if (!fresh) order_.erase(at->second);
  order_.push_front(h);
  at->second = order_.begin();
}

void NodeCache::Lru::erase(const BlockHash& h) {
  const auto at = at_.find(h);
  if (at == at_.end()) return;
  order_.erase(at->second);
  at_.erase(at);
}

BlockHash NodeCache::Lru::take_oldest() {
  const BlockHash h = order_.back();
  erase(h);
  return h;
}

NodeCache::NodeCache(NodeCacheOptions options, uint64_t seed)
    : o_(std::move(options)), seed_(seed) {
  lose_memory();
}

NodeCache::Found NodeCache::look(const std::vector<BlockHash>& hashes, uint64_t tokens) const {
  Found found;
  uint64_t at = dram_->match(hashes, tokens);
  for (uint64_t i = 0; i < at && vram_.size() > 0; ++i) found.vram += vram_.has(hashes[i]);
  found.dram = at - found.vram;
  const uint64_t most =
      std::min<uint64_t>(hashes.size(), serve::reusable_blocks(tokens, o_.block_tokens));
  for (; at < most && ssd_used() > 0; ++at) {
    const bool below = on_ssd(hashes[at]);
    if (!below && !dram_->lookup(hashes[at])) break;
    ++(below ? found.ssd : found.dram);
  }
  return found;
}

serve::TxId NodeCache::begin(const std::vector<BlockHash>& hashes, uint64_t tokens, Time now) {
  const auto tx = dram_->allocate({.request = {},
                                   .hashes = hashes,
                                   .prompt_tokens = tokens,
                                   .blocks = trace::blocks(tokens, o_.block_tokens),
                                   .lease = kForEver},
                                  now);
  drain();
  return tx ? *tx : 0;
}

serve::TxId NodeCache::hold(const std::vector<BlockHash>& hashes, uint64_t tokens, uint64_t blocks,
                            Time now) {
  const uint64_t here = dram_->match(hashes, tokens), all = std::max(here, blocks);
  const auto end = hashes.begin() + static_cast<std::ptrdiff_t>(all);
  const auto tx = dram_->pin_for_peer({}, {hashes.begin(), end}, kForEver, now, all - here);
  if (!tx) return 0;
  for (uint64_t i = here; i < all && dram_->extend(*tx); ++i) {
  }
  drain();
  return *tx;
}

void NodeCache::computed(serve::TxId tx, uint64_t blocks, trace::CacheClass of) {
  const serve::Tx* const its = dram_->find(tx);
  if (its == nullptr || (o_.rule != "lru" && of == trace::CacheClass::kEphemeral)) return;
  dram_->computed(tx, std::min<uint64_t>(blocks, its->blocks.size()));
}

void NodeCache::end(serve::TxId tx, const std::vector<BlockHash>& hashes, trace::CacheClass of) {
  const bool marked = o_.rule != "lru";
  if (marked && of == trace::CacheClass::kContext) context_.insert(hashes.begin(), hashes.end());
  if (tx != 0) {
    if (!marked || of != trace::CacheClass::kEphemeral) dram_->computed(tx, hashes.size());
    MC_CHECK(dram_->commit(tx).has_value());
  }
  drain();
  if (o_.vram == 0) return;
  for (size_t i = hashes.size(); i-- > 0;)
    if (dram_->lookup(hashes[i])) vram_.touch(hashes[i]);
  while (vram_.size() > o_.vram) vram_.take_oldest();
}

void NodeCache::drop(serve::TxId tx) {
  dram_->abort(tx);
  drain();
}

void NodeCache::drain() {
  const auto events = dram_->events_since(seen_, o_.prompt_max + 1);
  MC_CHECK(events.has_value());
  seen_ = dram_->events_last();
  for (const serve::KvEvent& e : *events) {
    if (!e.stored) {
      fell_out(e.hash);
    } else {
      ssd_.erase(e.hash);
      ssd_kept_.erase(e.hash);
      changes_.push_back({e.hash.tag(), true});
    }
  }
}

void NodeCache::fell_out(const BlockHash& hash) {
  vram_.erase(hash);
  BlockHash gone = hash;
  const bool context = context_.contains(hash);
  if (o_.ssd > 0 && (o_.rule != "semantic" || context)) {
    (o_.rule == "tiered" && context ? ssd_kept_ : ssd_).touch(hash);
    if (ssd_used() <= o_.ssd) return;
    gone = (ssd_.size() > 0 ? ssd_ : ssd_kept_).take_oldest();
  }
  context_.erase(gone);
  changes_.push_back({gone.tag(), false});
}

std::vector<NodeCache::Change> NodeCache::changes() { return std::exchange(changes_, {}); }

void NodeCache::lose_memory() {
  vram_ = {};
  // Events are drained at every step: a prompt makes at most one for each of its blocks.
  // Transactions of the lost memory are unknown to the new one.
  dram_.emplace(static_cast<uint32_t>(o_.dram), static_cast<uint32_t>(o_.block_tokens),
                seed_ += kTxsMax, o_.prompt_max + 1);
  seen_ = 0;
  changes_.clear();
  std::erase_if(context_, [&](const BlockHash& h) { return !on_ssd(h); });
}

void NodeCache::lose_all() {
  ssd_ = ssd_kept_ = {};
  lose_memory();
}

std::vector<uint64_t> NodeCache::tags() const {
  std::vector<uint64_t> out;
  for (const BlockHash& h : dram_->snapshot(0, o_.dram + 1).blocks) out.push_back(h.tag());
  for (const Lru* on : {&ssd_, &ssd_kept_})
    for (const BlockHash& h : on->all()) out.push_back(h.tag());
  return out;
}

uint64_t NodeCache::dram_used() const {
  const auto counts = dram_->counts();
  return counts.cached + counts.used;
}

}  // namespace mc::sim
