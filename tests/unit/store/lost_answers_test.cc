// A master whose answers come too late: the client takes them for lost and asks again.
#include <algorithm>
#include <any>
#include <functional>
#include <map>
#include <set>

#include "rpc/client.h"
#include "store/client/client_impl.h"
#include "tests/unit/store/loop_threads.h"

namespace mc::store {
namespace {

struct Losses {
  std::map<std::string, int> answers{};  // the first of so many calls, by type
  std::map<std::string, int> calls{};    // they do not come to the master
  std::function<bool(const PutStart&)> answer_to = [](const PutStart&) { return false; };
  uint64_t stat_ahead = 0;  // epochs that the answer to a stat is ahead
};

// Between clients and a master. It passes calls on, and loses some of them, or their answers.
class LossyWay : public LoopThread {
 public:
  LossyWay(const std::string& master, Losses losses) : losses_(std::move(losses)) {
    auto server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(server);
    server_ = std::move(*server);
    auto client = rpc::Client::connect(loop, master);
    REQUIRE(client);
    master_ = std::move(*client);
    pass<PutStart>();
    pass<PutEnd>();
    pass<PutRevoke>();
    pass<ReportNode>();
    pass<Stat>();
    start();
  }
  ~LossyWay() { halt(); }
  const std::string& address() const { return server_->address(); }
  // Once it is halted.
  int lost(const std::string& type) { return lost_[type]; }
  const std::vector<PutStart>& starts() const { return starts_; }
  const std::vector<PutRevoke>& revokes() const { return revokes_; }

 private:
  template <class M>
  void pass() {
    server_->on_later<M>(
        [this](const M& m, const rpc::Call&, const rpc::Reply<typename M::Reply>& reply) {
          bool lost = losses_.answers[M::kName]-- > 0;
          lost_[M::kName] += lost ? 1 : 0;
          if constexpr (std::is_same_v<M, PutStart>) {
            starts_.push_back(m);
            lost = lost || losses_.answer_to(m);
          }
          if constexpr (std::is_same_v<M, PutRevoke>) revokes_.push_back(m);
          if (losses_.calls[M::kName]-- > 0) return unanswered_.push_back(reply);
          master_->call(m, 60s, [this, reply, lost](Result<typename M::Reply> r) {
            if (lost) return unanswered_.push_back(reply);
            if constexpr (std::is_same_v<M, Stat>)
              if (r) r->epoch += std::exchange(losses_.stat_ahead, 0);
            reply(r);
          });
        });
  }

