// Pins prefixes for other prefill workers, and reads the prefixes that others pinned.
// A worker reads a pinned prefix while its request queues. The pin has a lease. The bytes read are
// valid only if the pin lasted until the read ended.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "serve/worker/prefill_worker.h"

namespace mc::serve {
namespace {

constexpr size_t kPinsMax = 65536;
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
  if (by_request_.contains(m.request) || pinned_by_request_.contains(m.request))
    return fail(Code::kExists, "request '%s' is here already", escape(m.request).c_str());
  if (pinned_for_peers_.size() >= kPinsMax)
    return fail(Code::kBusy, "%zu prefixes are pinned already: compute the prefix",
                pinned_for_peers_.size());
  const auto prefix = std::span(m.prompt).first(m.pin_for_peer * tokens);
  const Duration lease = std::chrono::milliseconds(std::min(m.lease_ms, kPinMsMax));
  TxAllocated reply;
  MC_TRY(reply.tx,
         blocks_.pin_for_peer(m.request, chain_hashes(prefix, engine_.block_tokens(), m.cache_salt),
                              lease, now));
  reply.segment = xfer_.describe();
  for (const BlockId id : blocks_.find(reply.tx)->blocks)
    reply.block_offsets.push_back(core_->block_offset(id));
  reply.ranks = shape_.ranks;
  reply.local_blocks = static_cast<uint32_t>(reply.block_offsets.size());
  counters_.pinned_blocks.add(reply.local_blocks);
  pinned_by_request_.emplace(m.request, reply.tx);
  pinned_for_peers_.emplace(reply.tx, m.request);
  return reply;
}

bool PrefillWorker::end_pin(TxId tx) {
  const auto it = pinned_for_peers_.find(tx);
  if (it == pinned_for_peers_.end()) return false;
  blocks_.abort(tx);
  pinned_by_request_.erase(it->second);
  pinned_for_peers_.erase(it);
  return true;
}

// ---- the reader

// Reads the missing blocks of the prefix into the request's own blocks. Those stay pinned
// meanwhile: a request that ends, or finds the prefix cached after all, must not free them for
// others.
void PrefillWorker::fetch_remote_prefix(const JobPtr& job, const RemotePrefix& prefix) {
  const Tx& tx = *blocks_.find(job->tx);
  const size_t most = std::min<size_t>(job->hashes.size(),
                                       reusable_blocks(job->prompt.size(), engine_.block_tokens()));
  // The head of a pipeline cannot use blocks of all layers.
  const size_t first = tx.hit, last = chain_ ? first : std::min(prefix.offsets.size(), most);
  ++job->busy;
  job->fetching = true;
  const auto segment = [&]() -> Result<xfer::SegmentHandle> {
    if (first >= last) return fail(Code::kExists, "all blocks are here");
    MC_TRY_(check_ranks(shape_, prefix.ranks));
    return transfer_.segment(prefix.segment);
  }();
  if (!segment) {
    if (first < last) counters_.peer_failures.add();
    return release_remote_prefix(job, prefix, first, {});
  }
  std::vector<BlockId> into(tx.blocks.begin() + static_cast<std::ptrdiff_t>(first),
                            tx.blocks.begin() + static_cast<std::ptrdiff_t>(last));
  std::vector<std::byte*> memory;
  for (const BlockId id : into) {
    blocks_.pin(id);
    memory.push_back(core_->block(id));
  }
  KvPeer from;
  from.segment = *segment;
  from.offsets.assign(prefix.offsets.begin() + static_cast<std::ptrdiff_t>(first),
                      prefix.offsets.begin() + static_cast<std::ptrdiff_t>(last));
  const KvRange range{0, into.size(), 0, block_bytes_, loop_.clock().now() + config_.send_timeout};
  const Time begun = loop_.clock().now();
  const auto requests = plan_between(xfer::Op::kRead, memory, from, prefix.ranks, range, shape_);
  transfer_.run(requests, [this, job, prefix, first, into, begun](const Result<>& read) {
    trace("fetch", strf("%zu blocks of %s", into.size(), prefix.control.c_str()), *job, begun,
          loop_.clock().now());
    job->done.peer_ms = to_ms(loop_.clock().now() - begun);
    if (read) return release_remote_prefix(job, prefix, first, into);
    counters_.peer_failures.add();
    log_info("serve", "request %s: cannot fetch a prefix from %s: %s",
             escape(job->kv.request).c_str(), escape(prefix.control).c_str(),
             read.error().what.c_str());
    for (const BlockId id : into) blocks_.unpin(id);
    release_remote_prefix(job, prefix, first, {});
  });
}

// Ends the holder's pin. If it was still there, the blocks read were not overwritten.
void PrefillWorker::release_remote_prefix(const JobPtr& job, const RemotePrefix& prefix,
                                          size_t first, std::vector<BlockId> read) {
  rpc::Client* const holder = peer(prefix.control);
  if (holder == nullptr) {
    for (const BlockId id : read) blocks_.unpin(id);
    (void)loop_.post([this, alive = std::weak_ptr(alive_), job, first] {
      if (!alive.expired()) remote_prefix_fetched(job, {}, first);
    });
    return;
  }
  holder->call(TxCommit{prefix.tx}, config_.peer_budget,
               [this, alive = std::weak_ptr(alive_), job, first,
                read = std::move(read)](const Result<TxCommitted>& ended) {
                 if (alive.expired()) return;
                 if (!ended && !read.empty()) {
                   counters_.peer_failures.add();
                   log_info("serve", "request %s: the fetched prefix is discarded: %s",
                            escape(job->kv.request).c_str(), ended.error().what.c_str());
                 }
                 remote_prefix_fetched(job, ended ? read : std::vector<BlockId>{}, first);
                 for (const BlockId id : read) blocks_.unpin(id);
               });
}

void PrefillWorker::remote_prefix_fetched(const JobPtr& job, const std::vector<BlockId>& read,
                                          size_t first) {
  --job->busy;
  job->fetching = false;
  if (job->failure) return settle(job);
  const Tx* const tx = blocks_.find(job->tx);
  if (tx == nullptr) return;
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
  }
  queue_.set_ready(job->kv.request, true);
  advance();
}

}  // namespace mc::serve
