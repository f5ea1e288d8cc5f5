#include "store/client/object_feed.h"

#include <doctest/doctest.h>

#include <map>

#include "base/random.h"
#include "store/metadata/events.h"

using namespace mc;
using namespace mc::store;
using namespace std::chrono_literals;

namespace object_feed_test {

namespace {

// A master with a few objects and a short event log.
struct ModelMaster {
  explicit ModelMaster(size_t log_max = 64) : log(log_max) {}
  void put(const ObjectKey& key, EventTier tier, bool silently = false) {
    if (tier == EventTier::kUntold)
      objects.erase(key);
    else
      objects[key] = tier;
    if (silently) return;
    Event& e = log.add();
    e.kind = static_cast<uint8_t>(tier == EventTier::kUntold ? EventKind::kRemoved
                                  : tier == EventTier::kDisk ? EventKind::kMoved
                                                             : EventKind::kStored);
    e.key = key;
    e.tenant = "default";
    e.tier = static_cast<uint8_t>(tier);
    e.nodes = node;
  }
  Listed list(const List& m) const {
    Listed page;
    page.epoch = epoch;
    page.next_event = log.next();
    for (auto at = objects.upper_bound(std::max(m.after, m.prefix)); at != objects.end(); ++at) {
      if (!at->first.starts_with(m.prefix)) break;
      if (page.items.size() == page_max) {
        page.more = true;
        break;
      }
      ObjectInfo o;
      o.key = at->first;
      o.replicas = at->second == EventTier::kMemory;
      o.disks = at->second == EventTier::kDisk;
      o.node = node;
      page.items.push_back(o);
    }
    return page;
  }
  Replayed replay(const Replay& m) const {
    Replayed r;
    r.epoch = epoch;
    r.next = log.next();
    r.events = log.since(m.from, 10, &r.gap);
    return r;
  }

  uint64_t epoch = 1;
  EventLog log;
  size_t page_max = 5;
  std::string node{};  // that has what is put, or listed
  std::map<ObjectKey, EventTier> objects;
};

using View = std::map<ObjectKey, EventTier>;

struct Follower {
  Follower() : feed({.prefix = "m@"}, now) {
    feed.on_object = [this](const ObjectKey& key, EventTier tier, std::string_view node) {
      nodes[key] = node;
      View& v = listing ? fresh : view;
      if (tier == EventTier::kUntold)
        v.erase(key);
      else
        v[key] = tier;
    };
    feed.on_begin = [this] {
      listing = true;
      fresh.clear();
    };
    feed.on_whole = [this] {
      listing = false;
      view = std::move(fresh);
      fresh.clear();
    };
    feed.on_drop = [this] {
      listing = false;
      ++drops;
      view.clear();
      fresh.clear();
    };
  }
  // One question, answered; false: none is due.
  bool step(ModelMaster& master) {
    const ObjectFeed::Question q = feed.ask(now);
    if (const auto* list = std::get_if<List>(&q))
      feed.listed(master.list(*list), now);
    else if (const auto* replay = std::get_if<Replay>(&q))
      feed.replayed(master.replay(*replay), now);
    else
      return false;
    return true;
  }
  // Until nothing changes any more.
  void settle(ModelMaster& master) {
    for (int i = 0; i < 2000; ++i)
      if (!step(master)) {
        if (feed.whole() && feed.deadline() > now + 50ms && i > 20) return;
        now = feed.deadline();
      }
  }

