// A removal is answered when no holder has the name any more and two nodes remember what a lost
// holder may bring back. So is one that is sent again, and one by prefix.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include "tests/unit/store/fake_disk.h"

namespace mc::store {
namespace {

NodeId holder_of_all(const FakeCluster& c) {
  for (const auto& [name, node] : c.nodes)
    if (node->directory.objects() > 0) return name;
  return {};
}

// A call's answers: none, until it is answered.
struct Asked {
  std::vector<Code> codes;
  uint64_t removed = 0, refused = 0;
  std::string why;
};

std::shared_ptr<Asked> ask(FakeCluster& c, const ObjectKey& key, const std::string& tenant = {}) {
  auto asked = std::make_shared<Asked>();
  c.master->handle(Remove{{key}, false, tenant}, c.now, [asked](const Result<Outcomes>& r) {
    REQUIRE(r);
    for (const Outcome& o : r->items) asked->codes.push_back(static_cast<Code>(o.code));
  });
  return asked;
}
std::shared_ptr<Asked> ask_prefix(FakeCluster& c, const std::string& prefix) {
  auto asked = std::make_shared<Asked>();
  c.master->handle(RemovePrefix{prefix, {}, false, {}}, c.now,
                   [asked](const Result<RemovePrefixed>& r) {
                     REQUIRE(r);
                     asked->codes.push_back(kDone);
                     asked->removed = r->removed;
                     asked->refused = r->refused;
                     asked->why = r->why;
                   });
  return asked;
}

}  // namespace

TEST_CASE("a removal that is sent again is answered with the first one") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  c.add("b", 64 * kPage);
  REQUIRE(c.put("k", kPage, 1, 2) == kDone);
  const auto first = ask(c, "k"), again = ask(c, "k");
  CHECK(!c.has("k"));
  CHECK(first->codes.empty());
  CHECK(again->codes.empty());
  SUBCASE("when all holders have forgotten it") { c.pump(); }
  SUBCASE("also if it was put anew and removed meanwhile") {
    const PutGrant grant = [&] {
      std::optional<PutGrant> out;
      PutStart m;
      m.items = {{"k", kPage, {}}};
      c.master->handle(m, c.now, [&](const Result<PutStarted>& r) { out = r->items[0]; });
      REQUIRE(out);
      return *out;
    }();
    CHECK(grant.outcome.ok());
    const auto third = ask(c, "k");
    CHECK(third->codes.empty());
    c.pump();
    CHECK(third->codes == std::vector<Code>{kDone});
  }
  CHECK(first->codes == std::vector<Code>{kDone});
  CHECK(again->codes == std::vector<Code>{kDone});
  CHECK(ask(c, "k")->codes == std::vector<Code>{Code::kNotFound});
}

TEST_CASE("names of other tenants are others") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  REQUIRE(c.put("k", kPage) == kDone);
  const auto first = ask(c, "k");
  CHECK(ask(c, "k", "t")->codes == std::vector<Code>{Code::kNotFound});
  CHECK(first->codes.empty());
  CHECK(ask(c, "k", "default")->codes.empty());
}

// While a node is away, orders to others have that name: a long one would not fit.
TEST_CASE("a removal for a tenant whose name no tenant can have is refused") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  for (const std::string& tenant :
       {std::string(kTenantBytesMax + 1, 't'), std::string("t\0u", 3)}) {
    c.master->handle(Remove{{"k"}, false, tenant}, c.now,
                     [](const Result<Outcomes>& r) { CHECK(r.error().code == Code::kInvalid); });
    c.master->handle(
        RemovePrefix{"k", {}, false, tenant}, c.now,
        [](const Result<RemovePrefixed>& r) { CHECK(r.error().code == Code::kInvalid); });
  }
}

