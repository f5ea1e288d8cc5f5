// Prefixes between prefill workers: what this one pins for others, and reads from them.
#include <algorithm>
#include <utility>

#include "serve/worker/prefill_worker.h"
#include "serve/worker/prefix_fetch.h"

namespace mc::serve {
namespace {

constexpr uint32_t kPinMsMax = 60'000;

}  // namespace

// ---- the holder

Result<TxAllocated> PrefillWorker::pin_for_peer(const TxAllocate& m, Time now) {
  const uint64_t tokens = engine_.block_tokens();
  if (draining_) return fail(Code::kBusy, "this prefill worker is draining: compute the prefix");
  if (chain_ != nullptr)
    return fail(Code::kUnsupported, "this worker has only some of the layers: compute the prefix");
  if (m.request.empty() || m.request.size() > 1024)
    return fail(Code::kInvalid, "a request id of %zu bytes: want 1 to 1024", m.request.size());
  if (m.pin_for_peer > m.prompt.size() / tokens || m.prompt.size() > engine_.spec().context_max)
    return fail(Code::kInvalid, "cannot pin %u blocks of %llu tokens of a prompt of %zu tokens",
                m.pin_for_peer, static_cast<unsigned long long>(tokens), m.prompt.size());
  if (by_request_.contains(m.request))
    return fail(Code::kExists, "request '%s' is here already", escape(m.request).c_str());
  const auto prefix = std::span(m.prompt).first(m.pin_for_peer * tokens);
  return pinned_.pin(m.request, chain_hashes(prefix, engine_.block_tokens(), m.cache_salt),
                     std::chrono::milliseconds(std::min(m.lease_ms, kPinMsMax)), now,
                     std::chrono::milliseconds(std::min(m.expect_ms, kPinMsMax)));
}

// Blocks of a prompt, behind the first `have`, that a request here computes or fetches.
size_t PrefillWorker::coming_blocks(std::span<const BlockHash> wanted, size_t have) const {
  size_t most = 0;
  for (const auto& [tx, job] : jobs_) {
    if (job->failure || job->stage >= Stage::kDelivered) continue;
    const size_t last = std::min(wanted.size(), job->hashes.size());
    size_t i = have;
    while (i < last && wanted[i] == job->hashes[i]) ++i;
    most = std::max(most, i - have);
  }
  return most;
}

// ---- the reader

// Reads the missing blocks of the prefix into the request's own blocks.
void PrefillWorker::fetch_remote_prefix(const JobPtr& job, const RemotePrefix& prefix) {
  const Tx& tx = *blocks_.find(job->tx);
  const size_t most = std::min<size_t>(job->hashes.size(),
                                       reusable_blocks(job->prompt.size(), engine_.block_tokens()));
  // The head of a pipeline cannot use blocks of all layers.
  const size_t first = tx.hit, there = prefix.offsets.size() + prefix.coming,
               last = chain_ ? first : std::max(first, std::min(there, most));
  ++job->busy;
  fetching_.push_back(job);
  const Time begun = loop_.clock().now();
  PrefixFetch::start(
      {loop_, transfer_, *core_, shape_, config_.send_timeout, config_.peer_budget, alive_},
      job->kv.request, prefix, first,
      std::vector(tx.blocks.begin() + static_cast<std::ptrdiff_t>(first),
                  tx.blocks.begin() + static_cast<std::ptrdiff_t>(last)),
      [this, control = prefix.control] { return peer(control); },
      [job] { return !job->failure.has_value(); },
      [this, job, first, begun, control = prefix.control](const PrefixFetched& fetched) {
        trace("fetch", strf("%zu blocks of %s", fetched.read.size(), control.c_str()), *job, begun,
              loop_.clock().now());
        job->done.peer_ms = fetched.read_ms;
        if (fetched.failed) counters_.peer_failures.add();
        remote_prefix_fetched(job, fetched.read, first);
      });
}

void PrefillWorker::remote_prefix_fetched(const JobPtr& job, const std::vector<BlockId>& read,
                                          size_t first) {
  --job->busy;
  std::erase(fetching_, job);
  arrived();
  if (job->failure) {
    settle(job);
    return advance();
  }
  const Tx* const tx = blocks_.find(job->tx);
  if (tx == nullptr) return advance();
  // Blocks found in the cache meanwhile replaced ours; the rest of ours is valid now.
  size_t valid = first + read.size();
  if (tx->valid > tx->hit || tx->hit > valid) valid = 0;
  for (size_t i = tx->hit; i < valid; ++i)
    if (tx->blocks[i] != read[i - first]) valid = 0;
  const uint64_t tokens = engine_.block_tokens();
  if (valid > tx->hit) {
    job->done.peer_tokens = static_cast<uint32_t>((valid - tx->hit) * tokens);
    blocks_.computed(job->tx, valid);
    queue_.set_reused(job->kv.request, valid * tokens);
    pinned_.changed(loop_.now());
  }
  queue_.set_ready(job->kv.request, true);
  advance();
}

}  // namespace mc::serve
