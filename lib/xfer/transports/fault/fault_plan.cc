#include "xfer/transports/fault/fault_plan.h"

#include <algorithm>

#include "base/json.h"

namespace mc::xfer::fault {

void Rule::describe(OptionList& v) {
  v("at", at, "when the rule begins, from the start");
  v("for", lasts, "how long it lasts; 0s: to the end");
  v("transport", transport, "only slices of this transport",
    {"", "shm", "rdma", "file", "tcp", "self"});
  v("peer", peer, "only slices to this node");
  v("op", op, "only reads or only writes", {"", "read", "write"});
  v("skip", skip, "matching slices to skip first");
  v("count", count, "matching slices to affect after those; 0: all");
  v("share", share, "fraction of those, at random, 0 to 1");
  v("delay", delay, "delay of each slice");
  v("jitter", jitter, "random extra delay, at most this");
  v("bandwidth", bandwidth, "bytes a second over all affected slices; 0: no cap");
  v("drop", drop, "never answer");
  v("stop", stop, "stop this process between the check of the guard and the first byte");
  v("error", error, "fail when submitted, or after the bytes moved", {"", "submit", "completion"});
}

Result<Plan> Plan::parse(std::string_view text, const std::string& where) {
  Plan plan;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line.substr(first).starts_with("//")) continue;
    const std::string here = where + " line " + std::to_string(number);
    if (plan.rules_.size() >= kRulesMax)
      return fail(Code::kInvalid, "%s: more than %zu rules", here.c_str(), kRulesMax);
    auto json = parse_json(line, kJsonFile);
    if (!json) return fail(Code::kInvalid, "%s: %s", here.c_str(), json.error().what.c_str());
    Active a;
    OptionList options;
    a.rule.describe(options);
    MC_TRY_(apply_json(options, *json, here));
    const Rule& r = a.rule;
    if (!(r.share >= 0 && r.share <= 1))
      return fail(Code::kInvalid, "%s: share %g is not between 0 and 1", here.c_str(), r.share);
    if (r.at.count() < 0 || r.lasts.count() < 0 || r.delay.count() < 0 || r.jitter.count() < 0)
      return fail(Code::kInvalid, "%s: a time below zero", here.c_str());
    if (int{r.drop} + int{r.stop} + int{!r.error.empty()} > 1)
      return fail(Code::kInvalid, "%s: drop, stop and error: want one of them", here.c_str());
    plan.rules_.push_back(std::move(a));
  }
  return plan;
}

void Plan::start(Time now, uint64_t seed) {
  start_ = now;
  random_ = Random(seed);
}

bool Plan::takes(Active& a, const Traffic& traffic, Time now) {
  const Rule& r = a.rule;
  const Duration since = now - start_;
  if (since < r.at || (r.lasts.count() > 0 && since - r.at >= r.lasts)) return false;
  if (!r.transport.empty() && r.transport != traffic.transport) return false;
  if (!r.peer.empty() && r.peer != traffic.peer) return false;
  if (!r.op.empty() && (r.op == "read") != (traffic.op == Op::kRead)) return false;
  const uint64_t nth = a.seen++;
  if (nth < r.skip || (r.count > 0 && nth - r.skip >= r.count)) return false;
  return r.share >= 1 || random_.chance(r.share);
}

Verdict Plan::decide(const Traffic& traffic, Time now) {
  Verdict verdict{now, FaultAction::kPass};
  for (Active& a : rules_) {
    if (!takes(a, traffic, now)) continue;
    const Rule& r = a.rule;
    Duration held = r.delay;
    if (r.jitter.count() > 0)
      held += Duration(random_.below(static_cast<uint64_t>(r.jitter.count())));
    verdict.release = std::max(verdict.release, now + held);
    if (r.bandwidth > 0) {
      const double seconds =
          static_cast<double>(traffic.bytes) / static_cast<double>(r.bandwidth.n);
      a.free = std::max(a.free, now) + from_seconds(seconds);
      verdict.release = std::max(verdict.release, a.free);
    }
    if (verdict.action != FaultAction::kPass) continue;
    if (r.stop)
      verdict.action = FaultAction::kStop;
    else if (r.drop)
      verdict.action = FaultAction::kDrop;
    else if (!r.error.empty())
      verdict.action =
          r.error == "submit" ? FaultAction::kFailSubmit : FaultAction::kFailCompletion;
  }
  return verdict;
}

}  // namespace mc::xfer::fault
