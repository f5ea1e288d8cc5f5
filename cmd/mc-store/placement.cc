// Placement verbs: pin, unpin, why, cp, mv, replicas, drain.
#include <poll.h>

#include <ctime>

#include "base/json.h"
#include "cmd/mc-store/verbs.h"
#include "store/metadata/table.h"

namespace mc::store {
namespace {

constexpr int kPollMs = 100;

struct PinOptions : ClientVerb {
  std::vector<std::string> keys;
  bool soft = false;
  Duration ttl{};
  void describe(OptionList& v) {
    ClientVerb::describe(v);
    v("soft", soft, "evict it only if there is nothing else, instead of never");
    v("ttl", ttl, "how long the pin lasts; 0: until it is lifted");
  }
};
struct UnpinOptions : ClientVerb {
  std::vector<std::string> keys;
};
struct KeyOptions : ClientVerb {
  std::string key;
};
struct MoveOptions : ClientVerb {
  std::string key, to, from;
  void describe(OptionList& v) {
    ClientVerb::describe(v);
    v("to", to, "node to put it on; empty: where there is most room");
  }
};
struct MvOptions : MoveOptions {
  void describe(OptionList& v) {
    MoveOptions::describe(v);
    v("from", from, "node whose replica is given up; empty: the first");
  }
};
struct ReplicasOptions : ClientVerb {
  std::string key;
  std::string count;
};
struct DrainOptions : ClientVerb {
  std::string node;
  bool cancel = false, wait = true;
  void describe(OptionList& v) {
    ClientVerb::describe(v);
    v("cancel", cancel, "give the node new objects again");
    v("wait", wait, "until it is empty");
  }
};

Result<int> run_pin(const ClientVerb& o, const std::vector<std::string>& keys, Pin pin,
                    Duration ttl, const Context& context) {
  for (const auto& key : keys) MC_TRY_(check_object_key(key));
  MC_TRY(auto session, Session::open(o));
  MC_TRY(const Outcomes done,
         session->client().call(PinKeys{keys, static_cast<uint8_t>(pin),
                                        static_cast<uint64_t>(ttl / std::chrono::milliseconds(1)),
                                        o.client.tenant}));
  size_t pinned = 0;
  Result<> first;
  for (const Outcome& outcome : done.items) {
    pinned += outcome.ok() ? 1 : 0;
    if (first && !outcome.ok()) first = outcome.result();
  }
  const char* verb = pin == Pin::kNone ? "unpinned" : "pinned";
  put(context.json ? dump_json({{verb, pinned}}) + "\n" : strf("%s %zu\n", verb, pinned));
  MC_TRY_(first);
  return 0;
}

std::string when(uint64_t ms) {
  const auto seconds = static_cast<std::time_t>(ms / 1000);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return strf("%s.%03uZ", text, static_cast<unsigned>(ms % 1000));
}

Result<int> run_why(const KeyOptions& o, const Context& context) {
  MC_TRY_(check_object_key(o.key));
  MC_TRY(auto session, Session::open(o));
  MC_TRY(const Explained why, session->client().call(Explain{o.key, o.client.tenant}));
  constexpr const char* kKinds[] = {"?", "stored", "removed", "moved"};
  const auto kind = [&](const Event& e) { return kKinds[e.kind < 4 ? e.kind : 0]; };
  if (context.json) {
    Json events = Json::array();
    for (const Event& e : why.events)
      events.push_back({{"seq", e.seq},
                        {"kind", kind(e)},
                        {"at", when(e.at_ms)},
                        {"nodes", e.nodes},
                        {"reason", e.reason}});
    put(dump_json(
            {{"key", o.key}, {"state", why.state}, {"facts", why.facts}, {"events", events}}) +
        "\n");
    return 0;
  }
  put(strf("%s: %s\n", escape(o.key).c_str(), escape(why.state).c_str()));
  for (const auto& fact : why.facts) put("  " + escape(fact) + "\n");
  for (const Event& e : why.events)
    put(strf("  %s %s on %s%s%s\n", when(e.at_ms).c_str(), kind(e), escape(e.nodes).c_str(),
             e.reason.empty() ? "" : ": ", escape(e.reason).c_str()));
  if (why.events.empty()) put("  no event of it is kept: it was long ago, or never\n");
  return 0;
}

Result<> finish(Client& client, TaskInfo task) {
  while (task.state == "running") {
    ::poll(nullptr, 0, kPollMs);
    MC_TRY(task, client.call(QueryTask{task.task}));
  }
  if (task.state == "failed") return fail(Code::kUnavailable, "%s", task.what.c_str());
  return {};
}

Result<int> run_copy(const MoveOptions& o, bool move) {
  MC_TRY_(check_object_key(o.key));
  MC_TRY(auto session, Session::open(o));
  MC_TRY(TaskInfo task,
         session->client().call(CopyKey{o.key, o.to, o.from, move, o.client.tenant}));
  MC_TRY_(finish(session->client(), std::move(task)));
  return 0;
}

Result<int> run_replicas(const ReplicasOptions& o) {
  MC_TRY_(check_object_key(o.key));
  MC_TRY(const uint64_t count, parse_uint(o.count));
  if (count > kReplicasMax)
    return fail(Code::kInvalid, "replicas %s: want 1 to %u", o.count.c_str(), kReplicasMax);
  MC_TRY(auto session, Session::open(o));
  for (;;) {
    MC_TRY(TaskInfo task, session->client().call(ChangeReplicas{o.key, static_cast<uint32_t>(count),
                                                                o.client.tenant}));
    if (task.state == "done") return 0;
    MC_TRY_(finish(session->client(), std::move(task)));
  }
}

void show_drain(const DrainInfo& d, const Context& context) {
  if (context.json)
    return put(dump_json({{"node", d.node},
                          {"state", d.state},
                          {"why", d.why},
                          {"objects-left", d.objects_left},
                          {"bytes-left", d.bytes_left},
                          {"moved", d.moved},
                          {"moved-bytes", d.moved_bytes},
                          {"eta-ms", d.eta_ms}}) +
               "\n");
  put(strf(
      "%s: %s, %llu object(s) of %s left, %llu moved%s%s%s\n", escape(d.node).c_str(),
      d.state.c_str(), static_cast<unsigned long long>(d.objects_left),
      rounded_bytes_text(d.bytes_left).c_str(), static_cast<unsigned long long>(d.moved),
      d.eta_ms > 0 ? strf(", about %.1f s to go", static_cast<double>(d.eta_ms) / 1e3).c_str() : "",
      d.why.empty() ? "" : ": ", escape(d.why).c_str()));
}

Result<int> run_drain(const DrainOptions& o, const Context& context) {
  MC_TRY(auto session, Session::open(o));
  const auto ask = [&](DrainAction action) {
    return session->client().call(Drain{o.node, static_cast<uint8_t>(action)});
  };
  MC_TRY(DrainInfo info, ask(o.cancel ? DrainAction::kCancel : DrainAction::kStart));
  std::string shown_state;
  uint64_t shown_left = UINT64_MAX;
  while (o.wait && !o.cancel && info.state != "drained") {
    // A tenth of the way, or another state, is worth a line.
    if (info.state != shown_state || info.bytes_left < shown_left - shown_left / 10) {
      show_drain(info, context);
      shown_state = info.state;
      shown_left = info.bytes_left;
    }
    ::poll(nullptr, 0, kPollMs);
    MC_TRY(info, ask(DrainAction::kQuery));
    if (info.state == "none") return fail(Code::kUnavailable, "node %s left", o.node.c_str());
  }
  show_drain(info, context);
  return 0;
}

}  // namespace

void add_pin(Program& program) {
  program.verb<PinOptions>("pin", "keep objects from being evicted", [](Verb& v, PinOptions& o) {
    v.positional_many("KEY", o.keys, "keys to pin");
    v.example("mc-store pin system-prompt --ttl 1h", "for an hour");
    v.run_with([&o](Context& context) {
      return run_pin(o, o.keys, o.soft ? Pin::kSoft : Pin::kHard, o.ttl, context);
    });
  });
}

void add_unpin(Program& program) {
  program.verb<UnpinOptions>("unpin", "lift pins", [](Verb& v, UnpinOptions& o) {
    v.positional_many("KEY", o.keys, "keys to unpin");
    v.example("mc-store unpin system-prompt", "let it be evicted again");
    v.run_with([&o](Context& context) { return run_pin(o, o.keys, Pin::kNone, {}, context); });
  });
}

void add_why(Program& program) {
  program.verb<KeyOptions>(
      "why", "tell where a key is, or why it is gone", [](Verb& v, KeyOptions& o) {
        v.positional("KEY", o.key, "the object's key");
        v.example("mc-store why greeting", "when stored, where, evicted by what");
        v.run_with([&o](Context& context) { return run_why(o, context); });
      });
}

void add_cp(Program& program) {
  program.verb<MoveOptions>("cp", "make one more replica of an object",
                            [](Verb& v, MoveOptions& o) {
                              v.positional("KEY", o.key, "the object's key");
                              v.example("mc-store cp greeting --to n2", "on node n2");
                              v.run_with([&o](Context&) { return run_copy(o, false); });
                            });
}

void add_mv(Program& program) {
  program.verb<MvOptions>("mv", "move a replica to another node", [](Verb& v, MvOptions& o) {
    v.positional("KEY", o.key, "the object's key");
    v.example("mc-store mv greeting --from n1 --to n2", "from node n1 to node n2");
    v.run_with([&o](Context&) { return run_copy(o, true); });
  });
}

void add_replicas(Program& program) {
  program.verb<ReplicasOptions>(
      "replicas", "change how many replicas an object has", [](Verb& v, ReplicasOptions& o) {
        v.positional("KEY", o.key, "the object's key");
        v.positional("COUNT", o.count, "1 to 8");
        v.example("mc-store replicas greeting 2", "one more, or one less");
        v.run_with([&o](Context&) { return run_replicas(o); });
      });
}

void add_drain(Program& program) {
  program.verb<DrainOptions>("drain", "move all objects off a node", [](Verb& v, DrainOptions& o) {
    v.positional("NODE", o.node, "its name");
    v.example("mc-store drain n1", "show progress until it is empty");
    v.example("mc-store drain n1 --cancel", "give it new objects again");
    v.run_with([&o](Context& context) { return run_drain(o, context); });
  });
}

}  // namespace mc::store
