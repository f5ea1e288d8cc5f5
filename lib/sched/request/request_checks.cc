// What must hold at any time. For tests.
#include <map>

#include "sched/request/request_machine.h"
#include "sched/request/request_record.h"

namespace mc::sched {
namespace {

struct Charges {  // of what requests have on one worker
  uint64_t requests = 0, context_tokens = 0, answering = 0, answering_tokens = 0, jobs = 0;
  bool operator==(const Charges&) const = default;
};

std::string text(const Charges& s) {
  return strf("%llu requests, %llu tokens, %llu answering with %llu, %llu jobs",
              static_cast<unsigned long long>(s.requests),
              static_cast<unsigned long long>(s.context_tokens),
              static_cast<unsigned long long>(s.answering),
              static_cast<unsigned long long>(s.answering_tokens),
              static_cast<unsigned long long>(s.jobs));
}

// Of its sides, in its state.
bool sides_fit(const RequestRecord& r) {
  const bool none = r.decode == DecodeSide::kNone && r.prefill == PrefillSide::kNone &&
                    r.source == SourceSide::kNone;
  const bool asked = r.prefill != PrefillSide::kNone;
  switch (r.state) {
    case RequestState::kWaiting: return none && r.proxy == ProxySide::kNone;
    case RequestState::kProxied: return none && r.proxy != ProxySide::kNone;
    case RequestState::kReserving:
      return !asked && (r.decode == DecodeSide::kReserveSent ||
                        (r.decode == DecodeSide::kReserved &&
                         (r.source == SourceSide::kPinSent || r.behind.request != 0)));
    case RequestState::kAllocating:
      return r.decode == DecodeSide::kReserved &&
             (r.prefill == PrefillSide::kAllocateSent || r.prefill == PrefillSide::kComputed);
    case RequestState::kPrefilling:
      return r.decode == DecodeSide::kReserved &&
             (r.prefill == PrefillSide::kAllocated || r.prefill == PrefillSide::kComputed);
    case RequestState::kDecoding:
      return r.decode == DecodeSide::kDecoding && (r.committed() || r.prefill_over());
    case RequestState::kFinishing: return r.decode == DecodeSide::kFinished && !r.prefill_over();
  }
  return false;
}

}  // namespace

std::string broken(const RequestRecord& r) {
  const std::string who =
      strf("request %llu, %s: ", static_cast<unsigned long long>(r.id), name(r.state));
  if (!sides_fit(r)) return who + "what its workers were told does not fit its state";
  if (r.deadline == Time::max()) return who + "no deadline";
  if (r.own_tokens() > 0 && r.on_workers() && !r.committed() && !r.prefill_over())
    return who + "tokens without a commit";
  return {};
}

std::string RequestMachine::broken() const {
  std::map<std::string, Charges> due;
  size_t waiting = 0;
  for (const auto& [id, r] : requests_) {
    if (std::string wrong = sched::broken(*r); !wrong.empty()) return wrong;
    waiting += r->state == RequestState::kWaiting ? 1 : 0;
    if (r->behind.request != 0 && !followers_.fetches(r->behind))
      return strf("request %llu is behind one that fetches nothing any more",
                  static_cast<unsigned long long>(id));
    if ((r->state == RequestState::kWaiting) != room_.has(id))
      return strf("request %llu waits, and is not in the room, or the other way round",
                  static_cast<unsigned long long>(id));
    if (fleet_.roster().find(r->decode_at()) != nullptr && r->on_workers()) {
      Charges& s = due[r->decode_at().node];
      ++s.requests;
      s.context_tokens += r->ask.prompt_tokens + r->own_tokens();
      s.answering += has_token(*r) ? 1 : 0;
      s.answering_tokens += has_token(*r) ? r->ask.prompt_tokens : 0;
    }
    if (fleet_.roster().find(r->prefill_at()) != nullptr && r->counts_at_prefill()) {
      ++due[r->prefill_at().node].requests;
      ++due[r->prefill_at().node].jobs;
    }
  }
  if (waiting != room_.size()) return "the room has requests that do not wait";
  for (const auto& [node, w] : fleet_.roster().all()) {
    const Charges is{w->requests, w->context_tokens, w->answering, w->answering_tokens,
                     w->ledger.jobs()};
    if (is != due[node]) return node + ": " + text(is) + " charged, due are " + text(due[node]);
  }
  return {};
}

}  // namespace mc::sched
