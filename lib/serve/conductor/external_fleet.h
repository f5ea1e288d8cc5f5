// External engines, as the life of a request sees them.
//
// It knows which of them may answer a request, what they have to do, and what prompts will have
// left in their caches. The exchange with them: conductor_external.cc.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <unordered_map>

#include "sched/request/fleet.h"
#include "serve/external/external_engines.h"
#include "serve/protocol/generate.h"

namespace mc::serve {

class ExternalFleet final : public sched::EngineFleet {
 public:
  using AskOf = std::function<const GenerateRequest&(uint64_t request)>;
  // `model`: the conductor's own.
  ExternalFleet(ExternalEngines& engines, sched::PrefixIndex& index, std::string model,
                std::function<size_t()> slots, AskOf ask_of);

  // `out`: nullptr: none is left out.
  void add(const GenerateRequest& ask, const sched::Exclusions* out, sched::View& to,
           Time now) const;

  // Where the halves of one attempt meet.
  PairMeeting meeting(size_t prompts) { return fresh_meeting(random_, prompts); }

  size_t size() const override { return engines_.all().size(); }
  size_t up() const override { return engines_.up(); }
  bool is_up(const std::string& engine) const override;
  void add(uint64_t request, const sched::Exclusions& out, sched::View& to,
           Time now) const override;
  sched::EnginePair charge(uint64_t request, const sched::Decision& decision,
                           const sched::Exclusions& out, Time now, Time until) override;
  void computed(uint64_t request, const sched::EnginePair& pair, Time now) override;
  void refund(uint64_t request, const sched::EnginePair& pair, bool answered, Time now) override;

 private:
  ExternalEngine* partner(const ExternalEngine& prefill, const sched::Exclusions* out,
                          Time now) const;

  ExternalEngines& engines_;
  sched::PrefixIndex& index_;
  const std::string model_;
  const std::function<size_t()> slots_;
  const AskOf ask_of_;
  std::unordered_map<uint64_t, sched::PrefixIndex::Guess> guesses_;
  Random random_{fresh_seed()};
};

// Whether an engine that is up may take the request for that model: both halves of a pair, or the
// second where it needs no first.
bool may_serve(const ExternalEngines& engines, const std::string& model,
               const ProxiedRequest& request);

}  // namespace mc::serve
