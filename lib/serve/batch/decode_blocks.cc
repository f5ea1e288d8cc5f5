#include "serve/batch/decode_blocks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"

namespace mc::serve {
namespace {

using Printed = unsigned long long;

constexpr Duration kReservation = std::chrono::hours(1);
constexpr double kCopyLearned = 0.3;

}  // namespace

DecodeBlocks::DecodeBlocks(BlockManager& blocks, DecodeBatch& batch, KvMover& mover,
                           const DecodeBlocksOptions& options)
    : blocks_(blocks),
      batch_(batch),
      mover_(mover),
      options_(options),
      watermark_(std::max<uint64_t>(
          1,
          static_cast<uint64_t>(std::ceil(options.watermark * static_cast<double>(available()))))) {
}

uint64_t DecodeBlocks::available() const {
  const BlockCounts c = blocks_.counts();
  return c.free + c.cached;
}

// Blocks that a reservation leaves free: none when nobody else is here.
uint64_t DecodeBlocks::headroom() const {
  if (!options_.grow() || by_age_.empty()) return 0;
  uint64_t n = watermark_;
  if (batch_.preempted() == 0) return n;
  for (const auto& [age, s] : by_age_)
    if (s->kv == KvPlace::kAway || s->kv == KvPlace::kLeaving) n += blocks_of(s->length());
  return n;
}

BlockId DecodeBlocks::id(const DecodeKv& s, size_t block) const {
  return block < s.adopted.size() ? s.adopted[block]
                                  : blocks_.find(s.tx)->blocks[block - s.adopted.size()];
}

Result<> DecodeBlocks::reserve(const DecodeKvPtr& s, Time now) {
  const BlockCounts counts = blocks_.counts();
  const uint32_t tokens = blocks_.block_tokens();
  const uint64_t pool = counts.free + counts.cached + counts.used;
  const uint64_t prompt = blocks_of(s->prompt);
  const uint64_t whole = blocks_of(s->prompt + uint64_t{s->max_tokens});
  if (whole > pool)
    return fail(Code::kInvalid,
                "request %s needs %llu blocks of %u tokens, the pool has %llu: want a larger pool "
                "or a shorter request",
                escape(s->request).c_str(), static_cast<Printed>(whole), tokens,
                static_cast<Printed>(pool));
  BlockRequest want;
  want.request = s->request;
  want.blocks = options_.grow() ? prompt : whole;
  // adopt() brings an own prompt's blocks later. A transaction needs at least one.
  if (s->own) want.blocks = std::max<uint64_t>(want.blocks - prompt, 1);
  want.prompt_tokens = s->own ? 0 : s->prompt;
  for (size_t i = 0; !s->own && i < s->prompt / tokens; ++i)
    want.hashes.push_back(s->block_key(i, tokens));
  want.lease = kReservation;
  want.spare = headroom();
  auto tx_of = blocks_.allocate(want, now);
  if (!tx_of && mover_.shed()) tx_of = blocks_.allocate(want, now);
  MC_TRY(s->tx, std::move(tx_of));
  MC_TRY_(blocks_.start(s->tx));  // the KV's deadline replaces the lease
  if (s->own) s->blocks.resize(prompt);
  const Tx& tx = *blocks_.find(s->tx);
  for (const BlockId block : tx.blocks) s->blocks.push_back(mover_.memory(block));
  s->here = tx.hit;
  s->age = next_age_++;
  by_age_.emplace(s->age, s);
  return {};
}

void DecodeBlocks::release(const DecodeKvPtr& s) {
  give_up_blocks(*s);
  left_host(*s);
  by_age_.erase(s->age);
}

void DecodeBlocks::give_up_blocks(DecodeKv& s) {
  if (s.tx != 0) blocks_.abort(std::exchange(s.tx, 0));
  for (const BlockId block : s.adopted) blocks_.unpin(block);
  s.adopted.clear();
  s.blocks.clear();
}

// ---- growing

void DecodeBlocks::grow(std::vector<DecodeKvPtr> running) {
  std::sort(running.begin(), running.end(),
            [](const DecodeKvPtr& a, const DecodeKvPtr& b) { return a->age < b->age; });
  for (const DecodeKvPtr& s : running)
    if (s->kv == KvPlace::kHere) s->stalled = !extend(s);
  if (batch_.batch().size() != 1 || leaving_ > 0) return;  // else others go on, or will
  for (const DecodeKvPtr& s : running)
    if (s->stalled && youngest_after(s->age) == nullptr && older_waits(s->age)) return preempt(s);
}

// For a place in the batch.
bool DecodeBlocks::older_waits(uint64_t age) const {
  return std::any_of(by_age_.begin(), by_age_.lower_bound(age), [this](const auto& entry) {
    return batch_.state(entry.second->request) == DecodeState::kReady;
  });
}

// False: it has to wait for blocks that are coming free.
bool DecodeBlocks::extend(const DecodeKvPtr& s) {
  while (s->blocks.size() < blocks_of(s->length())) {
    if (const auto block = blocks_.extend(s->tx)) {
      s->blocks.push_back(mover_.memory(*block));
      continue;
    }
    if (leaving_ > 0) return false;
    if (mover_.shed()) continue;
    const DecodeKvPtr victim = youngest_after(s->age);
    if (victim == nullptr) return false;
    if (!victim->settled) {  // the prefill side may still write: they are free when it cannot
      mover_.fence(victim);
      return false;
    }
    preempt(victim);
  }
  return true;
}

bool DecodeBlocks::extend_beyond(DecodeKv& s) {
  if (available() <= headroom()) return false;
  s.blocks.push_back(mover_.memory(*blocks_.extend(s.tx)));
  return true;
}

// Of those that gain the most: a prompt that its prefill side still holds frees nothing yet.
DecodeKvPtr DecodeBlocks::youngest_after(uint64_t age) const {
  DecodeKvPtr best;
  int best_rank = 0;
  for (auto it = by_age_.rbegin(); it != by_age_.rend() && it->first > age; ++it) {
    const DecodeKvPtr& s = it->second;
    const auto state = batch_.state(s->request);
    const bool held = state == DecodeState::kReady || state == DecodeState::kRunning;
    if (!held || s->busy > 0 || s->ended) continue;
    const int rank = !s->settled ? 1 : s->own && s->generated() == 0 ? 2 : 3;
    if (rank <= best_rank) continue;
    best = s;
    best_rank = rank;
  }
  return best;
}

KvWay DecodeBlocks::way(const DecodeKv& s) const {
  if (options_.preempt == "recompute") return KvWay::kRecompute;
  const uint64_t tokens = blocks_.block_tokens();
  const uint64_t written = s.written(), bytes = blocks_of(written) * options_.block_bytes;
  const bool host = swapped_bytes_ + bytes <= options_.swap_bytes;
  const bool pool = mover_.has_pool() && written >= tokens;
  if (options_.preempt == "swap")
    return host ? KvWay::kHost : pool ? KvWay::kPool : KvWay::kRecompute;
  KvWay best = KvWay::kRecompute;
  double least = mover_.compute_seconds(0, written);
  const auto weigh = [&](KvWay other, bool possible, double seconds) {
    if (!possible || seconds >= least) return;
    best = other;
    least = seconds;
  };
  const uint64_t whole = written / tokens;
  if (pool)
    weigh(KvWay::kPool, true,
          mover_.fetch_seconds(whole * options_.block_bytes) +
              mover_.compute_seconds(whole * tokens, written));
  weigh(KvWay::kHost, host, 2 * static_cast<double>(bytes) / copy_bytes_per_s_);  // out and in
  return best;
}

void DecodeBlocks::preempt(const DecodeKvPtr& s) {
  KvWay chosen = way(*s);
  if (!batch_.preempt(s->request)) return;
  s->stalled = false;
  s->own = false;
  s->kv = KvPlace::kAway;
  const uint64_t n = blocks_of(s->written());
  if (chosen == KvWay::kHost) {
    if (mover_.copy_out(s)) {
      s->kv = KvPlace::kLeaving;
      leaving_ += n;
      s->host_bytes = n * options_.block_bytes;
      swapped_bytes_ += s->host_bytes;
      return mover_.preempted(s, chosen);
    }
    chosen = KvWay::kRecompute;
  }
  const uint32_t tokens = blocks_.block_tokens();
  const size_t full = s->written() / tokens;
  mover_.preempted(s, chosen);
  if (chosen == KvWay::kPool) {
    s->pooled = true;
    leaving_ += full;
    mover_.put_out(s);
  }
  // Until others need them, its blocks keep what they hold. From the last on, so that it is evicted
  // before those that it follows.
  for (size_t i = full; i-- > 0;) blocks_.cache(id(*s, i), s->block_key(i, tokens));
  give_up_blocks(*s);
}

void DecodeBlocks::copied_out(const DecodeKvPtr& s, double seconds) {
  leaving_ -= blocks_of(s->written());
  s->kv = KvPlace::kAway;
  copy_bytes_per_s_ +=
      kCopyLearned * (static_cast<double>(s->host_bytes) / seconds - copy_bytes_per_s_);
  if (!s->ended) give_up_blocks(*s);
}

// ---- coming back

void DecodeBlocks::bring_back(Time now) {
  if (batch_.preempted() == 0) return;
  const bool alone = std::all_of(by_age_.begin(), by_age_.end(), [](const auto& entry) {
    return entry.second->kv == KvPlace::kAway;
  });
  uint64_t spare = alone ? 0 : watermark_;
  for (const auto& [age, s] : std::map(by_age_)) {
    if (s->kv != KvPlace::kAway || s->ended) continue;
    if (available() < blocks_of(s->length()) + spare || !come_back(s, now)) return;
    spare = watermark_;
  }
}

bool DecodeBlocks::come_back(const DecodeKvPtr& s, Time now) {
  const uint32_t tokens = blocks_.block_tokens();
  BlockRequest want;
  want.request = s->request;
  want.prompt_tokens = s->written();
  want.blocks = blocks_of(s->length());
  want.lease = kReservation;
  const size_t reusable = reusable_blocks(want.prompt_tokens, tokens);
  const bool on_host = s->host_bytes > 0;
  if (!on_host)
    for (size_t i = 0; i < reusable; ++i) want.hashes.push_back(s->block_key(i, tokens));
  const auto tx = blocks_.allocate(want, now);
  if (!tx) return false;
  MC_CHECK(blocks_.start(*tx));
  s->tx = *tx;
  s->kv = KvPlace::kReturning;
  const Tx& held = *blocks_.find(*tx);
  const size_t hit = held.hit;
  for (const BlockId block : held.blocks) s->blocks.push_back(mover_.memory(block));
  if (on_host)
    mover_.copy_in(s, hit);
  else if (s->pooled && hit < s->written() / tokens)
    mover_.fetch(s, hit);
  else
    mover_.compute(s, hit * tokens);
  return true;
}

void DecodeBlocks::left_host(DecodeKv& s) { swapped_bytes_ -= std::exchange(s.host_bytes, 0); }

void DecodeBlocks::returned(const DecodeKvPtr& s) {
  s->kv = KvPlace::kHere;
  s->pooled = false;
  MC_CHECK(batch_.restored(s->request));
}

}  // namespace mc::serve
