// Receives a request's KV on the decode worker, or recomputes it.
// The prefill side writes the KV, or this worker reads it from there or from the pool.
#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "serve/pipeline/pooled_kv.h"
#include "serve/worker/decode_worker.h"

namespace mc::serve {

Result<rpc::Empty> DecodeWorker::kv_ready(const KvReady& m, const rpc::Call& call) {
  auto it = sequences_.find(m.request);
  if (it == sequences_.end() || it->second->guard != m.guard)
    return fail(Code::kNotFound, "request '%s' does not wait for KV here",
                escape(m.request).c_str());
  const SequencePtr s = it->second;
  if (s->settled) return rpc::Empty{};
  if (!m.pool.empty()) {
    MC_TRY_(check_pooled(m, s->parents.size(), pool_ != nullptr, engine_.spec(), shape_.ranks));
  }
  s->settled = true;
  if (s->ended) {
    try_free(s);
    return fail(Code::kNotFound, "request '%s' was aborted", escape(m.request).c_str());
  }
  if (s->recomputed) return rpc::Empty{};  // too late: the same bytes are computed here
  s->arrived = loop_.now();
  batch_.in_time(s->request);
  s->receive = {config_.tracer, telemetry::from_wire(call.trace_id), s->arrived};
  if (m.pool.empty())
    verify(s);
  else
    fetch(s, m);
  return rpc::Empty{};
}

Result<rpc::Empty> DecodeWorker::kv_failed(const KvFailed& m) {
  auto it = sequences_.find(m.request);
  if (it == sequences_.end() || it->second->guard != m.guard) return rpc::Empty{};
  const SequencePtr s = it->second;
  s->settled = true;
  if (s->ended)
    try_free(s);
  else if (!s->recomputed)
    fail_sequence(s, "prefill: " + m.reason);
  return rpc::Empty{};
}

// ---- from the prefill instance of this process

Result<> DecodeWorker::adopt(const std::string& request, uint64_t guard,
                             const std::vector<BlockId>& blocks) {
  auto it = sequences_.find(request);
  if (it == sequences_.end() || it->second->guard != guard || it->second->ended)
    return fail(Code::kNotFound, "request '%s' does not wait for KV here", escape(request).c_str());
  const SequencePtr s = it->second;
  if (!s->own || !s->adopted.empty() || blocks.size() != s->parents.size())
    return fail(Code::kInvalid,
                "request '%s' has no reservation for a prompt that this process computes",
                escape(request).c_str());
  s->adopted = blocks;
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks_.pin(blocks[i]);
    s->blocks[i] = core_->block(blocks[i]);
  }
  s->arrived = loop_.now();
  batch_.in_time(s->request);
  verify(s);
  return {};
}

// ---- pull

Result<SequencePtr> DecodeWorker::find_offered(const KvOffer& m) const {
  auto it = sequences_.find(m.request);
  if (it == sequences_.end() || it->second->guard != m.guard || it->second->settled)
    return fail(Code::kNotFound, "request '%s' does not wait for KV here",
                escape(m.request).c_str());
  const Sequence& s = *it->second;
  if (s.ended) return fail(Code::kNotFound, "request '%s' was aborted", escape(m.request).c_str());
  const uint64_t block = engine_.spec().block_bytes(engine_.block_tokens());
  const size_t blocks = s.parents.size();
  if (m.offsets.empty() || m.first >= blocks || m.offsets.size() > blocks - m.first)
    return fail(Code::kInvalid, "an offer of %zu blocks from block %llu on: the prompt has %zu",
                m.offsets.size(), static_cast<unsigned long long>(m.first), blocks);
  if (m.bytes == 0 || m.at >= block || m.bytes > block - m.at)
    return fail(Code::kInvalid, "an offer of %llu bytes at offset %llu: a block has %llu",
                static_cast<unsigned long long>(m.bytes), static_cast<unsigned long long>(m.at),
                static_cast<unsigned long long>(block));
  MC_TRY_(check_ranks(shape_, m.ranks));
  const uint64_t layer = engine_.spec().layer_bytes(engine_.block_tokens());
  if ((m.ranks > 1 || shape_.ranks > 1) && (m.at % layer != 0 || m.bytes % layer != 0))
    return fail(Code::kInvalid,
                "an offer of parts of layers from blocks of %u ranks: want whole layers", m.ranks);
  return it->second;
}

// Reads the offered blocks. The prefill side keeps them until the answer. If the answer is too
// late, no KvReady follows, and the data is never used.
void DecodeWorker::offered(const KvOffer& m, const rpc::Reply<rpc::Empty>& reply) {
  const auto found = find_offered(m);
  if (!found) return reply.error(found.error());
  const SequencePtr& s = *found;
  if (s->recomputed) return reply(rpc::Empty{});
  const auto segment = pulls_.segment(m.from);
  if (!segment) return reply.error(segment.error());
  KvPeer peer;
  peer.segment = *segment;
  peer.offsets = m.offsets;
  const size_t offered = m.offsets.size();
  const size_t shared = s->here > m.first ? std::min(s->here - m.first, offered) : 0;
  if (shared == offered) return reply(rpc::Empty{});
  const KvRange range{shared, offered, m.at, m.bytes,
                      loop_.clock().now() + 3 * config_.peer_timeout};
  ++s->busy;
  pulls_.run(plan_between(xfer::Op::kRead, std::span(s->blocks).subspan(m.first), peer, m.ranks,
                          range, shape_),
             [this, s, reply](const Result<>& read) {
               --s->busy;
               if (!read)
                 reply.error(read.error());
               else
                 reply(rpc::Empty{});
               if (s->ended) try_free(s);
             });
}

