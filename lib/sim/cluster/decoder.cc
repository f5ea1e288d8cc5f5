#include "sim/cluster/decoder.h"

#include <algorithm>
#include <functional>

#include "base/result.h"

namespace mc::sim {

void Decoder::ready(const Decoding& request, Time now) {
  MC_CHECK(request.answer > 0);
  pending_.push_back(request);
  waiting_tokens_ += request.context;
  if (memory_) memory_->arrived(request.id);
  if (!plan_.running()) return begin(now);
  if (prompt_.running || !fits(request)) return;
  plan_.end_step(now);  // then it joins
}

bool Decoder::fits(const Decoding& r) const {
  if (memory_) return true;
  return running_.empty() || reserved_ + r.context + r.answer <= options_.capacity_tokens;
}

void Decoder::join(Time now) {
  const bool others = !running_.empty();
  const auto one = [&](const Decoding& r) {
    waiting_tokens_ -= r.context;
    if (others)
      stall_s_ += options_.join_share *
                  static_cast<double>(r.context * spec_.kv_bytes_per_token()) /
                  options_.load_bytes_per_s;
    reserved_ += r.context + r.answer;
    context_ += r.context;
    running_.push_back({r, r.answer, record_.size(), 1, now, Time::max(), 0, 0});
    if (memory_) running_.back().kv = memory_->find(r.id);
    fresh_ = true;
  };
  if (!memory_) {
    for (; !pending_.empty() && fits(pending_.front()); pending_.pop_front()) one(pending_.front());
    return;
  }
  for (const uint64_t id : memory_->admit(now)) {
    const auto it = std::find_if(pending_.begin(), pending_.end(),
                                 [id](const Decoding& r) { return r.id == id; });
    if (it == pending_.end()) continue;  // it was out
    one(*it);
    pending_.erase(it);
  }
}

// ---- with memory

Result<> Decoder::reserve(const Decoding& request, Time now) {
  catch_up(now);
  MC_TRY_(memory_->reserve(request.id, request.context, request.answer, now));
  if (!plan_.running()) return {};
  plan_.shorten(affordable(plan_.steps().count));
  return {};
}

// Gives the running requests the blocks of the steps that began since these were planned. Before
// steps are planned: those of the first. Most have theirs.
void Decoder::catch_up(Time now) {
  const uint64_t step = plan_.running() ? plan_.begun(now) - 1 : 0;
  std::vector<DecoderMemory::KvPtr> without;
  for (const Running& r : running_) {
    r.kv->tokens = r.request.context + step;
    if (!memory_->suffice(*r.kv)) without.push_back(r.kv);
  }
  if (!without.empty()) memory_->grow(without, totals_.steps + step);
}

// Of so many steps, those for which all have blocks without a preemption: one at least.
uint64_t Decoder::affordable(uint64_t most) const {
  const auto enough = [&](uint64_t steps) {
    uint64_t blocks = 0;
    for (const Running& r : running_) {
      const uint64_t wanted = memory_->blocks_of(r.request.context + steps - 1);
      blocks += wanted - std::min<uint64_t>(wanted, r.kv->blocks.size());
    }
    return blocks <= memory_->available();
  };
  // In so many steps none takes more than the blocks of so many tokens.
  if (running_.size() * memory_->blocks_of(most) <= memory_->available() || enough(most))
    return most;
  uint64_t can = 1;
  for (uint64_t cannot = most; can + 1 < cannot;) {
    const uint64_t middle = can + (cannot - can) / 2;
    (enough(middle) ? can : cannot) = middle;
  }
  return can;
}

// Who was preempted and is back, or waited for a block, joins again. Of all these, those without a
// block for the next token are out. True: one was preempted.
bool Decoder::allot(Time now) {
  const size_t preemptions = memory_->preemptions().size();
  for (Running& r : out_) {
    if (r.kv->kv != serve::KvPlace::kHere || !memory_->in_batch(*r.kv)) continue;
    context_ += r.request.context;
    running_.push_back(std::move(r));
  }
  std::erase_if(out_, [](const Running& r) { return r.kv == nullptr; });
  catch_up(now);
  fresh_ = false;
  for (Running& r : running_) {
    const bool began = r.first_token != Time::max();
    if (r.kv->kv == serve::KvPlace::kHere && !r.kv->stalled) {
      fresh_ = fresh_ || !began;
      if (r.out == Time::max()) continue;
      r.segment = record_.size();
      r.skip = began ? 0 : 1;
      r.before_s = began ? -to_seconds(now - r.out) : 0;
      r.out = Time::max();
      continue;
    }
    context_ -= r.request.context;
    if (r.out == Time::max()) {
      if (began) r.earlier = gaps(r);
      r.before_s = 0;
      r.out = now;
    }
    out_.push_back(std::move(r));
  }
  std::erase_if(running_, [](const Running& r) { return r.kv == nullptr; });
  return memory_->preemptions().size() > preemptions;
}

void Decoder::release(uint64_t id, Time now) {
  if (memory_ == nullptr || memory_->find(id) == nullptr) return;
  catch_up(now);
  const auto is = [id](const Running& r) { return r.request.id == id; };
  if (const auto it = std::find_if(running_.begin(), running_.end(), is); it != running_.end()) {
    it->gone = true;
    return plan_.end_step(now);
  }
  const auto out = std::find_if(out_.begin(), out_.end(), is);
  if (out != out_.end()) {
    reserved_ -= out->request.context + out->left;
    out_.erase(out);
  }
  std::erase_if(pending_, [&](const Decoding& r) {
    if (r.id != id) return false;
    waiting_tokens_ -= r.context;
    return true;
  });
  memory_->release(id);
  wake(now);
}

// Blocks came free, or KV is back: between two steps.
void Decoder::wake(Time now) {
  if (!plan_.running()) return begin(now);
  if (!out_.empty() || !pending_.empty()) plan_.end_step(now);
}

// ---- steps

// Plans the next piece of the first waiting prompt; chunked: together with a step of the batch.
bool Decoder::prompt(Time now) {
  if (pending_.empty() || !fits(pending_.front())) return false;
  const Decoding& r = pending_.front();
  const cost::CostModel& c = spec_.cost;
  if (options_.engine == Engine::kCoupled) {
    prompt_.seconds = cost::prefill_seconds(spec_, r.context, r.reused);
    prompt_.tokens = r.context;
    prompt_.running = true;
    plan(now, {prompt_.seconds, 0, 1});
    return true;
  }
  const uint64_t from = std::max(prompt_.tokens, r.reused);
  const uint64_t to = std::min(r.context, from + options_.chunk_tokens);
  const auto a = static_cast<double>(from), b = static_cast<double>(to);
  double piece = options_.chunk_penalty * (c.c1 * (b - a) + c.c2 * (b * b - a * a));
  if (from == r.reused) piece += c.c0;
  prompt_.tokens = to;
  prompt_.seconds += piece;
  prompt_.running = true;
  plan(now, {piece + cost::step_seconds(spec_, running_.size(), context_), 0, 1});
  return true;
}

void Decoder::begin(Time now) {
  plan_.stop();
  bool preempted = false;
  if (options_.engine == Engine::kDisaggregated) {
    do {
      join(now);
      preempted = memory_ && allot(now);
      // Others may have its place, at once if no KV is moved.
    } while (preempted && running_.empty() && memory_->deadline() == Time::max());
  } else if (prompt(now)) {
    return;
  }
  if (running_.empty()) return;
  const double step = cost::step_seconds(spec_, running_.size(), context_);
  uint64_t count = UINT64_MAX;
  for (const Running& r : running_) count = std::min(count, r.left);
  // Of the blocks of who was preempted some may be left: another may be back after one step.
  if (memory_) count = preempted ? 1 : affordable(count);
  // The gap with a stall is one of a kind; a first token is known when it comes.
  if (stall_s_ + waited_s_ > 0 || (fresh_ && options_.engine == Engine::kDisaggregated)) count = 1;
  plan(now, {step, spec_.cost.t2 * static_cast<double>(running_.size()), count});
}

// Between the tokens that it has.
std::vector<double> Decoder::gaps(const Running& r) const {
  std::vector<double> out;
  out.reserve(r.request.answer);
  out = r.earlier;
  const size_t before = out.size();
  record_.gaps(r.segment, r.skip, out);
  if (out.size() > before) out[before] -= r.before_s;
  return out;
}

void Decoder::end(Running& r, Time now, std::vector<Decoded>& ended) {
  Decoded d;
  d.id = r.request.id;
  d.joined = r.joined;
  d.first_token = r.first_token;
  d.end = now;
  d.busy_s = r.busy_s;
  if (r.kv) d.blocks = r.kv->blocks.size();
  std::vector<double> gaps = this->gaps(r);
  if (!gaps.empty()) {
    for (const double g : gaps) d.gaps_s += g;
    if (keep_gaps_) d.gaps_list = gaps;
    const auto tenth = static_cast<std::ptrdiff_t>((gaps.size() + 9) / 10);
    std::nth_element(gaps.begin(), gaps.begin() + (tenth - 1), gaps.end(), std::greater<>());
    double longest = 0;
    for (std::ptrdiff_t i = 0; i < tenth; ++i) longest += gaps[static_cast<size_t>(i)];
    d.tbt_s = longest / static_cast<double>(tenth);
  }
  ended.push_back(std::move(d));
}

void Decoder::tick(Time now, std::vector<Decoded>& ended, std::vector<uint64_t>* begun) {
  if (memory_ && memory_->deadline() <= now) {
    catch_up(now);
    memory_->tick(now);
    wake(now);
  }
  if (!plan_.running() || now < plan_.ends()) return;
  const bool whole_prompt = prompt_.running && options_.engine == Engine::kCoupled;
  totals_.busy_s += to_seconds(plan_.ends() - plan_.starts());
  if (whole_prompt) {
    waited_s_ += prompt_.seconds;  // the batch waits; its next gap has it
  } else if (!running_.empty()) {
    if (memory_) catch_up(now);
    totals_.steps += plan_.steps().count;
    totals_.token_steps += plan_.steps().count * running_.size();
    Steps done = plan_.steps();
    done.first += stall_s_ + waited_s_;
    if (fresh_) {
      const Time first = plan_.starts() + from_seconds(done.first);
      for (Running& r : running_) {
        if (r.first_token != Time::max()) continue;
        r.first_token = first;
        if (begun != nullptr && !r.gone) begun->push_back(r.request.id);
      }
      fresh_ = false;
    }
    record_.add(done);
    stall_s_ = waited_s_ = 0;
    for (Running& r : running_) {
      r.left -= done.count;
      r.request.context += done.count;
      if (memory_) memory_->advanced(*r.kv, done.count);
    }
    context_ += done.count * running_.size();
    for (Running& r : running_) {
      if (r.left > 0 && !r.gone) continue;
      if (!r.gone) end(r, now, ended);
      reserved_ -= r.request.context + r.left;
      context_ -= r.request.context;
      if (memory_) memory_->release(r.request.id);
    }
    std::erase_if(running_, [](const Running& r) { return r.left == 0 || r.gone; });
  }
  if (prompt_.running && prompt_.tokens == pending_.front().context) {
    const Decoding r = pending_.front();
    pending_.pop_front();
    waiting_tokens_ -= r.context;
    Running made{r,   r.answer - 1,    record_.size(), 0, plan_.starts(),
                 now, prompt_.seconds, waited_s_};
    if (made.left == 0) {
      end(made, now, ended);
    } else {
      ++made.request.context;
      reserved_ += r.context + r.answer;
      context_ += made.request.context;
      running_.push_back(std::move(made));
    }
    prompt_.tokens = 0;
    prompt_.seconds = 0;
  }
  prompt_.running = false;
  uint64_t needed = record_.size();
  for (const Running& r : running_) needed = std::min(needed, r.segment);
  record_.forget(needed);
  begin(now);
}

std::vector<uint64_t> Decoder::drop() {
  std::vector<uint64_t> ids;
  for (const Running& r : running_) ids.push_back(r.request.id);
  for (const Running& r : out_) ids.push_back(r.request.id);
  for (const Decoding& r : pending_) ids.push_back(r.id);
  if (options_.memory)
    memory_ = std::make_unique<DecoderMemory>(
        spec_, *options_.memory, memory_ ? memory_->preemptions() : std::vector<Preemption>());
  out_.clear();
  pending_.clear();
  running_.clear();
  record_.clear();
  plan_.stop();
  prompt_ = {};
  context_ = reserved_ = waiting_tokens_ = 0;
  fresh_ = false;
  stall_s_ = waited_s_ = 0;
  return ids;
}

}  // namespace mc::sim
