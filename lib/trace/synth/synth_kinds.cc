// The generators `documents` and `tool-agent`.
#include <algorithm>
#include <unordered_map>

#include "trace/synth/synth.h"
#include "trace/synth/synth_common.h"

namespace mc::trace {
namespace {

// Questions in order. The next unit is drawn at random.
struct Unit {
  std::vector<TraceRequest> left;  // the last one first
};

class Documents {
 public:
  Documents(const DocumentsProfile& profile, uint64_t requests, uint64_t seed)
      : p_(profile), n_(requests), random_(seed) {}

  std::vector<TraceRequest> make() {
    const auto part = [&](double share) {
      return static_cast<uint64_t>(std::llround(share * static_cast<double>(n_)));
    };
    chats(part(p_.short_share));
    for (uint64_t i = part(p_.single_share); i > 0; --i)
      units_.push_back({{request(single_input_.draw(random_), p_.single_input,
                                 single_output_.draw(random_), p_.single_output)}});
    made_ += part(p_.single_share);
    while (made_ < n_) document();
    return in_order();
  }

 private:
  TraceRequest request(double input_level, const Knots& input, double output_level,
                       const Knots& output) {
    TraceRequest r;
    r.input_length = whole_tokens(input.at(input_level), 1, kLengthMax);
    r.output_length = whole_tokens(output.at(output_level), 0, kLengthMax);
    fill(r);
    return r;
  }
  void fill(TraceRequest& r) {
    while (r.hash_ids.size() < blocks(r.input_length, kBlockTokens)) r.hash_ids.push_back(next_++);
  }

  void chats(uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
      if (i == 0 || !random_.chance(p_.short_continue)) units_.emplace_back();
      units_.back().left.push_back(request(short_input_.draw(random_), p_.short_input,
                                           short_output_.draw(random_), p_.short_output));
    }
    made_ += n;
  }

  // All questions about a document share its full blocks. A question adds `question_tokens` to
  // them, so that the first prompt has the drawn length within half a block.
  void document() {
    const double input = p_.shared_input.at(shared_input_.draw(random_));
    const double first = std::min(p_.question_tokens.draw(random_), input - kBlockTokens);
    const auto shared =
        std::max<uint64_t>(static_cast<uint64_t>(std::llround((input - first) / kBlockTokens)), 1);
    const Knots& sizes =
        input < static_cast<double>(p_.small_document_tokens) ? p_.questions_small : p_.questions;
    const uint64_t questions =
        std::min(whole_tokens(sizes.at(size_.draw(random_)), 1, 1000), n_ - made_);
    std::vector<uint64_t> ids(shared);
    for (uint64_t& id : ids) id = next_++;
    std::vector<TraceRequest> asked;
    for (uint64_t q = 0; q < questions; ++q) {
      if (q % p_.questions_together_max == 0) units_.emplace_back();
      TraceRequest r;
      if (q > 0 && random_.chance(p_.repeat_share)) {
        r = asked[random_.below(q)];
      } else {
        const double tail = q == 0 ? first : p_.question_tokens.at(question_.draw(random_));
        r.hash_ids = ids;
        r.input_length = shared * kBlockTokens + whole_tokens(tail, 1, kLengthMax);
        fill(r);
      }
      r.output_length =
          whole_tokens(p_.shared_output.at(shared_output_.draw(random_)), 0, kLengthMax);
      asked.push_back(r);
      units_.back().left.insert(units_.back().left.begin(), std::move(r));
    }
    made_ += questions;
  }

  std::vector<TraceRequest> in_order() {
    std::vector<TraceRequest> out;
    double at_s = 0;
    while (!units_.empty()) {
      const size_t i = random_.below(units_.size());
      out.push_back(std::move(units_[i].left.back()));
      units_[i].left.pop_back();
      out.back().timestamp_ms = static_cast<uint64_t>(at_s * 1000);
      at_s += random_.exponential(1 / p_.rate_per_s);
      if (!units_[i].left.empty()) continue;
      std::swap(units_[i], units_.back());
      units_.pop_back();
    }
    return out;
  }