  Losses losses_;
  std::map<std::string, int> lost_;
  std::vector<PutRevoke> revokes_;
  std::vector<PutStart> starts_;
  std::vector<std::any> unanswered_;  // a reply that is dropped would be an answer
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<rpc::Client> master_;
};

struct Putter {
  explicit Putter(const std::string& master, Duration timeout = 60s) {
    auto opened = xfer::Engine::open(clock, {}, metrics);
    REQUIRE(opened);
    engine = std::move(*opened);
    ClientOptions options;
    options.master = master;
    options.timeout = timeout;
    options.verify = "always";
    auto c = Client::open(*engine, clock, options, metrics);
    REQUIRE(c);
    client = std::move(*c);
  }
  SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<Client> client;
};

TEST_CASE("a put whose answers come too late is stored at once, by each of its calls asked again") {
  OneMaster master;
  const OneNode node("a", master.service->control());
  LossyWay way(master.service->control(), {.answers = {{PutStart::kName, 2}, {PutEnd::kName, 1}}});
  const std::vector<std::byte> first(5000, std::byte{1}), second(100'000, std::byte{2});
  {
    Putter putter(way.address());
    const std::vector<PutItem> items = {{"first", {first}}, {"second", {second}}};
    for (const auto& put : putter.client->put_batch(items)) {
      CAPTURE(put ? std::string() : put.error().what);
      REQUIRE(put);
      CHECK(*put == PutOutcome::kStored);
    }
    const auto third = putter.client->put("third", second);
    REQUIRE(third);
    CHECK(*third == PutOutcome::kStored);
  }
  way.halt();
  CHECK(way.lost(PutStart::kName) == 2);
  CHECK(way.lost(PutEnd::kName) == 1);
  // One nonce for all tries of a put, another for the next put.
  REQUIRE(way.starts().size() >= 4);
  for (size_t i = 0; i < way.starts().size(); ++i) {
    CHECK(way.starts()[i].nonce != 0);
    const bool same = way.starts()[i].items.size() == way.starts()[0].items.size();
    CHECK((way.starts()[i].nonce == way.starts()[0].nonce) == same);
  }
  Putter reader(master.service->control());
  const auto one = reader.client->get("first"), two = reader.client->get("second");
  REQUIRE(one);
  REQUIRE(two);
  CHECK(*one == first);
  CHECK(*two == second);
  const auto stat = reader.client->stat();
  REQUIRE(stat);
  CHECK(stat->writing == 0);
  CHECK(stat->objects == 3);
}

// With a timeout of a second: again if this machine stood still for so long.
PutOutcome put_somehow(Client& client, const ObjectKey& key, std::span<const std::byte> value) {
  for (int i = 0; i < 30; ++i)
    if (const auto put = client.put(key, value)) return *put;
  FAIL("30 puts in vain");
  return {};
}

TEST_CASE("a client whose time is over before any answer came leaves the key to others") {
  OneMaster master;
  const OneNode node("a", master.service->control());
  const std::vector<std::byte> value(5000, std::byte{1});
  LossyWay way(master.service->control(),
               {.answer_to = [](const PutStart& m) { return m.items.at(0).key == "lost"; }});
  {
    Putter putter(way.address(), 1s);
    const auto lost = putter.client->put("lost", value);
    REQUIRE_FALSE(lost);
    // What the client could not give back at once it does with its next put.
    const PutOutcome next = put_somehow(*putter.client, "next", value);
    CHECK((next == PutOutcome::kStored || next == PutOutcome::kExisted));
    Putter other(master.service->control());
    const auto put = other.client->put("lost", value);
    CAPTURE(put ? std::string() : put.error().what);
    REQUIRE(put);
    CHECK(*put == PutOutcome::kStored);
    CHECK(other.client->stat()->writing == 0);
  }
  way.halt();
  REQUIRE_FALSE(way.revokes().empty());
  for (const PutRevoke& revoke : way.revokes())
    CHECK(std::ranges::any_of(way.starts(),
                              [&](const auto& start) { return start.nonce == revoke.nonce; }));
}

TEST_CASE("what one client of a pool could not give back another does with its next put") {
  OneMaster master;
  const OneNode node("a", master.service->control());
  const std::vector<std::byte> value(5000, std::byte{1});
  LossyWay way(master.service->control(),
               {.calls = {{PutRevoke::kName, 1}},
                .answer_to = [](const PutStart& m) { return m.items.at(0).key == "lost"; }});
  {
    Putter putter(way.address(), 1s);
    auto another = putter.client->another(putter.metrics);
    REQUIRE(another);
    REQUIRE_FALSE(putter.client->put("lost", value));
    putter.client.reset();
    CHECK(put_somehow(**another, "next", value) != PutOutcome::kNotAdmitted);
    Putter other(master.service->control());
    const auto put = other.client->put("lost", value);
    CAPTURE(put ? std::string() : put.error().what);
    REQUIRE(put);
    CHECK(*put == PutOutcome::kStored);
  }
  way.halt();
  CHECK(way.revokes().size() >= 2);
}

TEST_CASE("clients of a pool refuse a master that is older than one of them has seen") {
  OneMaster master;
  LossyWay way(master.service->control(), {.stat_ahead = 1000});
  Putter putter(way.address());
  const auto another = putter.client->another(putter.metrics);
  REQUIRE(another);
  const auto seen = putter.client->stat();
  REQUIRE(seen);
  const auto now = (*another)->stat();  // by then the master has been told
  REQUIRE(now);
  CHECK(now->epoch >= seen->epoch);
}

TEST_CASE("what a master that stood still grants a client that gave up is given back") {
  OneMaster master;
  const OneNode node("a", master.service->control());
  const std::vector<std::byte> value(5000, std::byte{1});
  Putter putter(master.service->control(), 1s), other(master.service->control());
  REQUIRE(put_somehow(*putter.client, "first", value) == PutOutcome::kStored);
  master.halt();
  REQUIRE_FALSE(putter.client->put("lost", value));
  master.start();
  CHECK(put_somehow(*putter.client, "next", value) == PutOutcome::kStored);
  const auto put = other.client->put("lost", value);
  CAPTURE(put ? std::string() : put.error().what);
  REQUIRE(put);
  CHECK(*put == PutOutcome::kStored);
}

TEST_CASE("a put whose time is a second asks twice") {
  OneMaster master;
  const OneNode node("a", master.service->control());
  const std::vector<std::byte> value(5000, std::byte{1});
  auto seen = std::make_shared<std::set<uint64_t>>();
  LossyWay way(master.service->control(),
               {.answer_to = [seen](const PutStart& m) { return seen->insert(m.nonce).second; }});
  Putter putter(way.address(), 1s);
  for (int i = 0; i < 30; ++i) {  // a machine may stand still for a second
    const auto put = putter.client->put("k" + std::to_string(i), value);
    if (!put) continue;
    CHECK(*put == PutOutcome::kStored);
    return;
  }
  FAIL("no second put-start was answered");
}

TEST_CASE("a put has time for two tries, and waits for room in the first") {
  const auto ms = [](Duration d) { return d / 1ms; };
  CHECK(room_wait(5s, 100ms) == 100ms);
  CHECK(room_wait(5s, 4s) == 4s);
  CHECK(room_wait(5s, 5s) == 4s);
  CHECK(room_wait(1s, 5s) == 500ms);
  CHECK(room_wait(0s, 5s) == 0s);
  CHECK(one_try(5s, 100ms) == 1100ms);
  CHECK(one_try(1100ms, 100ms) == 600ms);
  CHECK(one_try(1s, 0s) == 500ms);
  for (const Duration time : {1ms, 20ms, 300ms, 1000ms, 1100ms, 1101ms, 2000ms, 5000ms, 60'000ms})
    for (const Duration put_wait : {0ms, 1ms, 100ms, 1000ms, 5000ms, 60'000ms}) {
      CAPTURE(ms(time));
      CAPTURE(ms(put_wait));
      const Duration wait = room_wait(time, put_wait), once = one_try(time, wait);
      CHECK(wait <= put_wait);
      CHECK(wait <= time);
      CHECK(once > wait);
      CHECK(time - once >= std::min(time / 8, kAttempt / 2));
    }
}

TEST_CASE("what a master of an older epoch granted is given back, and asked for by another nonce") {
  for (const int lost : {0, 1}) {  // revocations that do not come to the master
    CAPTURE(lost);
    OneMaster master;
    const OneNode node("a", master.service->control());
    const std::vector<std::byte> value(5000, std::byte{1});
    LossyWay way(master.service->control(),
                 {.calls = {{PutRevoke::kName, lost}}, .stat_ahead = 1000});
    {
      Putter putter(way.address());
      REQUIRE(putter.client->stat());  // of a master whose clock was ahead
      const auto put = putter.client->put("k", value);
      CAPTURE(put ? std::string() : put.error().what);
      REQUIRE(put);
      CHECK(*put == PutOutcome::kStored);
      const auto stat = putter.client->stat();
      REQUIRE(stat);
      CHECK(stat->writing == 0);
      CHECK(stat->objects == 1);
    }
    way.halt();
    REQUIRE(way.starts().size() >= 2);
    REQUIRE_FALSE(way.revokes().empty());
    const uint64_t first = way.starts()[0].nonce;
    for (const PutRevoke& revoke : way.revokes()) CHECK(revoke.nonce == first);
    CHECK(std::ranges::count_if(way.starts(),
                                [&](const PutStart& m) { return m.nonce == first; }) == 1);
  }
}

}  // namespace
}  // namespace mc::store
