#include "sched/request/fleet.h"

#include <algorithm>
#include <tuple>

namespace mc::sched {
namespace {

constexpr Duration kGuessSlack = std::chrono::seconds(2);
constexpr size_t kHoldersSeen = 64;

// The decode half of the process that computes the prompt, if it can take the request as any other
// worker: no KV moves then. A short view may leave it out.
const FleetWorker* decode_half(const Roster& roster, const FleetWorker& prefill, const View& view,
                               const DecodeNeed& need) {
  const FleetWorker* const w = roster.look_up(prefill.node + ".d");
  if (w == nullptr || w->prefill || w->control != prefill.control) return nullptr;
  const auto at = std::find_if(view.decode.begin(), view.decode.end(),
                               [&](const DecodeView& node) { return node.name == w->node; });
  const DecodeView seen = at != view.decode.end() ? *at : decode_view(*w, need);
  return seen.usable && seen.room ? w : nullptr;
}

// Of the least busy holder of the longest match, among the first kHoldersSeen.
uint64_t holder_requests(const Roster& roster, const Matches& matches) {
  std::optional<uint64_t> least;
  size_t asked = 0;
  const auto look = [&](PrefixIndex::Slot slot) {
    const FleetWorker* const w = roster.prefill_at(slot);
    if (w != nullptr && !w->draining && (!least || w->requests < *least)) least = w->requests;
    return least == 0 || ++asked == kHoldersSeen;
  };
  const uint32_t longest = matches.longest();
  if (longest == 0) return 0;
  for (const auto& [slot, length] : matches.few)
    if (length == longest && look(slot)) return least.value_or(0);
  if (!matches.levels.empty() && matches.levels.back().length == longest)
    matches.each(static_cast<int>(matches.levels.size()) - 1, look);
  return least.value_or(0);
}

}  // namespace

Fleet::Fleet(FleetOptions options, Cost& cost, PrefixIndex& index, Roster& roster)
    : options_(std::move(options)),
      cost_(cost),
      index_(index),
      roster_(roster),
      forecast_(options_.admission.decode_time),
      candidates_(options_.policy, cost_) {}

DecodeNeed Fleet::need(const RequestAsk& ask) const {
  return {blocks(ask.prompt_tokens + ask.max_tokens), blocks(ask.prompt_tokens)};
}

uint64_t Fleet::largest(bool prefill) const {
  uint64_t most = 0;
  for (const auto& [node, w] : roster_.all())
    if (w->prefill == prefill && !w->draining) most = std::max(most, w->blocks_total);
  return most;
}

View Fleet::view(const RequestAsk& ask, std::span<const uint64_t> tags, const Exclusions* out,
                 Time now) const {
  const uint64_t tokens = ask.prompt_tokens;
  const Matches matches = index_.matches(tags, roster_.slots());
  const std::vector<uint32_t> match = matches.lengths();
  const int64_t priority = out != nullptr ? ask.priority : 0;
  const auto reusable = [&](uint64_t held) {
    return std::min(held, tokens == 0 ? 0 : (tokens - 1) / options_.block_tokens) *
           options_.block_tokens;
  };
  View v;
  if (const PoolIndex* const all = pool ? pool() : nullptr)
    v.pool = all->match(tags, matches.longest());
  const DecodeNeed blocks = need(ask);
  bool slow = false;
  for (const auto& [node, w] : roster_.all()) {
    const bool full = ask.refusal || (out != nullptr && out->full.contains(node));
    slow = slow || w->fetches.any(now);
    if (w->prefill) {
      const bool overtakes = w->ledger.overtakes() || priority < 0;
      const double work = overtakes ? cost_.prefill_ms(tokens, reusable(match[w->slot])) : 0;
      v.prefill.push_back(prefill_view(*w, match[w->slot], work, priority, blocks.prompt, now));
      if (full) v.prefill.back().usable = false;
    } else {
      v.decode.push_back(decode_view(*w, blocks));
      if (full) v.decode.back().usable = false;
    }
  }
  v.holder_requests = holder_requests(roster_, matches);
  if (slow) weigh_fetches(v, matches, now);
  if (pending_.size() > 0) note_pending(v, pending_.find(tags), now);
  return v;
}

// A view that gives the same decision, of few workers, where there is one.
std::optional<View> Fleet::short_view(const RequestAsk& ask, std::span<const uint64_t> tags,
                                      Time now) {
  const DecodeNeed blocks = need(ask);
  const Matches matches = index_.matches(tags, roster_.slots());
  const std::vector<PendingPrefix> pending = pending_.find(tags);
  std::vector<const FleetWorker*> apart;
  for (const PendingPrefix& p : pending)
    if (const FleetWorker* const w = roster_.look_up(p.node)) apart.push_back(w);
  auto few = candidates_.pick(roster_, matches,
                              {.tokens = ask.tokens, .block_tokens = options_.block_tokens},
                              {blocks.prompt, blocks}, now, apart);
  if (!few) return few;
  if (const PoolIndex* const all = pool ? pool() : nullptr)
    few->pool = all->match(tags, matches.longest());
  few->holder_requests = holder_requests(roster_, matches);
  weigh_fetches(*few, matches, now);
  note_pending(*few, pending, now);
  return few;
}

// What is computed or fetched now counts as held, from when it is expected to be there.
void Fleet::note_pending(View& view, std::span<const PendingPrefix> pending, Time now) const {
  for (const PendingPrefix& p : pending)
    for (PrefillView& node : view.prefill) {
      if (node.name != p.node) continue;
      node.match = std::max(node.match, p.last);
      node.pending = node.match - p.first;
      node.ready_ms = std::max(0.0, to_ms(p.ready - now));
    }
}

// How slow fetches from the holders of the longest match are, for the readers where that is known.
void Fleet::weigh_fetches(View& view, const Matches& matches, Time now) const {
  std::optional<std::vector<const FleetWorker*>> holders;
  for (PrefillView& node : view.prefill) {
    const FleetWorker* const reader = roster_.look_up(node.name);
    if (reader == nullptr || !reader->fetches.any(now)) continue;
    if (!holders) {
      holders.emplace();
      const uint32_t longest = matches.longest();
      const auto add = [&](PrefixIndex::Slot slot) {
        const FleetWorker* const w = roster_.prefill_at(slot);
        if (w != nullptr && !w->draining) holders->push_back(w);
        return false;
      };
      for (const auto& [slot, length] : matches.few)
        if (length == longest) add(slot);
      if (!matches.levels.empty() && matches.levels.back().length == longest)
        matches.each(static_cast<int>(matches.levels.size()) - 1, add);
    }
    std::optional<double> least;  // source_for takes that one
    for (const FleetWorker* w : *holders) {
      if (least && *least <= 1) break;  // none is less: many hold a system prompt, few are slow
      const double factor = reader->fetches.factor(w->node, now);
      if (w->node != node.name && (!least || factor < *least)) least = factor;
    }
    node.fetch_congestion = least.value_or(1);
  }
}

// The time spent waiting counts against the promise.
AdmissionOptions Fleet::promises(Time arrived, Time now) const {
  AdmissionOptions o = options_.admission;
  if (o.ttft_slo.count() > 0) o.ttft_slo = std::max(o.ttft_slo - (now - arrived), Duration(1));
  return o;
}

Decision Fleet::decide(const View& view, const RequestAsk& ask, Time arrived, Time now) const {
  Decision d = sched::choose(
      view, {.tokens = ask.tokens, .block_tokens = options_.block_tokens, .number = decisions_},
      options_.policy, cost_);
  add_first_step(d, cost_);
  // What has begun to answer is not refused for being late.
  const AdmissionOptions promised = ask.answered > 0 ? AdmissionOptions() : promises(arrived, now);
  d.verdict = admit(d, ask.tokens, promised, forecast_, roster_.live(false), cost_, now);
  return d;
}

Choice Fleet::choose(uint64_t request, const RequestAsk& ask, std::span<const uint64_t> tags,
                     const Exclusions& out, Time arrived, Time now) {
  cost_.advance(now);
  forecast_.tell_others({static_cast<double>(roster_.others_requests()),
                         static_cast<double>(roster_.others_tokens())});
  const bool any = out.full.empty() && out.avoid.empty() && ask.priority == 0 && !ask.refusal;
  const bool alone = engines == nullptr || engines->size() == 0;
  std::optional<View> few = any && alone ? short_view(ask, tags, now) : std::nullopt;
  View v = few ? std::move(*few) : view(ask, tags, &out, now);
  if (!alone && ask.answered == 0) engines->add(request, out, v, now);
  if (!out.avoid.empty()) {
    const auto avoid = [&](auto& nodes) {  // unless nothing would be left
      const auto good = [&](const auto& n) { return n.usable && !out.avoid.contains(n.name); };
      if (std::none_of(nodes.begin(), nodes.end(), good)) return;
      for (auto& n : nodes) n.usable = good(n);
    };
    avoid(v.prefill);
    avoid(v.decode);
  }
  Choice c;
  c.decision = decide(v, ask, arrived, now);
  if (c.decision.verdict != Verdict::kAccept || c.decision.chosen.whole) return c;
  FleetWorker& p = *roster_.find(c.decision.chosen.name);
  const FleetWorker& d = *roster_.look_up(v.decode[c.decision.decode].name);
  c.prefill = p.ref();
  const FleetWorker* const half = decode_half(roster_, p, v, need(ask));
  c.decode = half != nullptr ? half->ref() : d.ref();
  if (c.decision.chosen.fetch_ms > 0) c.source = source_for(c.decision.chosen, tags, p, now);
  return c;
}

// The worker whose blocks appear, or that has the longest match now; of equals the one with the
// least congested link, then the least busy one.
WorkerRef Fleet::source_for(const Candidate& chosen, std::span<const uint64_t> tags,
                            const FleetWorker& reader, Time now) const {
  if (!chosen.peer.empty()) {
    const FleetWorker* const w = roster_.look_up(chosen.peer);
    return w == nullptr ? WorkerRef{} : w->ref();
  }
  const Matches match = index_.matches(tags, roster_.slots());
  const std::vector<PendingPrefix> pending = pending_.find(tags);
  const auto key = [&](const FleetWorker& w) {
    return std::tuple(reader.fetches.factor(w.node, now), w.congestion.factor(now), w.requests,
                      std::string_view(w.node));
  };
  const FleetWorker* best = nullptr;
  decltype(key(reader)) best_key;
  uint32_t most = 0;  // blocks that it has
  const auto look_at = [&](PrefixIndex::Slot slot, uint32_t blocks) {
    const FleetWorker* const w = blocks < most ? nullptr : roster_.prefill_at(slot);
    if (w == nullptr || w->draining || w->node == reader.node) return false;
    for (const PendingPrefix& p : pending)
      if (p.node == w->node) blocks = std::min(blocks, p.first);
    if (blocks == 0 || blocks < most) return false;
    if (auto mine = key(*w); blocks > most || mine < best_key) {
      best = w;
      best_key = mine;
      most = blocks;
    }
    return false;
  };
  for (const auto& [slot, length] : match.few) look_at(slot, length);
  // A level of those that hold less matters only where none of a longer one will do.
  for (int at = static_cast<int>(match.levels.size()) - 1; at >= 0; --at) {
    const uint32_t length = match.level_length(at);
    if (most > length) break;
    match.each(at, [&](PrefixIndex::Slot slot) { return look_at(slot, length); });
  }
  return best == nullptr ? WorkerRef{} : best->ref();
}

Refusal Fleet::refusal(const Decision& decision, Verdict verdict, uint64_t tokens, Time arrived,
                       Time now) const {
  return sched::refusal(decision, verdict, tokens, promises(arrived, now), forecast_,
                        roster_.live(false), cost_, now);
}

bool Fleet::decode_refuses(const WorkerRef& decode, uint64_t prompt_tokens) const {
  const FleetWorker* const d = roster_.find(decode);
  if (d == nullptr) return false;
  const DecodeView node{.name = d->node,
                        .requests = d->answering + d->others_requests,
                        .context_tokens = d->answering_tokens + d->others_tokens};
  return admit_decode(node, prompt_tokens, options_.admission, cost_) != Verdict::kAccept;
}

PrefixIndex::Guess Fleet::charge(uint64_t request, const RequestAsk& ask, const Choice& choice,
                                 std::span<const uint64_t> tags, Time now) {
  FleetWorker& p = *roster_.find(choice.prefill);
  FleetWorker& d = *roster_.find(choice.decode);
  const Candidate& c = choice.decision.chosen;
  const uint64_t n = ask.prompt_tokens;
  p.ledger.charge(request, c.pool_ms + c.prefill_ms, n - c.reused_tokens, now, ask.priority);
  ++p.assigned;
  ++p.requests;
  ++d.assigned;
  ++d.requests;
  d.context_tokens += n;
  d.reserved_blocks += blocks_reserved(d, need(ask));
  const Duration ttft = from_seconds(choice.decision.ttft_ms() / 1e3);
  forecast_.dispatched(request, n, now + ttft);
  const double start_ms = std::max({c.queue_ms, c.fetch_ms, c.wait_ms});
  pending_.begin(
      request, p.node, tags, static_cast<uint32_t>(c.local_tokens / options_.block_tokens),
      now + from_seconds(start_ms / 1e3), from_seconds((c.pool_ms + c.prefill_ms) / 1e3));
  return index_.guess(p.slot, tags, now + 2 * ttft + kGuessSlack);  // it may take longer
}

uint64_t Fleet::spoke(const WorkerRef& decode) {
  const FleetWorker* const d = roster_.find(decode);
  return d == nullptr ? 0 : d->spoke;
}

void Fleet::not_reserved(const WorkerRef& decode, const RequestAsk& ask, uint64_t spoke) {
  FleetWorker* const d = roster_.find(decode);
  if (d == nullptr || d->spoke != spoke) return;  // what it told since leaves the request out
  d->reserved_blocks -= std::min(d->reserved_blocks, blocks_reserved(*d, need(ask)));
}

void Fleet::queued(uint64_t request, const WorkerRef& prefill, double queue_ms, Time now) {
  pending_.delay(request, now + from_seconds(queue_ms / 1e3));
  if (FleetWorker* const p = roster_.find(prefill)) p->ledger.correct(request, queue_ms, now);
}

void Fleet::computed(uint64_t request, const WorkerRef& prefill, Time now) {
  pending_.end(request);
  if (FleetWorker* const p = roster_.find(prefill)) {
    p->ledger.finish(request, now);
    --p->requests;
  }
}

void Fleet::answering(uint64_t request, const WorkerRef& decode, uint64_t prompt_tokens, Time now) {
  forecast_.decoding(request, now);
  if (FleetWorker* const d = roster_.find(decode)) {
    ++d->answering;
    d->answering_tokens += prompt_tokens;
  }
}

void Fleet::generated(const WorkerRef& decode, uint64_t tokens) {
  if (FleetWorker* const d = roster_.find(decode)) d->context_tokens += tokens;
}

void Fleet::decoded(uint64_t request, const WorkerRef& decode, uint64_t prompt_tokens,
                    uint64_t output_tokens, bool answering, Time now) {
  forecast_.ended(request, now);
  FleetWorker* const d = roster_.find(decode);
  if (d == nullptr) return;
  --d->requests;
  d->context_tokens -= prompt_tokens + output_tokens;
  if (!answering) return;
  --d->answering;
  d->answering_tokens -= prompt_tokens;
}

}  // namespace mc::sched
