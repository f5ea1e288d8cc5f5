#include "serve/conductor/decision_log.h"

#include <algorithm>

#include "base/json.h"
#include "base/time.h"

namespace mc::serve {
namespace {

Json candidate_json(const sched::Candidate& c) {
  return {{"name", c.name},
          {"local_tokens", c.local_tokens},
          {"peer_tokens", c.peer_tokens},
          {"pending_tokens", c.pending_tokens},
          {"pool_memory_tokens", c.pool_memory_tokens},
          {"pool_disk_tokens", c.pool_disk_tokens},
          {"reused_tokens", c.reused_tokens},
          {"queue_ms", c.queue_ms},
          {"fetch_ms", c.fetch_ms},
          {"wait_ms", c.wait_ms},
          {"pool_ms", c.pool_ms},
          {"prefill_ms", c.prefill_ms},
          {"transfer_ms", c.transfer_ms},
          {"first_step_ms", c.first_step_ms},
          {"ttft_ms", c.ttft_ms}};
}

}  // namespace

Json decision_json(const sched::Decision& d) {
  Json candidates = Json::array();
  for (const sched::Candidate& c : d.candidates) candidates.push_back(candidate_json(c));
  return {{"verdict", sched::name(d.verdict)},
          {"prefill", d.chosen.name},
          {"ttft_ms", d.ttft_ms()},
          {"tbt_ms", d.tbt_ms},
          {"margin_ms", d.margin_ms},
          {"reused_tokens", d.chosen.reused_tokens},
          {"reused_from", sched::reuse_text(d.chosen)},
          {"best_tokens", d.best_tokens},
          {"reason", d.reason},
          {"candidates", std::move(candidates)}};
}

Json progress_json(const Progress& p) {
  return {{"prefill", p.prefill},
          {"decode", p.decode},
          {"cached_tokens", p.cached_tokens.value_or(0)},
          {"pool_tokens", p.pool_tokens},
          {"peer_tokens", p.peer_tokens},
          {"predicted_ttft_ms", p.predicted_ttft_ms},
          {"ttft_ms", p.ttft_ms},
          {"sched_ms", p.sched_ms},
          {"queue_ms", p.queue_ms},
          {"load_ms", p.load_ms},
          {"prefill_ms", p.prefill_ms},
          {"transfer_ms", p.transfer_ms},
          {"first_step_ms", p.first_step_ms},
          {"decode_ms", p.decode_ms},
          {"kv_errors", p.kv_errors}};
}

void DecisionLog::decided(uint64_t job, const std::string& id, uint64_t tokens,
                          sched::Decision decision, const std::string& decode) {
  if (keep_ == 0) return;
  auto& all = decision.candidates;
  if (all.size() > kCandidatesMax) {
    std::partial_sort(all.begin(), all.begin() + kCandidatesMax, all.end(),
                      [](const auto& a, const auto& b) { return a.ttft_ms < b.ttft_ms; });
    all.resize(kCandidatesMax);
    all.shrink_to_fit();
  }
  auto [it, fresh] = records_.try_emplace(job);
  Record& r = it->second;
  if (fresh) {
    r.id = id;
    r.tokens = tokens;
    r.at_ns = wall_now_ns();
    last_[id] = job;
  }
  ++r.decisions;
  if (r.choices.size() == kDecisionsMax) r.choices.erase(r.choices.begin());
  r.choices.push_back({std::move(decision), decode});
  if (records_.size() <= keep_) return;
  const auto oldest = records_.begin();
  if (const auto named = last_.find(oldest->second.id);
      named != last_.end() && named->second == oldest->first)
    last_.erase(named);
  records_.erase(oldest);
}

void DecisionLog::ended(uint64_t job, const Progress& progress, int status, const std::string& code,
                        const std::string& what) {
  const auto it = records_.find(job);
  if (it != records_.end()) it->second.outcome = Outcome{progress, status, code, what};
}

Json DecisionLog::find(const std::string& id) const {
  const auto named = last_.find(id);
  if (named == last_.end()) return nullptr;
  const Record& r = records_.at(named->second);
  Json decisions = Json::array();
  for (const Choice& c : r.choices) {
    Json j = decision_json(c.decision);
    j["decode"] = c.decode;
    decisions.push_back(std::move(j));
  }
  Json outcome;
  if (r.outcome) {
    outcome = progress_json(r.outcome->progress);
    outcome["status"] = r.outcome->status;
    outcome["code"] = r.outcome->code;
    outcome["reason"] = r.outcome->what;
    outcome["output_tokens"] = r.outcome->progress.output_tokens;
  }
  return {{"id", r.id},
          {"at", wall_text(r.at_ns)},
          {"prompt_tokens", r.tokens},
          {"decisions_made", r.decisions},
          {"decisions", std::move(decisions)},
          {"outcome", std::move(outcome)}};
}

}  // namespace mc::serve
