#include "serve/prefill/pinned_prefixes.h"

#include <algorithm>
#include <utility>

namespace mc::serve {
namespace {

constexpr uint32_t kAwaitMsMax = 10'000;

}  // namespace

PinnedPrefixes::PinnedPrefixes(xfer::Engine& transfer, std::shared_ptr<WorkerCore> core,
                               uint32_t ranks, Counter& pinned_blocks, Coming coming)
    : xfer_(transfer),
      core_(std::move(core)),
      ranks_(ranks),
      pinned_blocks_(pinned_blocks),
      computed_here_(std::move(coming)) {}

Result<TxAllocated> PinnedPrefixes::pin(const std::string& request, std::vector<BlockHash> wanted,
                                        Duration lease, Time now, Duration expect) {
  if (by_request_.contains(request))
    return fail(Code::kExists, "request '%s' is here already", escape(request).c_str());
  if (pins_.size() >= kPinsMax)
    return fail(Code::kBusy, "%zu prefixes are pinned already: compute the prefix", pins_.size());
  BlockManager& blocks = core_->blocks();
  size_t have = 0;
  while (have < wanted.size() && blocks.lookup(wanted[have])) ++have;
  TxAllocated reply;
  Pin pin{request, wanted, now + expect};
  reply.coming = static_cast<uint32_t>(coming(pin, have, now));
  MC_TRY(reply.tx, blocks.pin_for_peer(request, wanted, lease, now, reply.coming));
  reply.segment = xfer_.describe();
  for (const BlockId id : blocks.find(reply.tx)->blocks)
    reply.block_offsets.push_back(core_->block_offset(id));
  reply.ranks = ranks_;
  reply.local_blocks = static_cast<uint32_t>(reply.block_offsets.size());
  pinned_blocks_.add(reply.local_blocks);
  by_request_.emplace(request, reply.tx);
  pin.wanted.resize(have + reply.coming);
  pins_.emplace(reply.tx, std::move(pin));
  return reply;
}

// Once a request computes it none other is expected.
size_t PinnedPrefixes::coming(Pin& pin, size_t have, Time now) const {
  if (have >= pin.wanted.size()) return 0;
  const size_t here = computed_here_(pin.wanted, have);
  if (here > 0) pin.expected = {};
  return here == 0 && now < pin.expected ? pin.wanted.size() - have : here;
}

void PinnedPrefixes::await(const AwaitPrefix& m, const rpc::Reply<PrefixMore>& reply, Time now) {
  const Time until = now + std::chrono::milliseconds(std::min(m.wait_ms, kAwaitMsMax));
  const Waiting w{m.tx, m.have, until, reply};
  std::erase_if(waiting_, [&](const Waiting& old) {  // one a pin: so they are bounded, too
    if (old.tx != m.tx) return false;
    old.reply.error({Code::kBusy, "its reader asked again"});
    return true;
  });
  if (!answer(w, now)) waiting_.push_back(w);
}

bool PinnedPrefixes::answer(const Waiting& w, Time now) {
  const auto pin = pins_.find(w.tx);
  BlockManager& blocks = core_->blocks();
  const size_t present = pin == pins_.end() ? 0 : blocks.rematch(w.tx);
  const Tx* const tx = blocks.find(w.tx);
  if (pin == pins_.end() || tx == nullptr) {
    w.reply.error({Code::kNotFound, "the prefix is not pinned any more: compute the rest"});
    return true;
  }
  PrefixMore more;
  more.coming = static_cast<uint32_t>(coming(pin->second, present, now));
  if (present <= w.have && more.coming > 0 && now < w.until) return false;
  for (size_t i = w.have; i < present; ++i)
    more.offsets.push_back(core_->block_offset(tx->blocks[i]));
  pinned_blocks_.add(more.offsets.size());
  w.reply(more);
  return true;
}

void PinnedPrefixes::changed(Time now) {
  if (waiting_.empty()) return;
  std::vector<Waiting> still;
  for (Waiting& w : std::exchange(waiting_, {}))
    if (!answer(w, now)) still.push_back(std::move(w));
  waiting_.insert(waiting_.end(), still.begin(), still.end());
}

bool PinnedPrefixes::end(TxId tx) {
  const auto it = pins_.find(tx);
  if (it == pins_.end()) return false;
  core_->blocks().abort(tx);
  by_request_.erase(it->second.request);
  pins_.erase(it);
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (w.tx != tx) return false;
    w.reply.error({Code::kNotFound, "the prefix is not pinned any more: compute the rest"});
    return true;
  });
  return true;
}

void PinnedPrefixes::end(const std::string& request) {
  if (const auto it = by_request_.find(request); it != by_request_.end()) end(it->second);
}

}  // namespace mc::serve
