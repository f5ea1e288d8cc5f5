#include "sched/policy.h"

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>

#include "base/random.h"
#include "sched/pool_plan.h"

namespace mc::sched {
namespace {

constexpr double kTrivial = 0.1;

// At least one token is always computed: the one whose output is the answer's first.
uint64_t reusable(const PrefillView& node, uint32_t blocks, const Ask& ask) {
  const uint64_t block = node.block_tokens > 0 ? node.block_tokens : ask.block_tokens;
  const uint64_t tokens = std::min(blocks * block, ask.tokens);
  return tokens < ask.tokens ? tokens : ask.tokens - std::min(ask.tokens, block);
}

uint64_t reusable(const PrefillView& node, const Ask& ask) {
  return reusable(node, node.match, ask);
}

uint64_t reusable_now(const PrefillView& node, const Ask& ask) {
  return reusable(node, node.match - std::min(node.match, node.pending), ask);
}

// What nodes can fetch from others: the longest match that is there, and the longest that comes.
struct Fetchable {
  uint64_t now = 0, coming = 0;
  const PrefillView* from = nullptr;  // whose match comes
};

Fetchable fetchable_of(const View& view, const Ask& ask) {
  Fetchable f;
  for (const PrefillView& node : view.prefill) {
    if (node.whole) continue;  // one that is busy can still be fetched from
    f.now = std::max(f.now, reusable_now(node, ask));
    if (node.pending == 0) continue;
    const uint64_t coming = reusable(node, ask);
    const auto key = [](uint64_t tokens, const PrefillView& n) {
      return std::tuple(-static_cast<int64_t>(tokens), n.ready_ms, std::string_view(n.name));
    };
    if (f.from != nullptr && key(f.coming, *f.from) < key(coming, node)) continue;
    f.coming = coming;
    f.from = &node;
  }
  return f;
}

double prefill_ms(const PrefillView& node, uint64_t tokens, uint64_t reused, const Cost& cost) {
  if (node.rate == nullptr) return cost.prefill_ms(tokens, reused, node.pipeline);
  return node.rate->predict_ms(cost.spec_prefill_ms(tokens, reused), cost.prefill_factor());
}

// What the pool has behind the first `have` tokens. One token at least is computed.
uint64_t pooled_to(uint64_t have, const View& view, const Ask& ask) {
  if (view.pool.empty() || ask.tokens == 0) return have;
  const PoolRun run = view.pool.run(have / ask.block_tokens, (ask.tokens - 1) / ask.block_tokens);
  return have + run.blocks() * ask.block_tokens;
}

// A request, and what it is weighed by.
struct Asked {
  const View& view;
  const Ask& ask;
  const PoolPlan& plan;
  const Cost& cost;
};

// What a node reuses when it begins with the first `have` tokens, and how long it takes from there.
struct Reuse {
  uint64_t tokens = 0, memory = 0, disk = 0;  // in all; of these from the pool, by tier
  double pool_ms = 0, prefill_ms = 0;
  double ms() const { return pool_ms + prefill_ms; }
};

// From the pool it takes the part that saves most, as a worker does: what only slow disks or slow
// nodes have is computed, what others have before it is fetched.
Reuse go_on(const PrefillView& node, uint64_t have, const Asked& asked) {
  const auto& [view, ask, plan, cost] = asked;
  const Reuse none{.tokens = have, .prefill_ms = prefill_ms(node, ask.tokens, have, cost)};
  if (node.pool == PoolUse::kNever || node.whole || view.pool.empty()) return none;
  const uint64_t first = have / ask.block_tokens;
  const bool always = node.pool == PoolUse::kAlways;
  const PoolPlan::Part part = always ? plan.whole(first) : plan.best(first);
  if (part.blocks == 0) return none;
  const PoolRun run = view.pool.run(first, first + part.blocks);
  const uint64_t tokens = have + part.blocks * ask.block_tokens;
  const Reuse pooled{.tokens = tokens,
                     .memory = run.memory * ask.block_tokens,
                     .disk = run.disk * ask.block_tokens,
                     .pool_ms = part.ms,
                     .prefill_ms = prefill_ms(node, ask.tokens, tokens, cost)};
  return always || pooled.ms() < none.ms() ? pooled : none;
}

// Where the blocks are that the candidate fetches from the pool.
Cost::PoolTokens pool_places(const Candidate& c, const View& view, const Ask& ask) {
  Cost::PoolTokens tokens;
  if (c.pool_tokens() == 0) return tokens;
  const auto& pieces = view.pool.pieces();
  uint64_t block = (c.reused_tokens - c.pool_tokens()) / ask.block_tokens;
  const uint64_t end = block + c.pool_tokens() / ask.block_tokens;
  for (size_t i = view.pool.piece_of(block); block < end; ++i) {
    const uint64_t last = std::min<uint64_t>(pieces[i].end, end);
    tokens[pieces[i].place] += (last - block) * ask.block_tokens;
    block = last;
  }
  return tokens;
}

// How many transfers of its own the holder has on the link that a fetch takes its bytes from. It
// sends as much as it computes. A link that is used to the share u has u / (1 - u) transfers at a
// time (M/G/1 with processor sharing), and all there are where the holder computes faster than it
// sends. Each of them gets as much of the link as the fetch.
double sent_meanwhile(uint64_t requests, const Asked& asked) {
  const double sent = asked.cost.fetch_ms(asked.ask.tokens);
  const double computed = asked.cost.prefill_ms(asked.ask.tokens, 0);
  const auto all = static_cast<double>(requests);
  return sent < computed ? std::min(all, sent / (computed - sent)) : all;
}

// A fetch of blocks as they appear ends with that of the last chunk.
double appears_ms(const PrefillView& holder, uint64_t tokens, double factor, const Cost& cost) {
  const uint64_t chunk = holder.pipeline.chunk_tokens;
  return holder.ready_ms + factor * cost.fetch_ms(chunk > 0 ? std::min(chunk, tokens) : tokens);
}

Candidate estimate(const PrefillView& node, const Fetchable& others, const Asked& asked,
                   const PolicyOptions& options) {
  const Ask& ask = asked.ask;
  const Cost& cost = asked.cost;
  Candidate c;
  c.name = node.name;
  c.whole = node.whole;
  c.local_tokens = reusable(node, ask);
  c.queue_ms = node.queue_ms;
  if (node.pending > 0) {
    c.pending_tokens = c.local_tokens - reusable_now(node, ask);
    c.wait_ms = node.ready_ms;
  }
  Reuse r = go_on(node, c.local_tokens, asked);
  const auto start_ms = [&] { return std::max({c.queue_ms, c.fetch_ms, c.wait_ms}); };
  const auto worth = [&](uint64_t best) {
    return options.policy == "kvcache" && !node.whole &&
           static_cast<double>(best) >
               static_cast<double>(c.local_tokens) * options.balancing_threshold;
  };
  if (worth(others.now)) {
    const double alone = cost.fetch_ms(others.now - c.local_tokens);
    const double sending = sent_meanwhile(asked.view.holder_requests, asked);
    const double fetch = std::max(node.fetch_congestion, 1 + sending) * alone;
    if (const Reuse longer = go_on(node, others.now, asked); fetch + longer.ms() < r.ms()) {
      r = longer;
      c.peer_tokens = others.now - c.local_tokens;
      c.fetch_ms = fetch;
    }
  }
  if (others.coming > others.now && others.from != &node && worth(others.coming)) {
    const uint64_t tokens = others.coming - c.local_tokens;
    const double factor =
        std::max(node.fetch_congestion, 1 + sent_meanwhile(others.from->requests, asked));
    const double fetch = factor * cost.fetch_ms(tokens);
    const double wait = std::max(c.wait_ms, appears_ms(*others.from, tokens, factor, cost));
    const Reuse longer = go_on(node, others.coming, asked);
    const double again = kAgain * (r.prefill_ms - longer.prefill_ms);
    if (std::max({c.queue_ms, fetch, wait}) + longer.ms() < start_ms() + r.ms() + again) {
      r = longer;
      c.peer_tokens = tokens;
      c.pending_tokens += others.coming - std::max(others.now, c.local_tokens);
      c.peer = others.from->name;
      c.fetch_ms = fetch;
      c.wait_ms = wait;
    }
  }
  c.reused_tokens = r.tokens;
  c.pool_memory_tokens = r.memory;
  c.pool_disk_tokens = r.disk;
  c.pool_ms = r.pool_ms;
  c.prefill_ms = r.prefill_ms;
  c.fixed_ms = node.rate != nullptr ? node.rate->fixed_ms() : 0;
  if (const uint64_t known = std::max(c.reused_tokens, others.now);
      !node.whole && others.coming > known)
    c.again_ms = prefill_ms(node, ask.tokens, known, cost) -
                 prefill_ms(node, ask.tokens, others.coming, cost);
  c.transfer_ms = node.whole ? 0 : node.congestion * cost.transfer_ms(ask.tokens);
  c.ttft_ms = start_ms() + c.pool_ms + c.prefill_ms + c.transfer_ms;
  return c;
}

struct Chosen {
  size_t at;
  std::string reason;
};

// Compares nodes by a key; the first of the smallest wins.
template <class Key>
size_t smallest(const std::vector<size_t>& usable, Key key) {
  size_t best = usable.front();
  auto least = key(best);
  for (const size_t at : std::span(usable).subspan(1))
    if (auto next = key(at); next < least) {
      best = at;
      least = next;
    }
  return best;
}

Chosen pick_prefill(const Asked& asked, const std::vector<size_t>& usable,
                    const std::vector<Candidate>& candidates, uint64_t best_tokens,
                    const PolicyOptions& options) {
  const Ask& ask = asked.ask;
  const auto& nodes = asked.view.prefill;
  const auto ties = [&](size_t i) {
    return std::tuple(nodes[i].queued_tokens, nodes[i].assigned, std::string_view(nodes[i].name));
  };
  const auto [first, second] = draw(options, ask, usable.size());
  if (options.policy == "random") return {usable[first], "random"};
  if (options.policy == "rr") return {usable[first], "next in turn"};
  if (options.policy == "count")
    return {smallest(usable, [&](size_t i) { return std::tuple(nodes[i].requests, ties(i)); }),
            "fewest requests"};
  if (options.policy == "load")
    return {smallest(usable, [&](size_t i) { return std::tuple(nodes[i].queue_ms, ties(i)); }),
            "shortest queue"};
  if (options.policy == "p2c") {
    const size_t a = usable[first], b = usable[second];
    return {nodes[b].queue_ms < nodes[a].queue_ms ? b : a, "shorter queue of two"};
  }
  if (options.policy == "weighted")
    return {smallest(usable,
                     [&](size_t i) {
                       const uint64_t missing = ask.tokens - candidates[i].local_tokens;
                       return std::tuple(options.prefix_weight * static_cast<double>(missing) +
                                             static_cast<double>(nodes[i].queued_tokens),
                                         ties(i));
                     }),
            "least weighted cost"};
  const bool trivial = is_trivial(best_tokens, ask.tokens);
  const size_t at = smallest(usable, [&](size_t i) {
    const Candidate& c = candidates[i];
    const double late =
        c.transfer_ms - asked.cost.transfer_ms(ask.tokens);  // whole: less than none
    const double cold = trivial ? go_on(nodes[i], 0, asked).ms() : 0;
    const double warm = c.ttft_ms + kAgain * c.again_ms;
    return std::tuple((trivial ? c.queue_ms + cold + late : warm) - c.fixed_ms, c.queue_ms,
                      ties(i));
  });
  const Candidate& c = candidates[at];
  if (trivial && c.pool_tokens() > 0) return {at, "shortest queue, fetching from the pool"};
  if (best_tokens == 0) return {at, "nothing cached, shortest queue"};
  if (trivial) return {at, "trivial match, shortest queue"};
  if (!c.peer.empty()) return {at, "fetching what another node computes, as it appears"};
  if (c.pending_tokens > 0) return {at, "waiting for a prefix that is being computed"};
  if (c.pool_tokens() > 0) return {at, "shortest ttft, fetching from the pool"};
  if (c.fetch_ms > 0) return {at, "shortest ttft, fetching a longer match"};
  if (c.local_tokens == best_tokens) return {at, "shortest ttft, longest match"};
  return {at, "shortest ttft despite a shorter match"};
}

std::optional<size_t> pick_decode(const View& view, const Ask& ask, const Cost& cost,
                                  double* tbt_ms) {
  std::vector<size_t> usable;
  for (size_t i = 0; i < view.decode.size(); ++i)
    if (view.decode[i].usable) usable.push_back(i);
  if (usable.empty()) return std::nullopt;
  const auto tbt = [&](size_t i) {
    const DecodeView& d = view.decode[i];
    return cost.step_ms(d.requests + 1, d.context_tokens + ask.tokens);
  };
  const size_t best = smallest(usable, [&](size_t i) {
    const DecodeView& d = view.decode[i];
    return std::tuple(!d.room, tbt(i), d.requests, std::string_view(d.name));
  });
  *tbt_ms = tbt(best);
  return best;
}

}  // namespace

void PolicyOptions::describe(OptionList& v) {
  v("policy", policy, "how prefill nodes are chosen", kPolicies);
  v("kvcache-balancing-threshold", balancing_threshold,
    "fetch a longer prefix from elsewhere when it is this many times as long as the local one");
  v("prefix-weight", prefix_weight,
    "of weighted: a token that is not cached counts like this many that are queued");
  v("seed", seed, "of random and p2c");
}

bool is_trivial(uint64_t best_tokens, uint64_t tokens) {
  return static_cast<double>(best_tokens) < kTrivial * static_cast<double>(tokens);
}

std::pair<size_t, size_t> draw(const PolicyOptions& options, const Ask& ask, size_t n) {
  if (options.policy == "rr") return {ask.number % n, 0};
  const uint64_t drawn = mix64(options.seed ^ mix64(ask.number));
  if (options.policy == "random") return {drawn % n, 0};
  return {(drawn >> 32) % n, (drawn & 0xffffffff) % n};
}

const char* name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAccept: return "accept";
    case Verdict::kNoPrefill: return "no_prefill";
    case Verdict::kNoDecode: return "no_decode";
    case Verdict::kTtft: return "ttft_slo";
    case Verdict::kTbt: return "tbt_slo";
  }
  return "?";
}

