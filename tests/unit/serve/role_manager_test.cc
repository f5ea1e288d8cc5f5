// A worker with both roles, or one that changes its role; the test is its conductor.
#include "serve/worker/role_manager.h"

#include <algorithm>

#include "pool.h"
#include "small_engine.h"

namespace mc::serve {
namespace roles_test {
namespace {

struct Process {
  explicit Process(io::Loop& on, Role role, const Engine& engine, const std::string& master = {},
                   uint32_t blocks = 64, double time_scale = 0, Duration recompute_after = {})
      : loop(on) {
    xfer::EngineOptions o;
    o.node = "w";
    o.peer_timeout = 200ms * kSlow;
    transfer = std::move(*xfer::Engine::open(loop.clock(), o, metrics));
    server = std::move(*rpc::Server::open(loop, "127.0.0.1:0", metrics));
    conductor = std::move(*rpc::Server::open(loop, "127.0.0.1:0", metrics));
    PrefillConfig p;
    p.blocks = blocks;
    p.chunk_tokens = 64;
    p.time_scale = time_scale;
    p.store.master = master;
    DecodeConfig d;
    d.blocks = blocks;
    d.time_scale = time_scale;
    d.recompute_after = recompute_after;
    d.peer_timeout = 200ms * kSlow;
    d.store.master = master;
    auto opened = RoleManager::open({loop, *transfer, *server, engine, metrics}, p, d, role);
    REQUIRE_MESSAGE(opened, opened.error().what);
    roles = std::move(*opened);
    conductor->on<TokenBatch>([this](const TokenBatch& m, const rpc::Call&) -> Result<rpc::Empty> {
      for (const TokenUpdate& u : m.updates) {
        Answer& a = answers[u.request];
        a.tokens.insert(a.tokens.end(), u.tokens.begin(), u.tokens.end());
        a.finish = u.finish;
        a.error = u.error;
      }
      return rpc::Empty{};
    });
    client = std::move(*rpc::Client::connect(loop, server->address()));
  }
  bool until(const std::function<bool()>& done) {
    const Time end = loop.clock().now() + 30s;
    while (!done() && loop.clock().now() < end) REQUIRE(loop.turn(20ms));
    return done();
  }
  template <class M>
  Result<typename M::Reply> call(const M& message) {
    std::optional<Result<typename M::Reply>> answer;
    client->call<M>(message, 5s, [&](Result<typename M::Reply> r) { answer = std::move(r); });
    REQUIRE(until([&] { return answer.has_value(); }));
    return *answer;
  }
  Result<Reservation> reserve(const std::string& id, const std::vector<int32_t>& prompt,
                              uint32_t max_tokens, bool own) {
    Reserve m;
    m.request = id;
    m.conductor = conductor->address();
    m.prompt = prompt;
    m.max_tokens = max_tokens;
    m.ignore_eos = true;
    m.kv_deadline_ms = 5000;
    if (own) m.prefill = server->address();
    return call(m);
  }
  // Runs a request until the decode instance has its KV. Returns the transaction.
  uint64_t start(const std::string& id, const std::vector<int32_t>& prompt, uint32_t max_tokens,
                 bool own = true) {
    const auto target = reserve(id, prompt, max_tokens, own);
    REQUIRE_MESSAGE(target, target.error().what);
    CHECK(target->block_offsets.empty() == own);
    TxAllocate m;
    m.request = id;
    m.prompt = prompt;
    m.target = *target;
    const auto tx = call(m);
    REQUIRE_MESSAGE(tx, tx.error().what);
    const auto done = call(Prefill{tx->tx});
    REQUIRE_MESSAGE(done, done.error().what);
    CHECK((done->kv_bytes == 0) == own);
    cached = done->cached_tokens;
    return tx->tx;
  }
  std::vector<int32_t> serve(const std::string& id, const std::vector<int32_t>& prompt,
                             uint32_t max_tokens, bool own = true) {
    const uint64_t tx = start(id, prompt, max_tokens, own);
    REQUIRE(until([&] { return !answers[id].finish.empty(); }));
    CHECK(answers[id].error == "");
    CHECK(call(TxCommit{tx}));
    return answers[id].tokens;
  }
  BlockCounts counts() { return roles->prefill()->cache().counts(); }
  bool comes_to_rest() {
    const bool rests = until([&] { return roles->idle() && counts().used == 0; });
    roles->prefill()->cache().check();
    return rests;
  }

