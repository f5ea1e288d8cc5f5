#include "serve/prefill/prefix_fetch.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "serve/connector/tp_mapping.h"

namespace mc::serve {
namespace {

constexpr Duration kAskWait = std::chrono::seconds(1);  // at a time
constexpr size_t kPace = 4;  // times the patience, for the rest at the pace so far

}  // namespace

void PrefixFetch::start(const Parts& parts, const std::string& request, const RemotePrefix& prefix,
                        size_t first, std::vector<BlockId> into,
                        std::function<rpc::Client*()> holder, std::function<bool()> wanted,
                        Done done) {
  const std::shared_ptr<PrefixFetch> self(new PrefixFetch(parts, prefix));
  self->request_ = request;
  self->first_ = self->next_ = self->counted_ = first;
  self->into_ = std::move(into);
  self->holder_ = std::move(holder);
  self->wanted_ = std::move(wanted);
  self->done_ = std::move(done);
  self->until_ = parts.loop.clock().now() + std::chrono::milliseconds(prefix.wait_ms);
  for (const BlockId id : self->into_) parts.core.blocks().pin(id);
  self->go_on();
}

void PrefixFetch::unreachable() {
  (void)parts_.loop.post([self = shared_from_this()] {
    if (!self->parts_.alive.expired()) self->finish(false);
  });
}

void PrefixFetch::go_on() {
  const size_t last = first_ + into_.size();
  const size_t there = std::min(prefix_.offsets.size(), last);
  if (!wanted_()) return end("");
  if (next_ < there) return read(there);
  if (next_ >= last || prefix_.coming == 0 || !patient()) return end("");
  ask();
}

// A holder that is slow, and goes on, has the rest sooner than who begins to compute it.
bool PrefixFetch::patient() {
  const Time now = parts_.loop.clock().now();
  if (now < until_) return true;
  const size_t came = next_ - counted_, missing = first_ + into_.size() - next_;
  if (kPace * came < missing) return false;
  counted_ = next_;
  until_ = now + std::chrono::milliseconds(prefix_.wait_ms);
  return true;
}

void PrefixFetch::ask() {
  const Duration wait = std::min(kAskWait, until_ - parts_.loop.clock().now());
  rpc::Client* const holder = holder_();
  if (holder == nullptr) return unreachable();
  holder->call(AwaitPrefix{prefix_.tx, static_cast<uint32_t>(prefix_.offsets.size()),
                           static_cast<uint32_t>(std::max(1.0, to_ms(wait)))},
               wait + parts_.call_budget,
               [self = shared_from_this()](const Result<PrefixMore>& more) {
                 if (self->parts_.alive.expired()) return;
                 if (!more) return self->end("waiting for more of it: " + more.error().what);
                 auto& have = self->prefix_.offsets;
                 have.insert(have.end(), more->offsets.begin(), more->offsets.end());
                 self->prefix_.coming = more->coming;
                 self->go_on();
               });
}

void PrefixFetch::read(size_t upto) {
  const auto segment = [&]() -> Result<xfer::SegmentHandle> {
    MC_TRY_(check_ranks(parts_.shape, prefix_.ranks));
    return parts_.transfer.segment(prefix_.segment);
  }();
  if (!segment) return end(segment.error().what);
  const auto part = [&](const auto& list, size_t from) {
    const auto at = list.begin() - static_cast<std::ptrdiff_t>(from);
    return std::vector(at + static_cast<std::ptrdiff_t>(next_),
                       at + static_cast<std::ptrdiff_t>(upto));
  };
  std::vector<std::byte*> memory;
  for (const BlockId id : part(into_, first_)) memory.push_back(parts_.core.block(id));
  KvPeer from;
  from.segment = *segment;
  from.offsets = part(prefix_.offsets, 0);
  const Time begun = parts_.loop.clock().now();
  const KvRange range{0, memory.size(), 0, parts_.core.block_bytes(), begun + parts_.read_budget};
  parts_.transfer.run(
      plan_between(xfer::Op::kRead, memory, from, prefix_.ranks, range, parts_.shape),
      [self = shared_from_this(), begun, upto](const Result<>& outcome) {
        self->fetched_.read_ms += to_ms(self->parts_.loop.clock().now() - begun);
        if (!outcome) return self->end(outcome.error().what);
        self->next_ = upto;
        self->go_on();
      });
}

// Ends the holder's pin. If it was still there, the blocks read were not overwritten.
void PrefixFetch::end(const std::string& trouble) {
  if (!trouble.empty()) {
    fetched_.failed = true;
    log_info("serve", "request %s: cannot fetch a prefix from %s: %s", escape(request_).c_str(),
             escape(prefix_.control).c_str(), trouble.c_str());
  }
  rpc::Client* const holder = holder_();
  if (holder == nullptr) return unreachable();
  holder->call(TxCommit{prefix_.tx}, parts_.call_budget,
               [self = shared_from_this()](const Result<TxCommitted>& ended) {
                 if (self->parts_.alive.expired()) return;
                 const bool any = self->next_ > self->first_;
                 if (!ended && any) {
                   self->fetched_.failed = true;
                   log_info("serve", "request %s: the fetched prefix is discarded: %s",
                            escape(self->request_).c_str(), ended.error().what.c_str());
                 }
                 self->finish(ended.has_value());
               });
}

void PrefixFetch::finish(bool valid) {
  if (valid)
    fetched_.read.assign(into_.begin(),
                         into_.begin() + static_cast<std::ptrdiff_t>(next_ - first_));
  done_(fetched_);
  for (const BlockId id : into_) parts_.core.blocks().unpin(id);
}

}  // namespace mc::serve
