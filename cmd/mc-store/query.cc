#include "base/json.h"
#include "cmd/mc-store/verbs.h"

namespace mc::store {
namespace {

struct KeysOptions : ClientVerb {
  std::vector<std::string> keys;
};
struct LsOptions : ClientVerb {
  std::string prefix;
  uint64_t limit = 0;
  void describe(OptionList& v) {
    ClientVerb::describe(v);
    v("limit", limit, "how many objects to list; 0: all");
  }
};

Result<int> run_exists(const KeysOptions& o, const Context& context) {
  for (const auto& key : o.keys) MC_TRY_(check_object_key(key));
  MC_TRY(auto session, Session::open(o));
  MC_TRY(const std::vector<bool> found, session->client().exists(o.keys));
  bool all = true;
  Json json = Json::object();
  for (size_t i = 0; i < found.size(); ++i) {
    all = all && found[i];
    json[o.keys[i]] = bool{found[i]};
    if (!context.json) put(strf("%s %s\n", found[i] ? "yes" : "no", escape(o.keys[i]).c_str()));
  }
  if (context.json) put(dump_json(json) + "\n");
  return all ? 0 : 1;
}

Result<int> run_match(const KeysOptions& o, const Context& context) {
  for (const auto& key : o.keys) MC_TRY_(check_object_key(key));
  MC_TRY(auto session, Session::open(o));
  MC_TRY(const uint64_t hits, session->client().match_prefix(o.keys));
  if (context.json)
    put(dump_json({{"hits", hits}, {"of", o.keys.size()}}) + "\n");
  else
    put(strf("%llu of %zu\n", static_cast<unsigned long long>(hits), o.keys.size()));
  return hits == o.keys.size() ? 0 : 1;
}

Result<int> run_ls(const LsOptions& o, const Context& context) {
  MC_TRY(auto session, Session::open(o));
  std::string after;
  uint64_t left = o.limit == 0 ? UINT64_MAX : o.limit;
  for (bool more = true; more && left > 0;) {
    constexpr uint64_t kPageOfList = 1000;
    MC_TRY(const Listed page,
           session->client().list(o.prefix, after,
                                  static_cast<uint32_t>(std::min(left, kPageOfList))));
    for (const ObjectInfo& x : page.items) {
      if (context.json)
        put(dump_json({{"key", x.key},
                       {"bytes", x.bytes},
                       {"checksum", strf("%016llx", static_cast<unsigned long long>(x.checksum))},
                       {"replicas", x.replicas},
                       {"disks", x.disks},
                       {"leased", x.leased}}) +
            "\n");
      else
        put(strf("%10s  %u%s%s  %s\n", rounded_bytes_text(x.bytes).c_str(), x.replicas,
                 x.disks > 0 ? "+disk" : "", x.leased ? " leased" : "       ",
                 escape(x.key).c_str()));
      after = x.key;
    }
    left -= std::min<uint64_t>(left, page.items.size());
    more = page.more && !page.items.empty();
  }
  return 0;
}

Json node_json(const NodeStat& n) {
  return {{"name", n.name}, {"control", n.control},   {"state", n.state},
          {"used", n.used}, {"capacity", n.capacity}, {"objects", n.objects}};
}

Result<int> run_stat(const ClientVerb& o, const Context& context) {
  MC_TRY(auto session, Session::open(o));
  MC_TRY(const ClusterStat s, session->client().stat());
  if (context.json) {
    Json nodes = Json::array();
    for (const NodeStat& n : s.nodes) nodes.push_back(node_json(n));
    put(dump_json({{"epoch", s.epoch},
                   {"capacity", s.capacity},
                   {"used", s.used},
                   {"objects", s.objects},
                   {"object-bytes", s.object_bytes},
                   {"leased", s.leased},
                   {"evicted-objects", s.evicted_objects},
                   {"evicted-bytes", s.evicted_bytes},
                   {"rebuilding", s.rebuilding},
                   {"disk-objects", s.disk_objects},
                   {"disk-bytes", s.disk_bytes},
                   {"disks", s.tiers.size()},
                   {"offloading", s.offloading},
                   {"nodes", nodes}}) +
        "\n");
    return 0;
  }
  put(strf("%zu node(s), %s of %s used, %llu object(s) of %s, %llu leased, %llu evicted so far\n",
           s.nodes.size(), rounded_bytes_text(s.used).c_str(),
           rounded_bytes_text(s.capacity).c_str(), static_cast<unsigned long long>(s.objects),
           rounded_bytes_text(s.object_bytes).c_str(), static_cast<unsigned long long>(s.leased),
           static_cast<unsigned long long>(s.evicted_objects)));
  if (!s.tiers.empty())
    put(strf("%zu disk(s) with %llu object(s) of %s\n", s.tiers.size(),
             static_cast<unsigned long long>(s.disk_objects),
             rounded_bytes_text(s.disk_bytes).c_str()));
  if (!s.rebuilding.empty()) put(escape(s.rebuilding) + "\n");
  for (const NodeStat& n : s.nodes)
    put(strf("  %-16s %-8s %10s of %-10s %8llu object(s)  %s\n", escape(n.name).c_str(),
             n.state.c_str(), rounded_bytes_text(n.used).c_str(),
             rounded_bytes_text(n.capacity).c_str(), static_cast<unsigned long long>(n.objects),
             escape(n.control).c_str()));
  return 0;
}

// What each node gives: memory, then its disk.
Result<int> run_df(const ClientVerb& o, const Context& context) {
  MC_TRY(auto session, Session::open(o));
  MC_TRY(const ClusterStat s, session->client().stat());
  const auto line = [&](const std::string& node, const char* tier, uint64_t capacity, uint64_t used,
                        uint64_t objects, const std::string& trouble) {
    const double share =
        capacity > 0 ? static_cast<double>(used) / static_cast<double>(capacity) : 0;
    if (context.json)
      put(dump_json({{"node", node},
                     {"tier", tier},
                     {"capacity", capacity},
                     {"used", used},
                     {"objects", objects},
                     {"trouble", trouble}}) +
          "\n");
    else
      put(strf("%-16s %-6s %10s %10s %4.0f%% %9llu  %s\n", escape(node).c_str(), tier,
               rounded_bytes_text(capacity).c_str(), rounded_bytes_text(used).c_str(), 100 * share,
               static_cast<unsigned long long>(objects), escape(trouble).c_str()));
  };
  if (!context.json)
    put(strf("%-16s %-6s %10s %10s %5s %9s\n", "node", "tier", "size", "used", "use", "objects"));
  for (const NodeStat& n : s.nodes) {
    line(n.name, "memory", n.capacity, n.used, n.objects, n.state == "ready" ? "" : n.state);
    for (const TierStat& t : s.tiers)
      if (t.name == n.name) line(t.name, "ssd", t.capacity, t.used, t.objects, t.trouble);
  }
  return 0;
}

}  // namespace

void add_df(Program& program) {
  program.verb<ClientVerb>("df", "show how full memory and disks are", [](Verb& v, ClientVerb& o) {
    v.example("mc-store df", "a line for each tier of each node");
    v.run_with([&o](Context& context) { return run_df(o, context); });
  });
}

void add_exists(Program& program) {
  program.verb<KeysOptions>("exists", "tell whether keys are stored", [](Verb& v, KeysOptions& o) {
    v.positional_many("KEY", o.keys, "keys to look up");
    v.example("mc-store exists greeting && echo there", "by exit status");
    v.exit_status(1, "not all keys are stored");
    v.run_with([&o](Context& context) { return run_exists(o, context); });
  });
}

void add_match(Program& program) {
  program.verb<KeysOptions>(
      "match", "tell how many keys, from the first, are stored without a gap",
      [](Verb& v, KeysOptions& o) {
        v.positional_many("KEY", o.keys, "keys in order, as of the blocks of a prompt; leased");
        v.example("mc-store match block-0 block-1 block-2",
                  "prints '2 of 3' where the last is not");
        v.exit_status(1, "not all keys are stored");
        v.run_with([&o](Context& context) { return run_match(o, context); });
      });
}

void add_ls(Program& program) {
  program.verb<LsOptions>("ls", "list objects by key", [](Verb& v, LsOptions& o) {
    v.positional("PREFIX", o.prefix, "only keys that start with it", false);
    v.example("mc-store ls model-a/ --output json", "one JSON object a line");
    v.run_with([&o](Context& context) { return run_ls(o, context); });
  });
}

void add_stat(Program& program) {
  program.verb<ClientVerb>("stat", "show the pool and its nodes", [](Verb& v, ClientVerb& o) {
    v.example("mc-store stat", "capacity, use, objects, and each node");
    v.run_with([&o](Context& context) { return run_stat(o, context); });
  });
}

}  // namespace mc::store
