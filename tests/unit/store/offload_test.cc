// A full pool whose victims go to disks first (F4): what puts that wait for their memory do.
#include <set>

#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {
namespace offload_test {

struct Disk {  // of node "a", which has 8 pages; it writes nothing by itself
  explicit Disk(MasterOptions options = {}, bool comes_late = false, int values = 8)
      : cluster(options) {
    cluster.add("a", 8 * kPage, 7, true);
    if (!comes_late) comes();
    for (int i = 0; i < values; ++i) REQUIRE(cluster.put("k" + std::to_string(i), kPage) == kDone);
  }
  void comes(std::vector<TierObject> lists = {}) {
    REQUIRE(cluster.master->handle(
        TierMount{"a", Generation{7}, 1 * kGiB, true, true, std::move(lists), 0}, cluster.now));
    beat();
  }
  void beat() {
    cluster.master->handle(TierHeartbeat{"a", Generation{7}, taken, 60'000, 0, 0, trouble},
                           cluster.now, [this](const Result<TierWork>& work) {
                             REQUIRE(work);
                             answers.push_back(*work);
                           });
  }
  // Takes the jobs of the answers so far and asks for more.
  std::vector<TierJob> take() {
    std::vector<TierJob> jobs;
    while (!answers.empty()) {
      const TierWork work = std::exchange(answers, {}).back();
      hurried = hurried || work.hurry;
      for (const TierJob& job : work.jobs)
        if (job.seq > taken) {
          taken = job.seq;
          jobs.push_back(job);
        }
      beat();
    }
    return jobs;
  }
  void stored(const TierJob& job) { ended(job, TierEvent::kStored); }
  void ended(const TierJob& job, TierEvent event, Code code = {}) {
    REQUIRE(
        cluster.master->handle(TierReport{"a",
                                          Generation{7},
                                          {{static_cast<uint8_t>(event), static_cast<uint8_t>(code),
                                            job.object.name, job.object.generation}}},
                               cluster.now));
    cluster.pump();
  }
  // The names of its jobs once time has gone on.
  std::set<std::string> names_after(Duration wait) {
    cluster.run_until(cluster.now + wait);
    std::set<std::string> names;
    for (const TierJob& job : take()) {
      CHECK(job.kind == static_cast<uint8_t>(TierJobKind::kOffload));
      CHECK(names.insert(job.object.name).second);  // ordered once
    }
    return names;
  }
  void put_start(const PutStart& m) {
    cluster.master->handle(m, cluster.now, [this](const Result<PutStarted>& r) {
      REQUIRE(r);
      reply = *r;
    });
    cluster.pump();
  }
  size_t in_memory() { return cluster.stat().objects; }

  FakeCluster cluster;
  std::vector<TierWork> answers;
  uint64_t taken = 0;
  std::string trouble;
  bool hurried = false;
  std::optional<PutStarted> reply;
};

PutStart want(const ObjectKey& key, uint64_t bytes) {
  PutStart m;
  m.items = {{key, bytes, {}}};
  return m;
}

MasterOptions plain() {
  MasterOptions o;
  o.high_watermark = 1;  // no eviction ahead of puts
  o.eviction_ratio = 0;
  return o;
}

TEST_CASE("F4: a put that waits for a disk makes its node write at once") {
  Disk d(plain());
  CHECK(d.take().empty());
  CHECK(!d.hurried);
  d.put_start(want("new", kPage));
  CHECK(!d.reply);
  const auto jobs = d.take();
  REQUIRE(!jobs.empty());
  CHECK(d.hurried);
  d.hurried = false;
  CHECK(d.take().empty());
  CHECK(!d.hurried);  // said once
  d.stored(jobs[0]);
  REQUIRE(d.reply);
  CHECK(d.reply->items[0].outcome.ok());
  CHECK(d.cluster.has("k0"));  // on the disk
  const auto at = d.cluster.master->handle(MatchPrefix{{"k0"}, {}, true, ""}, d.cluster.now);
  CHECK(at->places.bytes == std::string(1, static_cast<char>(StoredAt::kDisk)));
  CHECK(at->holders.bytes == std::string("\1"));
  CHECK(at->nodes == std::vector<NodeId>{"a"});
  // Those who follow the objects hear it too, from the event and from the list.
  const auto replay = d.cluster.master->handle(Replay{1, 1000}, d.cluster.now);
  REQUIRE(!replay->events.empty());
  bool moved = false;
  for (const Event& e : replay->events)
    if (e.key == "k0" && e.tier == static_cast<uint8_t>(EventTier::kDisk)) {
      moved = true;
      CHECK(e.nodes == "a");
    }
  CHECK(moved);
  d.cluster.master->handle(List{"k0", "", 1}, d.cluster.now, [](const Result<Listed>& listed) {
    REQUIRE(listed);
    REQUIRE(listed->items.size() == 1);
    CHECK(listed->items[0].replicas == 0);
    CHECK(listed->items[0].node == "a");
  });
}

TEST_CASE("match-prefix names no holder of what several disks have: the reader chooses one") {
  FakeCluster c;
  const TierObject both{"both", 1, 1, Generation{5}, 0, 0}, one{"one", 1, 1, Generation{6}, 0, 0};
  for (const NodeId name : {"a", "b"}) {
    c.add(name, 8 * kPage);
    TierMount m{name, Generation{7}, 1 * kGiB, true, true, {both}, 0};
    if (name == "b") m.objects.push_back(one);
    REQUIRE(c.master->handle(m, c.now));
  }
  const auto at = c.master->handle(MatchPrefix{{"both", "one"}, {}, true, ""}, c.now);
  CHECK(at->hits == 2);
  CHECK(at->holders.bytes == std::string("\0\1", 2));
  CHECK(at->nodes == std::vector<NodeId>{"b"});
}

TEST_CASE("F4: gathered writes are hurried too when a put comes later") {
  MasterOptions o = plain();
  o.offload = "eager";
  Disk d(o);
  CHECK(d.take().size() == 8);
  CHECK(!d.hurried);
  d.put_start(want("new", kPage));
  d.take();
  CHECK(d.hurried);
}

TEST_CASE("F4: after half of its wait victims are dropped for a put, and it never fails") {
  Disk d(plain());
  d.put_start(want("new", 2 * kPage));
  d.take();
  d.cluster.run_until(d.cluster.now + d.cluster.options_used.put_wait / 2 - 1ms);
  CHECK(!d.reply);
  CHECK(d.in_memory() == 8);
  d.cluster.run_until(d.cluster.now + 1ms);
  REQUIRE(d.reply);
  CHECK(d.reply->items[0].outcome.ok());
}

TEST_CASE("F4: victims whose writes are pending go if there are no others") {
  Disk d(plain());
  d.put_start(want("new", 8 * kPage));  // all of them
  CHECK(d.take().size() == 8);
  d.cluster.run_until(d.cluster.now + d.cluster.options_used.put_wait / 2);
  REQUIRE(d.reply);
  CHECK(d.reply->items[0].outcome.ok());
  CHECK(d.in_memory() == 0);
  const auto forgotten = d.take();  // the disk keeps nothing that the master does not know
  CHECK(forgotten.size() == 8);
  for (const TierJob& job : forgotten)
    CHECK(job.kind == static_cast<uint8_t>(TierJobKind::kForget));
}

TEST_CASE(
    "F4: a victim that is pinned while its write is pending stays in memory, with its group") {
  Disk d(plain());
  const auto pin = [&d](const ObjectKey& key) {
    const PinKeys m{{key}, static_cast<uint8_t>(Pin::kHard)};
    REQUIRE(d.cluster.master->handle(m, d.cluster.now)->items[0].ok());
    d.cluster.pump();
  };
  for (const char* key : {"k0", "k1"}) REQUIRE(d.cluster.remove(key)->ok());
  PutStart grouped;
  grouped.group = "g";
  for (const char* key : {"g0", "g1"}) REQUIRE(d.cluster.put(grouped, key, kPage) == kDone);
  d.put_start(want("new", 5 * kPage));
  auto jobs = d.take();
  REQUIRE(jobs.size() == 6);
  REQUIRE(jobs[0].object.name == "k2");
  pin("k2");
  const auto more = d.take();  // others are to make its room
  REQUIRE(more.size() == 2);
  jobs.insert(jobs.end(), more.begin(), more.end());
  pin("g0");
  SUBCASE("when it is written") {
    for (const TierJob& job : jobs) d.stored(job);
  }
  SUBCASE("when the disks are behind") {
    d.cluster.run_until(d.cluster.now + d.cluster.options_used.put_wait / 2);
  }
  for (const char* key : {"k2", "g0", "g1"}) {
    CAPTURE(key);
    CHECK(!d.cluster.get(key).places.empty());
  }
}

TEST_CASE("F4: a victim that is read while its write is pending is not dropped for a late put") {
  Disk d(plain());
  d.put_start(want("new", 8 * kPage));
  CHECK(d.take().size() == 8);
  REQUIRE(!d.cluster.get("k0").places.empty());
  d.cluster.run_until(d.cluster.now + d.cluster.options_used.put_wait / 2);
  CHECK(!d.reply);
  CHECK(d.in_memory() == 1);
  CHECK(!d.cluster.get("k0").places.empty());
}

TEST_CASE("F4: on-slow-offload wait loses nothing, and the error says what is in the way") {
  MasterOptions o = plain();
  o.on_slow_offload = "wait";
  Disk d(o);
  d.put_start(want("new", 2 * kPage));
  const auto jobs = d.take();
  CHECK(d.hurried);
  d.cluster.run_until(d.cluster.now + o.put_wait);
  REQUIRE(d.reply);
  const Outcome& refused = d.reply->items[0].outcome;
  CHECK(refused.code == static_cast<uint8_t>(Code::kNoSpace));
  CHECK_MESSAGE(
      refused.what.find("waits to be written to disks (on-slow-offload wait)") != std::string::npos,
      refused.what);
  CHECK(refused.what.find("leased") == std::string::npos);
  CHECK(d.in_memory() == 8);
}

TEST_CASE("F4: with on-slow-offload wait a disk that its node still opens is waited for") {
  for (const bool waits : {true, false}) {
    CAPTURE(waits);
    MasterOptions o = plain();
    if (waits) o.on_slow_offload = "wait";
    Disk d(o, true);
    d.put_start(want("new", kPage));
    CHECK(d.reply.has_value() == !waits);
    if (!waits) continue;
    CHECK(d.in_memory() == 8);
    d.comes();
    d.cluster.pump();
    const auto jobs = d.take();
    REQUIRE(!jobs.empty());
    for (const TierJob& job : jobs) d.stored(job);
    REQUIRE(d.reply);
    CHECK(d.reply->items[0].outcome.ok());
  }
}

TEST_CASE("F4: a tenant at its quota gets its room from the disk, or from what it drops") {
  MasterOptions o = plain();
  for (const bool written : {true, false}) {
    CAPTURE(written);
    o.tenant_quotas = "t=8KiB";
    Disk d(o);
    PutStart m;
    m.tenant = "t";
    for (int i = 0; i < 8; ++i) REQUIRE(d.cluster.remove("k" + std::to_string(i))->ok());
    REQUIRE(d.cluster.put(m, "a", kPage) == kDone);
    REQUIRE(d.cluster.put(m, "b", kPage) == kDone);
    m.items = {{"c", kPage, {}}};
    d.put_start(m);
    CHECK(!d.reply);
    const auto jobs = d.take();
    REQUIRE(jobs.size() == 1);  // and no more, however often the put is tried
    CHECK(d.hurried);
    if (written)
      d.stored(jobs[0]);
    else
      d.cluster.run_until(d.cluster.now + o.put_wait / 2);
    REQUIRE(d.reply);
    CHECK(d.reply->items[0].outcome.ok());
  }
}

// ---- values that are to be on a disk at once, put while none takes them

MasterOptions eager() {
  MasterOptions o = plain();
  o.offload = "eager";
  return o;
}
const std::set<std::string> kAll = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"};

TEST_CASE("what was put before the node's disk was listed is written once it is") {
  for (const char* mode : {"eager", "on-evict", "never"}) {
    CAPTURE(mode);
    MasterOptions o = eager();
    o.offload = mode;
    Disk d(o, true);
    REQUIRE(d.cluster.remove("k7")->ok());
    PutStart context;
    context.cls = static_cast<uint8_t>(ObjectClass::kContext);
    context.ttl_ms = 3'600'000;
    REQUIRE(d.cluster.put(context, "c", kPage) == kDone);
    REQUIRE(d.cluster.remove("k6")->ok());
    d.comes();
    std::set<std::string> owed = {"c"};
    if (o.offload == "eager") owed = {"k0", "k1", "k2", "k3", "k4", "k5", "c"};
    if (o.offload == "never") owed = {};
    CHECK(d.names_after(0s) == owed);
    CHECK(d.names_after(60s).empty());
  }
}

TEST_CASE("what was put while the node's disk was in trouble is written once it is well again") {
  Disk d(eager(), false, 4);
  CHECK(d.take().size() == 4);
  d.trouble = "full";
  d.beat();
  REQUIRE(d.cluster.put("new", kPage) == kDone);
  CHECK(d.names_after(30s).empty());
  d.trouble.clear();
  d.beat();
  CHECK(d.names_after(1s) == std::set<std::string>{"new"});
}

TEST_CASE("a master that was restarted orders what the disks do not list") {
  Disk d(eager());
  auto jobs = d.take();
  REQUIRE(jobs.size() == 8);
  for (const TierJob& job : jobs) d.stored(job);
  const TierObject there = jobs[2].object;
  d.answers.clear();
  d.taken = 0;
  d.cluster.restart_master(kEpoch + 100);
  REQUIRE(d.in_memory() == 8);
  d.cluster.run_until(d.cluster.now + 5s);
  d.comes({there});
  std::set<std::string> others = kAll;
  others.erase(there.name);
  CHECK(d.names_after(0s) == others);
}

TEST_CASE("what a disk that was behind did not take is written when it is so no more") {
  MasterOptions o = eager();
  o.offload_queue.n = 4 * kPage;
  Disk d(o);
  std::set<std::string> seen;
  for (const size_t n : {4u, 4u}) {
    d.cluster.run_until(d.cluster.now + 1s);
    const auto jobs = d.take();
    CHECK(jobs.size() == n);  // never more than the queue
    for (const TierJob& job : jobs) {
      seen.insert(job.object.name);
      d.stored(job);
    }
  }
  CHECK(seen == kAll);
  CHECK(d.names_after(60s).empty());
}

TEST_CASE("a write that failed is ordered again later") {
  Disk d(eager());
  const auto jobs = d.take();
  REQUIRE(jobs.size() == 8);
  for (size_t i = 1; i < jobs.size(); ++i) d.stored(jobs[i]);
  d.ended(jobs[0], TierEvent::kNotStored, Code::kStale);
  CHECK(d.names_after(1s).empty());
  CHECK(d.names_after(30s) == std::set<std::string>{jobs[0].object.name});
}

struct SecondDisk {  // of node "b"
  explicit SecondDisk(FakeCluster& of) : cluster(of) { cluster.add("b", 8 * kPage, 7, true); }
  void comes() {
    REQUIRE(cluster.master->handle(TierMount{"b", Generation{7}, 1 * kGiB, true, true, {}, 0},
                                   cluster.now));
    cluster.master->handle(TierHeartbeat{"b", Generation{7}, 0, 600'000, 0, 0, ""}, cluster.now,
                           [this](const Result<TierWork>& work) {
                             for (const TierJob& job : work->jobs) names.push_back(job.object.name);
                           });
  }
  FakeCluster& cluster;
  std::vector<std::string> names;  // of its first jobs
};

TEST_CASE("of a value in two memories whose disk is lost the other node's disk gets a copy") {
  Disk d(eager(), false, 0);
  SecondDisk b(d.cluster);
  REQUIRE(d.cluster.put("both", kPage, 1, 2) == kDone);
  const std::vector<TierJob> jobs = d.take();
  REQUIRE(jobs.size() == 1);
  d.stored(jobs[0]);
  b.comes();
  d.cluster.run_until(d.cluster.now + 5s, "a");
  CHECK(b.names.empty());  // a disk has it
  d.cluster.run_until(d.cluster.now + 50s, "a");
  REQUIRE(d.cluster.stat().nodes.size() == 1);
  CHECK(b.names == std::vector<std::string>{"both"});
}

TEST_CASE("what moves off a draining node goes to the disk of its new node at once") {
  Disk d(eager(), false, 1);
  const std::vector<TierJob> jobs = d.take();
  REQUIRE(jobs.size() == 1);
  d.stored(jobs[0]);
  SecondDisk b(d.cluster);
  b.comes();
  REQUIRE(d.cluster.master->handle(Drain{"a", static_cast<uint8_t>(DrainAction::kStart)},
                                   d.cluster.now));
  d.cluster.pump();
  d.cluster.run_until(d.cluster.now + 1s);
  CHECK(b.names == std::vector<std::string>{"k0"});
}

}  // namespace offload_test
}  // namespace
}  // namespace mc::store
