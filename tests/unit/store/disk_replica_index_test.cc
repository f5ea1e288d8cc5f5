// Disk replicas as the master tracks them: copies, jobs repeated until acknowledged, and forgets
// that count when they are done.
#include <doctest/doctest.h>
#include <malloc.h>

#include "base/units.h"
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
  CHECK(!d.tier.objects().has("k"));
  d.report("a", TierEvent::kStored, "k", 5);
  REQUIRE(d.tier.objects().has("k"));
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
  REQUIRE(d.tier.objects().find("k")->copies.size() == 2);
  bool gone = false;
  d.tier.forget("k", [&](const Result<>&) { gone = true; });
  CHECK(!d.tier.objects().has("k"));
  CHECK(!gone);
  d.beat("a");
  REQUIRE(d.told["a"].size() == 1);
  CHECK(d.told["a"][0].object.generation == Generation{5});
  d.report("a", TierEvent::kGone, "k", 5);
  CHECK(!gone);
  d.tier.drop("b", t0);
  CHECK(gone);
  CHECK(!d.tier.forget("nobody", [](const Result<>&) { FAIL("called"); }));
}

TEST_CASE("a forget that a disk could not carry out is an error, and under way until it is done") {
  Disks d;
  d.mount("a", {object("k", 5)});
  std::vector<Code> ended;
  const auto note = [&](const Result<>& gone) {
    ended.push_back(gone ? Code{} : gone.error().code);
  };
  CHECK(d.tier.forget("k", note));
  d.beat("a");
  d.beat("a", 1);  // the job is taken
  d.report("a", TierEvent::kNotGone, "k", 5);
  CHECK(ended == std::vector<Code>{Code::kUnavailable});
  CHECK(!d.tier.objects().has("k"));
  CHECK(!d.tier.forget("j", note));
  CHECK(!d.tier.empty("a"));
  CHECK(d.tier.forgetting("a").size() == 1);  // if the node is lost, its tombstone is kept
  d.tier.forget("k", note);                   // joins it
  d.told["a"].clear();
  d.beat("a", 1);
  CHECK(d.told["a"].empty());
  CHECK(ended.size() == 1);
  d.report("a", TierEvent::kGone, "k", 5);
  CHECK(ended == std::vector<Code>{Code::kUnavailable, Code{}});
  CHECK(!d.tier.forget("k", note));
  CHECK(d.tier.empty("a"));
}

TEST_CASE("an object removed while it is written to a disk does not come back") {
  Disks d;
  d.mount("a", {});
  (void)d.tier.offload("a", job("k", 5), t0);
  bool gone = false;
  d.tier.forget("k", [&](const Result<>&) { gone = true; });
  d.report("a", TierEvent::kStored, "k", 5);
  CHECK(!d.tier.objects().has("k"));
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
  CHECK(d.tier.objects().find("k")->checksum == 2);
  d.beat("a");
  REQUIRE(d.told["a"].size() == 1);
  d.mount("c", {object("k", 7, 3), object("m", 4, 1)},
          [](const TierObject& o) { return o.name == "m"; });
  CHECK(d.tier.objects().find("k")->copies.size() == 1);
  CHECK(!d.tier.objects().has("m"));
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
  CHECK(!d.tier.objects().has("only"));
  CHECK(d.tier.objects().find("k")->copies.size() == 1);
  CHECK(d.remounts["a"] == 1);
  d.tier.go_on_dropping(SIZE_MAX);
  CHECK(d.tier.offloading_bytes() == 0);
  CHECK(d.tier.objects().bytes() == 100);
}

