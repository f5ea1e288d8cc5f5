#include "trace/fit/fit_documents.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/json.h"
#include "trace/analyze/stats.h"
#include "trace/fit/quantiles.h"
#include "trace/synth/synth.h"

namespace mc::trace {
namespace {

constexpr uint64_t kShortTokens = 2048;  // of a request that shares nothing: a chat, or a document
constexpr size_t kQuestionsMax = 1000;   // of a document, as the generator has it
constexpr double kStars = 0.8;           // of the groups share alike in all of their questions
constexpr double kDeeper = 0.1;          // of such a group's prompts may share more
constexpr double kGrowing = 0.75;        // of a conversation's prompts follow the answer before

// Leading full blocks that two prompts share.
uint64_t shared_by(const TraceRequest& a, const TraceRequest& b) {
  const uint64_t most = std::min(full_blocks(a.input_length, kBlockTokens),
                                 full_blocks(b.input_length, kBlockTokens));
  uint64_t n = 0;
  while (n < most && a.hash_ids[n] == b.hash_ids[n]) ++n;
  return n;
}

// The different prompts of a document, in order. An id also identifies all blocks before it.
std::vector<size_t> prompts_of(const std::vector<TraceRequest>& all, const Document& d) {
  std::vector<size_t> out;
  std::set<std::pair<uint64_t, uint64_t>> seen;  // last id, length
  for (const size_t i : d.questions)
    if (seen.emplace(all[i].hash_ids.back(), all[i].input_length).second) out.push_back(i);
  return out;
}

struct Likeness {  // of groups of three prompts and more to documents
  size_t groups = 0, stars = 0, pairs = 0, grown = 0;

