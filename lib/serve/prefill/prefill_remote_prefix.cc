#include "serve/prefill/prefill_remote_prefix.h"

#include <algorithm>
#include <utility>

#include "serve/runtime/sequence.h"

namespace mc::serve {
namespace {

constexpr uint32_t kPinMsMax = 60'000;

}  // namespace

RemotePrefixes::RemotePrefixes(PrefillShared& shared)
    : shared_(shared),
      pinned_(shared.xfer, shared.core, shared.shape.ranks, shared.counters.pinned_blocks,
              [this](auto wanted, size_t have) { return coming_blocks(wanted, have); }) {}

// ---- the holder

Result<TxAllocated> RemotePrefixes::pin(const TxAllocate& m, Time now) {
  const uint32_t tokens = shared_.engine.block_tokens();
  if (shared_.pipeline())
    return fail(Code::kUnsupported, "this worker has only some of the layers: compute the prefix");
  if (m.request.empty() || m.request.size() > 1024)
    return fail(Code::kInvalid, "a request id of %zu bytes: want 1 to 1024", m.request.size());
  if (m.pin_for_peer > m.prompt.size() / tokens ||
      m.prompt.size() > shared_.engine.spec().context_max)
    return fail(Code::kInvalid, "cannot pin %u blocks of %u tokens of a prompt of %zu tokens",
                m.pin_for_peer, tokens, m.prompt.size());
  if (shared_.jobs.find(m.request) != nullptr)
    return fail(Code::kExists, "request '%s' is here already", escape(m.request).c_str());
  const auto prefix = std::span(m.prompt).first(uint64_t{m.pin_for_peer} * tokens);
  return pinned_.pin(m.request, chain_hashes(prefix, tokens, m.cache_salt),
                     std::chrono::milliseconds(std::min(m.lease_ms, kPinMsMax)), now,
                     std::chrono::milliseconds(std::min(m.expect_ms, kPinMsMax)));
}

// Blocks of a prompt, behind the first `have`, that a request here computes or fetches.
size_t RemotePrefixes::coming_blocks(std::span<const BlockHash> wanted, size_t have) const {
  size_t most = 0;
  for (const auto& [tx, job] : shared_.jobs) {
    if (job->failure || job->stage >= PrefillStage::kDelivered) continue;
    const size_t last = std::min(wanted.size(), job->hashes.size());
    size_t i = have;
    while (i < last && wanted[i] == job->hashes[i]) ++i;
    most = std::max(most, i - have);
  }
  return most;
}

// ---- the reader

void RemotePrefixes::fetch(const PrefillJobPtr& job, const RemotePrefix& prefix, Done done) {
  const Tx& tx = *shared_.blocks().find(job->tx);
  const size_t most = std::min<size_t>(
      job->hashes.size(), reusable_blocks(job->prompt.size(), shared_.engine.block_tokens()));
  // The head of a pipeline cannot use blocks of all layers.
  const size_t first = tx.hit, there = prefix.offsets.size() + prefix.coming,
               last = shared_.pipeline() ? first : std::max(first, std::min(there, most));
  ++job->busy;
  job->peer_blocks = last;
  shared_.jobs.fetch(job, FetchState::kPeer);
  const Time begun = shared_.loop.clock().now();
  PrefixFetch::start(
      {shared_.loop, shared_.transfer, *shared_.core, shared_.shape, shared_.config.send_timeout,
       shared_.config.peer_budget, alive_},
      job->kv.request, prefix, first,
      std::vector(tx.blocks.begin() + static_cast<std::ptrdiff_t>(first),
                  tx.blocks.begin() + static_cast<std::ptrdiff_t>(last)),
      [this, control = prefix.control] { return shared_.host.peer(control); },
      [job] { return !job->failure.has_value(); },
      [this, job, first, begun, control = prefix.control,
       done = std::move(done)](const PrefixFetched& got) {
        shared_.trace("fetch", strf("%zu blocks of %s", got.read.size(), control.c_str()), *job,
                      begun, shared_.loop.clock().now());
        job->done.peer_ms = got.read_ms;
        if (got.failed) shared_.counters.peer_failures.add();
        done(fetched(job, got.read, first));
      });
}

// Blocks found in the cache meanwhile replaced the request's own; the rest of these is valid now.
size_t RemotePrefixes::fetched(const PrefillJobPtr& job, const std::vector<BlockId>& read,
                               size_t first) {
  --job->busy;
  shared_.jobs.fetched(job);
  const Tx* const tx = shared_.blocks().find(job->tx);
  if (job->failure || tx == nullptr || tx->valid > tx->hit) return 0;
  const size_t hit = tx->hit, valid = first + read.size();
  if (valid <= hit) return 0;
  for (size_t i = hit; i < valid; ++i)
    if (tx->blocks[i] != read[i - first]) return 0;
  job->done.peer_tokens = static_cast<uint32_t>((valid - hit) * shared_.engine.block_tokens());
  shared_.blocks().computed(job->tx, valid);
  changed();
  return valid;
}

}  // namespace mc::serve