TEST_CASE("F54: what a lost node held is found no more at once, and leaves a few at a time") {
  Disks d;
  std::vector<std::string> left, lost;
  d.tier.on_loss(
      [&](const NodeId& node, const std::string& name) {
        CHECK(node == "a");
        left.push_back(name);
      },
      [&](const std::string& name, const DiskObjects::OnDisk& o, Time when, bool with_node) {
        CHECK(o.bytes == 100);
        CHECK(with_node);
        CHECK(when == t0 + 5s);
        lost.push_back(name);
      });
  std::vector<TierObject> objects;
  for (int i = 0; i < 1000; ++i) objects.push_back(object("k" + std::to_string(i), 5));
  d.mount("a", objects);
  d.mount("b", {object("k0", 5)});
  d.tier.drop("a", t0 + 5s);
  CHECK(d.tier.objects().first_lost());
  CHECK(d.tier.dropping("a"));
  CHECK(d.tier.objects().size() == 1000);  // nothing went yet
  CHECK(left.empty());
  CHECK(d.tier.objects().has("k0"));
  CHECK(d.tier.objects().find("k0")->copies.size() == 1);
  CHECK(!d.tier.objects().has("k1"));
  size_t most = 10;
  CHECK(d.tier.objects().after("", "k0", true, most)->key == "k0");
  CHECK(!d.tier.objects().after("", "k0", false, most));
  CHECK(most == 0);
  CHECK(d.tier.stat().size() == 1);
  CHECK(d.tier.go_on_dropping(64) == 0);
  CHECK(left.size() == 64);
  CHECK(lost.size() == 63);  // the other has a copy of k0
  // One that is put anew meanwhile, with other bytes, and one that is removed, are none of its.
  d.mount("c", {object("k900", 6, 8)});
  CHECK(d.tier.objects().find("k900")->checksum == 8);
  CHECK(!d.tier.forget("k901", {}));
  CHECK(left.size() == 66);
  CHECK(lost.size() == 63);
  CHECK(d.tier.go_on_dropping(1000) == 1000 - 934);
  CHECK(!d.tier.objects().first_lost());
  CHECK(left.size() == 1000);
  CHECK(lost.size() == 997);
  CHECK(d.tier.objects().size() == 2);
  CHECK(d.tier.objects().bytes() == 200);
  CHECK(d.tier.objects().used_by("") == 200);
}

TEST_CASE("a node that lists its disk anew keeps what it lists") {
  Disks d;
  d.mount("a", {object("k", 5), object("m", 5)});
  d.mount("a", {object("k", 5)});
  CHECK(d.tier.objects().first_lost());
  CHECK(d.tier.objects().find("k")->copies.size() == 1);
  CHECK(!d.tier.objects().has("m"));
  d.tier.go_on_dropping(100);
  CHECK(d.tier.objects().find("k")->copies.size() == 1);
  CHECK(d.tier.objects().size() == 1);
  CHECK(d.tier.objects().held_by(*d.tier.number_of("a")) == std::pair<uint64_t, uint64_t>{1, 100});
  CHECK(d.tier.objects().used_by("") == 100);
}

// It was answered as done, and the next start of a master found it again.
TEST_CASE("a forget is not done while a new listing of the disk names the object") {
  Disks d;
  d.mount("a", {object("k", 5), object("m", 5), object("n", 5)});
  std::vector<std::string> gone;
  for (const char* name : {"k", "m"})
    d.tier.forget(name, [&gone, name](const Result<>&) { gone.push_back(name); });
  const auto page = [&](bool first, std::vector<TierObject> objects) {
    d.tier.mount({"a", Generation{1}, 1 * kGiB, first, !first, std::move(objects)},
                 {"a", "127.0.0.1:1", Generation{1}}, {}, t0);
  };
  page(true, {object("k", 5)});
  CHECK(gone.empty());
  page(false, {object("n", 5)});
  CHECK(gone == std::vector<std::string>{"m"});
  CHECK(!d.tier.objects().has("k"));
  CHECK(d.tier.objects().has("n"));
  d.tier.forget("k", [&](const Result<>&) { gone.push_back("again"); });  // joins it
  d.told.clear();
  d.beat("a");
  REQUIRE(d.told["a"].size() == 1);
  CHECK(d.told["a"][0].object.name == "k");
  d.report("a", TierEvent::kGone, "k", 5);
  CHECK(gone == std::vector<std::string>{"m", "k", "again"});
  d.tier.forget("n", [&](const Result<>&) { gone.push_back("n"); });
  page(true, {object("n", 5)});
  d.tier.drop("a", t0);  // in the middle of a listing
  CHECK(gone.back() == "n");
}