namespace {

// Why nothing can take the prompt. `prefills`: a prefill node could. External engines are named.
std::string none_usable(const View& view, bool prefills) {
  constexpr size_t kNamed = 4;
  std::string engines;
  size_t n = 0;
  for (const PrefillView& node : view.prefill)
    if (node.whole && ++n <= kNamed) engines += (engines.empty() ? "" : ", ") + node.name;
  if (n > kNamed) engines += ", ...";
  if (view.prefill.empty())
    return "neither a prefill node nor an external engine of this model is there";
  if (n == view.prefill.size()) return "no external engine of this model is usable: " + engines;
  const std::string own = prefills ? "no decode node is usable" : "no prefill node is usable";
  return own + (n == 0 ? "" : ", nor an external engine of this model: " + engines);
}

}  // namespace

Decision choose(const View& view, const Ask& ask, const PolicyOptions& options, const Cost& cost) {
  Decision d;
  std::vector<size_t> usable;
  const auto decode = pick_decode(view, ask, cost, &d.tbt_ms);
  uint64_t held = 0;  // by any
  for (size_t i = 0; i < view.prefill.size(); ++i) {
    const PrefillView& node = view.prefill[i];
    const uint64_t tokens = reusable(node, ask);
    held = std::max(held, tokens);
    if (node.usable && (node.whole || decode)) usable.push_back(i);
  }
  const bool prefills = std::any_of(view.prefill.begin(), view.prefill.end(),
                                    [](const PrefillView& node) { return node.usable; });
  d.verdict = prefills ? Verdict::kNoDecode : Verdict::kNoPrefill;
  if (usable.empty()) {
    d.reason = none_usable(view, prefills);
    return d;
  }
  d.best_tokens = std::max(pooled_to(0, view, ask), pooled_to(held, view, ask));
  const Fetchable others = fetchable_of(view, ask);
  const PoolPlan plan(view.pool, ask.tokens, ask.block_tokens, cost);
  const Asked asked{view, ask, plan, cost};
  for (const PrefillView& node : view.prefill)
    d.candidates.push_back(estimate(node, others, asked, options));
  auto [at, reason] = pick_prefill(asked, usable, d.candidates, held, options);
  d.prefill = at;
  d.decode = decode.value_or(0);
  d.chosen = d.candidates[at];
  d.pool = pool_places(d.chosen, view, ask);
  if (const PrefillView& node = view.prefill[at]; node.whole)
    d.tbt_ms = cost.step_ms(node.requests + 1, node.context_tokens + ask.tokens);
  d.reason = std::move(reason);
  std::optional<double> second;
  for (const size_t i : usable)
    if (i != at && (!second || d.candidates[i].ttft_ms < *second)) second = d.candidates[i].ttft_ms;
  d.margin_ms = second ? *second - d.ttft_ms() : 0;
  d.verdict = Verdict::kAccept;
  return d;
}

