// The roster counts its workers, and finds them by their slots, as they join, drain and leave.
#include "sched/request/roster.h"

#include <doctest/doctest.h>

#include <memory>

#include "base/random.h"

using namespace mc;
using namespace mc::sched;

TEST_CASE("workers that are not draining are counted, however many there are") {
  for (const size_t many : {10u, 200u}) {
    CAPTURE(many);
    Random random(many);
    Roster roster;
    std::map<std::string, std::unique_ptr<FleetWorker>> workers;
    for (int i = 0; i < 3000; ++i) {
      const std::string node = "w" + std::to_string(random.below(many));
      if (!workers.contains(node)) {
        auto& w = workers[node] = std::make_unique<FleetWorker>();
        w->node = node;
        w->prefill = random.chance(0.5);
        w->slot = static_cast<PrefixIndex::Slot>(std::stoul(node.substr(1)));
        roster.slots_changed(many);
        roster.join(*w);
      } else if (random.chance(0.5)) {
        FleetWorker* const w = roster.find(node);
        w->draining = !w->draining;
      } else if (random.chance(0.2)) {
        roster.leave(*workers[node]);
        workers.erase(node);
      }
      if (random.chance(0.3)) roster.take_changed();
      for (const bool prefill : {true, false}) {
        size_t n = 0;
        for (const auto& [name, w] : workers) n += w->prefill == prefill && !w->draining ? 1 : 0;
        REQUIRE(roster.live(prefill) == n);
      }
      const auto slot = static_cast<PrefixIndex::Slot>(random.below(many + 1));
      const auto it = workers.find("w" + std::to_string(slot));
      const bool there = it != workers.end() && it->second->prefill;
      REQUIRE(roster.prefill_at(slot) == (there ? it->second.get() : nullptr));
    }
  }
}
