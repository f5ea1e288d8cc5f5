#include "trace/analyze/routing.h"

#include <algorithm>

#include "base/random.h"

namespace mc::trace {
namespace {

constexpr double kBlackHole = 0.9;

// An LRU cache over dense ids: a ring of links, its head the youngest.
class LruCache {
 public:
  LruCache(uint32_t distinct, uint64_t capacity)
      : capacity_(capacity), head_(distinct), links_(distinct + 1, Link{kOut, kOut}) {
    links_[head_] = {head_, head_};
  }
  uint64_t match(std::span<const uint32_t> ids) const {
    uint64_t h = 0;
    while (h < ids.size() && links_[ids[h]].older != kOut) ++h;
    return h;
  }
  // Last block first, so that the first is the youngest.
  void touch(std::span<const uint32_t> ids) {
    for (size_t k = ids.size(); k-- > 0;) {
      const uint32_t id = ids[k];
      if (links_[id].older != kOut)
        unlink(id);
      else
        ++size_;
      const uint32_t second = links_[head_].older;
      links_[id] = {second, head_};
      links_[second].younger = id;
      links_[head_].older = id;
    }
    for (; size_ > capacity_; --size_) unlink(links_[head_].younger);
  }

 private:
  static constexpr uint32_t kOut = UINT32_MAX;
  struct Link {
    uint32_t older, younger;
  };
  void unlink(uint32_t id) {
    const Link at = links_[id];
    links_[at.older].younger = at.younger;
    links_[at.younger].older = at.older;
    links_[id] = {kOut, kOut};
  }
  uint64_t capacity_, size_ = 0;
  uint32_t head_;
  std::vector<Link> links_;
};

struct CachingNode {
  LruCache cache;
  uint64_t requests = 0;
};

size_t fewest_requests(const std::vector<CachingNode>& nodes) {
  return static_cast<size_t>(std::min_element(nodes.begin(), nodes.end(),
                                              [](const CachingNode& a, const CachingNode& b) {
                                                return a.requests < b.requests;
                                              }) -
                             nodes.begin());
}

size_t longest(const std::vector<CachingNode>& nodes, std::span<const uint32_t> ids,
               uint64_t ignored) {
  size_t best = fewest_requests(nodes);
  uint64_t best_match = std::max(nodes[best].cache.match(ids), ignored);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const uint64_t h = nodes[n].cache.match(ids);
    if (h < best_match || h <= ignored) continue;
    if (h > best_match || nodes[n].requests < nodes[best].requests) best = n;
    best_match = h;
  }
  return best;
}

RoutingHits run(const Numbered& p, const std::string& route, const RoutingOptions& o,
                bool full_only) {
  RoutingHits out;
  out.route = route;
  const bool pool = route == "pool";
  const uint64_t total =
      o.node_blocks > kUnlimited / o.nodes ? kUnlimited : o.node_blocks * o.nodes;
  std::vector<CachingNode> nodes(pool ? 1 : o.nodes,
                                 CachingNode{LruCache(p.distinct, pool ? total : o.node_blocks)});
  out.hits.capacity_blocks = total;
  Random random(o.seed);
  for (size_t i = 0; i < p.size(); ++i) {
    const auto ids = p.of(i, full_only);
    size_t at = 0;
    if (route == "random") at = random.below(nodes.size());
    if (route == "longest") at = longest(nodes, ids, 0);
    if (route == "nontrivial") at = longest(nodes, ids, o.trivial_blocks);
    if (route == "sticky") {
      const auto all = p.all(i);
      at = mix64(all[std::min<uint64_t>(o.trivial_blocks, all.size() - 1)]) % nodes.size();
    }
    const uint64_t h = nodes[at].cache.match(ids);
    if (full_only) {
      out.hits.hit_full_blocks += h;
      if (o.each) out.each.push_back(h);
    } else {
      out.hits.hit_blocks += h;
      out.hits.hit_tokens += p.tokens_in(i, h);
    }
    nodes[at].cache.touch(ids);
    ++nodes[at].requests;
  }
  uint64_t most = 0;
  for (const CachingNode& n : nodes) {
    out.nodes_used += n.requests > 0;
    most = std::max(most, n.requests);
  }
  if (p.size()) out.requests_max_share = static_cast<double>(most) / static_cast<double>(p.size());
  out.black_hole = nodes.size() > 1 && out.requests_max_share > kBlackHole;
  return out;
}

}  // namespace

Result<std::vector<RoutingHits>> routing_study(const Numbered& prompts,
                                               const RoutingOptions& options) {
  if (options.nodes < 1 || options.nodes > kRouteNodesMax)
    return fail(Code::kInvalid, "local caches of %llu nodes: want 1 to %llu",
                static_cast<unsigned long long>(options.nodes),
                static_cast<unsigned long long>(kRouteNodesMax));
  std::vector<RoutingHits> out;
  for (const std::string& route : kRoutes) {
    RoutingHits all = run(prompts, route, options, false);
    RoutingHits full = run(prompts, route, options, true);
    all.hits.hit_full_blocks = full.hits.hit_full_blocks;
    all.each = std::move(full.each);
    out.push_back(std::move(all));
  }
  return out;
}

}  // namespace mc::trace
