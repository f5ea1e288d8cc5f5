#include "serve/kvcache/block_manager.h"

#include <algorithm>

#include "base/random.h"

namespace mc::serve {
namespace {

using ull = unsigned long long;

}  // namespace

BlockManager::BlockManager(uint32_t blocks, uint32_t block_tokens, uint64_t seed, size_t events_max)
    : pool_(blocks), block_tokens_(block_tokens), seed_(seed), events_max_(events_max) {
  MC_CHECK(block_tokens > 0 && blocks < kNoBlock);
}

Result<TxId> BlockManager::allocate(BlockRequest request, Time now) {
  now_ = now;
  const uint64_t full = request.prompt_tokens / block_tokens_;
  const uint64_t prompt_blocks = full + (request.prompt_tokens % block_tokens_ != 0);
  if (request.hashes.size() > full || request.blocks < prompt_blocks || request.blocks == 0)
    return fail(Code::kInvalid,
                "request %s: %zu hashes and %llu blocks do not fit %llu tokens in blocks of %u",
                request.request.c_str(), request.hashes.size(), static_cast<ull>(request.blocks),
                static_cast<ull>(request.prompt_tokens), block_tokens_);
  if (request.blocks > pool_)
    return fail(
        Code::kInvalid,
        "request %s needs %llu blocks of %u tokens, the pool has %u: want a larger pool or a "
        "shorter request",
        request.request.c_str(), static_cast<ull>(request.blocks), block_tokens_, pool_);
  Tx tx;
  const size_t most = std::min<size_t>(request.hashes.size(),
                                       reusable_blocks(request.prompt_tokens, block_tokens_));
  size_t idle_hits = 0;  // cached now, so not available for the rest
  tx.blocks.reserve(request.blocks);
  for (size_t i = 0; i < most; ++i) {
    const BlockId id = find(request.hashes[i]);
    if (id == kNoBlock) break;
    tx.blocks.push_back(id);
    idle_hits += blocks_[id].refs == 0;
  }
  const size_t hit = tx.blocks.size();
  const size_t available = free_blocks() + cached_blocks() - idle_hits;
  if (request.blocks - hit + request.spare > available)
    return fail(Code::kNoSpace, "request %s needs %llu blocks%s, %zu are not in use: retry later",
                escape(request.request).c_str(), static_cast<ull>(request.blocks - hit),
                request.spare == 0 ? ""
                                   : strf(" and leaves %llu for answers that grow",
                                          static_cast<ull>(request.spare))
                                         .c_str(),
                available);
  for (const BlockId id : tx.blocks) lock(id);
  while (tx.blocks.size() < request.blocks) tx.blocks.push_back(take());
  tx.request = std::move(request.request);
  tx.hashes = std::move(request.hashes);
  tx.prompt_tokens = request.prompt_tokens;
  tx.hit = tx.valid = hit;
  tx.lease = request.lease;
  tx.context_blocks = request.context_blocks;
  tx.keep = request.keep;
  tx.ephemeral = request.ephemeral;
  return add(std::move(tx), now);
}

Result<TxId> BlockManager::pin_for_peer(std::string request, std::vector<BlockHash> hashes,
                                        Duration lease, Time now, size_t coming) {
  now_ = now;
  Tx tx;
  for (const BlockHash& hash : hashes) {
    const auto block = lookup(hash);
    if (!block) break;
    tx.blocks.push_back(*block);
  }
  if (tx.blocks.empty() && coming == 0)
    return fail(Code::kNotFound, "request %s: no block of its prompt is cached here",
                request.c_str());
  for (const BlockId id : tx.blocks) lock(id);
  hashes.resize(std::min(hashes.size(), tx.blocks.size() + coming));
  tx.hit = tx.valid = tx.blocks.size();
  tx.request = std::move(request);
  tx.hashes = std::move(hashes);
  tx.lease = lease;
  return add(std::move(tx), now);
}

TxId BlockManager::add(Tx tx, Time now) {
  TxId id = 0;
  while (id == 0) id = mix64(seed_ + ++txs_made_);  // a bijection: ids of one seed all differ
  set_lease(id, tx, now);
  txs_.emplace(id, std::move(tx));
  return id;
}

Result<BlockId> BlockManager::extend(TxId tx) {
  const auto it = txs_.find(tx);
  if (it == txs_.end())
    return fail(Code::kNotFound, "no transaction %016llx: ended before", static_cast<ull>(tx));
  if (free_blocks() + cached_blocks() == 0)
    return fail(Code::kNoSpace, "all %u blocks are in use", pool_);
  it->second.blocks.push_back(take());
  return it->second.blocks.back();
}

const Tx* BlockManager::find(TxId tx) const {
  const auto it = txs_.find(tx);
  return it == txs_.end() ? nullptr : &it->second;
}

size_t BlockManager::rematch(TxId id) {
  const auto it = txs_.find(id);
  if (it == txs_.end()) return 0;
  Tx& tx = it->second;
  if (tx.prompt_tokens == 0) {  // a pin
    while (tx.hit < tx.hashes.size() && find(tx.hashes[tx.hit]) != kNoBlock) {
      tx.blocks.push_back(find(tx.hashes[tx.hit++]));
      lock(tx.blocks.back());
    }
    tx.valid = tx.hit;
    if (tx.state == TxState::kRunning) return tx.hit;
    leases_.erase({tx.deadline, id});
    set_lease(id, tx, now_);
    return tx.hit;
  }
  const bool computed_none = tx.valid == tx.hit;
  const size_t most =
      std::min<size_t>(tx.hashes.size(), reusable_blocks(tx.prompt_tokens, block_tokens_));
  for (; tx.valid < most; ++tx.valid) {
    const BlockId theirs = find(tx.hashes[tx.valid]);
    if (theirs == kNoBlock) break;
    lock(theirs);
    unlock(std::exchange(tx.blocks[tx.valid], theirs));
  }
  if (computed_none) tx.hit = tx.valid;
  return tx.valid;
}

Result<size_t> BlockManager::start(TxId id) {
  const auto it = txs_.find(id);
  if (it == txs_.end())
    return fail(Code::kNotFound, "no transaction %016llx: aborted, or its lease ran out",
                static_cast<ull>(id));
  leases_.erase({it->second.deadline, id});
  it->second.state = TxState::kRunning;
  return rematch(id);
}

void BlockManager::computed(TxId id, size_t upto_block) {
  const auto it = txs_.find(id);
  if (it == txs_.end()) return;
  Tx& tx = it->second;
  MC_CHECK(upto_block <= tx.blocks.size());
  for (; tx.valid < upto_block; ++tx.valid) {
    if (tx.valid >= tx.hashes.size()) continue;
    // Another request may have computed the same block meanwhile: the first one is shared.
    own(tx.hashes[tx.valid], tx.blocks[tx.valid]);
  }
}

void BlockManager::await_commit(TxId id, Time now) {
  const auto it = txs_.find(id);
  if (it == txs_.end()) return;
  leases_.erase({it->second.deadline, id});
  it->second.state = TxState::kAwaiting;
  set_lease(id, it->second, now);
}

Result<> BlockManager::commit(TxId id) {
  const auto it = txs_.find(id);
  if (it == txs_.end())
    return fail(Code::kNotFound, "no transaction %016llx: ended before, or its lease ran out",
                static_cast<ull>(id));
  leases_.erase({it->second.deadline, id});
  release(it->second);
  txs_.erase(it);
  return {};
}

void BlockManager::abort(TxId id) {
  // As commit, but an unknown transaction is no error.
  if (txs_.contains(id)) MC_CHECK(commit(id).has_value());
}

// Returns the block that has the key: an earlier one, or else this one, which takes it (true).
std::pair<BlockId, bool> BlockManager::own(const BlockHash& key, BlockId id) {
  if (const BlockId holder = find(key); holder != kNoBlock) return {holder, false};
  blocks_[id].keyed = true;
  blocks_[id].key = key;
  index_.insert(key.tag(), id);
  return {id, true};
}

BlockId BlockManager::find(const BlockHash& key) const {
  return index_.find(key.tag(), [&](BlockId id) { return blocks_[id].key == key; });
}

void BlockManager::release(Tx& tx) {
  const size_t keys = std::min(tx.valid, tx.hashes.size());
  std::vector<BlockId> holders(keys);
  std::vector<bool> fresh(keys);
  for (size_t i = 0; i < keys; ++i) {
    // The key may belong to our block, or to one that another request computed meanwhile. If that
    // one was evicted since, ours takes the key.
    holders[i] = own(tx.hashes[i], tx.blocks[i]).first;
    Block& block = blocks_[holders[i]];
    fresh[i] = !block.published;
    publish(block);
  }
  for (size_t i = keys; i-- > 0;) used(holders[i], tx, i, fresh[i]);
  for (size_t i = tx.blocks.size(); i-- > 0;) unlock(tx.blocks[i]);
}

void BlockManager::pin(BlockId block) {
  MC_CHECK(block < blocks_.size() && (blocks_[block].refs > 0 || blocks_[block].keyed));
  lock(block);
}
void BlockManager::unpin(BlockId block) { unlock(block); }

bool BlockManager::cache(BlockId id, const BlockHash& key) {
  MC_CHECK(id < blocks_.size() && blocks_[id].refs > 0);
  if (blocks_[id].keyed || !own(key, id).second) return false;
  blocks_[id].touched = ++touches_;
  publish(blocks_[id]);
  return true;
}

void BlockManager::lock(BlockId id) {
  Block& block = blocks_[id];
  if (block.refs++ == 0 && block.keyed) from_cache(id);
}

void BlockManager::from_cache(BlockId id) {
  if (kept_.erase({blocks_[id].kept_until, id}) == 0) delist(id);
}

void BlockManager::to_cache(BlockId id) {
  const Block& block = blocks_[id];
  if (block.kept_until > now_ && kept_.size() < pool_ / 2)
    kept_.emplace(block.kept_until, id);
  else
    enlist(id);
}

// A transaction releases one of its blocks: updates its place in the LRU order.
void BlockManager::used(BlockId id, const Tx& tx, size_t place, bool fresh) {
  Block& block = blocks_[id];
  const bool cached = block.refs == 0;
  if (cached) from_cache(id);
  if (place < tx.context_blocks) block.keep = std::max(block.keep, tx.keep);
  if (block.keep > Duration{}) block.kept_until = std::max(block.kept_until, now_ + block.keep);
  // A block not worth keeping counts as the least recently used.
  const bool worthless = tx.ephemeral && fresh && place >= tx.context_blocks;
  block.touched = worthless ? 0 : ++touches_;
  if (cached) to_cache(id);
}

void BlockManager::unlock(BlockId id) {
  MC_CHECK(id < blocks_.size() && blocks_[id].refs > 0);
  Block& block = blocks_[id];
  if (--block.refs > 0) return;
  if (block.keyed) {
    to_cache(id);
  } else {
    free_.push_back(id);
  }
}

// Inserts by last touch: at the old end, or nearly always at the young one, because a release
// touches blocks first.
void BlockManager::enlist(BlockId id) {
  Block& block = blocks_[id];
  BlockId before = youngest_;
  if (listed_ > 0 && block.touched <= blocks_[oldest_].touched) before = kNoBlock;
  while (before != kNoBlock && blocks_[before].touched > block.touched)
    before = blocks_[before].older;
  block.older = before;
  BlockId& from_before = before == kNoBlock ? oldest_ : blocks_[before].younger;
  block.younger = from_before;
  from_before = id;
  (block.younger == kNoBlock ? youngest_ : blocks_[block.younger].older) = id;
  ++listed_;
}

void BlockManager::delist(BlockId id) {
  Block& block = blocks_[id];
  (block.older == kNoBlock ? oldest_ : blocks_[block.older].younger) = block.younger;
  (block.younger == kNoBlock ? youngest_ : blocks_[block.younger].older) = block.older;
  block.older = block.younger = kNoBlock;
  --listed_;
}

void BlockManager::evict(BlockId id) {
  from_cache(id);
  Block& block = blocks_[id];
  index_.erase(block.key.tag(), id);
  if (block.published) emit(false, block.key);
  block = {};
  free_.push_back(id);
}

void BlockManager::forget() {
  while (cached_blocks() > 0) evict(listed_ > 0 ? oldest_ : kept_.begin()->second);
}

BlockId BlockManager::take() {
  if (free_.empty() && blocks_.size() < pool_) {
    free_.push_back(static_cast<BlockId>(blocks_.size()));
    blocks_.emplace_back();
  } else if (free_.empty()) {
    MC_CHECK(cached_blocks() > 0);
    evict(listed_ > 0 ? oldest_ : kept_.begin()->second);
  }
  const BlockId id = free_.back();
  free_.pop_back();
  lock(id);
  return id;
}

void BlockManager::publish(Block& block) {
  if (block.published) return;
  block.published = true;
  emit(true, block.key);
}

void BlockManager::emit(bool stored, const BlockHash& key) {
  events_.push_back({stored, key});
  digest_ += stored ? mix64(key.tag()) : -mix64(key.tag());
  ++events_last_;
  if (events_.size() > events_max_) events_.pop_front();
}

void BlockManager::set_lease(TxId id, Tx& tx, Time now) {
  tx.deadline = now + tx.lease;
  leases_.emplace(tx.deadline, id);
}

std::vector<ExpiredTx> BlockManager::tick(Time now) {
  std::vector<ExpiredTx> expired;
  now_ = now;
  while (!kept_.empty() && kept_.begin()->first <= now) {
    const BlockId id = kept_.begin()->second;
    kept_.erase(kept_.begin());
    blocks_[id].touched = 0;  // unused for its whole time
    to_cache(id);
  }
  while (!leases_.empty() && leases_.begin()->first <= now) {
    const TxId id = leases_.begin()->second;
    expired.push_back({id, txs_.at(id).request});
    abort(id);
  }
  return expired;
}

std::optional<Time> BlockManager::deadline() const {
  if (leases_.empty()) return std::nullopt;
  return leases_.begin()->first;
}

std::optional<std::vector<KvEvent>> BlockManager::events_since(uint64_t seen, size_t max) const {
  const uint64_t before = events_last_ - events_.size();  // number of the newest one dropped
  if (seen > events_last_ || seen < before) return std::nullopt;
  const auto first = events_.begin() + static_cast<std::ptrdiff_t>(seen - before);
  const size_t n = std::min<size_t>(max, events_last_ - seen);
  return std::vector<KvEvent>(first, first + static_cast<std::ptrdiff_t>(n));
}

KvSnapshot BlockManager::snapshot(uint64_t from, size_t max) const {
  KvSnapshot page;
  page.seq = events_last_;
  page.digest = digest_;
  uint64_t id = from;
  for (; id < blocks_.size() && page.blocks.size() < std::max<size_t>(max, 1); ++id)
    if (blocks_[id].published) page.blocks.push_back(blocks_[id].key);
  page.next = id < blocks_.size() ? id : 0;
  return page;
}

BlockCounts BlockManager::counts() const {
  return {free_blocks(), cached_blocks(), pool_ - free_blocks() - cached_blocks(), kept_.size()};
}

std::optional<BlockId> BlockManager::lookup(const BlockHash& key) const {
  const BlockId id = find(key);
  return id == kNoBlock ? std::nullopt : std::optional(id);
}

size_t BlockManager::match(const std::vector<BlockHash>& hashes, uint64_t prompt_tokens) const {
  const size_t most =
      std::min<size_t>(hashes.size(), reusable_blocks(prompt_tokens, block_tokens_));
  size_t n = 0;
  while (n < most && find(hashes[n]) != kNoBlock) ++n;
  return n;
}

void BlockManager::check() const {
  std::vector<uint32_t> held(blocks_.size());
  for (const auto& [id, tx] : txs_) {
    std::set<BlockId> own(tx.blocks.begin(), tx.blocks.end());
    MC_CHECK(own.size() == tx.blocks.size());
    MC_CHECK(tx.hit <= tx.valid && tx.valid <= tx.blocks.size());
    for (const BlockId block : tx.blocks) ++held[block];
    for (size_t i = 0; i < tx.hit; ++i)
      MC_CHECK(blocks_[tx.blocks[i]].keyed && blocks_[tx.blocks[i]].key == tx.hashes[i]);
    MC_CHECK(leases_.contains({tx.deadline, id}) == (tx.state != TxState::kRunning));
  }
  size_t keyed = 0;
  std::vector<bool> is_free(blocks_.size()), listed(blocks_.size());
  for (const BlockId id : free_) {
    MC_CHECK(!is_free[id] && blocks_[id].refs == 0 && !blocks_[id].keyed);
    is_free[id] = true;
  }
  size_t count = 0;
  for (BlockId id = oldest_, before = kNoBlock; id != kNoBlock;
       before = std::exchange(id, blocks_[id].younger)) {
    MC_CHECK(!listed[id] && blocks_[id].older == before);
    MC_CHECK(before == kNoBlock || blocks_[before].touched <= blocks_[id].touched);
    MC_CHECK(blocks_[id].younger != kNoBlock || youngest_ == id);
    listed[id] = true;
    ++count;
  }
  MC_CHECK(count == listed_);
  for (BlockId id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    keyed += block.keyed;
    MC_CHECK(block.refs >= held[id]);  // pins are the difference
    MC_CHECK(!block.published || block.keyed);
    MC_CHECK(!block.keyed || find(block.key) == id);
    const bool kept = kept_.contains({block.kept_until, id});
    MC_CHECK((listed[id] || kept) == (block.keyed && block.refs == 0) && !(listed[id] && kept));
    MC_CHECK(is_free[id] == (!block.keyed && block.refs == 0));
    MC_CHECK(block.published || block.refs > 0 || !block.keyed);  // cached means published
  }
  MC_CHECK(keyed == index_.size());
}

}  // namespace mc::serve