  const DocumentsProfile& p_;
  uint64_t n_, made_ = 0, next_ = 0;
  Random random_;
  Strata short_input_, short_output_, single_input_, single_output_, shared_input_, shared_output_,
      question_, size_;
  std::vector<Unit> units_;
};

void number_densely(std::vector<TraceRequest>& records) {
  std::unordered_map<uint64_t, uint64_t> dense;
  for (TraceRequest& r : records)
    for (uint64_t& id : r.hash_ids) id = dense.try_emplace(id, dense.size()).first->second;
}

uint64_t wanted(uint64_t asked, uint64_t profile) { return asked ? asked : profile; }

}  // namespace

Result<std::vector<TraceRequest>> synthesize_documents(const DocumentsProfile& p,
                                                       const SynthOptions& options) {
  const uint64_t n = wanted(options.requests, p.requests);
  if (n > kRecordsMax) return fail(Code::kInvalid, "more than 20 million requests");
  auto out = Documents(p, n, options.seed).make();
  number_densely(out);
  return out;
}

Result<std::vector<TraceRequest>> synthesize_tool_agent(const ToolAgentProfile& p,
                                                        const SynthOptions& options) {
  const uint64_t n = wanted(options.requests, p.requests);
  if (n > kRecordsMax) return fail(Code::kInvalid, "more than 20 million requests");
  const double scale = static_cast<double>(n) / static_cast<double>(p.requests);
  const double span_s = p.span_s * scale;
  // Enough chats to fill the span; those with short answers are left out afterwards.
  const double rate = static_cast<double>(p.chat.requests) / p.chat.span_s;
  const auto chats = std::max<uint64_t>(static_cast<uint64_t>(std::llround(rate * span_s)), 1);
  MC_TRY(auto out, synthesize_conversation(p.chat, {.seed = options.seed, .requests = chats}));
  std::erase_if(out, [&](const TraceRequest& r) { return r.output_length < p.chat_output_min; });
  const auto keep = static_cast<uint64_t>(static_cast<double>(p.chat_requests) * scale);
  if (out.size() > keep) out.resize(keep);
  uint64_t next = 0;
  for (const TraceRequest& r : out)
    for (const uint64_t id : r.hash_ids) next = std::max(next, id + 1);
  std::vector<uint64_t> first;  // shared block of each class
  for (const ToolClass& t : p.tools) {
    first.push_back(next);
    next += t.shared_tokens / kBlockTokens;
  }
  Random random(mix64(options.seed) ^ 1);
  const uint64_t slot = std::max<uint64_t>(p.chat.slot_ms, 1);
  std::vector<Strata> tails(p.tools.size()), outputs(p.tools.size());
  while (out.size() < n) {
    double drawn = random.uniform();
    size_t c = 0;
    while (c + 1 < p.tools.size() && drawn >= p.tools[c].share) drawn -= p.tools[c++].share;
    const ToolClass& t = p.tools[c];
    TraceRequest r;
    r.timestamp_ms = static_cast<uint64_t>(random.uniform() * span_s * 1000) / slot * slot;
    r.input_length =
        t.shared_tokens + whole_tokens(t.tail_tokens.at(tails[c].draw(random)), 1, kLengthMax);
    r.output_length = whole_tokens(t.output_tokens.at(outputs[c].draw(random)), 0, kLengthMax);
    for (uint64_t k = 0; k < t.shared_tokens / kBlockTokens; ++k)
      r.hash_ids.push_back(first[c] + k);
    while (r.hash_ids.size() < blocks(r.input_length, kBlockTokens)) r.hash_ids.push_back(next++);
    out.push_back(std::move(r));
  }
  // Chats and tool calls of one slot are mixed, because refusals in a burst depend on their order.
  std::vector<std::pair<double, TraceRequest>> order;
  for (TraceRequest& r : out) {
    const double at =
        static_cast<double>(r.timestamp_ms) + random.uniform() * static_cast<double>(slot);
    order.emplace_back(at, std::move(r));
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::move(order[i].second);
  number_densely(out);
  return out;
}

}  // namespace mc::trace
