#include "serve/pipeline/pooled_kv.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace mc::serve {
namespace {

std::vector<uint32_t> ascending(std::vector<uint32_t> blocks) {
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

Result<> check_ascending(const std::vector<uint32_t>& blocks, size_t prompt_blocks) {
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i] >= prompt_blocks || (i > 0 && blocks[i] <= blocks[i - 1]))
      return fail(Code::kInvalid,
                  "KvReady names block %u in the pool: want blocks below %zu in "
                  "ascending order",
                  blocks[i], prompt_blocks);
  return {};
}

}  // namespace

KvReady ready_message(const KvRoute& route, uint32_t stages,
                      const std::map<uint32_t, std::vector<uint32_t>>& pooled) {
  KvReady m{route.request, route.peer.guard.expected, route.pooled, stages, {}};
  if (stages > 0) m.parts.push_back({0, ascending(route.pooled)});
  for (const auto& [stage, blocks] : pooled) {
    m.parts.push_back({stage, ascending(blocks)});
    m.pool.insert(m.pool.end(), blocks.begin(), blocks.end());
  }
  m.pool = ascending(std::move(m.pool));
  return m;
}

Result<> check_pooled(const KvReady& m, size_t prompt_blocks, bool pool,
                      const cost::ModelSpec& spec, uint32_t ranks) {
  if (!pool)
    return fail(Code::kUnsupported,
                "this decode worker has no KV store to get blocks from: start it with --master, or "
                "the prefill workers with another --connector");
  MC_TRY_(check_ascending(m.pool, prompt_blocks));
  if (m.stages == 0) return {};
  if (ranks > 1)
    return fail(Code::kUnsupported,
                "KvReady names parts of a pipeline's stages: want a decode worker with --tp 1");
  if (m.parts.empty() && !m.pool.empty())
    return fail(Code::kInvalid, "KvReady names blocks in the pool, and no part of them");
  for (const PooledPart& part : m.parts) {
    MC_TRY_(cost::slice_of(spec, part.stage, m.stages));
    MC_TRY_(check_ascending(part.blocks, prompt_blocks));
  }
  return {};
}

void fetch_pooled(StoreConnector& pool, const Sequence& s, const KvReady& m,
                  const cost::ModelSpec& spec, uint32_t block_tokens,
                  std::function<void(size_t got, std::optional<uint32_t> lost)> done) {
  struct All {
    size_t parts, blocks;
    std::optional<uint32_t> lost;
    std::function<void(size_t got, std::optional<uint32_t> lost)> done;
  };
  const auto shared = [&](uint32_t block) { return block < s.here; };
  std::vector<PooledPart> parts = m.parts;
  if (m.stages == 0) parts = {{0, m.pool}};
  const auto shared_blocks = std::count_if(m.pool.begin(), m.pool.end(), shared);
  const auto all = std::make_shared<All>(
      All{parts.size(), m.pool.size() - static_cast<size_t>(shared_blocks), {}, std::move(done)});
  for (PooledPart& part : parts) {
    std::erase_if(part.blocks, shared);
    const cost::ModelSpec slice = *cost::slice_of(spec, part.stage, std::max(m.stages, 1u));
    StoreConnector::Wanted wanted;
    if (m.stages > 0) wanted.part = {slice.pool_name(), part.stage};
    for (const uint32_t i : part.blocks) {
      wanted.hashes.push_back(s.block_key(i, block_tokens));
      wanted.memory.emplace_back(s.blocks[i] + slice.first_layer * slice.layer_bytes(block_tokens),
                                 slice.block_bytes(block_tokens));
    }
    pool.fetch(std::move(wanted), [all, blocks = std::move(part.blocks)](size_t got) {
      if (got < blocks.size()) {
        const uint32_t lost = blocks[got];
        all->lost = std::min(all->lost.value_or(lost), lost);
        all->blocks = std::min(all->blocks, got);
      }
      if (--all->parts == 0) all->done(all->blocks, all->lost);
    });
  }
}

}  // namespace mc::serve