// ---- pool

// Gets blocks of the prompt from the pool, but for shared ones. Computes the first lost block and
// all after it here.
void DecodeWorker::fetch(const SequencePtr& s, const KvReady& m) {
  ++s->busy;
  const StepScope scope(telemetry::steps_below(s->receive, loop_.clock()));
  const uint32_t tokens = engine_.block_tokens();
  fetch_pooled(*pool_, *s, m, engine_.spec(), tokens,
               [this, s, tokens](size_t got, std::optional<uint32_t> lost) {
                 --s->busy;
                 if (config_.trace != nullptr)
                   config_.trace->span("load", strf("%zu blocks of the pool", got), s->arrived,
                                       loop_.clock().now(), s->request);
                 if (s->ended) return try_free(s);
                 fetched_.add(got);
                 if (!lost) return verify(s);
                 log_info("decode", "request %s: block %u is not in the pool: computing it here",
                          s->request.c_str(), *lost);
                 s->recomputed = true;
                 batch_.remove(s->request);  // it no longer waits for KV
                 recompute(s, size_t{*lost} * tokens);
               });
}

// ---- what arrived

void DecodeWorker::verify(const SequencePtr& s) {
  ++s->busy;
  auto bad = std::make_shared<uint64_t>(0);
  const bool queued = core_->submit([this, s, bad] { *bad = engine_.verify(s->view()); },
                                    [this, s, bad] { verified(s, *bad); });
  if (queued) return;
  --s->busy;
  fail_sequence(s, "this worker is overloaded");
}

void DecodeWorker::verified(const SequencePtr& s, uint64_t bad_blocks) {
  --s->busy;
  if (s->ended) return try_free(s);
  s->verified = loop_.now();
  s->receive.end("receive", s->verified, {{"mc.bad_blocks", static_cast<int64_t>(bad_blocks)}});
  if (bad_blocks > 0) {
    kv_errors_.add(bad_blocks);
    fail_sequence(s,
                  strf("%llu of %zu KV blocks did not verify",
                       static_cast<unsigned long long>(bad_blocks), s->parents.size()),
                  static_cast<uint32_t>(bad_blocks));
    return;
  }
  join(s);
}

// The prompt's KV is here: later prompts share its full blocks, and it shares those that others
// have meanwhile. One that a job or a transfer still uses keeps its own. It joins the batch once
// its grammar is compiled: no step waits for that.
void DecodeWorker::join(const SequencePtr& s) {
  if (s->adopted.empty() && s->busy == 0) {  // the first: shared already
    // Into an unsettled prompt's blocks the prefill side may still write: it keeps its own.
    const size_t shared = s->settled ? blocks_.rematch(s->tx) : 0;
    const Tx& tx = *blocks_.find(s->tx);
    for (size_t i = s->here; i < shared; ++i) s->blocks[i] = core_->block(tx.blocks[i]);
    blocks_.computed(s->tx, s->prompt / engine_.block_tokens());
  }
  const auto ready = [this, weak = std::weak_ptr(s)] {
    const SequencePtr it = weak.lock();
    if (it == nullptr || it->ended) return;
    if (it->guide && !it->guide->failure().empty()) return fail_sequence(it, it->guide->failure());
    MC_CHECK(batch_.kv_arrived(it->request));
    step();
  };
  if (!s->guide) return ready();
  s->guide->when_ready(ready);
}

// ---- what does not arrive

// Computes the prompt's KV from `begin` on. A late write of the prefill side does no harm: the same
// model makes the same bytes.
void DecodeWorker::recompute(const SequencePtr& s, size_t begin) {
  memory_.recompute().run(s, begin, s->prompt, [this, s](const Result<>& computed) {
    if (s->ended) return try_free(s);
    if (!computed) return fail_sequence(s, computed.error().what);
    recomputed_.add();
    s->arrived = s->verified = loop_.now();
    MC_CHECK(batch_.wait(s->request, s->prompt, Time::max()));
    join(s);
  });
}

void DecodeWorker::expire() {
  for (const std::string& request : batch_.expire(loop_.now())) {
    auto it = sequences_.find(request);
    if (it == sequences_.end()) continue;
    const SequencePtr s = it->second;
    if (config_.recompute_after.count() == 0 || s->settled) {
      fail_sequence(s, "its KV did not arrive in time");
      continue;
    }
    // The prefill side may be dead. Gets what the pool has of the prompt and computes the rest.
    log_warn("decode", "request %s: its KV did not arrive in time: computing it here",
             s->request.c_str());
    s->recomputed = true;
    if (pool_ == nullptr) {
      recompute(s, s->here * engine_.block_tokens());
      continue;
    }
    KvReady all;
    all.pool.resize(s->parents.size());
    std::iota(all.pool.begin(), all.pool.end(), 0);
    s->arrived = loop_.now();
    MC_CHECK(batch_.wait(s->request, s->prompt, Time::max()));
    fetch(s, all);
  }
  const std::vector<std::string> gone = to_conductors_.tick();
  if (gone.empty()) return;
  std::vector<SequencePtr> its;
  for (const auto& [request, s] : sequences_)
    if (std::find(gone.begin(), gone.end(), s->conductor) != gone.end()) its.push_back(s);
  for (const SequencePtr& s : its) end(s);
}

}  // namespace mc::serve