  Time now{};
  ObjectFeed feed;
  View view, fresh;
  std::map<ObjectKey, std::string> nodes;  // as told last
  bool listing = false;
  int drops = 0;
};

}  // namespace

TEST_CASE("a snapshot in pages, then changes") {
  ModelMaster master;
  for (int i = 0; i < 17; ++i) master.put(strf("m@%02d", i), EventTier::kMemory);
  master.put("other@1", EventTier::kMemory);
  Follower f;
  f.settle(master);
  CHECK(f.view.size() == 17);
  CHECK(f.feed.snapshots() == 1);
  master.put("m@03", EventTier::kUntold);
  master.put("m@04", EventTier::kDisk);
  master.put("m@99", EventTier::kMemory);
  master.put("other@2", EventTier::kMemory);
  f.settle(master);
  CHECK(f.view.size() == 17);
  CHECK(f.view.at("m@04") == EventTier::kDisk);
  CHECK(!f.view.contains("m@03"));
  CHECK(f.feed.snapshots() == 1);
  CHECK(f.drops == 0);
}

TEST_CASE("the only node that has an object is named, by snapshots and by changes") {
  ModelMaster master;
  master.node = "n1";
  master.put("m@1", EventTier::kMemory, true);
  Follower f;
  f.settle(master);
  CHECK(f.nodes["m@1"] == "n1");
  master.node = "n2";
  master.put("m@1", EventTier::kDisk);
  master.node = "n1,n2";
  master.put("m@2", EventTier::kMemory);
  f.settle(master);
  CHECK(f.nodes["m@1"] == "n2");
  CHECK(f.nodes["m@2"].empty());  // of two none
}

TEST_CASE("events that are no longer kept cost a new snapshot, and the old view serves meanwhile") {
  ModelMaster master(8);
  master.put("m@a", EventTier::kMemory);
  Follower f;
  f.settle(master);
  for (int i = 0; i < 30; ++i) master.put(strf("m@%02d", i), EventTier::kMemory);
  f.now += 1s;
  REQUIRE(f.step(master));  // the gap
  CHECK(f.view.size() == 1);
  f.settle(master);
  CHECK(f.view.size() == 31);
  CHECK(f.feed.snapshots() == 2);
  CHECK(f.drops == 0);
}

TEST_CASE("a node that brings objects costs a new snapshot") {
  ModelMaster master;
  master.put("m@a", EventTier::kMemory);
  Follower f;
  f.settle(master);
  master.put("m@b", EventTier::kMemory, true);
  f.settle(master);
  CHECK(f.view.size() == 1);
  master.log.joined("s1", 0);
  f.now += 2s;
  f.settle(master);
  CHECK(f.view.size() == 2);
  CHECK(f.drops == 0);
}

TEST_CASE("a master that restarted is another one: the view is dropped and rebuilt") {
  ModelMaster master;
  master.put("m@a", EventTier::kMemory);
  Follower f;
  f.settle(master);
  ModelMaster next;
  next.epoch = 2;
  next.put("m@b", EventTier::kMemory);
  f.now += 200ms;
  REQUIRE(f.step(next));
  CHECK(f.view.empty());
  CHECK(f.drops == 1);
  f.settle(next);
  CHECK(f.view.size() == 1);
  CHECK(f.view.contains("m@b"));
}

TEST_CASE("a master that does not answer is lost after a while, and found again") {
  ModelMaster master;
  master.put("m@a", EventTier::kMemory);
  Follower f;
  f.settle(master);
  const Time gone = f.now;
  while (f.drops == 0 && f.now < gone + 1h) {
    f.now = f.feed.deadline();
    if (std::holds_alternative<std::monostate>(f.feed.ask(f.now))) continue;
    CHECK(f.feed.deadline() == Time::max());
    f.now += 500ms;
    f.feed.failed({Code::kTimeout, "no answer"}, f.now);
  }
  CHECK(f.drops > 0);
  CHECK(f.now - gone >= 3s);
  CHECK(f.now - gone < 10s);
  CHECK(!f.feed.whole());
  f.settle(master);
  CHECK(f.view.size() == 1);
  CHECK(f.feed.trouble().empty());
}

TEST_CASE("answers that cannot be true cost the view, and the pauses grow") {
  ModelMaster master;
  master.put("m@a", EventTier::kMemory);
  const auto lie = [&](const std::function<void(Follower&)>& tell) {
    Follower f;
    f.settle(master);
    f.now += 1s;
    REQUIRE(std::holds_alternative<Replay>(f.feed.ask(f.now)));
    tell(f);
    CHECK(f.feed.faults() == 1);
    CHECK(f.view.empty());
    CHECK(!f.feed.whole());
    CHECK(f.feed.deadline() >= f.now + 1s);
    f.settle(master);
    CHECK(f.view.size() == 1);
  };
  Replayed truth = master.replay({.from = 2});
  lie([&](Follower& f) {  // back in time
    Replayed r = truth;
    r.next = 1;
    f.feed.replayed(r, f.now);
  });
  lie([&](Follower& f) {  // a number left out
    Replayed r = truth;
    r.next = 9;
    r.events.resize(1);
    r.events[0].seq = 5;
    f.feed.replayed(r, f.now);
  });
  lie([&](Follower& f) {  // more to come that never comes
    Replayed r = truth;
    r.next = 9;
    f.feed.replayed(r, f.now);
  });
  lie([&](Follower& f) { f.feed.listed(master.list({}), f.now); });

  Follower f;
  Time last = f.now;
  Duration pause{};
  for (int i = 0; i < 12; ++i) {
    f.now = f.feed.deadline();
    CHECK(f.now - last >= pause);
    pause = f.now - last;
    last = f.now;
    REQUIRE(std::holds_alternative<List>(f.feed.ask(f.now)));
    Listed page = master.list({});
    page.items.push_back(page.items[0]);  // the same key again
    f.feed.listed(page, f.now);
  }
  CHECK(f.feed.faults() == 12);
  CHECK(pause >= 30s);
}

TEST_CASE("a list without an end is given up") {
  Time now{};
  ObjectFeed small({.prefix = "m@", .objects_max = 100}, now);
  (void)small.ask(now);
  Listed page{.epoch = 1, .items = {}, .more = true, .next_event = 1};
  for (int i = 0; i < 101; ++i) {
    page.items.push_back({});
    page.items.back().key = strf("m@%03d", i);
  }
  small.listed(page, now);
  CHECK(small.faults() == 1);
  CHECK(small.trouble().find("without an end") != std::string::npos);
}

TEST_CASE("whatever happens between pages and questions, the view becomes what the master has") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    ModelMaster master(seed % 3 == 0 ? 6 : 40);
    Follower f;
    for (int i = 0; i < 1500; ++i) {
      const uint64_t dice = random.next() % 100;
      const auto key = strf("m@%02d", static_cast<int>(random.next() % 40));
      if (dice < 45) {
        master.put(key, static_cast<EventTier>(random.next() % 3));
      } else if (dice < 95) {
        f.now += 20ms;
        f.step(master);
      } else if (dice == 96) {
        master.put(key, EventTier::kMemory, true);
        master.log.joined("s0", 0);
      } else if (dice == 97 && random.next() % 8 == 0) {
        ++master.epoch;
      }
    }
    f.now += 2s;
    f.settle(master);
    f.now += 2s;
    f.settle(master);
    CHECK(f.view == master.objects);
    CHECK(f.feed.faults() == 0);
  }
}

}  // namespace object_feed_test