TEST_CASE("a removal whose holder is lost waits for others to remember it") {
  FakeCluster c;
  for (const char* name : {"a", "b", "c", "d"}) c.add(name, 64 * kPage);
  REQUIRE(c.put("k", kPage) == kDone);
  const NodeId holder = holder_of_all(c);
  REQUIRE(!holder.empty());
  const auto first = ask(c, "k");
  c.nodes[holder]->inbox.reset();  // it hears nothing any more
  for (const Time end = c.now + c.options_used.client_ttl + 1s; c.now < end; c.now += 500ms) {
    for (auto& [name, node] : c.nodes)
      if (name != holder) c.beat(*node);
    c.master->tick(c.now);
  }
  REQUIRE(c.master->members().all().count(holder) == 0);
  CHECK(first->codes.empty());
  const auto again = ask(c, "k");
  CHECK(again->codes.empty());
  SUBCASE("") { c.pump(); }
  SUBCASE("also if one of these is lost") {
    // The master tells two. The first of them goes before it heard of it.
    const auto told = std::find_if(c.nodes.begin(), c.nodes.end(), [](const auto& node) {
      return node.second->inbox && !node.second->inbox->orders.empty();
    });
    REQUIRE(told != c.nodes.end());
    const NodeId name = told->first;
    told->second->inbox.reset();
    (void)c.master->handle(Unmount{name, told->second->ref.generation, true}, c.now);
    auto gone = c.nodes.extract(name);
    CHECK(first->codes.empty());
    c.pump();
    size_t remember = 0;
    for (const auto& [n, node] : c.nodes) {
      Inventory m;
      node->directory.tell_dead(m);
      remember += m.dead.empty() ? 0 : 1;
    }
    CHECK(remember == 2);
  }
  CHECK(first->codes == std::vector<Code>{kDone});
  CHECK(again->codes == std::vector<Code>{kDone});
  // The next master hears of it from those, before the lost one returns with the value.
  auto lost = c.nodes.extract(holder);
  c.restart_master(kEpoch + 100);
  c.nodes[holder] = std::move(lost.mapped());
  c.mount(*c.nodes[holder]);
  c.pump();
  CHECK(!c.has("k"));
}

// The removal that is under way is of an older value.
TEST_CASE("a removal of what was put since, and left with its node, is one of its own") {
  FakeCluster c;
  c.add("a", kPage);
  REQUIRE(c.put("k", kPage) == kDone);
  c.add("b", 64 * kPage);
  c.add("c", 64 * kPage);
  const auto first = ask(c, "k");
  c.nodes["a"]->inbox.reset();  // it hears nothing for a while
  REQUIRE(c.put("k", kPage, 2) == kDone);
  const NodeId holder = c.nodes["b"]->directory.objects() > 0 ? "b" : "c";
  (void)c.master->handle(Unmount{holder, c.nodes[holder]->ref.generation, true}, c.now);
  auto away = c.nodes.extract(holder);
  const auto second = ask(c, "k");
  c.pump();
  CHECK(first->codes.empty());
  CHECK(second->codes.empty());
  c.nodes[holder] = std::move(away.mapped());
  c.mount(*c.nodes[holder]);
  CHECK(!c.has("k"));
  c.beat(*c.nodes["a"]);
  c.pump();
  CHECK(first->codes == std::vector<Code>{kDone});
  CHECK(second->codes == std::vector<Code>{kDone});
}

// Each lost node's order went to two others, and theirs to two others each.
TEST_CASE("where all nodes are lost one after the other, what they are to remember does not grow") {
  FakeCluster c;
  for (int i = 0; i < 30; ++i) c.add(strf("n%02d", i), 64 * kPage);
  REQUIRE(c.put("k", kPage) == kDone);
  const auto asked = ask(c, "k");
  CHECK(asked->codes.empty());
  size_t most = 0;
  const auto unmounts = [&](const NodeId& name) {
    (void)c.master->handle(Unmount{name, c.nodes[name]->ref.generation, true}, c.now);
    for (const auto& [node, member] : c.master->members().all())
      most = std::max(most, member->orders.size());
  };
  SUBCASE("in their order") {
    for (int i = 0; i < 30; ++i) unmounts(strf("n%02d", i));
  }
  SUBCASE("all at once, by their silence") {
    for (const Time end = c.now + c.options_used.client_ttl + 1s; c.now < end; c.now += 500ms) {
      c.master->tick(c.now);
      for (const auto& [node, member] : c.master->members().all())
        most = std::max(most, member->orders.size());
    }
  }
  CHECK(most <= 2);
  CHECK(c.master->members().all().empty());
  CHECK(asked->codes == std::vector<Code>{kDone});  // nobody is left
}

