// Elections against a simulated etcd with leases and keys in simulated time.
#include "store/election/election_state.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/random.h"
#include "store/election/etcd.h"

namespace mc::store::election_test {

namespace election_test {

using namespace std::chrono_literals;
using Kind = EtcdQuestion::Kind;

namespace {

const Time t0{100s};

struct Etcd {
  std::map<int64_t, std::pair<Time, Duration>> leases;  // when they end, how long they last
  std::string leader;
  int64_t leader_lease = 0, next_lease = 7, revision = 1, epoch_revision = 0;
  uint64_t epoch = 0;
  std::set<uint64_t> led;  // every epoch that was ever won

  void pass(Time now) {
    std::erase_if(leases, [&](const auto& l) { return l.second.first <= now; });
    if (!leases.contains(leader_lease)) leader.clear(), leader_lease = 0;
  }
  EtcdAnswer found() const { return {0, 0, leader, leader_lease, epoch, epoch_revision}; }
  Result<EtcdAnswer> take(const EtcdQuestion& q, const std::string& me, Time now) {
    pass(now);
    const auto lease = leases.find(q.lease);
    switch (q.kind) {
      case Kind::kGrant:
        leases[next_lease] = {now + std::chrono::seconds(q.ttl_s), std::chrono::seconds(q.ttl_s)};
        return EtcdAnswer{next_lease++, q.ttl_s, "", 0, 0, 0};
      case Kind::kJoin:
        if (lease == leases.end()) return fail(Code::kUnavailable, "requested lease not found");
        return EtcdAnswer{};
      case Kind::kRenew:
        if (lease == leases.end()) return EtcdAnswer{};
        lease->second.first = now + lease->second.second;
        return EtcdAnswer{q.lease, static_cast<uint64_t>(lease->second.second / 1s), "", 0, 0, 0};
      case Kind::kCampaign:
        if (lease == leases.end()) return fail(Code::kUnavailable, "requested lease not found");
        if (leader_lease == 0 && q.revision == epoch_revision) {
          CHECK(q.epoch > epoch);
          CHECK(led.insert(q.epoch).second);
          leader = me;
          leader_lease = q.lease;
          epoch = q.epoch;
          epoch_revision = ++revision;
        }
        return found();
      case Kind::kLook: return found();
      case Kind::kRaise:
        if (leader_lease == q.lease) epoch = q.epoch, epoch_revision = ++revision;
        return EtcdAnswer{};
      case Kind::kResign:
        leases.erase(q.lease);
        pass(now);
        return EtcdAnswer{};
    }
    return EtcdAnswer{};
  }
};

struct Candidate {
  explicit Candidate(const std::string& name) : me(name), election({name, 3s}) {}
  std::string me;
  ElectionState election;
  // All that it asks at this moment; the last kind.
  void run(Etcd& etcd, Time now) {
    for (int i = 0; i < 20; ++i) {
      const auto q = election.ask(now, 1000);
      if (!q) return;
      election.answered(etcd.take(*q, me, now), now);
    }
    FAIL("it never stops asking");
  }
};

const auto kLost = fail(Code::kTimeout, "no answer");

}  // namespace

TEST_CASE("one of several masters leads, the others know it, and when it resigns another leads") {
  Etcd etcd;
  Candidate a("a:1"), b("b:1");
  a.run(etcd, t0);
  b.run(etcd, t0);
  CHECK(a.election.leads(t0));
  CHECK_FALSE(b.election.leads(t0));
  CHECK(b.election.leader() == "a:1");
  CHECK(a.election.leader().empty());
  CHECK(a.election.epoch() == 1000);
  Time now = t0;
  for (; now < t0 + 20s; now += 50ms) {  // it keeps it
    a.run(etcd, now);
    b.run(etcd, now);
    REQUIRE(a.election.leads(now));
  }
  const Time died = now;  // from here on a is not run any more
  while (!b.election.leads(now)) {
    REQUIRE(now < died + 4s);
    now += 50ms;
    b.run(etcd, now);
  }
  CHECK(now - died <= 3s + 400ms);
  CHECK_FALSE(a.election.leads(now));  // although nobody told it
  CHECK(b.election.epoch() == 1001);
  a.run(etcd, now);
  CHECK_FALSE(a.election.leads(now));
  CHECK(a.election.leader() == "b:1");
}

// It got thousands of questions a second: by a server that is no etcd and answers {} to all, and
// where nobody wins a campaign.
TEST_CASE("an etcd whose answers lead nowhere gets a few questions a period") {
  const EtcdAnswer granted{7, 3, "", 0, 0, 0}, old{7, 3, "", 7, 0, 0};
  for (const EtcdAnswer& answer : {EtcdAnswer{}, granted, old}) {
    ElectionState election({"a:1", 3s});
    int asked = 0;
    for (Time now = t0; now < t0 + 3s && asked < 1000; now += 10ms)
      while (asked < 1000 && election.ask(now, 1000)) {
        ++asked;
        election.answered(answer, now);
      }
    CHECK(asked >= 10);
    CHECK(asked <= 60);
  }
}

TEST_CASE("a stopped leader knows when it wakes, without a request, that it lost the lead") {
  Etcd etcd;
  Candidate a("a:1");
  a.run(etcd, t0);
  CHECK(a.election.leads(t0 + 2600ms));
  CHECK_FALSE(a.election.leads(t0 + 2700ms));  // a tenth before etcd would end the lease
  CHECK(a.election.deadline() <= t0 + 2700ms);
  // An answer that was on its way while it stood still changes nothing about that.
  const auto q = a.election.ask(t0 + 800ms, 1000);
  REQUIRE(q);
  CHECK(q->kind == Kind::kRenew);
  a.election.answered(etcd.take(*q, a.me, t0 + 800ms), t0 + 9s);
  CHECK_FALSE(a.election.leads(t0 + 9s));
  // It leads again, under a new lease.
  a.run(etcd, t0 + 9s);
  CHECK(a.election.leads(t0 + 9s));
  CHECK(a.election.epoch() == 1001);
  CHECK(etcd.led == std::set<uint64_t>{1000, 1001});
}

TEST_CASE("a campaign whose answer was lost is won all the same, and led once") {
  Etcd etcd;
  Candidate a("a:1");
  std::optional<EtcdQuestion> q;
  while ((q = a.election.ask(t0, 1000)) && q->kind != Kind::kCampaign)
    a.election.answered(etcd.take(*q, a.me, t0), t0);
  REQUIRE(q);
  (void)etcd.take(*q, a.me, t0);
  a.election.answered(kLost, t0);
  CHECK_FALSE(a.election.leads(t0));
  CHECK(a.election.trouble() == "no answer");
  CHECK_FALSE(a.election.ask(t0, 1000));  // not at once
  a.run(etcd, t0 + 300ms);
  CHECK(a.election.leads(t0 + 300ms));
  CHECK(a.election.epoch() == 1000);
  CHECK(a.election.trouble().empty());
}

TEST_CASE("without etcd a leader leads until its lease ends") {
  Etcd etcd;
  Candidate a("a:1");
  a.run(etcd, t0);
  Time now = t0;
  for (; a.election.leads(now); now += 10ms)
    if (a.election.ask(now, 1000)) a.election.answered(kLost, now);
  CHECK(now - t0 <= 2700ms);
  for (; now < t0 + 20s; now += 10ms) {
    if (a.election.ask(now, 1000)) a.election.answered(kLost, now);
    REQUIRE_FALSE(a.election.leads(now));
  }
  a.run(etcd, now + 300ms);
  CHECK(a.election.leads(now + 300ms));
}

TEST_CASE("a leader whose key was taken away notices") {
  Etcd etcd;
  Candidate a("a:1");
  a.run(etcd, t0);
  etcd.leader = "x:1";
  etcd.leader_lease = 99;
  etcd.leases[99] = {t0 + 60s, 60s};
  a.run(etcd, t0 + 300ms);
  CHECK_FALSE(a.election.leads(t0 + 300ms));
  CHECK(a.election.leader() == "x:1");
}

TEST_CASE("the epoch a leader was raised to is not led again by another") {
  Etcd etcd;
  Candidate a("a:1"), b("b:1");
  a.run(etcd, t0);
  a.election.raise(5000);
  a.run(etcd, t0 + 300ms);
  CHECK(etcd.epoch == 5000);
  CHECK(a.election.led() == 1000);
  CHECK(a.election.epoch() == 5000);
  a.election.resign();
  CHECK_FALSE(a.election.leads(t0 + 300ms));
  a.run(etcd, t0 + 300ms);
  CHECK(a.election.resigned());
  CHECK(etcd.leader.empty());
  b.run(etcd, t0 + 300ms);
  CHECK(b.election.leads(t0 + 300ms));
  CHECK(b.election.epoch() == 5001);
  CHECK_FALSE(a.election.ask(t0 + 900ms, 1000));
}

TEST_CASE("whatever is lost, late or stopped, no two lead at a time, and no epoch is led twice") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Etcd etcd;
    std::vector<std::unique_ptr<Candidate>> all;
    struct Flight {
      Time at;
      Result<EtcdAnswer> answer;
    };
    std::vector<std::optional<Flight>> flights(3);
    std::vector<Time> stopped(3, t0);  // until then
    for (const char* name : {"a:1", "b:1", "c:1"}) all.push_back(std::make_unique<Candidate>(name));
    uint64_t leads = 0;
    for (Time now = t0; now < t0 + 120s; now += 20ms) {
      etcd.pass(now);
      std::string leader;
      for (size_t i = 0; i < all.size(); ++i) {
        Candidate& c = *all[i];
        if (c.election.leads(now)) {
          REQUIRE(leader.empty());
          leader = c.me;
          ++leads;
          REQUIRE(etcd.led.contains(c.election.led()));
          REQUIRE(etcd.leader == c.me);  // its lease is not over
        }
        if (now < stopped[i]) continue;
        if (random.below(200) == 0)
          stopped[i] = now + std::chrono::milliseconds(random.below(9000));
        if (flights[i] && flights[i]->at <= now) {
          const Flight f = std::move(*flights[i]);
          flights[i].reset();
          c.election.answered(f.answer, now);
        }
        if (flights[i]) continue;
        const auto q = c.election.ask(now, 1000);
        if (!q) continue;
        const Time at = now + std::chrono::milliseconds(random.below(300));
        const uint64_t luck = random.below(20);
        if (luck == 0)
          flights[i] = {at, kLost};  // it never came
        else if (luck == 1)
          (void)etcd.take(*q, c.me, now), flights[i] = {at, kLost};
        else
          flights[i] = {at, etcd.take(*q, c.me, now)};
      }
    }
    CHECK(leads > 1000);
  }
}

