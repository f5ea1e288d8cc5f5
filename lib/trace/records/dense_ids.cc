#include "trace/records/dense_ids.h"

#include <unordered_map>

namespace mc::trace {

Numbered number_blocks(const std::vector<TraceRequest>& records, uint64_t block_tokens) {
  Numbered p;
  p.block_tokens = block_tokens;
  uint64_t n = 0;
  for (const TraceRequest& r : records) n += r.hash_ids.size();
  MC_CHECK(n < UINT32_MAX);  // kBlocksMax
  p.ids.reserve(n);
  p.starts.reserve(records.size() + 1);
  p.input.reserve(records.size());
  std::unordered_map<uint64_t, uint32_t> dense;
  dense.reserve(n);
  for (const TraceRequest& r : records) {
    p.starts.push_back(p.ids.size());
    p.input.push_back(r.input_length);
    p.tokens += r.input_length;
    p.full_blocks += full_blocks(r.input_length, block_tokens);
    for (const uint64_t id : r.hash_ids)
      p.ids.push_back(dense.try_emplace(id, static_cast<uint32_t>(dense.size())).first->second);
  }
  p.starts.push_back(p.ids.size());
  p.distinct = static_cast<uint32_t>(dense.size());
  return p;
}

}  // namespace mc::trace
