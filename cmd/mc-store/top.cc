// Shows the pool live: contents and rates, node by node.
#include <poll.h>
#include <unistd.h>

#include <cmath>

#include "base/json.h"
#include "cmd/mc-store/verbs.h"
#include "store/protocol/query_messages.h"

namespace mc::store {
namespace {

struct TopOptions : ClientVerb {
  Duration interval = std::chrono::seconds(1);
  bool once = false;
  void describe(OptionList& v) {
    v("interval", interval, "time between two looks, over which rates are taken");
    v("once", once, "one look at the rates of one interval, and end");
    ClientVerb::describe(v);
  }
};

struct Rates {  // a second
  double puts = 0, gets = 0, hit_share = 0, removed = 0, evicted = 0, waited = 0, no_space = 0;
};

Rates between(const ClusterStat& a, const ClusterStat& b, double seconds) {
  // A master that was restarted counts from nothing.
  const auto rate = [&](uint64_t before, uint64_t now) {
    return now < before ? 0.0 : static_cast<double>(now - before) / seconds;
  };
  Rates r;
  const double hits = rate(a.hits, b.hits);
  r.puts = rate(a.puts, b.puts);
  r.gets = hits + rate(a.misses, b.misses);
  r.hit_share = r.gets > 0 ? hits / r.gets : 0;
  r.removed = rate(a.removed, b.removed);
  r.evicted = rate(a.evicted_objects, b.evicted_objects);
  r.waited = rate(a.puts_waited, b.puts_waited);
  r.no_space = rate(a.put_no_space, b.put_no_space);
  return r;
}

const TierStat* disk_of(const ClusterStat& s, const NodeId& node) {
  for (const TierStat& t : s.tiers)
    if (t.name == node) return &t;
  return nullptr;
}

std::string json_view(const ClusterStat& s, const Rates& r) {
  Json nodes = Json::array();
  for (const NodeStat& n : s.nodes) {
    Json node = {{"name", n.name},         {"state", n.state},        {"used", n.used},
                 {"capacity", n.capacity}, {"objects", n.objects},    {"heard-ms", n.heard_ms},
                 {"disk-used", nullptr},   {"disk-capacity", nullptr}};
    if (const TierStat* t = disk_of(s, n.name)) {
      node["disk-used"] = t->used;
      node["disk-capacity"] = t->capacity;
    }
    nodes.push_back(std::move(node));
  }
  return dump_json({{"epoch", s.epoch},
                    {"used", s.used},
                    {"capacity", s.capacity},
                    {"objects", s.objects},
                    {"disk-objects", s.disk_objects},
                    {"leased", s.leased},
                    {"writing", s.writing},
                    {"offloading", s.offloading},
                    {"rebuilding", s.rebuilding},
                    {"puts-per-s", r.puts},
                    {"gets-per-s", r.gets},
                    {"hit-share", r.gets > 0 ? Json(r.hit_share) : Json(nullptr)},
                    {"removed-per-s", r.removed},
                    {"evicted-per-s", r.evicted},
                    {"puts-waited-per-s", r.waited},
                    {"puts-no-space-per-s", r.no_space},
                    {"nodes", std::move(nodes)}}) +
         "\n";
}

// "[#####-----]  51%"
std::string bar(uint64_t used, uint64_t capacity) {
  constexpr size_t kWidth = 20;
  const double share = capacity > 0 ? static_cast<double>(used) / static_cast<double>(capacity) : 0;
  const size_t full = std::min(kWidth, static_cast<size_t>(std::lround(share * kWidth)));
  return "[" + std::string(full, '#') + std::string(kWidth - full, '-') +
         strf("] %3.0f%%", 100 * share);
}

std::string text_view(const ClusterStat& s, const Rates& r) {
  std::string out = strf(
      "%s of %s used, %llu object(s), %llu on disks, %llu leased, %llu being written\n",
      rounded_bytes_text(s.used).c_str(), rounded_bytes_text(s.capacity).c_str(),
      static_cast<unsigned long long>(s.objects), static_cast<unsigned long long>(s.disk_objects),
      static_cast<unsigned long long>(s.leased), static_cast<unsigned long long>(s.writing));
  out += strf("a second: %.0f puts, %.0f gets", r.puts, r.gets);
  if (r.gets > 0) out += strf(" (%.0f%% hits)", 100 * r.hit_share);
  out += strf(", %.0f removed, %.0f evicted, %.0f puts waited, %.0f found no room\n", r.removed,
              r.evicted, r.waited, r.no_space);
  if (!s.rebuilding.empty()) out += escape(s.rebuilding) + "\n";
  out += strf("%-16s %-9s %-27s %9s  %s\n", "node", "state", "memory", "objects", "disk");
  for (const NodeStat& n : s.nodes) {
    const TierStat* t = disk_of(s, n.name);
    out +=
        strf("%-16s %-9s %-27s %9llu  %s\n", escape(n.name).c_str(), escape(n.state).c_str(),
             bar(n.used, n.capacity).c_str(), static_cast<unsigned long long>(n.objects),
             t == nullptr ? "-" : (bar(t->used, t->capacity) + " " + escape(t->trouble)).c_str());
  }
  return out;
}

Result<int> run_top(const TopOptions& o, const Context& context) {
  if (o.interval < std::chrono::milliseconds(10) || o.interval > std::chrono::hours(1))
    return fail(Code::kInvalid, "interval %s: want 10ms to 1h", to_text(o.interval).c_str());
  MC_TRY(auto session, Session::open(o));
  MC_TRY(ClusterStat before, session->client().stat());
  const bool screen = !context.json && !o.once && ::isatty(STDOUT_FILENO) == 1;
  for (;;) {
    ::poll(nullptr, 0, static_cast<int>(o.interval / std::chrono::milliseconds(1)));
    auto now = session->client().stat();
    if (!now && o.once) return fail(now.error());
    if (screen) put("\x1b[H\x1b[J");
    if (!now) {  // the master may be restarting: look on
      put(escape(now.error().what) + "\n");
    } else {
      const Rates r = between(before, *now, to_seconds(o.interval));
      put(context.json ? json_view(*now, r) : text_view(*now, r));
      before = std::move(*now);
    }
    if (std::fflush(stdout) != 0 || o.once) return 0;  // nobody reads it any more
  }
}

}  // namespace

void add_top(Program& program) {
  program.verb<TopOptions>("top", "watch what the pool holds and does", [](Verb& v, TopOptions& o) {
    v.example("mc-store top", "a screen that changes every second; Ctrl-C ends it");
    v.example("mc-store top --once --output json", "rates of one second, for a script");
    v.run_with([&o](Context& context) { return run_top(o, context); });
  });
}

}  // namespace mc::store