  io::Loop& loop;
  Metrics metrics;
  std::unique_ptr<xfer::Engine> transfer;
  std::unique_ptr<rpc::Server> server, conductor;
  std::map<std::string, Answer> answers;
  std::unique_ptr<RoleManager> roles;
  std::unique_ptr<rpc::Client> client;
  uint32_t cached = 0;
};

TEST_CASE("a worker with both roles gives the tokens of one engine, and moves no KV") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto"), one = make(1, "plain", 512);
  Process both(loop, Role::kBoth, engine);
  const auto shared = small_prompt(100, 1);
  for (size_t i = 0; i < 6; ++i) {
    CAPTURE(i);
    auto prompt = shared;
    const auto rest = small_prompt(1 + 29 * i, 10 + i);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    const auto want = alone(one, prompt, 40, kGreedy);
    CHECK(both.serve("own" + std::to_string(i), prompt, 40) == want);
    CHECK((both.cached > 0) == (i > 0));
    // A conductor that does not know pairs the instances as if they were two workers.
    CHECK(both.serve("far" + std::to_string(i), prompt, 40, false) == want);
  }
  CHECK(both.comes_to_rest());
}

TEST_CASE("blocks of a prompt stay while it decodes, also when others need room") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto"), one = make(1, "plain", 512);
  Process both(loop, Role::kBoth, engine, {}, 24);
  const auto prompt = small_prompt(100, 1);  // 7 blocks, and 7 for its answer
  const uint64_t tx = both.start("long", prompt, 100);
  CHECK(both.call(TxCommit{tx}));  // its blocks are only cached now, but for the pins
  for (int i = 0; i < 8; ++i)      // each evicts what it can
    both.serve("other" + std::to_string(i), small_prompt(60, 100 + static_cast<uint64_t>(i)), 4);
  REQUIRE(both.until([&] { return !both.answers["long"].finish.empty(); }));
  CHECK(both.answers["long"].tokens == alone(one, prompt, 100, kGreedy));
  CHECK(both.comes_to_rest());
}

TEST_CASE("a worker with both roles preempts for want of blocks, with the same tokens") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto"), one = make(1, "plain", 512);
  Process both(loop, Role::kBoth, engine, {}, 20);  // of 56 for all prompts and answers
  std::vector<uint64_t> txs;
  for (uint64_t i = 0; i < 4; ++i) {
    const std::string id = std::to_string(i);
    const auto target = both.reserve(id, small_prompt(20 + i, i), 200, true);
    REQUIRE_MESSAGE(target, target.error().what);
    TxAllocate m;
    m.request = id;
    m.prompt = small_prompt(20 + i, i);
    m.target = *target;
    const auto tx = both.call(m);
    REQUIRE_MESSAGE(tx, tx.error().what);
    txs.push_back(tx->tx);
  }
  size_t done = 0;
  for (const uint64_t tx : txs)
    both.client->call<Prefill>(Prefill{tx}, 60s, [&](const Result<PrefillDone>& r) {
      REQUIRE_MESSAGE(r, r.error().what);
      ++done;
    });
  REQUIRE(both.until([&] { return done == txs.size(); }));
  for (const uint64_t tx : txs) CHECK(both.call(TxCommit{tx}));
  for (uint64_t i = 0; i < 4; ++i) {
    Answer& a = both.answers[std::to_string(i)];
    REQUIRE(both.until([&] { return !a.finish.empty(); }));
    CHECK(a.error == "");
    CHECK(a.tokens == alone(one, small_prompt(20 + i, i), 200, kGreedy));
  }
  CHECK(both.metrics.counter("vllm:num_preemptions_total", "").value() > 0);
  CHECK(both.comes_to_rest());
}

TEST_CASE("a worker with both roles reuses the blocks of its answers, and reports them") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto"), one = make(1, "plain", 512);
  Process both(loop, Role::kBoth, engine);
  for (const bool own : {true, false}) {
    CAPTURE(own);
    const std::string id = own ? "own" : "far";
    auto prompt = small_prompt(100, own);
    const auto answer = both.serve(id, prompt, 60, own);
    REQUIRE(both.comes_to_rest());
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    prompt.push_back(7);
    CHECK(both.serve(id + " again", prompt, 20, own) == alone(one, prompt, 20, kGreedy));
    CHECK(both.cached == 144);  // the last token of the answer has no KV
    REQUIRE(both.comes_to_rest());
    const KvSnapshot known = both.roles->prefill()->cache().snapshot(0, 1000);
    CHECK(std::count(known.blocks.begin(), known.blocks.end(), chain_hashes(prompt, kBlock)[8]) ==
          1);
  }
}

TEST_CASE("chunks and steps of one process take the modelled time of both, one after the other") {
  SteadyClock clock;
  io::Loop loop(clock);
  DummyEngine engine(cost::tiny(), kBlock);
  Process both(loop, Role::kBoth, engine, {}, 200, 1);
  const Timing timing{engine.spec(), 1};
  const auto prompt = prompt_of(640, 1);
  const Time begin = clock.now();
  const uint64_t first = both.start("a", prompt, 40);
  const uint64_t second = both.start("b", prompt_of(640, 2), 2);  // computed between steps of a
  REQUIRE(both.until([&] { return !both.answers["a"].finish.empty(); }));
  const Duration least = timing.prefill(640, 0) * 2 + 40 * timing.step(1, 640);
  CHECK(clock.now() - begin >= least * 9 / 10);
  CHECK(both.answers["a"].finish == "length");
  for (const uint64_t tx : {first, second}) (void)both.call(TxCommit{tx});
  CHECK(both.comes_to_rest());
}

