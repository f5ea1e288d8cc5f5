#include "sim/cluster/decoder.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/result.h"

namespace mc::sim {

void Decoder::ready(const Decoding& request, Time now) {
  MC_CHECK(request.answer > 0);
  pending_.push_back(request);
  waiting_tokens_ += request.context;
  if (!stepping_) return begin(now);
  if (prompting_ || !fits(request)) return;
  // It joins at the end of the running step, so later planned steps are dropped.
  now_.count = std::min(now_.count, count_by(to_seconds(now - starts_) - stall_s_));
  ends_ = starts_ + from_seconds(stall_s_ + sum(now_.count));
}

double Decoder::sum(uint64_t count) const {
  const auto n = static_cast<double>(count);
  return n * now_.first + now_.rise * n * (n - 1) / 2;
}

uint64_t Decoder::count_by(double seconds) const {
  if (seconds <= now_.first) return 1;
  double guess = seconds / now_.first;
  if (now_.rise > 0) {  // first n + rise n (n - 1) / 2 = seconds
    const double a = now_.rise / 2, b = now_.first - a;
    guess = (-b + std::sqrt(b * b + 4 * a * seconds)) / (2 * a);
  }
  auto n = static_cast<uint64_t>(std::max(std::floor(guess), 1.0));
  while (n > 1 && sum(n - 1) >= seconds) --n;
  while (sum(n) < seconds) ++n;
  return n;
}

bool Decoder::fits(const Decoding& r) const {
  return running_.empty() || reserved_ + r.context + r.answer <= options_.capacity_tokens;
}

void Decoder::plan(double first, double rise, uint64_t count) {
  now_ = {first, rise, count};
  stepping_ = true;
  ends_ = starts_ + from_seconds(stall_s_ + sum(count));
}

void Decoder::join(Time now) {
  const bool others = !running_.empty();
  while (!pending_.empty() && fits(pending_.front())) {
    const Decoding r = pending_.front();
    pending_.pop_front();
    waiting_tokens_ -= r.context;
    if (others)
      stall_s_ += options_.join_share *
                  static_cast<double>(r.context * spec_.kv_bytes_per_token()) /
                  options_.load_bytes_per_s;
    reserved_ += r.context + r.answer;
    context_ += r.context;
    running_.push_back({r, r.answer, segments_gone_ + segments_.size(), 1, now, Time::max(), 0, 0});
    fresh_ = true;
  }
}

// Plans the next piece of the first waiting prompt; chunked: together with a step of the batch.
bool Decoder::prompt(Time) {
  if (pending_.empty() || !fits(pending_.front())) return false;
  const Decoding& r = pending_.front();
  const cost::CostModel& c = spec_.cost;
  if (options_.engine == Engine::kCoupled) {
    prompted_s_ = cost::prefill_seconds(spec_, r.context, r.reused);
    prompted_ = r.context;
    prompting_ = true;
    plan(prompted_s_, 0, 1);
    return true;
  }
  const uint64_t from = std::max(prompted_, r.reused);
  const uint64_t to = std::min(r.context, from + options_.chunk_tokens);
  const auto a = static_cast<double>(from), b = static_cast<double>(to);
  double piece = options_.chunk_penalty * (c.c1 * (b - a) + c.c2 * (b * b - a * a));
  if (from == r.reused) piece += c.c0;
  prompted_ = to;
  prompted_s_ += piece;
  prompting_ = true;
  plan(piece + cost::step_seconds(spec_, running_.size(), context_), 0, 1);
  return true;
}

void Decoder::begin(Time now) {
  starts_ = now;
  stepping_ = false;
  if (options_.engine == Engine::kDisaggregated)
    join(now);
  else if (prompt(now))
    return;
  if (running_.empty()) return;
  const double step = cost::step_seconds(spec_, running_.size(), context_);
  uint64_t count = UINT64_MAX;
  for (const Running& r : running_) count = std::min(count, r.left);
  // The gap with a stall is one of a kind; a first token is known when it comes.
  if (stall_s_ + waited_s_ > 0 || (fresh_ && options_.engine == Engine::kDisaggregated)) count = 1;
  plan(step, spec_.cost.t2 * static_cast<double>(running_.size()), count);
}

void Decoder::end(Running& r, Time now, std::vector<Decoded>& ended) {
  Decoded d;
  d.id = r.request.id;
  d.joined = r.joined;
  d.first_token = r.first_token;
  d.end = now;
  d.busy_s = r.busy_s;
  std::vector<double> gaps;
  gaps.reserve(r.request.answer);
  uint64_t skip = r.skip;
  for (uint64_t s = r.segment - segments_gone_; s < segments_.size(); ++s) {
    const Segment& seg = segments_[s];
    for (uint64_t i = skip; i < seg.count; ++i)
      gaps.push_back(seg.first + seg.rise * static_cast<double>(i));
    skip = 0;
  }
  if (!gaps.empty()) {
    gaps[0] -= r.before_s;
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
  if (!stepping_ || now < ends_) return;
  const bool whole_prompt = prompting_ && options_.engine == Engine::kCoupled;
  busy_s_ += to_seconds(ends_ - starts_);
  if (whole_prompt) {
    waited_s_ += prompted_s_;  // the batch waits; its next gap has it
  } else if (!running_.empty()) {
    steps_ += now_.count;
    token_steps_ += now_.count * running_.size();
    Segment done = now_;
    done.first += stall_s_ + waited_s_;
    if (fresh_) {
      const Time first = starts_ + from_seconds(done.first);
      for (Running& r : running_) {
        if (r.first_token != Time::max()) continue;
        r.first_token = first;
        if (begun != nullptr) begun->push_back(r.request.id);
      }
      fresh_ = false;
    }
    segments_.push_back(done);
    stall_s_ = waited_s_ = 0;
    for (Running& r : running_) {
      r.left -= done.count;
      r.request.context += done.count;
    }
    context_ += done.count * running_.size();
    for (Running& r : running_) {
      if (r.left > 0) continue;
      end(r, now, ended);
      reserved_ -= r.request.context;
      context_ -= r.request.context;
    }
    std::erase_if(running_, [](const Running& r) { return r.left == 0; });
  }
  if (prompting_ && prompted_ == pending_.front().context) {
    const Decoding r = pending_.front();
    pending_.pop_front();
    waiting_tokens_ -= r.context;
    Running made{r,           r.answer - 1, segments_gone_ + segments_.size(), 0, starts_, now,
                 prompted_s_, waited_s_};
    if (made.left == 0) {
      end(made, now, ended);
    } else {
      ++made.request.context;
      reserved_ += r.context + r.answer;
      context_ += made.request.context;
      running_.push_back(std::move(made));
    }
    prompted_ = 0;
    prompted_s_ = 0;
  }
  prompting_ = false;
  uint64_t needed = segments_gone_ + segments_.size();
  for (const Running& r : running_) needed = std::min(needed, r.segment);
  for (; segments_gone_ < needed; ++segments_gone_) segments_.pop_front();
  begin(now);
}

std::vector<uint64_t> Decoder::drop() {
  std::vector<uint64_t> ids;
  for (const Running& r : running_) ids.push_back(r.request.id);
  for (const Decoding& r : pending_) ids.push_back(r.id);
  pending_.clear();
  running_.clear();
  segments_.clear();
  segments_gone_ = context_ = reserved_ = waiting_tokens_ = prompted_ = 0;
  stepping_ = fresh_ = prompting_ = false;
  prompted_s_ = stall_s_ = waited_s_ = 0;
  return ids;
}

}  // namespace mc::sim
