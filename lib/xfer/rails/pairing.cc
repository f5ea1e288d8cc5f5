#include "xfer/rails/pairing.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace mc::xfer {
namespace {

constexpr double kCannot = std::numeric_limits<double>::infinity();

struct Parsed {
  int family = 0;  // 0: no IP address
  std::array<unsigned char, 16> bytes{};
};

Parsed parse(const std::string& text) {
  Parsed p;
  if (::inet_pton(AF_INET, text.c_str(), p.bytes.data()) == 1)
    p.family = AF_INET;
  else if (::inet_pton(AF_INET6, text.c_str(), p.bytes.data()) == 1)
    p.family = AF_INET6;
  return p;
}

bool is_loopback(const Parsed& p) {
  if (p.family == AF_INET) return p.bytes[0] == 127;
  if (p.family != AF_INET6) return false;
  return std::all_of(p.bytes.begin(), p.bytes.end() - 1, [](auto b) { return b == 0; }) &&
         p.bytes[15] == 1;
}

// Could packets go from one to the other at all?
bool reachable(const Nic& a, const Nic& b) {
  const Parsed x = parse(a.address), y = parse(b.address);
  if (x.family == 0 || y.family == 0) return true;  // not ours to judge
  return x.family == y.family && is_loopback(x) == is_loopback(y);
}

// The how-manieth of its NUMA node.
size_t order_in_node(const std::vector<Nic>& nics, size_t index) {
  size_t n = 0;
  for (size_t i = 0; i < index; ++i) n += nics[i].numa == nics[index].numa ? 1 : 0;
  return n;
}

struct Hint {
  double weight = 0;
  const char* why = "";
};

Hint hint(const std::vector<Nic>& local, size_t l, const std::vector<Nic>& remote, size_t r) {
  const Nic &a = local[l], &b = remote[r];
  Hint h;
  const auto add = [&](bool holds, double weight, const char* why) {
    if (!holds) return;
    if (h.weight == 0) h.why = why;
    h.weight += weight;
  };
  add(same_subnet(a, b), 1000, "subnet");
  add(!a.name.empty() && a.name == b.name, 100, "name");
  add(a.numa >= 0 && a.numa == b.numa && order_in_node(local, l) == order_in_node(remote, r), 10,
      "numa");
  add(!a.gpu.empty() && a.gpu == b.gpu, 1, "gpu");
  return h;
}

using Pairs = std::vector<RailPair>;

RailPair* find(Pairs& pairs, size_t l, size_t r) {
  for (RailPair& p : pairs)
    if (p.local == l && p.remote == r) return &p;
  return nullptr;
}

// NICs that no pair was found for take turns with those of the other side.
void round_robin(Pairs& pairs, size_t locals, size_t remotes) {
  std::vector<size_t> uses_local(locals), uses_remote(remotes);
  for (const RailPair& p : pairs)
    if (p.mapped) {
      ++uses_local[p.local];
      ++uses_remote[p.remote];
    }
  const auto join = [&](auto mine_of, auto& uses_mine, auto other_of, auto& uses_other) {
    for (size_t i = 0; i < uses_mine.size(); ++i) {
      if (uses_mine[i] > 0) continue;
      RailPair* best = nullptr;
      for (RailPair& p : pairs)
        if (mine_of(p) == i &&
            (best == nullptr || uses_other[other_of(p)] < uses_other[other_of(*best)]))
          best = &p;
      if (best == nullptr) continue;
      best->mapped = true;
      best->why = "round-robin";
      ++uses_mine[i];
      ++uses_other[other_of(*best)];
    }
  };
  const auto l = [](const RailPair& p) { return p.local; };
  const auto r = [](const RailPair& p) { return p.remote; };
  join(l, uses_local, r, uses_remote);
  join(r, uses_remote, l, uses_local);
}

}  // namespace

