#include "serve/worker/decode_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"

namespace mc::serve {
namespace {

using Printed = unsigned long long;

constexpr Duration kAlive = std::chrono::seconds(1);  // how often a conductor hears of who waits
constexpr Duration kReservation = std::chrono::hours(1);
constexpr double kCopyLearned = 0.3;

uint64_t available(const BlockManager& blocks) {
  const BlockCounts c = blocks.counts();
  return c.free + c.cached;
}

Counter& ways(Metrics& metrics, const char* way) {
  return metrics.counter("mc_engine_preempted_kv_total",
                         "preempted requests by what became of their KV", {{"way", way}});
}

}  // namespace

DecodeMemory::DecodeMemory(io::Loop& loop, WorkerCore& core, const Engine& engine,
                           DecodeBatch& batch, const DecodeMemoryOptions& options, Metrics& metrics,
                           Hooks hooks)
    : loop_(loop),
      core_(core),
      blocks_(core.blocks()),
      engine_(engine),
      batch_(batch),
      options_(options),
      watermark_(std::max<uint64_t>(
          1, static_cast<uint64_t>(
                 std::ceil(options.watermark *
                           static_cast<double>(blocks_.counts().free + blocks_.counts().cached))))),
      hooks_(std::move(hooks)),
      recompute_(loop, core, engine, options.time_scale),
      preemptions_(metrics.counter("vllm:num_preemptions_total",
                                   "requests that left the batch for want of blocks")),
      to_host_(ways(metrics, "host")),
      to_pool_(ways(metrics, "pool")),
      to_compute_(ways(metrics, "recompute")),
      preempted_(metrics.gauge("mc_engine_requests_preempted",
                               "requests that wait for blocks to go on")) {}

// Blocks that a reservation leaves free: none when nobody else is here.
uint64_t DecodeMemory::headroom() const {
  if (!options_.grow() || by_age_.empty()) return 0;
  uint64_t n = watermark_;
  if (batch_.preempted() == 0) return n;
  for (const auto& [age, s] : by_age_)
    if (s->kv == KvPlace::kAway || s->kv == KvPlace::kLeaving) n += blocks_of(s->tokens.size());
  return n;
}

BlockId DecodeMemory::id(const Sequence& s, size_t block) const {
  return block < s.adopted.size() ? s.adopted[block]
                                  : blocks_.find(s.tx)->blocks[block - s.adopted.size()];
}

Result<> DecodeMemory::reserve(const SequencePtr& s, Time now) {
  const BlockCounts counts = blocks_.counts();
  const uint64_t pool = counts.free + counts.cached + counts.used;
  const uint64_t prompt = blocks_of(s->prompt);
  const uint64_t whole = blocks_of(s->prompt + uint64_t{s->max_tokens});
  if (whole > pool)
    return fail(Code::kInvalid,
                "request %s needs %llu blocks of %u tokens, the pool has %llu: want a larger pool "
                "or a shorter request",
                escape(s->request).c_str(), static_cast<Printed>(whole), engine_.block_tokens(),
                static_cast<Printed>(pool));
  BlockRequest want;
  want.request = s->request;
  want.blocks = options_.grow() ? prompt : whole;
  // adopt() brings an own prompt's blocks later. A transaction needs at least one.
  if (s->own) want.blocks = std::max<uint64_t>(want.blocks - prompt, 1);
  want.prompt_tokens = s->own ? 0 : s->prompt;
  for (size_t i = 0; !s->own && i < s->prompt / engine_.block_tokens(); ++i)
    want.hashes.push_back(s->block_key(i, engine_.block_tokens()));
  want.lease = kReservation;
  want.spare = headroom();
  auto tx_of = blocks_.allocate(want, now);
  if (!tx_of && pool_ != nullptr && pool_->shed()) tx_of = blocks_.allocate(want, now);
  MC_TRY(s->tx, std::move(tx_of));
  MC_TRY_(blocks_.start(s->tx));  // the KV's deadline replaces the lease
  if (s->own) s->blocks.resize(prompt);
  const Tx& tx = *blocks_.find(s->tx);
  for (const BlockId block : tx.blocks) s->blocks.push_back(core_.block(block));
  s->here = tx.hit;
  s->age = next_age_++;
  by_age_.emplace(s->age, s);
  return {};
}

void DecodeMemory::release(const SequencePtr& s) {
  give_up_blocks(s);
  if (s->swapped != nullptr) swapped_bytes_ -= blocks_of(s->written()) * core_.block_bytes();
  s->swapped.reset();
  by_age_.erase(s->age);
}

void DecodeMemory::give_up_blocks(const SequencePtr& s) {
  if (s->tx != 0) blocks_.abort(std::exchange(s->tx, 0));
  for (const BlockId block : s->adopted) blocks_.unpin(block);
  s->adopted.clear();
  s->blocks.clear();
}

// ---- growing

std::vector<SequencePtr> DecodeMemory::grow(std::vector<SequencePtr> running) {
  std::vector<SequencePtr> oldest_first = running;
  std::sort(oldest_first.begin(), oldest_first.end(),
            [](const SequencePtr& a, const SequencePtr& b) { return a->age < b->age; });
  for (const SequencePtr& s : oldest_first)
    if (s->kv == KvPlace::kHere) s->stalled = !extend(s);
  std::erase_if(running, [](const SequencePtr& s) {
    return s->kv != KvPlace::kHere || s->stalled || s->ended;
  });
  for (const SequencePtr& s : running) {
    if (!s->speculation || s->speculation->guesses.empty()) continue;
    std::vector<int32_t>& guesses = s->speculation->guesses;
    const uint64_t wanted = blocks_of(s->tokens.size() + guesses.size());
    while (s->blocks.size() < wanted && available(blocks_) > headroom())
      s->blocks.push_back(core_.block(*blocks_.extend(s->tx)));
    const size_t room = s->blocks.size() * engine_.block_tokens() - s->tokens.size();
    guesses.resize(std::min(guesses.size(), room));
  }
  preempted_.set(static_cast<double>(batch_.preempted()));
  return running;
}

// False: it has to wait for blocks that are coming free.
bool DecodeMemory::extend(const SequencePtr& s) {
  while (s->blocks.size() < blocks_of(s->tokens.size())) {
    if (const auto block = blocks_.extend(s->tx)) {
      s->blocks.push_back(core_.block(*block));
      continue;
    }
    if (leaving_ > 0) return false;
    if (pool_ != nullptr && pool_->shed()) continue;
    const SequencePtr victim = youngest_after(s->age);
    if (victim == nullptr) return false;
    if (!victim->settled) {  // the prefill side may still write: they are free when it cannot
      hooks_.fence(victim);
      return false;
    }
    preempt(victim);
  }
  return true;
}

// Of those that gain the most: a prompt that its prefill side still holds frees nothing yet.
SequencePtr DecodeMemory::youngest_after(uint64_t age) const {
  SequencePtr best;
  int best_rank = 0;
  for (auto it = by_age_.rbegin(); it != by_age_.rend() && it->first > age; ++it) {
    const SequencePtr& s = it->second;
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

DecodeMemory::Way DecodeMemory::way(const Sequence& s) const {
  if (options_.preempt == "recompute") return Way::kRecompute;
  const uint64_t tokens = engine_.block_tokens();
  const uint64_t written = s.written(), bytes = blocks_of(written) * core_.block_bytes();
  const bool host = swapped_bytes_ + bytes <= options_.swap_bytes;
  const bool pool = pool_ != nullptr && written >= tokens;
  if (options_.preempt == "swap") return host ? Way::kHost : pool ? Way::kPool : Way::kRecompute;
  Way best = Way::kRecompute;
  double least = recompute_.seconds(0, written);
  const auto weigh = [&](Way other, bool possible, double seconds) {
    if (!possible || seconds >= least) return;
    best = other;
    least = seconds;
  };
  const uint64_t whole = written / tokens;
  if (pool)
    weigh(Way::kPool, true,
          pool_->rates().fetch_seconds({{{}, whole * core_.block_bytes()}}) +
              recompute_.seconds(whole * tokens, written));
  weigh(Way::kHost, host, 2 * static_cast<double>(bytes) / copy_bytes_per_s_);  // out and in
  return best;
}

bool DecodeMemory::preempt(const SequencePtr& s) {
  const Way chosen = way(*s);
  if (!batch_.preempt(s->request)) return false;
  preemptions_.add();
  s->stalled = false;
  s->own = false;
  s->kv = KvPlace::kAway;
  log_debug("decode", "request %s is preempted after %zu tokens: its KV is %s", s->request.c_str(),
            s->generated(),
            chosen == Way::kHost   ? "copied to host memory"
            : chosen == Way::kPool ? "put into the pool"
                                   : "computed again later");
  if (chosen == Way::kHost && copy_out(s)) return true;
  if (chosen == Way::kPool)
    put_out(s);
  else
    to_compute_.add();
  // Until others need them, its blocks keep what they hold. From the last on, so that it is evicted
  // before those that it follows.
  const uint32_t tokens = engine_.block_tokens();
  for (size_t i = s->written() / tokens; i-- > 0;)
    blocks_.cache(id(*s, i), s->block_key(i, tokens));
  give_up_blocks(s);
  return true;
}

// ---- where the KV goes

bool DecodeMemory::copy_out(const SequencePtr& s) {
  const uint64_t n = blocks_of(s->written()), bytes = core_.block_bytes();
  s->swapped = std::make_unique_for_overwrite<std::byte[]>(n * bytes);
  const Time start = loop_.clock().now();
  const auto copy = [s, n, bytes] {
    for (size_t i = 0; i < n; ++i) std::memcpy(s->swapped.get() + i * bytes, s->blocks[i], bytes);
  };
  const auto copied = [this, s, n, bytes, start] {
    --s->busy;
    leaving_ -= n;
    s->kv = KvPlace::kAway;
    const double seconds = std::max(to_seconds(loop_.clock().now() - start), 1e-6);
    copy_bytes_per_s_ +=
        kCopyLearned * (static_cast<double>(n * bytes) / seconds - copy_bytes_per_s_);
    if (s->ended) return hooks_.unused(s);
    give_up_blocks(s);
    hooks_.step();
  };
  if (!core_.submit(copy, copied)) {
    s->swapped.reset();
    return false;
  }
  ++s->busy;
  s->kv = KvPlace::kLeaving;
  leaving_ += n;
  swapped_bytes_ += n * bytes;
  to_host_.add();
  return true;
}

// The blocks stay as they are until they are put.
void DecodeMemory::put_out(const SequencePtr& s) {
  s->pooled = true;
  to_pool_.add();
  const StepScope scope(s->steps);
  for (size_t i = 0; i < s->written() / engine_.block_tokens(); ++i) {
    ++leaving_;
    pool_->publish(s->block_key(i, engine_.block_tokens()), id(*s, i),
                   {s->blocks[i], core_.block_bytes()}, [this](bool) {
                     if (--leaving_ == 0) hooks_.step();
                   });
  }
}

// ---- and how it comes back

void DecodeMemory::bring_back() {
  if (batch_.preempted() == 0) return;
  const bool alone = std::all_of(by_age_.begin(), by_age_.end(), [](const auto& entry) {
    return entry.second->kv == KvPlace::kAway;
  });
  uint64_t spare = alone ? 0 : watermark_;
  for (const auto& [age, s] : std::map(by_age_)) {
    if (s->kv != KvPlace::kAway || s->ended) continue;
    if (available(blocks_) < blocks_of(s->tokens.size()) + spare || !come_back(s)) return;
    spare = watermark_;
  }
}

bool DecodeMemory::come_back(const SequencePtr& s) {
  const uint32_t tokens = engine_.block_tokens();
  BlockRequest want;
  want.request = s->request;
  want.prompt_tokens = s->written();
  want.blocks = blocks_of(s->tokens.size());
  want.lease = kReservation;
  const size_t reusable = reusable_blocks(want.prompt_tokens, tokens);
  if (s->swapped == nullptr)
    for (size_t i = 0; i < reusable; ++i) want.hashes.push_back(s->block_key(i, tokens));
  const auto tx = blocks_.allocate(want, loop_.now());
  if (!tx) return false;
  MC_CHECK(blocks_.start(*tx));
  s->tx = *tx;
  s->kv = KvPlace::kReturning;
  const Tx& held = *blocks_.find(*tx);
  for (const BlockId block : held.blocks) s->blocks.push_back(core_.block(block));
  if (s->swapped != nullptr)
    copy_in(s, held.hit);
  else if (s->pooled && held.hit < s->written() / tokens)
    fetch(s, held.hit);
  else
    compute(s, held.hit * tokens);
  return true;
}

void DecodeMemory::copy_in(const SequencePtr& s, size_t first) {
  const uint64_t n = blocks_of(s->written()), bytes = core_.block_bytes();
  ++s->busy;
  const bool queued = core_.submit(
      [s, first, n, bytes] {
        for (size_t i = first; i < n; ++i)
          std::memcpy(s->blocks[i], s->swapped.get() + i * bytes, bytes);
      },
      [this, s, n, bytes] {
        --s->busy;
        s->swapped.reset();
        swapped_bytes_ -= n * bytes;
        back(s, {});
      });
  if (queued) return;
  --s->busy;
  back(s, fail(Code::kBusy, "this worker is overloaded"));
}

// What the pool lost meanwhile is computed.
void DecodeMemory::fetch(const SequencePtr& s, size_t first) {
  const uint32_t tokens = engine_.block_tokens();
  StoreConnector::Wanted wanted;
  for (size_t i = first; i < s->written() / tokens; ++i) {
    wanted.hashes.push_back(s->block_key(i, tokens));
    wanted.memory.emplace_back(s->blocks[i], core_.block_bytes());
  }
  ++s->busy;
  const StepScope scope(s->steps);
  pool_->fetch(std::move(wanted), [this, s, first, tokens](size_t got) {
    --s->busy;
    compute(s, (first + got) * tokens);
  });
}

void DecodeMemory::compute(const SequencePtr& s, size_t begin) {
  if (s->ended || begin >= s->written()) return back(s, {});
  recompute_.run(s, begin, s->written(), [this, s](const Result<>& r) { back(s, r); });
}

void DecodeMemory::back(const SequencePtr& s, const Result<>& outcome) {
  if (s->ended) return hooks_.unused(s);
  if (!outcome) return hooks_.fail(s, outcome.error().what);
  s->kv = KvPlace::kHere;
  s->pooled = false;
  MC_CHECK(batch_.restored(s->request));
  hooks_.step();
}

void DecodeMemory::tick(Time now) {
  bool waits = batch_.preempted() > 0;
  const bool tell = now - alive_at_ >= kAlive;
  if (tell) alive_at_ = now;
  for (const auto& [age, s] : by_age_) {
    const bool waiting = s->stalled || s->kv != KvPlace::kHere;
    waits = waits || s->stalled;
    if (tell && waiting && s->generated() > 0 && !s->ended) hooks_.alive(s);
  }
  preempted_.set(static_cast<double>(batch_.preempted()));
  if (waits) hooks_.step();
}

}  // namespace mc::serve