TEST_CASE("etcd's answers are read, and nonsense is refused") {
  const EtcdQuestion look{Kind::kLook, 0, 0, 0, 0};
  // "p/store/leader/address" = "h:1" under lease 12, "p/store/leader/epoch" = "77"
  const std::string good =
      R"({"kvs":[{"key":"cC9zdG9yZS9sZWFkZXIvYWRkcmVzcw==","value":"aDox","lease":"12"},)"
      R"({"key":"cC9zdG9yZS9sZWFkZXIvZXBvY2g=","mod_revision":"9","value":"Nzc="}]})";
  const auto found = answer_to(look, "p", 200, good);
  REQUIRE(found);
  CHECK(found->leader == "h:1");
  CHECK(found->leader_lease == 12);
  CHECK(found->epoch == 77);
  CHECK(found->epoch_revision == 9);
  CHECK(answer_to(look, "other", 200, good)->leader.empty());
  const auto nobody = answer_to(look, "p", 200, R"({"header":{}})");
  REQUIRE(nobody);
  CHECK(nobody->leader.empty());
  for (const std::string bad :
       {"", "[]", "null", R"({"kvs":1})", R"({"kvs":[1]})", R"({"kvs":[{"key":7}]})",
        R"({"kvs":[{"key":"YQ==","lease":"-1"}]})", R"({"kvs":[{"key":"YQ==","lease":{}}]})"}) {
    CAPTURE(bad);
    CHECK(answer_to(look, "p", 200, bad).error().code == Code::kCorrupt);
  }
  const EtcdQuestion renew{Kind::kRenew, 12, 0, 0, 0};
  CHECK(answer_to(renew, "p", 200, R"({"result":{"ID":"12","TTL":"3"}})")->ttl_s == 3);
  CHECK(answer_to(renew, "p", 200, R"({"result":{"ID":"12"}})")->ttl_s == 0);
  CHECK_FALSE(answer_to(renew, "p", 200, R"({"error":{}})"));
  const EtcdQuestion campaign{Kind::kCampaign, 12, 0, 5, 0};
  for (const char* bad : {"{}", R"({"responses":[]})", R"({"responses":[{}]})",
                          R"({"responses":[{"response_range":3}]})"}) {
    CAPTURE(bad);
    CHECK(answer_to(campaign, "p", 200, bad).error().code == Code::kCorrupt);
  }
  const auto refused = answer_to(campaign, "p", 400, R"({"error":"requested lease not found"})");
  CHECK(refused.error().code == Code::kUnavailable);
  CHECK(refused.error().what.find("requested lease not found") != std::string::npos);
  const std::string member = R"({"kvs":[{"key":"cC9zdG9yZS9sZWFkZXIvYWRkcmVzcw==","value":"aDox"},)"
                             R"({"key":"cC9zdG9yZS9tYXN0ZXJzL2E6MQ==","value":"YTox"},)"
                             R"({"key":"cC9zdG9yZS9tYXN0ZXJzL2g6MQ==","value":"aDox"}]})";
  const auto masters = masters_answer("p", 200, member);
  REQUIRE(masters);
  CHECK(*masters == std::vector<std::string>{"h:1", "a:1"});
}

TEST_CASE("a URL of etcd names endpoints and a prefix") {
  const auto url = EtcdUrl::parse("etcd://10.0.0.1:2379,[::1]:2380/one/two/");
  REQUIRE(url);
  CHECK(url->endpoints == std::vector<std::string>{"10.0.0.1:2379", "[::1]:2380"});
  CHECK(url->prefix == "one/two");
  CHECK(EtcdUrl::parse("etcd://h:1")->prefix == "mc");
  for (const char* bad : {"", "etcd://", "etcd:///mc", "http://h:1", "etcd://h", "etcd://h:0",
                          "etcd://h:1,", "etcd://h:1,/x"}) {
    CAPTURE(bad);
    CHECK(EtcdUrl::parse(bad).error().code == Code::kInvalid);
  }
}

}  // namespace election_test
}  // namespace mc::store::election_test