// The master had what its disk has taken out of all tables when it answered.
TEST_CASE("a removal by prefix waits for disks also where memory has the object") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  FakeDisk disk{c, "a"};
  REQUIRE(c.put("p/1", kPage, 1) == kDone);
  TierObject there = on_disk("p/1", 1);
  there.bytes = kPage;
  there.checksum = 1;
  disk.objects["p/1"] = there;
  disk.mount();
  const auto asked = ask_prefix(c, "p/"), again = ask_prefix(c, "p/");
  c.pump();
  CHECK(asked->codes.empty());
  CHECK(again->codes.empty());
  disk.report(TierEvent::kNotGone, there, Code::kUnavailable);
  REQUIRE(asked->codes.size() == 1);
  CHECK(asked->refused == 1);
  CHECK(again->codes.size() == 1);
}

TEST_CASE(
    "a put that is under way when its key is removed stays, with the node it was written to") {
  FakeCluster c;
  for (const char* name : {"a", "b", "c"}) c.add(name, 64 * kPage);
  REQUIRE(c.put("k", kPage) == kDone);
  const NodeId holder = holder_of_all(c);
  lose(c, holder);
  c.nodes.erase(holder);
  const PutGrant grant = c.grant("k", kPage, 2);
  REQUIRE(grant.outcome.ok());
  CHECK(c.remove("k")->code == static_cast<uint8_t>(Code::kNotFound));
  REQUIRE(c.end("k", grant.generation).ok());
  c.restart_master(kEpoch + 100);
  CHECK(c.has("k"));
}

TEST_CASE("a tombstone that is added again, of an earlier removal, gives nothing on") {
  Tombstones t(16);
  t.add("k", Generation{9});
  t.add("k", Generation{5});
  CHECK(t.is_deleted("k", Generation{7}));
  CHECK(!t.is_deleted("k", Generation{9}));
  t.add_prefix("", "p", Generation{9});
  t.add_prefix("", "p", Generation{5});
  CHECK(t.is_deleted("p/1", Generation{7}));
}

TEST_CASE("what nobody here has, but a lost node, is removed when others remember that") {
  FakeCluster c;
  for (const char* name : {"a", "b", "c"}) c.add(name, 64 * kPage);
  REQUIRE(c.put("k", kPage) == kDone);
  const NodeId holder = holder_of_all(c);
  lose(c, holder);
  const auto asked = ask(c, "k");
  CHECK(asked->codes.empty());
  c.pump();
  CHECK(asked->codes == std::vector<Code>{Code::kNotFound});
  CHECK(ask(c, "other")->codes == std::vector<Code>{Code::kNotFound});  // nobody may have it
}

TEST_CASE("a removal by prefix is answered when all holders have forgotten what it removed") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  for (const char* key : {"p/1", "p/2", "q"}) REQUIRE(c.put(key, kPage) == kDone);
  const auto first = ask_prefix(c, "p/"), again = ask_prefix(c, "p/"), other = ask_prefix(c, "r");
  CHECK(first->codes.empty());
  CHECK(again->codes.empty());
  CHECK(other->codes.size() == 1);
  const auto one = ask(c, "p/1");
  CHECK(one->codes.empty());
  c.pump();
  CHECK(first->codes.size() == 1);
  CHECK(first->removed == 2);
  CHECK(again->codes.size() == 1);
  CHECK(again->removed == 0);
  CHECK(one->codes == std::vector<Code>{kDone});
  CHECK(c.has("q"));
}

