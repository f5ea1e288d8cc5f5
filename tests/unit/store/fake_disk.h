// A disk of a FakeNode, as its node tells the master of it; and nodes that are lost.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/store/fake_cluster.h"

namespace mc::store {

// The disk of a node, as it reports it to the master.
struct FakeDisk {
  FakeCluster& cluster;
  NodeId node;
  uint64_t value_max = 0;
  std::map<std::string, TierObject> objects{};
  std::vector<TierJob> jobs{};
  uint64_t taken = 0;
  bool held = false;

  Generation generation() const { return cluster.nodes.at(node)->ref.generation; }
  void mount() {
    TierMount m{node, generation(), 1 * kGiB, true, true, {}, value_max};
    for (const auto& [name, o] : objects) m.objects.push_back(o);
    const auto ack = cluster.master->handle(m, cluster.now);
    REQUIRE(ack);
    REQUIRE(ack->status == 0);
    taken = 0;
    beat();
  }
  void beat() {
    held = true;
    cluster.master->handle(TierHeartbeat{node, generation(), taken, 1000, 0, 0, {}}, cluster.now,
                           [this](const Result<TierWork>& work) {
                             held = false;
                             if (work) jobs = work->jobs;
                           });
  }
  void report(TierEvent event, const TierObject& o, Code code = Code{}) {
    (void)cluster.master->handle(TierReport{node,
                                            generation(),
                                            {{static_cast<uint8_t>(event),
                                              static_cast<uint8_t>(code), o.name, o.generation}}},
                                 cluster.now);
  }
  // Carries out its jobs; `bring` puts moved objects.
  template <class F>
  void work(const F& bring) {
    for (int turn = 0; turn < 100; ++turn) {
      if (held) {
        held = false;  // asked again
        beat();
      }
      if (jobs.empty()) return cluster.pump();
      for (const TierJob& job : std::exchange(jobs, {})) {
        if (job.seq <= taken) continue;
        taken = job.seq;
        switch (static_cast<TierJobKind>(job.kind)) {
          case TierJobKind::kOffload:
            objects[job.object.name] = job.object;
            report(TierEvent::kStored, job.object);
            break;
          case TierJobKind::kForget:
            if (const auto it = objects.find(job.object.name);
                it != objects.end() && it->second.generation == job.object.generation)
              objects.erase(it);
            report(TierEvent::kGone, job.object);
            break;
          case TierJobKind::kBring:
            report(
                bring(objects.at(job.object.name)) ? TierEvent::kBrought : TierEvent::kNotBrought,
                job.object, Code::kNoSpace);
            break;
        }
      }
      cluster.pump();
      beat();
    }
    FAIL("the disk is never done");
  }
  void work() {
    work([](const TierObject&) { return false; });
  }
};

inline TierObject on_disk(const std::string& name, uint64_t generation, uint64_t content = 1) {
  return {name, kPage, content, Generation{(kEpoch - 1) << 32 | generation}, 0, 0};
}

// Silence of `node` until it is given up.
inline void lose(FakeCluster& c, const NodeId& node) {
  c.run_until(c.now + c.options_used.client_ttl + 2s, node);
  REQUIRE(c.master->members().all().count(node) == 0);
}

}  // namespace mc::store