void add_first_step(Decision& d, const Cost& cost) {
  if (d.verdict != Verdict::kAccept) return;
  const auto add = [](Candidate& c, double ms) {
    if (c.whole) return;
    c.first_step_ms = ms;
    c.ttft_ms += ms;
  };
  const double ms = d.chosen.whole ? 0 : cost.first_step_ms(d.tbt_ms);
  for (Candidate& c : d.candidates) add(c, ms);
  add(d.chosen, ms);
}

std::string candidates_text(const Decision& d, size_t most) {
  std::vector<const Candidate*> order;
  for (const Candidate& c : d.candidates) order.push_back(&c);
  const size_t n = std::min(most, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(n), order.end(),
                    [](const Candidate* a, const Candidate* b) { return a->ttft_ms < b->ttft_ms; });
  std::string text;
  for (size_t i = 0; i < n; ++i) {
    const Candidate& c = *order[i];
    text +=
        strf("%s%s %.1f+%.1f+%.1f+%.1f=%.1f ms (%llu tokens)", i > 0 ? ", " : "", c.name.c_str(),
             c.queue_ms, c.fetch_ms + c.pool_ms, c.prefill_ms, c.transfer_ms + c.first_step_ms,
             c.ttft_ms, static_cast<unsigned long long>(c.reused_tokens));
  }
  if (n < order.size()) text += strf(", and %zu more", order.size() - n);
  return text;
}