TEST_CASE("a removal by prefix tells what a disk could not remove") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  FakeDisk disk{c, "a"};
  for (const char* key : {"p/1", "p/2"}) disk.objects[key] = on_disk(key, 1);
  disk.mount();
  const auto asked = ask_prefix(c, "p/");
  CHECK(asked->codes.empty());
  disk.report(TierEvent::kGone, disk.objects["p/1"]);
  CHECK(asked->codes.empty());
  disk.report(TierEvent::kNotGone, disk.objects["p/2"], Code::kUnavailable);
  REQUIRE(asked->codes.size() == 1);
  CHECK(asked->removed == 1);
  CHECK(asked->refused == 1);
  CHECK(asked->why.find("the disk of node 'a' has it still") != std::string::npos);
}

// What a node said of an earlier listing of its disk does not count.
TEST_CASE("a tier's message from before it listed its disk again is not taken") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  const Generation of = c.nodes["a"]->ref.generation;
  const TierObject k = on_disk("k", 1), other = on_disk("other", 2);
  const auto page = [&](uint64_t listing, uint64_t number, bool last, std::vector<TierObject> o) {
    TierMount m{"a", of, 1 * kGiB, number == 0, last, std::move(o), 0, {{}, listing}, number};
    const auto ack = c.master->handle(m, c.now);
    return ack ? Code{} : ack.error().code;
  };
  std::vector<TierJob> jobs;
  const auto beat = [&](uint64_t listing, uint64_t taken) {
    auto status = std::make_shared<std::optional<uint8_t>>();
    c.master->handle(TierHeartbeat{"a", of, taken, 1000, 0, 0, {}, {{}, listing}}, c.now,
                     [&jobs, status](const Result<TierWork>& work) {
                       if (!work) return;
                       *status = work->status;
                       for (const TierJob& job : work->jobs) jobs.push_back(job);
                     });
    return *status;
  };
  REQUIRE(page(1, 0, false, {k}) == kDone);
  REQUIRE(page(1, 1, true, {other}) == kDone);
  REQUIRE(page(2, 0, false, {k}) == kDone);
  CHECK(page(1, 1, true, {other}) == Code::kStale);  // of the first listing, late
  REQUIRE(page(2, 1, true, {}) == kDone);
  CHECK(!c.has("other"));
  CHECK(page(2, 0, false, {k}) == Code::kStale);  // doubled
  CHECK(page(2, 1, true, {other}) == Code::kStale);
  CHECK(page(1, 0, true, {other}) == Code::kStale);
  CHECK(c.has("k"));
  const auto asked = ask(c, "k");
  CHECK(beat(1, 1) == static_cast<uint8_t>(BeatStatus::kRemount));  // it acknowledges no job of now
  CHECK(jobs.empty());
  CHECK(beat(2, 0) == 0);
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].object.name == "k");
  CHECK(asked->codes.empty());
  const TierResult gone{static_cast<uint8_t>(TierEvent::kGone), 0, "k", k.generation};
  const auto late = c.master->handle(TierReport{"a", of, {gone}, {{}, 1}}, c.now);
  CHECK(late->status == static_cast<uint8_t>(BeatStatus::kRemount));
  CHECK(asked->codes.empty());
  CHECK(c.master->handle(TierReport{"a", of, {gone}, {{}, 2}}, c.now)->status == 0);
  CHECK(asked->codes == std::vector<Code>{kDone});
  // Of an earlier mount of the node.
  const Generation mount = c.master->members().all().at("a")->mounted_by;
  REQUIRE(mount);
  const auto status = [&](const TierListing& listing) {
    return c.master->handle(TierReport{"a", of, {}, listing}, c.now)->status;
  };
  CHECK(status({mount, 2}) == 0);
  CHECK(status({Generation{mount.n - 1}, 2}) == static_cast<uint8_t>(BeatStatus::kRemount));
}

}  // namespace mc::store
