// Reads objects that only a disk holds. The holder loads them into staging memory and leases the
// slots. A guard word tells the reader when the lease ended before its read.
#include <algorithm>

#include "store/client/client_impl.h"
#include "store/protocol/tier_messages.h"

namespace mc::store {
namespace {
constexpr uint64_t kLoadBytes = 16 * kMiB;  // per call; the next call follows when these are read
constexpr size_t kLoadItems = 64;
constexpr Duration kLoadAttempt = std::chrono::seconds(2);
constexpr Duration kRelease = std::chrono::milliseconds(200);
constexpr int kReadAttempts =
    3;  // if a lease ended during the read, or all staging memory was leased

// Its name on disks: see ssd::check_name().
std::string disk_name(const std::string& tenant, const ObjectKey& key) {
  return tenant.empty() || tenant == "default" ? key : tenant + '\0' + key;
}
}  // namespace

Result<rpc::SyncClient*> Client::holder(const std::string& control) {
  const Lock lock(holders_.mutex);
  auto& slot = holders_.clients[control];
  if (slot == nullptr) {
    MC_TRY(slot, rpc::SyncClient::connect(control, clock_));
  }
  return slot.get();
}

void Client::read_disks(std::span<Read> reads, const Replicas& found, Time deadline) {
  Opened opened;
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    std::map<uint32_t, std::vector<Read*>> by_node;
    for (Read& r : reads) {
      if (!r.answer.open || r.at->disks.empty()) continue;
      const size_t copies = r.at->disks.size();
      by_node[r.at->disks[static_cast<size_t>(attempt) % copies]].push_back(&r);
    }
    if (by_node.empty() || left(deadline) <= Duration::zero() || limits.ends()) return;
    for (auto& [node, open] : by_node) {
      if (node >= found.nodes.size()) continue;
      for (size_t at = 0; at < open.size();) {
        std::vector<Read*> some;
        for (uint64_t bytes = 0; at < open.size() && some.size() < kLoadItems; ++at) {
          bytes += open[at]->at->bytes;
          if (!some.empty() && bytes > kLoadBytes) break;
          some.push_back(open[at]);
        }
        load(some, found.nodes[node], opened, deadline);
      }
    }
  }
}

void Client::load(std::span<Read* const> some, const NodeRef& node, Opened& opened, Time deadline) {
  const auto all_failed = [&](const Error& error) {
    for (Read* r : some) r->last = error;
  };
  auto to = holder(node.control);
  if (!to) return all_failed(to.error());
  LoadObjects question;
  for (const Read* r : some) question.names.push_back(disk_name(options_.tenant, r->item->key));
  const Duration budget = std::min(left(deadline), kLoadAttempt);
  if (budget <= Duration::zero()) return;
  auto loaded = (*to)->call(question, std::chrono::ceil<std::chrono::milliseconds>(budget));
  if (loaded && loaded->items.size() != some.size())
    loaded = fail(Code::kCorrupt, "load-objects: %zu answers to %zu names", loaded->items.size(),
                  some.size());
  if (!loaded) {
    if (loaded.error().code == Code::kUnavailable) report(node);
    return all_failed(loaded.error());
  }
  auto segment = segment_of(node, opened, deadline);
  if (segment) {
    Step step("read");
    for (const Read* r : some) note_item(step, r->item->wanted(r->at->bytes), node);
    fetch(some, *loaded, *segment, node, deadline);
  } else {
    all_failed(segment.error());
  }
  (void)(*to)->call(ReleaseSlots{loaded->batch}, kRelease);  // if it is lost, the lease expires
}

void Client::fetch(std::span<Read* const> some, const Loaded& loaded, xfer::SegmentHandle segment,
                   const NodeRef& node, Time deadline) {
  std::vector<xfer::Request> requests;
  std::vector<Read*> reading;
  uint64_t total = 0;
  for (size_t i = 0; i < some.size(); ++i) {
    Read& r = *some[i];
    const LoadedSlot& slot = loaded.items[i];
    if (auto ok = slot.outcome.result(); !ok) {
      r.last = ok.error();
    } else if (slot.bytes != r.at->bytes || slot.checksum != r.at->checksum) {
      r.last = {Code::kStale, strf("'%s' was replaced on the disk of node %s",
                                   escape(r.item->key).c_str(), escape(node.name).c_str())};
    } else {
      r.segment = segment;
      r.checksum.reset();
      r.first = requests.size();
      r.copy.clear();
      r.append({0, slot.offset, slot.guard}, slot.generation, segment, deadline, requests);
      r.count = requests.size() - r.first;
      reading.push_back(&r);
      total += slot.bytes;
    }
  }
  const xfer::BatchId batch = engine_.allocate_batch();
  Result<> submitted;
  if (!requests.empty()) submitted = engine_.submit(batch, requests);
  if (submitted && !requests.empty())
    wait_moved(batch, requests.size(), total, {}, {}, deadline, limits.stopped);
  for (Read* r : reading) {
    if (!submitted)
      r->last = submitted.error();
    else
      complete(*r, moved_of(*r, batch), node, true, true);
  }
  engine_.free_batch(batch);
  const auto silent = [](Read* r) { return std::exchange(r->silent, false) && r->answer.open; };
  if (std::ranges::count_if(reading, silent) > 0) report(node);
}

Result<uint64_t> Client::prefetch(const std::vector<ObjectKey>& keys) {
  const Time deadline = clock_.now() + limits.timeout_or(options_.timeout);
  uint64_t hinted = 0;
  for (size_t from = 0; from < keys.size(); from += kChunk) {
    const auto end = keys.begin() + static_cast<ptrdiff_t>(std::min(from + kChunk, keys.size()));
    const std::vector<ObjectKey> some(keys.begin() + static_cast<ptrdiff_t>(from), end);
    MC_TRY(const Replicas found, ask(GetReplicas{some, 0, options_.tenant}, deadline));
    if (found.items.size() != some.size())
      return fail(Code::kCorrupt, "get-replicas: %zu answers to %zu keys", found.items.size(),
                  some.size());
    std::map<uint32_t, LoadObjects> hints;
    for (size_t i = 0; i < some.size(); ++i) {
      const Located& at = found.items[i];
      if (!at.outcome.ok() || !at.places.empty() || at.disks.empty()) continue;
      auto& hint = hints[at.disks[0]];
      hint.promote_only = true;
      hint.names.push_back(disk_name(options_.tenant, some[i]));
    }
    for (const auto& [node, hint] : hints) {
      if (node >= found.nodes.size()) continue;
      MC_TRY(rpc::SyncClient * to, holder(found.nodes[node].control));
      if (to->call(hint, kRelease)) hinted += hint.names.size();
    }
  }
  return hinted;
}

}  // namespace mc::store
