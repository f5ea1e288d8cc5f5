// Inline transfers of a few bytes that the caller waits for. The caller posts them and polls for
// their completion itself, with the locks of the NIC and of the connection held, so that no other
// thread is involved. A transfer that takes longer becomes an ordinary attempt before the locks
// are released; until then only this thread knows of it.
#include "xfer/transports/rdma/peer_connections.h"

namespace mc::xfer::rdma {
namespace {

constexpr int kLooksNow = 256;  // some 10 us, which others may have to wait
constexpr size_t kPolledNow = 8;

// Posts the connection's only transfer. True: it is done, well. `good`: the connection is.
bool look(Connection& c, bool* good, std::vector<ibv_wc>* others) {
  *good = c.post().has_value();
  std::vector<Connection::Done> done;
  for (int i = 0; i < kLooksNow && *good && others->empty(); ++i) {
    ibv_wc got[kPolledNow];
    const size_t n = c.device()->poll(got);
    for (size_t k = 0; k < n; ++k) {
      if (static_cast<uint32_t>(got[k].wr_id >> 32) != c.id())
        others->push_back(got[k]);
      else
        *good = *good && c.completed(got[k], &done);
    }
    if (!done.empty()) return true;
  }
  return false;
}

}  // namespace

Transport::InlineResult PeerConnections::try_inline(const Request& r, const MemoryLocation& memory,
                                                    const Transport::Begin& begin) {
  const RailIndex rail = first_.load(std::memory_order_relaxed);
  Endpoint& e = *endpoints_[rail];
  const MemoryEnds ends(memory, peer_->memory_at(r.offset));
  if (!nic_of(rail).up() || barriers_.load() > 0 ||
      !queue_.free_for(rail, r.bytes, r.priority, ends) || e.pumps.fetch_add(1) > 0)
    return Transport::InlineResult::kDeclined;
  const Transport::InlineResult now =
      claim(rail, true) ? post_now(rail, r, begin) : Transport::InlineResult::kDeclined;
  loose_.store(true, std::memory_order_relaxed);
  // It stays claimed until the next tick. Who asked for a look meanwhile has it.
  for (uint32_t asked = 1; (asked = e.pumps.fetch_sub(asked) - asked) > 0;) feed(rail);
  return now;
}

Transport::InlineResult PeerConnections::post_now(RailIndex rail, const Request& r,
                                                  const Transport::Begin& begin) {
  Nic& nic = nic_of(rail);
  Endpoint& e = *endpoints_[rail];
  DevicePtr device;
  uint32_t inline_max = 0;
  {
    Lock lock(e.mutex);
    if (e.state != State::kReady || !e.connection->flights().empty())
      return Transport::InlineResult::kDeclined;
    device = e.connection->device();
    inline_max = e.connection->inline_max();
  }
  Result<FlightPtr> flight = prepare(rail, device, inline_max,
                                     {r.op, r.local, {0, r.offset, r.bytes, 1, 0, 0}, {}, false});
  if (!flight || !nic.poll_lock().try_lock()) return Transport::InlineResult::kDeclined;
  Transport::InlineResult now = Transport::InlineResult::kDeclined;
  Outbox out;
  Time sent{}, heard{};
  std::vector<ibv_wc> others;
  {
    Lock lock(e.mutex);
    const bool free = e.state == State::kReady && e.connection->flights().empty() &&
                      e.connection->device() == device;
    if (free && find(e.route, *e.connection, {}, **flight) && e.connection->add(*flight)) {
      bool good = true;
      const bool done = look(*e.connection, &good, &others);
      if (!done) (*flight)->attempt = queue_.adopt(begin(), rail);
      if (!good) out.broken.push_back({shared_from_this(), rail, e.connection->id()});
      heard = e.connection->heard = clock_.now();
      sent = (*flight)->since;
      now = done ? Transport::InlineResult::kDone : Transport::InlineResult::kInFlight;
    }
  }
  transport_.sort(nic, *device, others, out);
  nic.poll_lock().unlock();
  transport_.tell(out);
  if (now == Transport::InlineResult::kDone)
    queue_.carried(rail, r.bytes, r.priority, heard - sent, heard);
  return now;
}

}  // namespace mc::xfer::rdma
