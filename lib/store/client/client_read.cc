// Chooses the replica of a read, and hedges reads that are late.
#include <ifaddrs.h>
#include <netdb.h>

#include <algorithm>
#include <set>

#include "io/address.h"
#include "store/client/client_impl.h"

namespace mc::store {
namespace {

constexpr Duration kTurn = std::chrono::milliseconds(1);

const std::set<std::string>& own_addresses() {
  static const std::set<std::string> all = [] {
    std::set<std::string> out;
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return out;
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr) continue;
      const int family = i->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      char host[NI_MAXHOST] = "";
      const socklen_t n = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(i->ifa_addr, n, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0)
        out.insert(host);
    }
    ::freeifaddrs(list);
    return out;
  }();
  return all;
}

bool on_this_host(const std::string& control) {
  const auto address = io::parse_address(control);
  return address && (io::is_loopback(address->host) || own_addresses().contains(address->host));
}

}  // namespace

bool Client::far(xfer::SegmentHandle segment) const {
  const std::string transport = engine_.transport_of(segment);
  return transport == "tcp" || transport == "rdma";
}

// Smaller is nearer: this process, memory of this host, possibly this host, then the rails'
// expected time. A node without measurements gets one optimistic try.
double Client::distance(const NodeRef& node, uint64_t bytes) {
  constexpr double kSelf = 0, kShared = 1, kHere = 2, kFar = 3;
  xfer::SegmentHandle segment = 0;
  {
    const Lock lock(holders_.mutex);
    const auto it = holders_.segments.find(node.control);
    if (it == holders_.segments.end()) return on_this_host(node.control) ? kHere : kFar;
    segment = it->second;
  }
  if (engine_.transport_of(segment) == "self") return kSelf;
  if (!far(segment)) return kShared;
  double seconds = 0;
  const auto paths = engine_.paths(segment, 0, xfer::Op::kRead, bytes);
  if (!paths) return kFar;
  for (const xfer::Path& path : *paths)
    if (path.chosen && !path.predicted_s.empty())
      seconds = *std::min_element(path.predicted_s.begin(), path.predicted_s.end());
  return kFar + std::clamp(seconds, 0.0, 1e6);
}

// Orders healthy places by distance. Nodes that were not reached lately come last of these.
void Client::order_places(Replicas& found) {
  constexpr double kUnreached = 1e8, kUnnamed = 1e9;
  for (Located& at : found.items) {
    const size_t healthy = std::min<size_t>(at.healthy, at.places.size());
    if (healthy < 2) continue;
    std::vector<std::pair<double, ReplicaLocation>> by;
    for (size_t i = 0; i < healthy; ++i) {
      const uint32_t node = at.places[i].node;
      const bool named = node < found.nodes.size();
      const bool out = named && shared_->unreached.has(found.nodes[node].name, clock_.now());
      by.emplace_back(out     ? kUnreached
                      : named ? distance(found.nodes[node], at.bytes)
                              : kUnnamed,
                      std::move(at.places[i]));
    }
    std::stable_sort(by.begin(), by.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < healthy; ++i) at.places[i] = std::move(by[i].second);
  }
}

// ---- the local hot cache

void Client::read_hot(std::span<Read> reads) {
  if (shared_->hot_cache == nullptr) return;
  for (Read& r : reads) {
    if (!r.answer.open) continue;
    const LocalHotCache::Value value =
        shared_->hot_cache->find(r.item->key, {r.at->generation, r.at->bytes, r.at->checksum});
    if (value == nullptr) continue;
    r.take(*value);
    r.verified = true;  // when it was kept
    hot_hits_.add();
    r.answer.set(r.item->wanted(r.at->bytes));
  }
}

void Client::keep_hot(const Read& r) {
  const LocalHotCache::Version version{r.at->generation, r.at->bytes, r.at->checksum};
  if (shared_->hot_cache == nullptr || !shared_->hot_cache->wants(r.item->key, version)) return;
  auto value = std::make_shared<std::vector<std::byte>>();
  value->reserve(version.bytes);
  for (const auto& part : r.item->parts) {
    const uint64_t n = std::min<uint64_t>(part.size(), version.bytes - value->size());
    value->insert(value->end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(n));
  }
  shared_->hot_cache->insert(r.item->key, version, std::move(value));
  hot_bytes_.set(static_cast<double>(shared_->hot_cache->bytes()));
}

namespace {

enum class Ended : uint8_t { kNot, kWell, kBadly };

Ended ended(const xfer::Engine& engine, xfer::BatchId batch, size_t first, size_t count) {
  Ended out = Ended::kWell;
  for (size_t i = first; i < first + count; ++i) {
    const xfer::TransferState state = engine.status(batch, i).state;
    if (state == xfer::TransferState::kCompleted) continue;
    if (xfer::finished(state)) return Ended::kBadly;
    out = Ended::kNot;
  }
  return out;
}

}  // namespace