TEST_CASE("a prompt that this process computes is not late, however long it takes") {
  SteadyClock clock;
  io::Loop loop(clock);
  DummyEngine engine(cost::tiny(), kBlock);
  Process both(loop, Role::kBoth, engine, {}, 64, 50, 1ms);  // 100 ms and more a chunk
  CHECK(both.serve("a", prompt_of(100, 1), 2).size() == 2);
  CHECK(both.metrics.counter("mc_engine_recomputed_requests_total", "").value() == 0);
  CHECK(both.comes_to_rest());
}

TEST_CASE("an abort frees both instances, at any step") {
  SteadyClock clock;
  io::Loop loop(clock);
  DummyEngine engine(cost::tiny(), kBlock);
  Process both(loop, Role::kBoth, engine, {}, 64, 1);
  const auto prompt = prompt_of(300, 1);
  for (int step = 0; step < 5; ++step) {
    CAPTURE(step);
    const std::string id = "r" + std::to_string(step);
    const auto target = both.reserve(id, prompt, 100, true);
    REQUIRE(target);
    if (step > 0) {
      TxAllocate m;
      m.request = id;
      m.prompt = prompt;
      m.target = *target;
      const auto tx = both.call(m);
      REQUIRE(tx);
      both.client->call<Prefill>(Prefill{tx->tx}, 5s, [](const Result<PrefillDone>&) {});
      for (int turns = 0; turns < (step - 1) * 5; ++turns) REQUIRE(loop.turn(1ms));
      if (step == 4) REQUIRE(both.until([&] { return both.answers[id].tokens.size() > 2; }));
    }
    CHECK(both.call(Abort{id, "the client left"}));
    CHECK(both.comes_to_rest());
  }
}

TEST_CASE("a worker drains, changes its role, and refuses messages of other roles") {
  SteadyClock clock;
  io::Loop loop(clock);
  DummyEngine engine(cost::tiny(), kBlock);
  Process w(loop, Role::kBoth, engine, {}, 64, 1);
  std::vector<bool> changes;
  w.roles->on_change([&](bool joined) { changes.push_back(joined); });
  const uint64_t tx = w.start("a", prompt_of(100, 1), 30);
  CHECK(w.call(SetRole{"hermit"}).error().code == Code::kInvalid);
  const auto set = w.call(SetRole{"decode"});
  REQUIRE(set);
  CHECK(set->was == "both");
  CHECK(set->will_be == "decode");
  CHECK(w.roles->draining());
  CHECK(w.reserve("b", prompt_of(50, 2), 4, true).error().code == Code::kBusy);
  CHECK(w.roles->role() == Role::kBoth);  // until the request is through
  CHECK(w.call(SetRole{"prefill", "both"}).error().code == Code::kStale);  // of another conductor
  CHECK(w.call(SetRole{"decode", "both"}));                                // that wants the same
  REQUIRE(w.until([&] { return !w.answers["a"].finish.empty(); }));
  CHECK(w.answers["a"].finish == "length");
  CHECK(w.call(TxCommit{tx}));
  REQUIRE(w.until([&] { return w.roles->role() == Role::kDecode; }));
  CHECK(changes == std::vector<bool>{false, false, true});
  CHECK_FALSE(w.roles->draining());
  CHECK(w.roles->prefill() == nullptr);
  REQUIRE(w.roles->instances().size() == 1);
  CHECK(w.roles->instances()[0].role == std::string("decode"));
  const auto refused = w.call(Prefill{1});
  CHECK(refused.error().code == Code::kUnavailable);
  CHECK(refused.error().what.find("decode") != std::string::npos);
  CHECK(w.call(Snapshot{}).error().code == Code::kUnavailable);
  CHECK(w.reserve("c", prompt_of(50, 2), 4, true));  // and waits for KV
  CHECK(w.call(Abort{"c", "enough"}));
  CHECK(w.call(SetRole{"prefill"}));
  CHECK(w.call(SetRole{"decode"}));  // no, stay
  CHECK_FALSE(w.roles->draining());
  CHECK(w.reserve("d", prompt_of(50, 2), 4, true));
  CHECK(w.call(Abort{"d", "enough"}));
  CHECK(w.call(SetRole{"both"}));
  REQUIRE(w.until([&] { return w.roles->role() == Role::kBoth; }));
  w.serve("e", prompt_of(100, 1), 8);
  CHECK(w.comes_to_rest());
  CHECK(w.call(SetRole{"auto"}));
  REQUIRE(w.until([&] { return w.roles->role() == Role::kAuto; }));
  REQUIRE(w.roles->instances().size() == 1);
  CHECK(w.roles->instances()[0].role == std::string("auto"));
  CHECK(w.roles->idle());
  CHECK(w.reserve("f", prompt_of(50, 2), 4, true).error().code == Code::kBusy);
  CHECK(w.call(SetRole{"prefill", "decode"}).error().code == Code::kStale);
  CHECK(w.call(SetRole{"both", "auto"}));
  REQUIRE(w.until([&] { return w.roles->role() == Role::kBoth; }));
  w.serve("g", prompt_of(100, 1), 8);
  w.roles->drain();
  CHECK(w.call(SetRole{"decode"}).error().code == Code::kUnavailable);
}

}  // namespace
}  // namespace roles_test
}  // namespace mc::serve
