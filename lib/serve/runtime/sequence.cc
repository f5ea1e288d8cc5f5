#include "serve/runtime/sequence.h"

#include <algorithm>

namespace mc::serve {

void Sequence::append(int32_t token, uint32_t block_tokens) {
  if (!tokens.empty() && tokens.size() % block_tokens == 0) {
    const auto block = std::span<const int32_t>(tokens).last(block_tokens);
    parents.push_back(chain_hash(parents.back(), block));
  }
  tokens.push_back(token);
}

void Sequence::end_span(Time now, const std::string& error) {
  if (!span) return;
  if (arrived != Time{}) span.step("wait for KV", reserved, arrived);
  if (joined != Time{}) {
    span.step("wait for batch", verified, joined);
    span.step("generate", joined, now, {{"mc.output_tokens", int64_t{answered}}});
  }
  span.end("decode", now,
           {{"mc.request", request},
            {"mc.prompt_tokens", static_cast<int64_t>(prompt)},
            {"mc.recomputed", recomputed}},
           error, telemetry::SpanKind::kServer);
}

BlockHash Sequence::block_key(size_t block, uint32_t block_tokens) const {
  if (block + 1 < parents.size()) return parents[block + 1];
  return chain_hash(parents[block], std::span<const int32_t>(tokens).subspan(block * block_tokens));
}

std::vector<BlockHash> parents_of(const std::vector<BlockHash>& hashes, size_t blocks,
                                  const std::string& cache_salt) {
  BlockHash first;
  if (!cache_salt.empty()) first.bytes = sha256(std::as_bytes(std::span(cache_salt)));
  std::vector<BlockHash> out{first};
  out.insert(out.end(), hashes.begin(), hashes.end());
  out.resize(blocks);
  return out;
}

SequencePtr make_sequence(const Reserve& m, uint32_t block_tokens) {
  auto s = std::make_shared<Sequence>();
  s->request = m.request;
  s->conductor = m.conductor;
  const size_t most = m.prompt.size() + m.max_tokens;
  s->tokens.reserve(most);
  s->parents.reserve(most / block_tokens + 1);
  s->parents.push_back(parents_of({}, 1, m.cache_salt)[0]);
  for (const int32_t token : m.prompt) s->append(token, block_tokens);
  s->prompt = m.prompt.size();
  s->stop_tokens = m.stop_tokens;
  s->max_tokens = m.max_tokens;
  s->min_tokens = m.min_tokens;
  s->ignore_eos = m.ignore_eos;
  const SamplingControls& c = m.controls;
  for (size_t i = 0; i < c.bias.size(); ++i)
    s->bias.push_back({c.bias_tokens[i], static_cast<float>(c.bias[i])});
  s->sampling = {m.temperature, m.seed, false, m.ignore_eos, m.top_k, m.top_p};
  s->sampling.min_p = c.min_p;
  s->sampling.penalties = {c.presence_penalty, c.frequency_penalty, c.repetition_penalty};
  s->sampling.bias = s->bias;
  s->sampling.prompt = s->prompt - std::min<size_t>(m.answered, s->prompt);
  s->sampling.logprobs = c.logprobs;
  return s;
}

}  // namespace mc::serve
