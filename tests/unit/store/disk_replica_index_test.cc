// Disk replicas as the master tracks them: copies, jobs repeated until acknowledged, and forgets
// that count when they are done.
#include <doctest/doctest.h>

#include "store/metadata/disk_replica_index.h"

using namespace mc;
using namespace mc::store;
using namespace std::chrono_literals;

namespace tier_test {

namespace {

const Time t0{100s};

struct Disks {
  DiskReplicaIndex tier{1 * kMiB};
  std::vector<std::string> ended;
  std::map<NodeId, std::vector<TierJob>> told;
  std::map<NodeId, uint64_t> remounts;
  Disks() {
    tier.on_offloaded([this](const std::string& name, Generation, bool stored, Time) {
      ended.push_back(name + (stored ? "+" : "-"));
    });
  }
  void mount(const NodeId& node, std::vector<TierObject> objects,
             DiskReplicaIndex::Refused refused = {}) {
    tier.mount({node, Generation{1}, 1 * kGiB, true, true, std::move(objects)},
               {node, "127.0.0.1:1", Generation{1}}, refused, t0);
  }
  bool beat(const NodeId& node, uint64_t taken = 0, std::string trouble = "", Time now = t0) {
    const bool known = tier.beat({node, Generation{1}, taken, 1000, 0, 0, std::move(trouble)}, now,
                                 [this, node](const Result<TierWork>& work) {
                                   told[node] = work->jobs;
                                   remounts[node] += work->status;
                                 });
    tier.answer(now, 1, false);
    return known;
  }
  void report(const NodeId& node, TierEvent event, const std::string& name, uint64_t generation) {
    tier.report({node, Generation{1}, {{static_cast<uint8_t>(event), 0, name, {generation}}}}, t0);
  }
};

TierObject object(const std::string& name, uint64_t generation, uint64_t content = 7) {
  return {name, 100, content, Generation{generation}, 0, 0};
}
TierJob job(const std::string& name, uint64_t generation, uint64_t bytes = 100) {
  TierJob j;
  j.object = {name, bytes, 7, Generation{generation}, 0, 0};
  return j;
}

}  // namespace

TEST_CASE("a job is repeated until it is acknowledged, and its result counts once") {
  Disks d;
  d.mount("a", {});
  CHECK(d.tier.offload("a", job("k", 5), t0) == DiskReplicaIndex::Queued::kYes);
  CHECK(d.tier.offload("a", job("k", 5), t0) == DiskReplicaIndex::Queued::kYes);  // no second time
  d.beat("a");
  REQUIRE(d.told["a"].size() == 1);
  d.beat("a");  // the answer was lost
  REQUIRE(d.told["a"].size() == 1);
  CHECK(d.tier.find("k") == nullptr);
  d.report("a", TierEvent::kStored, "k", 5);
  REQUIRE(d.tier.find("k") != nullptr);
  CHECK(d.ended == std::vector<std::string>{"k+"});
  d.report("a", TierEvent::kStored, "k", 5);  // the report was lost and comes again
  CHECK(d.ended.size() == 1);
  d.told.clear();
  d.beat("a", 1);
  CHECK(d.tier.deadline() == t0 + 1s);  // held: nothing new
}

TEST_CASE("a node without a tier, in trouble or far behind takes no work") {
  Disks d;
  CHECK(d.tier.offload("a", job("k", 5), t0) == DiskReplicaIndex::Queued::kNo);
  CHECK(!d.beat("a"));
  d.mount("a", {});
  CHECK(d.tier.offload("a", job("big", 5, 900'000), t0) == DiskReplicaIndex::Queued::kYes);
  CHECK(d.tier.offload("a", job("more", 6, 900'000), t0) == DiskReplicaIndex::Queued::kFull);
  d.report("a", TierEvent::kNotStored, "big", 5);
  CHECK(d.ended == std::vector<std::string>{"big-"});
  d.beat("a", 1, "disk full");
  CHECK(d.tier.offload("a", job("more", 6), t0) == DiskReplicaIndex::Queued::kNo);
  CHECK(d.tier.stat()[0].trouble == "disk full");
}

TEST_CASE("a forget is done when every holder has said so, or is gone") {
  Disks d;
  d.mount("a", {object("k", 5)});
  d.mount("b", {object("k", 6)});
  REQUIRE(d.tier.find("k")->copies.size() == 2);
  bool gone = false;
  d.tier.forget("k", [&] { gone = true; });
  CHECK(d.tier.find("k") == nullptr);
  CHECK(!gone);
  d.beat("a");
  REQUIRE(d.told["a"].size() == 1);
  CHECK(d.told["a"][0].object.generation == Generation{5});
  d.report("a", TierEvent::kGone, "k", 5);
  CHECK(!gone);
  d.tier.drop("b", t0);
  CHECK(gone);
  bool at_once = false;
  d.tier.forget("nobody", [&] { at_once = true; });
  CHECK(at_once);
}

TEST_CASE("an object removed while it is written to a disk does not come back") {
  Disks d;
  d.mount("a", {});
  (void)d.tier.offload("a", job("k", 5), t0);
  bool gone = false;
  d.tier.forget("k", [&] { gone = true; });
  d.report("a", TierEvent::kStored, "k", 5);
  CHECK(d.tier.find("k") == nullptr);
  CHECK(d.ended.empty());
  d.beat("a");
  CHECK(d.told["a"].back().kind == static_cast<uint8_t>(TierJobKind::kForget));
  d.report("a", TierEvent::kGone, "k", 5);
  CHECK(gone);
}

TEST_CASE("of two contents the newer counts, and one that differs from memory is forgotten") {
  Disks d;
  d.mount("a", {object("k", 5, 1)});
  d.mount("b", {object("k", 9, 2)});
  CHECK(d.tier.find("k")->checksum == 2);
  d.beat("a");
  REQUIRE(d.told["a"].size() == 1);
  d.mount("c", {object("k", 7, 3), object("m", 4, 1)},
          [](const TierObject& o) { return o.name == "m"; });
  CHECK(d.tier.find("k")->copies.size() == 1);
  CHECK(d.tier.find("m") == nullptr);
  d.beat("c");
  CHECK(d.told["c"].size() == 2);
}

TEST_CASE("a lost node's copies and jobs go with it") {
  Disks d;
  d.mount("a", {object("k", 5), object("only", 5)});
  d.mount("b", {object("k", 5)});
  (void)d.tier.offload("a", job("w", 8), t0);
  d.beat("a");
  d.beat("a", 1);
  d.tier.drop("a", t0);
  CHECK(d.ended == std::vector<std::string>{"w-"});
  CHECK(d.tier.find("only") == nullptr);
  CHECK(d.tier.find("k")->copies.size() == 1);
  CHECK(d.remounts["a"] == 1);
  CHECK(d.tier.offloading_bytes() == 0);
  CHECK(d.tier.bytes() == 100);
}

}  // namespace tier_test