  void add(const std::vector<TraceRequest>& all, const Document& d) {
    const auto prompts = prompts_of(all, d);
    if (prompts.size() < 3) return;
    ++groups;
    size_t deeper = 0;
    std::unordered_set<uint64_t> after;  // ids that follow what all share
    for (const size_t i : prompts)
      if (full_blocks(all[i].input_length, kBlockTokens) > d.shared)
        deeper += !after.insert(all[i].hash_ids[d.shared]).second;
    stars += static_cast<double>(deeper) <= kDeeper * static_cast<double>(prompts.size());
    for (size_t k = 1; k < prompts.size(); ++k) {
      const TraceRequest &before = all[prompts[k - 1]], &now = all[prompts[k]];
      ++pairs;
      grown += now.input_length >= before.input_length + before.output_length;
    }
  }
  bool documents() const {
    return stars >= kDocumentsMin &&
           static_cast<double>(stars) >= kStars * static_cast<double>(groups) &&
           static_cast<double>(grown) < kGrowing * static_cast<double>(pairs);
  }
};

struct Lengths {
  std::vector<double> input, output;
  void add(const TraceRequest& r) {
    input.push_back(static_cast<double>(r.input_length));
    output.push_back(static_cast<double>(r.output_length));
  }
};

struct DocumentParts {
  Lengths chats, single, shared;  // shared.input: of the first question of each document
  std::vector<double> tails;      // of prompts beyond what they share
  std::vector<double> questions, questions_small;
  uint64_t small_tokens = 0, later = 0, repeated = 0;
};

DocumentParts read_parts(const std::vector<TraceRequest>& all, const DocumentSplit& split) {
  DocumentParts p;
  for (const size_t i : split.alone)
    (all[i].input_length < kShortTokens ? p.chats : p.single).add(all[i]);
  for (const Document& d : split.documents) {
    p.shared.input.push_back(static_cast<double>(all[d.questions[0]].input_length));
    for (const size_t i : d.questions)
      p.shared.output.push_back(static_cast<double>(all[i].output_length));
    const auto prompts = prompts_of(all, d);
    p.later += d.questions.size() - 1;
    p.repeated += d.questions.size() - prompts.size();
    for (const size_t i : prompts)
      p.tails.push_back(static_cast<double>(all[i].input_length - d.shared * kBlockTokens));
  }
  p.small_tokens = static_cast<uint64_t>(Distribution(p.shared.input).percentile(25));
  for (const Document& d : split.documents)
    (all[d.questions[0]].input_length < p.small_tokens ? p.questions_small : p.questions)
        .push_back(static_cast<double>(std::min<size_t>(d.questions.size(), kQuestionsMax)));
  if (p.questions_small.empty()) p.questions_small = p.questions;
  return p;
}

Json profile_of(const std::vector<TraceRequest>& all, const DocumentSplit& split) {
  const DocumentParts p = read_parts(all, split);
  const auto n = static_cast<double>(all.size());
  const double span_s =
      static_cast<double>(all.back().timestamp_ms - all.front().timestamp_ms) / 1000;
  return {{"generator", "documents"},
          {"requests", all.size()},
          {"rate-per-s", (n - 1) / span_s},
          {"short-share", static_cast<double>(p.chats.input.size()) / n},
          {"single-share", static_cast<double>(p.single.input.size()) / n},
          {"short-continue", 0.5},
          {"small-document-tokens", p.small_tokens},
          {"questions-together-max", 8},
          {"repeat-share", static_cast<double>(p.repeated) / static_cast<double>(p.later)},
          {"quantile-levels-percent", knot_levels()},
          {"short-input-tokens", knots(p.chats.input, 1, 1)},
          {"short-output-tokens", knots(p.chats.output, 0, 1)},
          {"single-input-tokens", knots(p.single.input, 1, 1)},
          {"single-output-tokens", knots(p.single.output, 0, 1)},
          {"shared-input-tokens", knots(p.shared.input, 1, 1)},
          {"shared-output-tokens", knots(p.shared.output, 0, 1)},
          {"question-tokens", knots(p.tails, 1, 1)},
          {"questions", knots(p.questions, 2, 1)},
          {"questions-small-document", knots(p.questions_small, 2, 1)}};
}

// Token hit rates of caches of a 32nd of all distinct blocks, a 16th, and so on up to a half.
std::vector<double> hit_rates(const std::vector<TraceRequest>& all) {
  const Numbered prompts = number_blocks(all, kBlockTokens);
  std::vector<uint64_t> capacities;
  for (uint64_t part = 32; part > 1; part /= 2)
    capacities.push_back(std::max<uint64_t>(prompts.distinct / part, 1));
  const HitCurve curve = lru_curve(prompts, capacities);
  std::vector<double> out;
  for (const CacheHits& point : curve.points) out.push_back(curve.token_rate(point));
  return out;
}

// Tries each value of a key and leaves the one in the profile whose traces hit closest to `want`.
Result<> choose(Json& profile, const char* key, const std::vector<Json>& values,
                const std::vector<double>& want) {
  double least = INFINITY;
  Json best = profile;
  for (const Json& value : values) {
    profile[key] = value;
    MC_TRY(const auto made, synthesize(profile, "fit", {.seed = 1, .requests = 0}));
    const auto got = hit_rates(made);
    double off = 0;
    for (size_t i = 0; i < want.size(); ++i) off += std::abs(got[i] - want[i]);
    if (off >= least) continue;
    least = off;
    best = profile;
  }
  profile = std::move(best);
  return {};
}

}  // namespace

DocumentSplit split_documents(const Trace& trace) {
  const auto& all = trace.records;
  DocumentSplit out;
  std::vector<Document> groups;
  std::unordered_map<uint64_t, size_t> by_first;  // block -> group
  for (size_t i = 0; i < all.size(); ++i) {
    const auto [at, fresh] = by_first.try_emplace(all[i].hash_ids[0], groups.size());
    if (fresh) groups.emplace_back();
    Document& d = groups[at->second];
    d.shared = fresh ? full_blocks(all[i].input_length, kBlockTokens)
                     : std::min(d.shared, shared_by(all[d.questions[0]], all[i]));
    d.questions.push_back(i);
  }
  Likeness likeness;
  for (Document& d : groups) {
    if (d.questions.size() < 2 || d.shared == 0) {
      out.alone.insert(out.alone.end(), d.questions.begin(), d.questions.end());
      continue;
    }
    likeness.add(all, d);
    out.documents.push_back(std::move(d));
  }
  out.holds = likeness.documents();
  return out;
}

Result<Fitted> fit_documents(const Trace& trace, const DocumentSplit& split) {
  Json profile = profile_of(trace.records, split);
  const auto want = hit_rates(trace.records);
  MC_TRY_(choose(profile, "questions-together-max", {1, 2, 4, 8, 16, 1000}, want));
  MC_TRY_(choose(profile, "short-continue", {0, 0.25, 0.5, 0.75}, want));
  Fitted out;
  out.want = fit_shape(trace);
  MC_TRY(out.got, fit_trial(profile, trace.records.size()));
  out.profile = dump_json(profile, 2) + "\n";
  return out;
}

}  // namespace mc::trace
