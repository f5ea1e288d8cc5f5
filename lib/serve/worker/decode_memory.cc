#include "serve/worker/decode_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace mc::serve {
namespace {

constexpr Duration kAlive = std::chrono::seconds(1);  // how often a conductor hears of who waits

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
      engine_(engine),
      batch_(batch),
      hooks_(std::move(hooks)),
      recompute_(loop, core, engine, options.time_scale),
      blocks_(core.blocks(), batch, *this,
              {options.preempt, options.watermark, options.swap_bytes, core.block_bytes()}),
      preemptions_(metrics.counter("vllm:num_preemptions_total",
                                   "requests that left the batch for want of blocks")),
      to_host_(ways(metrics, "host")),
      to_pool_(ways(metrics, "pool")),
      to_compute_(ways(metrics, "recompute")),
      preempted_(metrics.gauge("mc_engine_requests_preempted",
                               "requests that wait for blocks to go on")) {}

void DecodeMemory::release(const SequencePtr& s) {
  blocks_.release(s);
  s->swapped.reset();
}

std::vector<SequencePtr> DecodeMemory::grow(std::vector<SequencePtr> running) {
  blocks_.grow({running.begin(), running.end()});
  std::erase_if(running, [](const SequencePtr& s) {
    return s->kv != KvPlace::kHere || s->stalled || s->ended;
  });
  for (const SequencePtr& s : running) {
    if (!s->speculation || s->speculation->guesses.empty()) continue;
    std::vector<int32_t>& guesses = s->speculation->guesses;
    const uint64_t wanted = blocks_.blocks_of(s->tokens.size() + guesses.size());
    while (s->blocks.size() < wanted && blocks_.extend_beyond(*s)) {
    }
    const size_t room = s->blocks.size() * engine_.block_tokens() - s->tokens.size();
    guesses.resize(std::min(guesses.size(), room));
  }
  preempted_.set(static_cast<double>(batch_.preempted()));
  return running;
}

void DecodeMemory::preempted(const DecodeKvPtr& s, KvWay way) {
  preemptions_.add();
  (way == KvWay::kHost ? to_host_ : way == KvWay::kPool ? to_pool_ : to_compute_).add();
  log_debug("decode", "request %s is preempted after %zu tokens: its KV is %s", s->request.c_str(),
            s->generated(),
            way == KvWay::kHost   ? "copied to host memory"
            : way == KvWay::kPool ? "put into the pool"
                                  : "computed again later");
}

// ---- where the KV goes

bool DecodeMemory::copy_out(const DecodeKvPtr& kv) {
  const SequencePtr s = sequence(kv);
  const uint64_t n = blocks_.blocks_of(s->written()), bytes = core_.block_bytes();
  s->swapped = std::make_unique_for_overwrite<std::byte[]>(n * bytes);
  const Time start = loop_.clock().now();
  const auto copy = [s, n, bytes] {
    for (size_t i = 0; i < n; ++i) std::memcpy(s->swapped.get() + i * bytes, s->blocks[i], bytes);
  };
  const auto copied = [this, s, start] {
    --s->busy;
    blocks_.copied_out(s, std::max(to_seconds(loop_.clock().now() - start), 1e-6));
    if (s->ended) return hooks_.unused(s);
    hooks_.step();
  };
  if (!core_.submit(copy, copied)) {
    s->swapped.reset();
    return false;
  }
  ++s->busy;
  return true;
}

// The blocks stay as they are until they are put.
void DecodeMemory::put_out(const DecodeKvPtr& kv) {
  const SequencePtr s = sequence(kv);
  const StepScope scope(s->steps);
  for (size_t i = 0; i < s->written() / engine_.block_tokens(); ++i)
    pool_->publish(s->block_key(i, engine_.block_tokens()), blocks_.id(*s, i),
                   {s->blocks[i], core_.block_bytes()}, [this](bool) {
                     if (blocks_.put_done()) hooks_.step();
                   });
}

// ---- and how it comes back

void DecodeMemory::copy_in(const DecodeKvPtr& kv, size_t first) {
  const SequencePtr s = sequence(kv);
  const uint64_t n = blocks_.blocks_of(s->written()), bytes = core_.block_bytes();
  ++s->busy;
  const bool queued = core_.submit(
      [s, first, n, bytes] {
        for (size_t i = first; i < n; ++i)
          std::memcpy(s->blocks[i], s->swapped.get() + i * bytes, bytes);
      },
      [this, s] {
        --s->busy;
        s->swapped.reset();
        blocks_.left_host(*s);
        back(s, {});
      });
  if (queued) return;
  --s->busy;
  back(s, fail(Code::kBusy, "this worker is overloaded"));
}

// What the pool lost meanwhile is computed.
void DecodeMemory::fetch(const DecodeKvPtr& kv, size_t first) {
  const SequencePtr s = sequence(kv);
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

void DecodeMemory::compute(const DecodeKvPtr& kv, size_t begin) {
  const SequencePtr s = sequence(kv);
  if (s->ended || begin >= s->written()) return back(s, {});
  recompute_.run(s, begin, s->written(), [this, s](const Result<>& r) { back(s, r); });
}

void DecodeMemory::back(const SequencePtr& s, const Result<>& outcome) {
  if (s->ended) return hooks_.unused(s);
  if (!outcome) return hooks_.fail(s, outcome.error().what);
  blocks_.returned(s);
  hooks_.step();
}

void DecodeMemory::tick(Time now) {
  bool waits = batch_.preempted() > 0;
  const bool tell = now - alive_at_ >= kAlive;
  if (tell) alive_at_ = now;
  for (const auto& [age, kv] : blocks_.by_age()) {
    const SequencePtr s = sequence(kv);
    const bool waiting = s->stalled || s->kv != KvPlace::kHere;
    waits = waits || s->stalled;
    if (tell && waiting && s->generated() > 0 && !s->ended) hooks_.alive(s);
  }
  preempted_.set(static_cast<double>(batch_.preempted()));
  if (waits) hooks_.step();
}

}  // namespace mc::serve
