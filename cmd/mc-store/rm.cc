#include <unistd.h>

#include "base/json.h"
#include "cmd/mc-store/verbs.h"

namespace mc::store {
namespace {

struct RmOptions : ClientVerb {
  std::vector<std::string> keys;
  bool force = false, prefix = false;
  void describe(OptionList& v) {
    ClientVerb::describe(v);
    v("force", force, "although they are leased by readers");
    v("prefix", prefix, "the words are prefixes: remove all keys that start with them; '': all");
  }
};

struct Removed {
  uint64_t removed = 0, refused = 0;
  std::string first_refusal;
  Code code{};
};

// A removal is answered when all holders have forgotten it.
Error unanswered(Error error) {
  if (error.code == Code::kTimeout || error.code == Code::kUnavailable)
    error.what +=
        "; or a node that holds some of it does not answer: the master gives it up after its "
        "--client-ttl, run this again then";
  return error;
}

void remove_batch(Client& client, const std::vector<ObjectKey>& keys, bool force, Removed& out) {
  const auto results = client.remove(keys, force);
  for (const auto& result : results) {
    if (result) {
      ++out.removed;
      continue;
    }
    if (out.refused++ == 0) {
      out.first_refusal = unanswered(result.error()).what;
      out.code = result.error().code;
    }
  }
  if (out.removed + out.refused > keys.size() && ::isatty(STDERR_FILENO) == 1)
    std::fprintf(stderr, "\r%llu removed", static_cast<unsigned long long>(out.removed));
}

Result<> remove_prefix(Client& client, const RmOptions& o, const std::string& prefix,
                       Removed& out) {
  RemovePrefix m{prefix, {}, o.force, o.client.tenant};
  for (bool more = true; more;) {
    const auto answer = client.call(m);
    if (!answer) return fail(unanswered(answer.error()));
    const RemovePrefixed& part = *answer;
    if (out.refused == 0 && part.refused > 0) {
      out.first_refusal = part.why;
      out.code = Code::kBusy;
    }
    out.removed += part.removed;
    out.refused += part.refused;
    m.after = part.last;
    more = part.more;
  }
  return {};
}

Result<int> run_rm(const RmOptions& o, const Context& context) {
  MC_TRY(auto session, Session::open(o));
  Removed out;
  if (o.prefix) {
    for (const auto& prefix : o.keys) MC_TRY_(remove_prefix(session->client(), o, prefix, out));
  } else {
    for (const auto& key : o.keys) MC_TRY_(check_object_key(key));
    remove_batch(session->client(), o.keys, o.force, out);
  }
  if (context.json)
    put(dump_json({{"removed", out.removed}, {"refused", out.refused}}) + "\n");
  else
    put(strf("removed %llu\n", static_cast<unsigned long long>(out.removed)));
  if (out.refused == 0) return 0;
  return fail(out.code, "%llu not removed; the first: %s",
              static_cast<unsigned long long>(out.refused), out.first_refusal.c_str());
}

}  // namespace

void add_rm(Program& program) {
  program.verb<RmOptions>("rm", "remove objects", [](Verb& v, RmOptions& o) {
    v.positional_many("KEY", o.keys, "keys, or prefixes with --prefix");
    v.example("mc-store rm greeting", "remove one object, unless a reader leases it");
    v.example("mc-store rm --prefix model-a/ --force", "remove all of a model's blocks, now");
    v.exit_status(1, "some were not removed: not found, or leased");
    v.run_with([&o](Context& context) { return run_rm(o, context); });
  });
}

}  // namespace mc::store
