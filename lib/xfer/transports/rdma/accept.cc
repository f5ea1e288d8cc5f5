// The owner's side of rdma: makes queue pairs for peers. Peers then read and write registered
// memory without the owner's CPU.
#include <algorithm>

#include "base/log.h"
#include "xfer/memory/copy.h"
#include "xfer/transports/rdma/host.h"

namespace mc::xfer::rdma {
namespace {

constexpr size_t kAskedMax = 4096;

Result<GuardRaised> raise_in(const Registry& registry, const RaiseGuard& m) {
  if (m.generation != registry.generation().n)
    return fail(Code::kStale, "the segment has a newer generation");
  MC_TRY(const BufferPtr buffer, registry.pin(m.offset, 8));
  if (!buffer->writable) return fail(Code::kDenied, "the memory is read-only");
  std::byte* const word = buffer->data + (m.offset - buffer->offset);
  if (buffer->backend != nullptr || reinterpret_cast<uintptr_t>(word) % 8 != 0)
    return fail(Code::kInvalid, "no guard can be at %llu",
                static_cast<unsigned long long>(m.offset));
  if (!raise_guard_word(word, m.value))
    return fail(Code::kStale, "the guard at %llu is newer already",
                static_cast<unsigned long long>(m.offset));
  return GuardRaised{};
}

}  // namespace

void Host::answer(rpc::Server& server) {
  server.on<OpenQueuePair>(
      [this](const OpenQueuePair& m, const rpc::Call&) { return open_pair(m); });
  server.on<CloseQueuePair>(
      [this](const CloseQueuePair& m, const rpc::Call&) { return close_pair(m); });
  server.on<KeepQueuePairs>(
      [this](const KeepQueuePairs& m, const rpc::Call&) -> Result<QueuePairsKept> {
        MC_TRY_(entitled(m.secret));
        for (size_t i = 0; i < std::min(m.nics.size(), m.numbers.size()); ++i)
          served_.heard(m.nics[i], m.numbers[i]);
        return QueuePairsKept{};
      });
  server.on<RaiseGuard>([this](const RaiseGuard& m, const rpc::Call&) -> Result<GuardRaised> {
    MC_TRY_(entitled(m.secret));
    return raise_in(registry_, m);
  });
}

Result<> Host::entitled(const wire::Blob& secret) const {
  if (secret.bytes == config_.secret) return {};
  return fail(Code::kDenied, "that is not the secret of this process");
}

Result<QueuePairOpened> Host::open_pair(const OpenQueuePair& m) {
  MC_TRY_(entitled(m.secret));
  const DevicePtr device = m.nic < nics_.size() ? nics_[m.nic]->device() : nullptr;
  // It is looked for: who asks again may find it.
  if (device == nullptr && m.nic < nics_.size())
    return fail(Code::kBusy, "its %s is not there", nics_[m.nic]->name.c_str());
  if (device == nullptr) return fail(Code::kInvalid, "it has no RDMA device %u", m.nic);
  if (!device->port()->up)
    return fail(Code::kBusy, "the port of its %s is down", nics_[m.nic]->name.c_str());
  MC_TRY(auto pair, device->make_queue_pair(true));
  const QpAddress asker{m.mine.number, m.mine.psn,   m.mine.lid,
                        m.mine.mtu,    m.mine.reads, m.mine.gid.bytes};
  MC_TRY_(pair->connect(asker, true, config_.peer_timeout));
  QueuePairOpened reply;
  const QpAddress mine = pair->address();
  reply.mine = {mine.number, mine.psn, mine.lid, mine.mtu, mine.reads, {mine.gid}};
  reply.epoch = device->epoch();
  if (device->epoch() != m.epoch) regions_.keys(m.nic, &reply.offsets, &reply.rkeys);
  served_.add(m.nic, mine.number, std::shared_ptr<QueuePair>(std::move(pair)));
  return reply;
}

Result<QueuePairClosed> Host::close_pair(const CloseQueuePair& m) {
  MC_TRY_(entitled(m.secret));
  if (m.nic >= nics_.size() || m.offsets.size() > kAskedMax)
    return fail(Code::kInvalid, "no RDMA device %u", m.nic);
  served_.close(m.nic, m.number);
  QueuePairClosed reply;
  if (const DevicePtr device = nics_[m.nic]->device()) reply.epoch = device->epoch();
  for (const uint64_t offset : m.offsets) reply.rkeys.push_back(regions_.key(m.nic, offset));
  return reply;
}

void Host::fence(std::span<FencedRange> ranges) {
  uint64_t asked = 0;
  for (FencedRange& range : ranges) {
    if (!range.unfinished) continue;
    if (range.nics == 0) {
      if (asked == 0) {
        const uint64_t fence = served_.ask_fence();
        if (post([this, fence] { served_.close_all_for(fence); })) asked = fence;
      }
      range.nics = asked;  // 0: asked again later
    }
    if (range.nics == 0 || !served_.fenced(range.nics)) range.done = false;
  }
}

}  // namespace mc::xfer::rdma