// Computes checksums of arrived values while the rest of the batch moves. The time is bounded,
// because the wait that follows renews the leases. It skips batches whose transport computes them.
void Client::check_early(std::span<Read* const> reading, xfer::BatchId batch, Time deadline) {
  constexpr Duration kWhile = std::chrono::milliseconds(200);
  const Time until = std::min(deadline, clock_.now() + kWhile);
  for (size_t open = reading.size(); open > 0 && clock_.now() < until;) {
    const bool all = engine_.wait(batch, std::min(kTurn, left(until))).has_value();
    open = 0;
    for (Read* r : reading) {
      if (!r->answer.open || r->checksum || !r->whole()) continue;
      const Ended how = ended(engine_, batch, r->first, r->count);
      if (how == Ended::kNot) ++open;
      if (how != Ended::kWell) continue;
      if (r->count == 1 && engine_.status(batch, r->first).digest) return;
      r->checksum = checksum_of(r->item->parts, r->at->bytes);
    }
    if (all) return;
  }
}

// ---- late reads

struct Client::Late {
  Read* read = nullptr;
  NodeRef node;
  const ReplicaLocation* place = nullptr;
  std::vector<std::byte> bytes;  // a separate buffer: the first replica still writes the caller's
  size_t first = 0, count = 0;   // its requests
};

// The overdue reads, if each has another replica to try.
std::vector<Client::Late> Client::overdue_reads(std::span<Read* const> reading, xfer::BatchId batch,
                                                size_t replica, const Replicas& found,
                                                Opened& opened, Time deadline) {
  std::vector<Late> out;
  for (Read* r : reading) {
    if (ended(engine_, batch, r->first, r->count) != Ended::kNot) continue;
    const auto& places = r->at->places;
    if (replica + 1 >= places.size() || places[replica + 1].node >= found.nodes.size()) return {};
    Late late;
    late.read = r;
    late.place = &places[replica + 1];
    late.node = found.nodes[late.place->node];
    if (!segment_of(late.node, opened, deadline)) return {};
    out.push_back(std::move(late));
  }
  return out;
}

// Reads from the next replicas too and takes the first result. It cancels the loser before it
// touches the caller's memory, so nothing else writes there.
void Client::hedge(std::span<Read* const> reading, xfer::BatchId batch, size_t replica,
                   const Replicas& found, Opened& opened, Time deadline) {
  std::vector<Late> late = overdue_reads(reading, batch, replica, found, opened, deadline);
  if (late.empty()) return;
  std::vector<xfer::Request> requests;
  for (Late& l : late) {
    l.bytes.resize(l.read->at->bytes);
    const std::vector<std::span<std::byte>> parts{l.bytes};
    l.first = requests.size();
    append_requests(xfer::Op::kRead, parts, l.read->at->bytes, *l.place, l.read->at->generation,
                    *segment_of(l.node, opened, deadline), deadline, requests);
    l.count = requests.size() - l.first;
  }
  const xfer::BatchId other = engine_.allocate_batch();
  if (engine_.submit(other, requests)) {
    hedged_.add(late.size());
    for (bool open = true; open && left(deadline) > Duration::zero() && !limits.ends();) {
      // Wait for the batch that is likely to end next; the turn is short, so the other is checked
      // soon.
      (void)engine_.wait(other, std::min(kTurn, left(deadline)));
      open = std::any_of(late.begin(), late.end(), [&](const Late& l) {
        const Ended a = ended(engine_, batch, l.read->first, l.read->count);
        const Ended b = ended(engine_, other, l.first, l.count);
        return a != Ended::kWell && b != Ended::kWell && (a == Ended::kNot || b == Ended::kNot);
      });
    }
    for (Late& l : late) adopt_hedge_result(l, batch, other);
  }
  engine_.free_batch(other);
}

void Client::adopt_hedge_result(Late& l, xfer::BatchId batch, xfer::BatchId other) {
  Read& r = *l.read;
  if (ended(engine_, batch, r.first, r.count) == Ended::kWell ||
      ended(engine_, other, l.first, l.count) != Ended::kWell)
    return;
  if (xxh3(l.bytes.data(), l.bytes.size()) != r.at->checksum) {
    corrupt_.add();
    return report_corrupt(r, *l.place, l.node);
  }
  engine_.cancel(batch);  // only the late reads are left in it
  r.take(l.bytes);
  r.verified = true;
  hedges_won_.add();
  r.answer.set(r.item->wanted(r.at->bytes));
}

}  // namespace mc::store