TEST_CASE("a tenant's objects are its own, in the order of their keys and of their coming") {
  Disks d;
  const std::string space("t\0", 2);
  d.mount("a", {object("b", 1), object(space + "z", 2), object(space + "c", 3), object("a", 4)});
  size_t most = 100;
  CHECK(d.tier.objects().after("", "", true, most)->key == "a");
  CHECK(d.tier.objects().after("", "b", false, most) == std::nullopt);
  CHECK(d.tier.objects().after(space, "", true, most)->key == "c");
  CHECK(d.tier.objects().after(space, "c", false, most)->key == "z");
  CHECK(d.tier.objects().after("u", "", true, most) == std::nullopt);
  CHECK(d.tier.objects().used_by(space) == 200);
  CHECK(d.tier.objects().to_evict(space, 0) == space + "z");
  CHECK(d.tier.objects().to_evict("", 0) == "b");
  CHECK(d.tier.objects().to_evict("u", 0) == std::nullopt);
}

TEST_CASE("of a space the contexts whose life is over are evicted first, living ones never") {
  Disks d;
  const auto context = [](const std::string& name, uint64_t until_s) {
    TierObject o = object(name, 1);
    o.cls = static_cast<uint8_t>(ObjectClass::kContext);
    o.keep_until_s = until_s;
    return o;
  };
  d.mount("a", {context("ever", 0), context("late", 200), context("early", 100), object("old", 2),
                object("new", 3)});
  const auto& disks = d.tier.objects();
  CHECK(disks.to_evict("", 99) == "old");
  CHECK(disks.to_evict("", 1000) == "early");
  for (const char* name : {"early", "old", "new"}) {
    CHECK(disks.to_evict("", 100) == name);
    d.tier.forget(name, {});
  }
  CHECK(disks.to_evict("", 199) == std::nullopt);
  CHECK(disks.to_evict("", 200) == "late");
  d.tier.forget("late", {});
  CHECK(disks.to_evict("", UINT64_MAX) == std::nullopt);
}

TEST_CASE("the objects of a draining node come in turn, what is gone not again") {
  Disks d;
  d.mount("a", {object("k", 1), object("l", 2), object("m", 3)});
  CHECK(d.tier.objects().first_on(*d.tier.number_of("a")) == "k");
  d.tier.turn("a");
  CHECK(d.tier.objects().first_on(*d.tier.number_of("a")) == "l");
  d.tier.forget_copy("a", "l", t0);
  CHECK(d.tier.objects().first_on(*d.tier.number_of("a")) == "m");
  d.tier.turn("a");
  CHECK(d.tier.objects().first_on(*d.tier.number_of("a")) == "k");
  CHECK(d.tier.number_of("b") == std::nullopt);
}

TEST_CASE("F56: only nodes with news, or whose time has come, are answered") {
  Disks d;
  for (int i = 0; i < 100; ++i) {
    d.mount("n" + std::to_string(i), {});
    d.beat("n" + std::to_string(i));
  }
  CHECK(d.told.empty());
  (void)d.tier.offload("n7", job("k", 5), t0);
  d.tier.answer(t0, 1, false);
  CHECK(d.told.size() == 1);
  CHECK(d.told["n7"].size() == 1);
  (void)d.tier.offload("n8", job("l", 5), t0);
  d.tier.answer(t0, 1, true);
  CHECK(d.told.size() == 2);
  CHECK(d.tier.deadline() == t0 + 1s);
  d.tier.answer(t0 + 1s, 1, false);
  CHECK(d.told.size() == 100);
  CHECK(d.tier.deadline() == Time::max());
}

// F55: what the master keeps of an object on a disk, its key of 64 bytes with it.
TEST_CASE("F55: an object on a disk takes 200 bytes of the master's memory at most") {
  Disks d;
  constexpr size_t kObjects = 100'000;
  const auto taken = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const size_t before = taken();
  for (size_t i = 0; i < kObjects; i += 1000) {
    std::vector<TierObject> objects;
    for (size_t n = i; n < i + 1000; ++n)
      objects.push_back(object(strf("%064zu", n * 7919 % kObjects), n + 1));
    const TierMount m{"a", Generation{1}, kGiB, i == 0, i + 1000 == kObjects, objects};
    d.tier.mount(m, {"a", "127.0.0.1:1", Generation{1}}, {}, t0);
  }
  REQUIRE(d.tier.objects().size() == kObjects);
  const size_t after = taken();
  if (after > before) CHECK((after - before) / kObjects <= 200);  // a sanitizer's says nothing
  CHECK(d.tier.objects().memory() / kObjects <= 200);
  CHECK(d.tier.objects().memory() / kObjects >= 150);
}

}  // namespace tier_test
