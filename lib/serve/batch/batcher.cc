#include "serve/batch/batcher.h"

#include <algorithm>

namespace mc::serve {

Result<PrefillQueue> PrefillQueue::create(Timing timing, uint32_t chunk_tokens,
                                          uint32_t block_tokens, PrefillOrder order) {
  if (block_tokens == 0 || chunk_tokens == 0 || chunk_tokens % block_tokens != 0)
    return fail(Code::kInvalid, "--chunk-tokens %u: want a multiple of the block's %u",
                chunk_tokens, block_tokens);
  if (!(order.ageing >= 0)) return fail(Code::kInvalid, "ageing %g: want 0 or more", order.ageing);
  return PrefillQueue(std::move(timing), chunk_tokens, order);
}

// Before those of its conductor that should have come later.
size_t PrefillQueue::place(const PrefillTurn& turn) const {
  size_t at = items_.size();
  while (turn.number > 0 && at > 0 && items_[at - 1].turn.conductor == turn.conductor &&
         items_[at - 1].turn.number > turn.number)
    --at;
  return at;
}

Time PrefillQueue::since(size_t place, Time now) const {
  return place < items_.size() ? std::min(now, items_[place].since) : now;
}

void PrefillQueue::push(const std::string& request, uint64_t tokens, uint64_t reused, Time now,
                        int64_t priority, PrefillTurn turn) {
  MC_CHECK(reused < tokens);
  const size_t at = place(turn);
  items_.insert(items_.begin() + static_cast<std::ptrdiff_t>(at), {.request = request,
                                                                   .tokens = tokens,
                                                                   .reused = reused,
                                                                   .done = reused,
                                                                   .since = since(at, now),
                                                                   .priority = priority,
                                                                   .turn = std::move(turn)});
}

sched::PrefillWork PrefillQueue::work(const PrefillItem& item) const {
  return {.left_ms = to_ms(remaining(item)),
          .since = item.since,
          .ready = item.ready,
          .priority = item.priority};
}

void PrefillQueue::set_ready(const std::string& request, bool ready) {
  for (PrefillItem& item : items_)
    if (item.request == request) item.ready = ready;
}

void PrefillQueue::set_loaded(const std::string& request) {
  for (PrefillItem& item : items_)
    if (item.request == request) item.loaded = true;
}

const PrefillItem* PrefillQueue::head(Time now, bool unloaded) const {
  if (running_) return nullptr;
  std::vector<sched::PrefillWork> all;
  for (const PrefillItem& item : items_) {
    all.push_back(work(item));
    if (!unloaded && !item.loaded) all.back().ready = false;
  }
  const auto at = sched::next_prefill(all, order_.srpf, order_.ageing, now);
  return at == items_.size() ? nullptr : &items_[at];
}

void PrefillQueue::set_reused(const std::string& request, uint64_t reused) {
  for (PrefillItem& item : items_) {
    if (item.request != request || item.started) continue;
    MC_CHECK(reused < item.tokens);
    item.reused = item.done = reused;
  }
}

void PrefillQueue::skip_to(const std::string& request, uint64_t tokens) {
  for (PrefillItem& item : items_) {
    if (item.request != request) continue;
    MC_CHECK(item.done <= tokens && tokens < item.tokens);
    item.done = tokens;
    if (!item.started) item.reused = tokens;
  }
}

std::optional<PrefillChunk> PrefillQueue::next(Time now, bool unloaded) {
  const PrefillItem* const chosen = head(now, unloaded);
  if (chosen == nullptr) return std::nullopt;
  PrefillItem& item = *std::find_if(items_.begin(), items_.end(),
                                    [&](const PrefillItem& i) { return &i == chosen; });
  PrefillChunk chunk;
  chunk.request = item.request;
  chunk.begin = item.done;
  chunk.end = std::min(item.tokens, item.done + chunk_tokens_);
  chunk.first = !item.started;
  chunk.last = chunk.end == item.tokens;
  chunk.predicted = timing_.chunk(chunk.begin, chunk.end, item.reused);
  item.started = item.loaded = true;
  item.done = chunk.end;
  running_ = chunk;
  running_since_ = now;
  return chunk;
}

void PrefillQueue::finished() {
  MC_CHECK(running_.has_value());
  if (running_->last)  // one of that name that was queued since has not begun
    std::erase_if(
        items_, [&](const PrefillItem& i) { return i.started && i.request == running_->request; });
  running_.reset();
}

bool PrefillQueue::remove(const std::string& request) {
  return std::erase_if(items_, [&](const PrefillItem& i) { return i.request == request; }) > 0;
}

uint64_t PrefillQueue::queued_tokens() const {
  uint64_t tokens = running_ ? running_->end - running_->begin : 0;
  for (const PrefillItem& item : items_) tokens += item.tokens - item.done;
  return tokens;
}

Duration PrefillQueue::remaining(const PrefillItem& item) const {
  if (item.done == item.tokens) return {};  // its last chunk runs
  const Duration load = item.started ? Duration{} : timing_.load(item.reused);
  return load + timing_.chunk(item.done, item.tokens, item.reused);
}

Duration PrefillQueue::queue_time(Time now) const {
  Duration sum{};
  if (running_) sum = std::max(Duration{}, running_->predicted - (now - running_since_));
  for (const PrefillItem& item : items_) sum += remaining(item);
  return sum;
}

Duration PrefillQueue::work_of(const std::function<bool(const std::string&)>& is) const {
  Duration sum{};
  for (const PrefillItem& item : items_)
    if (is(item.request)) sum += remaining(item);
  return sum;
}

Duration PrefillQueue::queue_time(Time now, uint64_t tokens, uint64_t reused, int64_t priority,
                                  const PrefillTurn& turn) const {
  const size_t at = place(turn);
  const sched::PrefillWork mine = work({.request = {},
                                        .tokens = tokens,
                                        .reused = reused,
                                        .done = reused,
                                        .since = since(at, now),
                                        .priority = priority});
  Duration sum = queue_time(now);
  for (size_t i = 0; i < items_.size(); ++i) {
    const sched::PrefillWork other = work(items_[i]);
    const bool first = i < at ? sched::stays_before(other, mine, order_)
                              : !sched::stays_before(mine, other, order_);
    if (!first) sum -= remaining(items_[i]);
  }
  return std::max(sum, Duration{});
}

Result<> DecodeBatch::wait(const std::string& request, uint64_t context_tokens, Time kv_deadline) {
  const auto [it, added] =
      entries_.try_emplace(request, Entry{DecodeState::kWaitingForKv, context_tokens, kv_deadline});
  if (!added) return fail(Code::kExists, "request %s is already here", request.c_str());
  waiting_.emplace(kv_deadline, request);
  all_context_ += context_tokens;
  return {};
}

void DecodeBatch::in_time(const std::string& request) {
  const auto it = entries_.find(request);
  if (it == entries_.end() || it->second.state != DecodeState::kWaitingForKv) return;
  waiting_.erase({std::exchange(it->second.deadline, Time::max()), request});
  waiting_.emplace(Time::max(), request);
}

bool DecodeBatch::kv_arrived(const std::string& request) {
  const auto it = entries_.find(request);
  if (it == entries_.end() || it->second.state != DecodeState::kWaitingForKv) return false;
  waiting_.erase({it->second.deadline, request});
  it->second.state = DecodeState::kReady;
  ready_.push_back(request);
  return true;
}

std::vector<std::string> DecodeBatch::admit() {
  std::vector<std::string> joined;
  while (!ready_.empty()) {
    Entry& entry = entries_.at(ready_.front());
    const bool room = options_.batch_max == 0 || running_.size() < options_.batch_max;
    const Duration step = timing_.step(running_.size() + 1, running_context_ + entry.context);
    const bool in_time = options_.tbt_slo == Duration{} || step <= options_.tbt_slo;
    if (!running_.empty() && !(room && in_time)) break;  // in order: none overtakes
    entry.state = DecodeState::kRunning;
    running_context_ += entry.context;
    running_.push_back(ready_.front());
    joined.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  return joined;
}

void DecodeBatch::advanced(const std::string& request, uint64_t tokens) {
  const auto it = entries_.find(request);
  if (it == entries_.end()) return;
  it->second.context += tokens;
  all_context_ += tokens;
  if (it->second.state == DecodeState::kRunning) running_context_ += tokens;
}

void DecodeBatch::leave(const std::string& request, const Entry& entry) {
  switch (entry.state) {
    case DecodeState::kWaitingForKv: waiting_.erase({entry.deadline, request}); break;
    case DecodeState::kReady: std::erase(ready_, request); break;
    case DecodeState::kPreempted: --preempted_; break;
    case DecodeState::kRunning:
      std::erase(running_, request);
      running_context_ -= entry.context;
      break;
  }
}

bool DecodeBatch::preempt(const std::string& request) {
  const auto it = entries_.find(request);
  if (it == entries_.end()) return false;
  Entry& entry = it->second;
  if (entry.state != DecodeState::kReady && entry.state != DecodeState::kRunning) return false;
  leave(request, entry);
  entry.state = DecodeState::kPreempted;
  ++preempted_;
  return true;
}

bool DecodeBatch::restored(const std::string& request) {
  const auto it = entries_.find(request);
  if (it == entries_.end() || it->second.state != DecodeState::kPreempted) return false;
  --preempted_;
  it->second.state = DecodeState::kReady;
  ready_.push_front(request);
  return true;
}

bool DecodeBatch::remove(const std::string& request) {
  const auto it = entries_.find(request);
  if (it == entries_.end()) return false;
  const Entry& entry = it->second;
  leave(request, entry);
  all_context_ -= entry.context;
  entries_.erase(it);
  return true;
}

std::vector<std::string> DecodeBatch::expire(Time now) {
  std::vector<std::string> late;
  while (!waiting_.empty() && waiting_.begin()->first <= now) {
    late.push_back(waiting_.begin()->second);
    remove(late.back());
  }
  return late;
}

std::optional<Time> DecodeBatch::deadline() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.begin()->first;
}

std::optional<DecodeState> DecodeBatch::state(const std::string& request) const {
  const auto it = entries_.find(request);
  if (it == entries_.end()) return std::nullopt;
  return it->second.state;
}

Duration DecodeBatch::step_time() const { return timing_.step(running_.size(), running_context_); }
Duration DecodeBatch::step_time_all() const { return timing_.step(entries_.size(), all_context_); }

}  // namespace mc::serve
