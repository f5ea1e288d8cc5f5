#include "store/metadata/placement.h"

#include <algorithm>

namespace mc::store {
namespace {

double free_part(const Member& node) {
  return 1.0 - static_cast<double>(node.space.used()) / static_cast<double>(node.space.capacity());
}

bool holds(const Member& node, std::span<const Replica> used) {
  return std::any_of(used.begin(), used.end(), [&](const Replica& r) { return r.node == &node; });
}

bool shares_domain(const Member& node, std::span<const Replica> used) {
  return !node.domain.empty() && std::any_of(used.begin(), used.end(), [&](const Replica& r) {
    return r.node->domain == node.domain;
  });
}

}  // namespace

Result<Strategy> parse_strategy(const std::string& text) {
  if (text == "free-ratio") return Strategy::kFreeRatio;
  if (text == "random") return Strategy::kRandom;
  if (text == "local-first") return Strategy::kLocalFirst;
  return fail(Code::kInvalid, "placement '%s': want free-ratio, random or local-first",
              text.c_str());
}

double ramp(const Member& node, Duration slow_start, Time now) {
  if (slow_start <= Duration::zero()) return 1;
  return std::clamp(to_seconds(now - node.ready_since) / to_seconds(slow_start), 0.05, 1.0);
}

bool place_by(const PlacementOptions& options, const std::vector<Member*>& ready,
              std::span<const Replica> used, const PlacementRequest& request, Time now,
              Random& random, const std::function<bool(Member&)>& attempt) {
  if (ready.empty()) return false;
  const auto accept = [&](Member& node) {
    return !holds(node, used) && !shares_domain(node, used) && attempt(node);
  };
  for (std::string_view rest = request.prefer; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    for (Member* node : ready)
      if (node->ref.name == name && !holds(*node, used) && attempt(*node)) return true;
  }
  const size_t start = ready.size() > 1 ? random.below(ready.size()) : 0;
  if ((request.local || options.strategy == Strategy::kLocalFirst) && !request.host.empty())
    for (size_t i = 0; i < ready.size(); ++i)
      if (Member& node = *ready[(start + i) % ready.size()];
          node.host == request.host && accept(node))
        return true;
  const auto grown = [&](size_t i) -> Member* {  // nullptr if a node in slow start declines
    Member* node = ready[i];
    const double chance = ramp(*node, options.slow_start, now);
    return chance >= 1 || random.chance(chance) ? node : nullptr;
  };
  for (int tries = 0; tries < 2 && ready.size() > 1; ++tries) {
    const size_t first = random.below(ready.size());
    const size_t second = (first + 1 + random.below(ready.size() - 1)) % ready.size();
    Member* a = grown(first);
    Member* b = options.strategy == Strategy::kRandom ? nullptr : grown(second);
    if (a != nullptr && b != nullptr && free_part(*b) > free_part(*a)) std::swap(a, b);
    if (a != nullptr && accept(*a)) return true;
    if (b != nullptr && b != a && accept(*b)) return true;
  }
  for (size_t i = 0; i < ready.size(); ++i)
    if (accept(*ready[(start + i) % ready.size()])) return true;
  for (size_t i = 0; i < ready.size(); ++i)
    if (Member& node = *ready[(start + i) % ready.size()];
        !holds(node, used) && shares_domain(node, used) && attempt(node))
      return true;
  return false;
}

}  // namespace mc::store
