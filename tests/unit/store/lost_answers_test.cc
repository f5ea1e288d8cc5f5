// A master whose answers come too late: the client takes them for lost and asks again.
#include <any>
#include <map>

#include "rpc/client.h"
#include "store/client/client.h"
#include "tests/unit/store/loop_threads.h"

namespace mc::store {
namespace {

// Between clients and a master. It passes every call on, and loses the first answers of some types.
class LossyWay : public LoopThread {
 public:
  LossyWay(const std::string& master, std::map<std::string, int> lose) : lose_(std::move(lose)) {
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
    start();
  }
  ~LossyWay() { halt(); }
  const std::string& address() const { return server_->address(); }
  // Once it is halted.
  int lost(const std::string& type) { return lost_[type]; }
  const std::vector<PutStart>& starts() const { return starts_; }

 private:
  template <class M>
  void pass() {
    server_->on_later<M>(
        [this](const M& m, const rpc::Call&, const rpc::Reply<typename M::Reply>& reply) {
          if constexpr (std::is_same_v<M, PutStart>) starts_.push_back(m);
          master_->call(m, 60s, [this, reply](const Result<typename M::Reply>& r) {
            if (lost_[M::kName] < lose_[M::kName]) {
              ++lost_[M::kName];
              unanswered_.push_back(reply);
            } else {
              reply(r);
            }
          });
        });
  }

  std::map<std::string, int> lose_, lost_;
  std::vector<PutStart> starts_;
  std::vector<std::any> unanswered_;  // a reply that is dropped would be an answer
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<rpc::Client> master_;
};

struct Putter {
  explicit Putter(const std::string& master) {
    auto opened = xfer::Engine::open(clock, {}, metrics);
    REQUIRE(opened);
    engine = std::move(*opened);
    ClientOptions options;
    options.master = master;
    options.timeout = 60s;
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
  LossyWay way(master.service->control(), {{PutStart::kName, 2}, {PutEnd::kName, 1}});
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

}  // namespace
}  // namespace mc::store