std::string reuse_text(const Candidate& c) {
  std::string text;
  const auto add = [&](uint64_t tokens, const char* where) {
    if (tokens > 0)
      text += strf("%s%llu %s", text.empty() ? "" : ", ", static_cast<unsigned long long>(tokens),
                   where);
  };
  add(c.local_tokens, "local");
  add(c.peer_tokens, "from a peer");
  add(c.pool_memory_tokens, "from the pool's memory");
  add(c.pool_disk_tokens, "from the pool's disks");
  if (c.pending_tokens > 0)
    text +=
        strf("; %llu of them not computed yet", static_cast<unsigned long long>(c.pending_tokens));
  return text;
}

std::string explain(const Decision& d) {
  if (d.verdict == Verdict::kNoPrefill || d.verdict == Verdict::kNoDecode) return d.reason;
  const Candidate& c = d.chosen;
  const std::string pool = c.pool_tokens() > 0 ? strf(" + pool %.1f", c.pool_ms) : "";
  const std::string wait = c.wait_ms > 0 ? strf(" (prefix in %.1f)", c.wait_ms) : "";
  const std::string first = c.first_step_ms > 0 ? strf(" + first step %.1f", c.first_step_ms) : "";
  const std::string from = c.reused_tokens > 0 ? " (" + reuse_text(c) + ")" : "";
  return strf(
      "queue %.1f + fetch %.1f%s%s + prefill %.1f + transfer %.1f%s = ttft %.1f ms (second %+.1f), "
      "tbt %.1f ms; reuses %llu of %llu%s: %s",
      c.queue_ms, c.fetch_ms, wait.c_str(), pool.c_str(), c.prefill_ms, c.transfer_ms,
      first.c_str(), c.ttft_ms, d.margin_ms, d.tbt_ms,
      static_cast<unsigned long long>(c.reused_tokens),
      static_cast<unsigned long long>(d.best_tokens), from.c_str(), d.reason.c_str());
}

}  // namespace mc::sched
