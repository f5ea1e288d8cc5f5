#include "sim/cluster/prefiller.h"

#include <algorithm>
#include <string>

namespace mc::sim {
namespace {

constexpr uint64_t kChunkMax = uint64_t{1} << 30;
constexpr uint64_t kBegun = UINT64_MAX;  // no chunk of it is the first

serve::PrefillQueue queue_of(const serve::Timing& timing, uint32_t chunk, uint32_t block,
                             const serve::PrefillOrder& order) {
  auto queue = serve::PrefillQueue::create(timing, chunk, block, order);
  MC_CHECK(queue.has_value());
  return std::move(*queue);
}

}  // namespace

uint32_t whole_blocks(uint64_t chunk_tokens, uint64_t block_tokens) {
  const uint64_t most = std::max<uint64_t>(kChunkMax / block_tokens, 1);
  const uint64_t blocks = (std::min(chunk_tokens, kChunkMax) + block_tokens - 1) / block_tokens;
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 1, most) * block_tokens);
}

Prefiller::Prefiller(const serve::Timing& timing, uint32_t chunk_tokens, uint32_t block_tokens,
                     const serve::PrefillOrder& order)
    : timing_(timing),
      chunk_tokens_(chunk_tokens),
      srpf_(order.srpf),
      queue_(queue_of(timing, chunk_tokens, block_tokens, order)) {}

// ---- the queue

void Prefiller::push(uint64_t id, uint64_t tokens, uint64_t reused, bool ready, Time now) {
  advance(now);
  const std::string request = std::to_string(id);
  queue_.push(request, tokens, reused, now);
  if (!ready) return queue_.set_ready(request, false);
  if (srpf_) look();  // else it is behind all others
}

void Prefiller::waits(uint64_t id) { queue_.set_ready(std::to_string(id), false); }

void Prefiller::again(uint64_t id, Time now) {
  advance(now);
  queue_.set_ready(std::to_string(id), true);
  look();
}

void Prefiller::loads(uint64_t id) {
  queue_.set_ready(std::to_string(id), false);
  loading_.insert(id);
}

void Prefiller::loaded(uint64_t id) { queue_.set_loaded(std::to_string(id)); }

void Prefiller::came(uint64_t id, uint64_t reused, Time now) {
  advance(now);
  const std::string request = std::to_string(id);
  queue_.set_reused(request, reused);
  queue_.set_ready(request, true);
  if (loading_.erase(id) > 0) queue_.set_loaded(request);
  look();
}

void Prefiller::remove(uint64_t id, Time now) {
  advance(now);
  queue_.remove(std::to_string(id));
  if (loading_.erase(id) > 0) look();  // another may load
  if (!running_ || given_up_ || id != id_) return;
  given_up_ = true;
  looks_ = false;
  check_ = ends_ = chunk_ends(chunk_.end);
}

Duration Prefiller::queue_time(Time now, uint64_t tokens, uint64_t reused) {
  advance(now);
  return queue_.queue_time(now, tokens, reused, 0);
}

std::optional<Prefiller::Head> Prefiller::head(Time now) const {
  const serve::PrefillItem* const item = queue_.head(now, may_load());
  if (item == nullptr) return std::nullopt;
  return Head{std::stoull(item->request), item->done, item->started};
}

void Prefiller::found(uint64_t id, uint64_t reused) {
  queue_.set_reused(std::to_string(id), reused);
}

// ---- the prompt that runs

void Prefiller::begin(Time now, Duration takes) {
  const serve::PrefillItem* const item = queue_.head(now, may_load());
  MC_CHECK(item != nullptr);
  id_ = std::stoull(item->request);
  tokens_ = item->tokens;
  chunk_ = *queue_.next(now, may_load());
  running_ = true;
  given_up_ = looks_ = false;
  since_ = now;
  ends_ = check_ = now + takes;
}

void Prefiller::resume(Time now, uint64_t done) {
  const serve::PrefillItem* const item = queue_.head(now, may_load());
  MC_CHECK(item != nullptr && item->started);
  const Duration takes = timing_.chunk(done, item->tokens, kBegun);
  if (done > item->done) queue_.skip_to(std::string(item->request), done);
  begin(now, takes);
}

uint64_t Prefiller::done(Time now) {
  advance(now);
  return running_ ? chunk_.begin : chunk_.end;
}

Time Prefiller::chunk_ends(uint64_t end) const {
  return ends_ - timing_.chunk(end, tokens_, kBegun);
}

// At the end of this chunk another may be chosen.
void Prefiller::look() {
  if (!running_ || given_up_ || chunk_.last) return;
  looks_ = true;
  check_ = chunk_ends(chunk_.end);
}

// Tells the queue which chunk runs now. Nothing has changed since the one that it knows of.
void Prefiller::advance(Time now) {
  if (!running_ || given_up_ || looks_) return;
  uint64_t begin = chunk_.begin, end = chunk_.end;
  while (end < tokens_ && chunk_ends(end) <= now) {
    begin = end;
    end = std::min(end + chunk_tokens_, tokens_);
  }
  forward(begin);
}

void Prefiller::forward(uint64_t begin) {
  if (begin <= chunk_.begin) return;
  queue_.finished();
  if (begin > chunk_.end) queue_.skip_to(chunk_.request, begin);
  const auto next = queue_.next(chunk_ends(begin), may_load());
  MC_CHECK(next && next->begin == begin && next->request == chunk_.request);
  chunk_ = *next;
}

Prefiller::Outcome Prefiller::tick(Time now) {
  MC_CHECK(running_ && now >= check_);
  if (looks_) {
    looks_ = false;
    queue_.finished();
    const serve::PrefillItem* const item = queue_.head(now, may_load());
    MC_CHECK(item != nullptr);
    running_ = item->request == chunk_.request;
    if (!running_) return Outcome::kOvertaken;
    chunk_ = *queue_.next(now, may_load());
    check_ = ends_;
    return Outcome::kRuns;
  }
  if (!given_up_ && !chunk_.last)
    forward(chunk_.end + (tokens_ - chunk_.end - 1) / chunk_tokens_ * chunk_tokens_);
  queue_.finished();
  running_ = false;
  return given_up_ ? Outcome::kGivenUp : Outcome::kEnded;
}

}  // namespace mc::sim
