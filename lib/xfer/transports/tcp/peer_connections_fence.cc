// Fences abandoned writes.
#include <algorithm>

#include "xfer/core/host.h"
#include "xfer/transports/tcp/peer_connections.h"

namespace mc::xfer::tcp {
namespace {
constexpr Duration kFenceTime = std::chrono::seconds(1);  // then the writes fail instead
constexpr Duration kRouteTime = std::chrono::milliseconds(200);
constexpr Duration kPause = std::chrono::milliseconds(20);
}  // namespace

bool TcpTransport::PeerConnections::nothing_given_up() const {
  Lock lock(mutex_);
  return given_up_.empty();
}

Result<> TcpTransport::PeerConnections::retire_given_up(Link& link, const Stream::GiveUp& give_up) {
  for (;;) {
    Nonce nonce;
    {
      Lock lock(mutex_);
      if (given_up_.empty()) return {};
      nonce = given_up_.back();
    }
    MC_TRY_(link.retire(nonce, give_up));
    Lock lock(mutex_);
    std::erase(given_up_, nonce);
  }
}

// Rails by health, `last` after those of equal health.
std::vector<RailIndex> TcpTransport::PeerConnections::by_fitness(RailIndex last) const {
  const auto rails = queue_.view();
  std::vector<RailIndex> out(rails.size());
  for (RailIndex r = 0; r < out.size(); ++r) out[r] = r;
  const auto rank = [&](RailIndex r) {
    return (rails[r].state >= RailState::kResting ? 4 : 0) + (rails[r].info.mapped ? 0 : 2) +
           (r == last ? 1 : 0);
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](RailIndex a, RailIndex b) { return rank(a) < rank(b); });
  return out;
}

bool TcpTransport::PeerConnections::fence_over(RailIndex rail, const Stream::GiveUp& give_up) {
  Link link(peer_, routes_[rail], clock_, kRouteTime);
  return link.open(give_up).has_value() && retire_given_up(link, give_up).has_value();
}

// True once no abandoned write can land any more.
bool TcpTransport::PeerConnections::fence(RailIndex failed, const std::vector<Flight>& waiting) {
  const Time until = clock_.now() + std::min(config_.peer_timeout, kFenceTime);
  const Stream::GiveUp give_up = [&]() -> Result<> {
    if (clock_.now() >= until) return fail(Code::kTimeout, "no answer");
    for (const Flight& f : waiting)
      if (cancelled_or_expired(*f.attempt->slice)) return {};
    return fail(Code::kUnavailable, "no transfer waits for the fence any more");
  };
  while (give_up()) {
    if (!process_alive(peer_->pid)) {
      Lock lock(mutex_);
      given_up_.clear();
      return true;
    }
    for (const RailIndex rail : by_fitness(failed)) {
      if (nothing_given_up()) return true;  // another connection saw to it
      if (!give_up()) return false;
      if (fence_over(rail, give_up)) return true;
    }
    Lock lock(mutex_);
    returned_.wait_for(mutex_, kPause);
  }
  return nothing_given_up();
}

}  // namespace mc::xfer::tcp
