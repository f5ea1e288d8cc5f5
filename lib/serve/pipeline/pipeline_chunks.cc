// Cuts the activations of a chunk into messages.
#include <algorithm>
#include <cstring>

#include "serve/pipeline/pipeline_worker.h"

namespace mc::serve {

std::vector<PipelineChunk> pipeline_chunks(const std::string& request, uint64_t begin, uint64_t end,
                                           bool last, std::span<const float> rows,
                                           uint32_t block_tokens) {
  MC_CHECK(begin < end && rows.size() % (end - begin) == 0);
  const uint64_t hidden = rows.size() / (end - begin), row_bytes = hidden * sizeof(float);
  const uint64_t blocks =
      PipelineChunk::kRowBytesMax / std::max<uint64_t>(row_bytes * block_tokens, 1);
  const uint64_t step = std::max<uint64_t>(blocks, 1) * block_tokens;
  std::vector<PipelineChunk> out;
  for (uint64_t at = begin; at < end;) {
    PipelineChunk m;
    m.request = request;
    m.begin = at;
    m.end = std::min(end, (at / block_tokens) * block_tokens + step);
    m.last = last && m.end == end;
    m.rows.bytes.resize((m.end - at) * row_bytes);
    if (!m.rows.bytes.empty())
      std::memcpy(m.rows.bytes.data(), rows.data() + (at - begin) * hidden, m.rows.bytes.size());
    at = m.end;
    out.push_back(std::move(m));
  }
  return out;
}

}  // namespace mc::serve