bool same_subnet(const Nic& a, const Nic& b) {
  const Parsed x = parse(a.address), y = parse(b.address);
  const uint32_t bits = std::min(a.prefix_bits, b.prefix_bits);
  if (x.family == 0 || x.family != y.family || bits == 0) return false;
  if (bits > (x.family == AF_INET ? 32u : 128u)) return false;
  for (uint32_t i = 0; i < bits; ++i) {
    const auto mask = static_cast<unsigned char>(0x80u >> (i % 8));
    if (((x.bytes[i / 8] ^ y.bytes[i / 8]) & mask) != 0) return false;
  }
  return true;
}

std::vector<RailPair> pair_rails(const std::vector<Nic>& local, const std::vector<Nic>& remote,
                                 const Probed* probed) {
  const size_t rows = local.size(), columns = remote.size();
  const bool measured = probed != nullptr && probed->round_trips.size() == rows * columns;
  Pairs pairs;
  std::vector<double> cost(rows * columns, kCannot);
  std::vector<const char*> why(rows * columns, "probed");
  for (size_t l = 0; l < rows; ++l)
    for (size_t r = 0; r < columns; ++r) {
      const size_t i = l * columns + r;
      if (measured) {
        const auto& round_trip = probed->round_trips[i];
        if (!round_trip) continue;
        cost[i] = static_cast<double>(round_trip->count());
      } else {
        if (!reachable(local[l], remote[r])) continue;
        const Hint h = hint(local, l, remote, r);
        if (h.weight > 0) cost[i] = -h.weight;
        why[i] = h.why;
      }
      pairs.push_back({l, r, false, ""});
    }
  const auto columns_of = match_least_cost(cost, rows, columns);
  for (size_t l = 0; l < rows; ++l) {
    if (columns_of[l] < 0) continue;
    const auto r = static_cast<size_t>(columns_of[l]);
    RailPair* pair = find(pairs, l, r);
    pair->mapped = true;
    pair->why = why[l * columns + r];
  }
  round_robin(pairs, rows, columns);
  return pairs;
}

// Kuhn's method with potentials, row by row (1-based inside; column 0 is a root). A square matrix
// is not needed: rows beyond the columns are matched to dummies.
std::vector<int> match_least_cost(const std::vector<double>& cost, size_t rows, size_t columns) {
  double worst = 1;
  for (double c : cost)
    if (c != kCannot) worst = std::max(worst, std::abs(c));
  const double none = 4 * worst * static_cast<double>(rows + columns + 1);  // dearer than any match
  const size_t m = columns + rows;  // the last `rows` columns are dummies
  const auto at = [&](size_t r, size_t c) {
    if (c >= columns) return none;
    const double v = cost[r * columns + c];
    return v == kCannot ? 2 * none : v;
  };
  std::vector<double> u(rows + 1), v(m + 1);
  std::vector<size_t> row_of(m + 1), way(m + 1);
  for (size_t r = 1; r <= rows; ++r) {
    row_of[0] = r;
    size_t c = 0;
    std::vector<double> least(m + 1, kCannot);
    std::vector<bool> used(m + 1);
    do {
      used[c] = true;
      const size_t here = row_of[c];
      double delta = kCannot;
      size_t next = 0;
      for (size_t j = 1; j <= m; ++j) {
        if (used[j]) continue;
        const double reduced = at(here - 1, j - 1) - u[here] - v[j];
        if (reduced < least[j]) {
          least[j] = reduced;
          way[j] = c;
        }
        if (least[j] < delta) {
          delta = least[j];
          next = j;
        }
      }
      for (size_t j = 0; j <= m; ++j) {
        if (used[j]) {
          u[row_of[j]] += delta;
          v[j] -= delta;
        } else {
          least[j] -= delta;
        }
      }
      c = next;
    } while (row_of[c] != 0);
    for (; c != 0; c = way[c]) row_of[c] = row_of[way[c]];
  }
  std::vector<int> out(rows, -1);
  for (size_t j = 1; j <= columns; ++j)
    if (row_of[j] != 0 && cost[(row_of[j] - 1) * columns + j - 1] != kCannot)
      out[row_of[j] - 1] = static_cast<int>(j - 1);
  return out;
}

}  // namespace mc::xfer
