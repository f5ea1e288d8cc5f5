// A prefill worker reads a prefix that another one pins, while its request queues.
// It also tests a side that releases too early, and when a conductor asks for the fetch.
#include "base/json.h"
#include "conductor_fakes.h"
#include "pair.h"
#include "prefill_site.h"
#include "serve/prefill/prefill_remote_prefix.h"

namespace mc::serve {
namespace remote_prefix_test {
namespace {

using test::Cluster;
using test::Heard;

uint64_t counted(Metrics& metrics, const char* name) { return metrics.counter(name, "").value(); }

struct Two {
  explicit Two(std::vector<std::string> transports = {"shm", "tcp"}, uint32_t blocks = 64)
      : a(loop, {.transports = transports, .prefill_blocks = blocks}, "a"),
        b(loop, {.transports = transports, .prefill_blocks = blocks}, "b") {}
  Result<TxAllocated> pin_for_peer(const std::string& id, const std::vector<int32_t>& prompt,
                                   uint32_t blocks, uint32_t lease_ms = 10'000,
                                   uint32_t expect_ms = 0) {
    TxAllocate m;
    m.request = id;
    m.prompt = prompt;
    m.pin_for_peer = blocks;
    m.lease_ms = lease_ms;
    m.expect_ms = expect_ms;
    return a.call(*a.to_p, m);
  }
  // A request at b that reads what a pinned.
  TxAllocate asked(const std::string& id, const std::vector<int32_t>& prompt,
                   const TxAllocated& pinned) {
    const auto target = b.reserve(id, prompt, 20);
    REQUIRE_MESSAGE(target, target.error().what);
    TxAllocate m;
    m.request = id;
    m.prompt = prompt;
    m.target = *target;
    m.lease_ms = 10'000;
    m.remote_prefix = {a.p_server->address(), pinned.tx,     pinned.segment, pinned.block_offsets,
                       pinned.ranks,          pinned.coming, 30'000};
    return m;
  }
  PrefillDone serve(const TxAllocate& m) {
    const auto tx = b.call(*b.to_p, m);
    REQUIRE_MESSAGE(tx, tx.error().what);
    const auto done = b.call(*b.to_p, Prefill{tx->tx});
    REQUIRE_MESSAGE(done, done.error().what);
    REQUIRE(b.until([&] { return !b.answers[m.request].finish.empty(); }));
    CHECK(b.answers[m.request].error == "");
    CHECK(b.call(*b.to_p, TxCommit{tx->tx}));
    return *done;
  }
  bool rest() { return a.comes_to_rest() && b.comes_to_rest(); }

  test::JumpClock clock;
  io::Loop loop{clock};
  Pair a, b;
};

}  // namespace

TEST_CASE("a prefix at another worker is read, verifies, and is a hit there from then on") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Two two({transport});
    const auto prompt = prompt_of(10 * kBlock + 5, 1);
    two.a.serve("first", prompt, 20);
    const auto pinned = two.pin_for_peer("r", prompt, 10);
    REQUIRE_MESSAGE(pinned, pinned.error().what);
    CHECK(pinned->local_blocks == 10);
    const auto done = two.serve(two.asked("r", prompt, *pinned));
    CHECK(done.cached_tokens == 10 * kBlock);
    CHECK(done.peer_tokens == 10 * kBlock);
    CHECK(two.b.answers["r"].tokens == two.a.answers["first"].tokens);
    CHECK(two.b.answers["r"].kv_errors == 0);
    CHECK(counted(two.b.p_metrics, "mc_engine_peer_tokens_total") == 10 * kBlock);
    CHECK(counted(two.a.p_metrics, "mc_engine_lent_blocks_total") == 10);
    const auto again = two.b.serve("again", prompt, 20);
    CHECK(again.cached_tokens == 10 * kBlock);
    CHECK(again.peer_tokens == 0);
    CHECK(two.rest());
  }
}

TEST_CASE("only missing blocks that the holder has are read") {
  Two two;
  const auto prompt = prompt_of(10 * kBlock + 5, 1);
  two.a.serve("first", std::vector(prompt.begin(), prompt.begin() + 8 * kBlock + 1), 4);
  two.b.serve("other", std::vector(prompt.begin(), prompt.begin() + 3 * kBlock + 1), 4);
  const auto pinned = two.pin_for_peer("r", prompt, 10);
  REQUIRE(pinned);
  CHECK(pinned->local_blocks == 8);
  const auto done = two.serve(two.asked("r", prompt, *pinned));
  CHECK(done.cached_tokens == 8 * kBlock);
  CHECK(done.peer_tokens == 5 * kBlock);
  // All of it is there already: nothing is read, and the pin ends all the same.
  const auto more = two.pin_for_peer("s", prompt, 8);
  REQUIRE(more);
  CHECK(two.serve(two.asked("s", prompt, *more)).peer_tokens == 0);
  CHECK(two.rest());
}

TEST_CASE("blocks pinned for a peer are not evicted when others need room") {
  Two two({"shm", "tcp"}, 16);
  const auto prompt = prompt_of(6 * kBlock + 1, 1);
  two.a.serve("first", prompt, 20);
  const auto pinned = two.pin_for_peer("r", prompt, 6);
  REQUIRE(pinned);
  for (uint64_t i = 0; i < 6; ++i)
    two.a.serve("o" + std::to_string(i), prompt_of(8 * kBlock, 10 + i), 4);
  const auto done = two.serve(two.asked("r", prompt, *pinned));
  CHECK(done.peer_tokens == 6 * kBlock);
  CHECK(two.b.answers["r"].tokens == two.a.answers["first"].tokens);
  CHECK(two.rest());
}

TEST_CASE("a pin that ended before the read makes the bytes read void") {
  Two two({"shm", "tcp"}, 16);
  const auto prompt = prompt_of(6 * kBlock + 1, 1);
  two.a.serve("first", prompt, 20);
  const auto pinned = two.pin_for_peer("r", prompt, 6, 1);
  REQUIRE(pinned);
  REQUIRE(two.a.until([&] { return two.a.prefill->idle(); }));
  CHECK(counted(two.a.p_metrics, "mc_engine_lent_expired_total") == 1);
  for (uint64_t i = 0; i < 6; ++i)  // other KV stands there now
    two.a.serve("o" + std::to_string(i), prompt_of(8 * kBlock, 10 + i), 4);
  const auto done = two.serve(two.asked("r", prompt, *pinned));
  CHECK(done.peer_tokens == 0);
  CHECK(done.cached_tokens == 0);
  CHECK(two.b.answers["r"].tokens == two.a.answers["first"].tokens);
  CHECK(two.b.answers["r"].kv_errors == 0);
  CHECK(counted(two.b.p_metrics, "mc_engine_peer_fetch_failures_total") == 1);
  CHECK(two.rest());
}

TEST_CASE("a request aborted while its prefix is read leaves no block and shares none") {
  Two two;
  const auto prompt = prompt_of(10 * kBlock + 5, 1);
  two.a.serve("first", prompt, 20);
  for (int turns = 0; turns < 6; ++turns) {
    CAPTURE(turns);
    const std::string id = "r" + std::to_string(turns);
    const auto pinned = two.pin_for_peer(id, prompt, 10);
    REQUIRE(pinned);
    const TxAllocate m = two.asked(id, prompt, *pinned);
    two.b.to_p->call<TxAllocate>(m, 5s, [](const Result<TxAllocated>&) {});
    for (int i = 0; i < turns; ++i) REQUIRE(two.loop.turn(1ms));
    two.b.abort_both(id);
    CHECK(two.a.call(*two.a.to_p, Abort{id, "the client left"}));
    CHECK(two.rest());
  }
  CHECK(two.pin_for_peer("none", prompt_of(40, 9), 2).error().code == Code::kNotFound);
  CHECK(two.pin_for_peer("many", prompt, 11).error().code == Code::kInvalid);
  CHECK(two.pin_for_peer("twice", prompt, 10));
  CHECK(two.pin_for_peer("twice", prompt, 10).error().code == Code::kExists);
  CHECK(two.a.call(*two.a.to_p, Abort{"twice", "enough"}));
  CHECK(two.rest());
}

TEST_CASE("a worker that pins a prefix and dies costs that prefix only") {
  Two two;
  const auto prompt = prompt_of(10 * kBlock + 5, 1);
  two.a.serve("first", prompt, 20);
  auto pinned = two.pin_for_peer("r", prompt, 10);
  REQUIRE(pinned);
  TxAllocate m = two.asked("r", prompt, *pinned);
  m.remote_prefix.control = "127.0.0.1:1";  // nobody there
  CHECK(two.serve(m).peer_tokens == 0);
  CHECK(two.b.answers["r"].tokens == two.a.answers["first"].tokens);
  CHECK(two.b.comes_to_rest());
}

TEST_CASE("a prefix that another worker computes is read as it appears, and not computed again") {
  Two two;
  const auto prompt = prompt_of(10 * kBlock + 5, 1);  // three chunks
  const auto target = two.a.reserve("first", prompt, 20);
  REQUIRE(target);
  const auto tx = two.a.allocate("first", prompt, *target);
  REQUIRE(tx);
  const auto pinned = two.pin_for_peer("r", prompt, 10);
  REQUIRE_MESSAGE(pinned, pinned.error().what);
  CHECK(pinned->local_blocks == 0);
  CHECK(pinned->coming == 10);
  std::optional<PrefillDone> done;
  const TxAllocate m = two.asked("r", prompt, *pinned);
  const auto reader = two.b.call(*two.b.to_p, m);
  REQUIRE(reader);
  two.b.to_p->call<Prefill>(Prefill{reader->tx}, 30s, [&](const Result<PrefillDone>& reply) {
    REQUIRE_MESSAGE(reply, reply.error().what);
    done = *reply;
  });
  // One that begins alike follows it there.
  const auto sibling = prompt_of(10 * kBlock + 5, 1);
  const auto there = two.b.reserve("s", sibling, 20);
  REQUIRE(there);
  const auto behind = two.b.allocate("s", sibling, *there);
  REQUIRE(behind);
  std::optional<PrefillDone> second;
  two.b.to_p->call<Prefill>(Prefill{behind->tx}, 30s, [&](const Result<PrefillDone>& reply) {
    REQUIRE_MESSAGE(reply, reply.error().what);
    second = *reply;
  });
  for (int i = 0; i < 10; ++i) REQUIRE(two.loop.turn(1ms));
  CHECK(!done);  // nothing is computed anywhere
  CHECK(counted(two.b.p_metrics, "mc_engine_computed_tokens_total") == 0);
  REQUIRE(two.a.call(*two.a.to_p, Prefill{tx->tx}));
  REQUIRE(two.b.until([&] { return done.has_value() && second.has_value(); }));
  CHECK(done->cached_tokens == 10 * kBlock);
  CHECK(done->peer_tokens == 10 * kBlock);
  CHECK(second->cached_tokens == 10 * kBlock);
  CHECK(second->peer_tokens == 0);
  CHECK(counted(two.b.p_metrics, "mc_engine_computed_tokens_total") == 10);  // the last tokens
  REQUIRE(two.b.until([&] { return !two.b.answers["r"].finish.empty(); }));
  REQUIRE(two.b.until([&] { return !two.b.answers["s"].finish.empty(); }));
  REQUIRE(two.a.until([&] { return !two.a.answers["first"].finish.empty(); }));
  CHECK(two.b.answers["r"].tokens == two.a.answers["first"].tokens);
  CHECK(two.b.answers["r"].kv_errors + two.b.answers["s"].kv_errors == 0);
  CHECK(two.b.call(*two.b.to_p, TxCommit{reader->tx}));
  CHECK(two.b.call(*two.b.to_p, TxCommit{behind->tx}));
  CHECK(two.a.call(*two.a.to_p, TxCommit{tx->tx}));
  CHECK(two.rest());
}

TEST_CASE("a pin may come before the request that computes its prefix") {
  Two two;
  const auto prompt = prompt_of(10 * kBlock + 5, 1);
  const auto pinned = two.pin_for_peer("r", prompt, 10, 10'000, 10'000);
  REQUIRE_MESSAGE(pinned, pinned.error().what);
  CHECK(pinned->coming == 10);
  const auto reader = two.b.call(*two.b.to_p, two.asked("r", prompt, *pinned));
  REQUIRE(reader);
  std::optional<PrefillDone> done;
  two.b.to_p->call<Prefill>(Prefill{reader->tx}, 30s, [&](const Result<PrefillDone>& reply) {
    REQUIRE_MESSAGE(reply, reply.error().what);
    done = *reply;
  });
  for (int i = 0; i < 10; ++i) REQUIRE(two.loop.turn(1ms));
  two.a.serve("first", prompt, 20);
  REQUIRE(two.b.until([&] { return done.has_value(); }));
  CHECK(done->peer_tokens == 10 * kBlock);
  REQUIRE(two.b.until([&] { return !two.b.answers["r"].finish.empty(); }));
  CHECK(two.b.call(*two.b.to_p, TxCommit{reader->tx}));
  CHECK(two.rest());
}

TEST_CASE("of a pin one reader waits: who asks again ends the wait before") {
  Two t;
  const auto pinned = t.pin_for_peer("s", prompt_of(100, 1), 6, 10'000, 10'000);
  REQUIRE(pinned);
  AwaitPrefix m;
  m.tx = pinned->tx;
  m.wait_ms = 10'000;
  std::vector<std::string> ends;
  for (int i = 0; i < 3; ++i)
    t.a.to_p->call<AwaitPrefix>(m, 20s, [&](const Result<PrefixMore>& more) {
      ends.push_back(more ? "more" : more.error().what);
    });
  REQUIRE(t.a.until([&] { return ends.size() == 2; }));
  for (const std::string& end : ends) CHECK(end.find("asked again") != std::string::npos);
}

TEST_CASE("a prefix that its worker gives up is computed by who waits for it") {
  Two two;
  const auto prompt = prompt_of(10 * kBlock + 5, 1);
  const auto target = two.a.reserve("first", prompt, 20);
  REQUIRE(target);
  REQUIRE(two.a.allocate("first", prompt, *target));
  const auto pinned = two.pin_for_peer("r", prompt, 10);
  REQUIRE(pinned);
  const auto reader = two.b.call(*two.b.to_p, two.asked("r", prompt, *pinned));
  REQUIRE(reader);
  std::optional<PrefillDone> done;
  two.b.to_p->call<Prefill>(Prefill{reader->tx}, 30s, [&](const Result<PrefillDone>& reply) {
    REQUIRE_MESSAGE(reply, reply.error().what);
    done = *reply;
  });
  for (int i = 0; i < 10; ++i) REQUIRE(two.loop.turn(1ms));
  CHECK(!done);
  two.a.abort_both("first");
  REQUIRE(two.b.until([&] { return done.has_value(); }));
  CHECK(done->cached_tokens == 0);
  REQUIRE(two.b.until([&] { return !two.b.answers["r"].finish.empty(); }));
  CHECK(two.b.answers["r"].kv_errors == 0);
  CHECK(two.b.call(*two.b.to_p, TxCommit{reader->tx}));
  CHECK(two.rest());
}

TEST_CASE("who waits for a prefix has patience for a time only") {
  Two two;
  const auto prompt = prompt_of(10 * kBlock + 5, 1);
  const auto target = two.a.reserve("first", prompt, 20);
  REQUIRE(target);
  REQUIRE(two.a.allocate("first", prompt, *target));  // and never started
  const auto pinned = two.pin_for_peer("r", prompt, 10);
  REQUIRE(pinned);
  TxAllocate m = two.asked("r", prompt, *pinned);
  m.remote_prefix.wait_ms = 50;
  CHECK(two.serve(m).cached_tokens == 0);
  CHECK(two.a.prefill->state()["lent"] == 0);
  two.a.abort_both("first");
  CHECK(two.rest());
}

TEST_CASE("the patience begins anew while the holder's blocks come fast enough") {
  for (const uint32_t first : {2u, 1u}) {  // of ten, until the patience has ended
    CAPTURE(first);
    Two two;
    const auto prompt = prompt_of(10 * kBlock + 5, 1);
    two.a.serve("first", prompt, 20);
    const auto pinned = two.pin_for_peer("r", prompt, 10);
    REQUIRE(pinned);
    // A holder that tells of the blocks in two parts.
    Metrics metrics;
    const auto holder = *rpc::Server::open(two.loop, "127.0.0.1:0", metrics);
    holder->on<AwaitPrefix>([&](const AwaitPrefix& m, const rpc::Call&) -> Result<PrefixMore> {
      if (m.have == 0) two.clock.jumped += 51ms;
      const uint32_t upto = m.have == 0 ? first : 10;
      PrefixMore more;
      more.offsets.assign(pinned->block_offsets.begin() + m.have,
                          pinned->block_offsets.begin() + upto);
      more.coming = 10 - upto;
      return more;
    });
    holder->on<TxCommit>(
        [](const TxCommit&, const rpc::Call&) -> Result<TxCommitted> { return TxCommitted{}; });
    TxAllocate m = two.asked("r", prompt, *pinned);
    m.remote_prefix.control = holder->address();
    m.remote_prefix.offsets.clear();
    m.remote_prefix.coming = 10;
    m.remote_prefix.wait_ms = 50;
    CHECK(two.serve(m).peer_tokens == (first == 2 ? 10 : first) * kBlock);
    CHECK(two.b.answers["r"].kv_errors == 0);
    CHECK(two.a.call(*two.a.to_p, Abort{"r", "it was read"}));
    CHECK(two.rest());
  }
}

// ---- the object alone

namespace {

TxAllocate pin_of(const std::string& id, const std::vector<int32_t>& prompt, uint32_t blocks) {
  TxAllocate m;
  m.request = id;
  m.prompt = prompt;
  m.pin_for_peer = blocks;
  m.lease_ms = 10'000;
  return m;
}

// A holder whose blocks are those of another transaction here; `ends` is how the pin ends.
struct Holder {
  Holder(PrefillSite& site, const PrefillJob& from, Result<TxCommitted> ends) {
    server = *rpc::Server::open(site.loop, "127.0.0.1:0", metrics);
    server->on<TxCommit>([ends](const TxCommit&, const rpc::Call&) { return ends; });
    prefix.control = server->address();
    prefix.tx = 1;
    prefix.segment = site.transfer->describe();
    for (const BlockId id : site.shared->blocks().find(from.tx)->blocks)
      prefix.offsets.push_back(site.shared->core->block_offset(id));
    prefix.ranks = 1;
    prefix.wait_ms = 1000;
  }
  Metrics metrics;
  std::unique_ptr<rpc::Server> server;
  RemotePrefix prefix;
};

}  // namespace

TEST_CASE("a pin promises what requests of its worker compute, until they fail") {
  SteadyClock clock;
  io::Loop loop(clock);
  PrefillSite site(loop);
  RemotePrefixes prefixes(*site.shared);
  const auto prompt = prompt_of(4 * kBlock + 3, 1);
  CHECK(prefixes.pin(pin_of("r", prompt, 4), loop.now()).error().code == Code::kNotFound);
  const PrefillJobPtr job = site.job("a", prompt);
  CHECK(prefixes.pin(pin_of("a", prompt, 4), loop.now()).error().code == Code::kExists);
  const auto pinned = prefixes.pin(pin_of("r", prompt, 4), loop.now());
  REQUIRE(pinned);
  CHECK(pinned->coming == 4);
  CHECK(pinned->local_blocks == 0);
  site.shared->blocks().computed(job->tx, 3);
  const auto again = prefixes.pin(pin_of("s", prompt, 4), loop.now());
  REQUIRE(again);
  CHECK(again->coming == 1);
  CHECK(again->local_blocks == 3);
  site.fail_job(job, {Code::kUnavailable, "enough"});
  const auto left = prefixes.pin(pin_of("t", prompt, 4), loop.now());
  REQUIRE(left);
  CHECK(left->coming == 0);
  CHECK(prefixes.pinned() == 3);
  CHECK(prefixes.end(pinned->tx));
  CHECK_FALSE(prefixes.end(pinned->tx));
  for (const char* id : {"s", "t"}) prefixes.end(std::string(id));
  CHECK(prefixes.pinned() == 0);
  CHECK(site.shared->blocks().transactions() == 0);
  PrefillConfig head;
  head.stages = {"127.0.0.1:1"};
  PrefillSite first(loop, head, nullptr, "head");
  RemotePrefixes none(*first.shared);
  CHECK(none.pin(pin_of("r", prompt, 4), loop.now()).error().code == Code::kUnsupported);
}

TEST_CASE("blocks that were read count if their pin lasted, and the request still wants them") {
  SteadyClock clock;
  io::Loop loop(clock);
  const auto prompt = prompt_of(4 * kBlock + 3, 1), other = prompt_of(4 * kBlock, 2);
  enum class End { kWell, kPinGone, kFailed, kCached };
  for (const End how : {End::kWell, End::kPinGone, End::kFailed, End::kCached}) {
    CAPTURE(static_cast<int>(how));
    PrefillSite site(loop);
    RemotePrefixes prefixes(*site.shared);
    const PrefillJobPtr source = site.job("source", other), job = site.job("r", prompt);
    const auto block_of = [&](const PrefillJob& of, size_t i) {
      return site.shared->core->block(site.shared->blocks().find(of.tx)->blocks[i]);
    };
    for (size_t i = 0; i < 4; ++i)
      std::fill_n(block_of(*source, i), site.shared->block_bytes(), std::byte(i + 1));
    const Holder holder(
        site, *source,
        how == End::kPinGone ? Result<TxCommitted>(fail(Code::kNotFound, "gone")) : TxCommitted{});
    std::optional<size_t> valid;
    prefixes.fetch(job, holder.prefix, [&](size_t n) { valid = n; });
    CHECK(job->busy == 1);
    CHECK(job->fetch == FetchState::kPeer);
    if (how == End::kFailed) site.fail_job(job, {Code::kUnavailable, "enough"});
    PrefillJobPtr twin;
    if (how == End::kCached) {  // a request that begins alike computes its first two blocks
      twin = site.job("twin", prompt);
      site.shared->blocks().computed(twin->tx, 2);
      site.shared->blocks().rematch(job->tx);
    }
    REQUIRE(site.until([&] { return valid.has_value(); }));
    CHECK(job->busy == 0);
    CHECK(job->fetch == FetchState::kNone);
    const bool counts = how == End::kWell || how == End::kCached;
    CHECK(*valid == (counts ? 4 : 0));
    const size_t cached = how == End::kCached ? 2 : 0;
    CHECK(job->done.peer_tokens == (counts ? (4 - cached) * kBlock : 0));
    for (size_t i = cached; counts && i < 4; ++i) CHECK(*block_of(*job, i) == std::byte(i + 1));
    CHECK(counted(site.metrics, "mc_engine_peer_fetch_failures_total") ==
          (how == End::kPinGone ? 1 : 0));
    site.settle(job);
    site.shared->blocks().check();
  }
}

// ---- the conductor

namespace {

// p0 holds the prompt and is busy; p1 is idle.
struct Hot : Cluster {
  Hot() : Cluster(2) {
    for (uint32_t i = 0; i < 4096; ++i) prompt.push_back(static_cast<int32_t>(i));
    for (const BlockHash& h : chain_hashes(prompt, 16, "")) p[0]->me.events.push_back({true, h});
    p[0]->me.events_last = p[0]->me.events.size();
    REQUIRE(test::until(loop, [&] { return p[0]->acked == p[0]->me.events_last; }));
    p[0]->silent = true;
    // p0 is first choice when both are idle. The next request must follow at once: the conductor
    // expects p0 to finish this one after 0.14 s.
    submit(busy, 64 * 1024, 7);
  }
  Conductor::Id ask(Heard& heard) {
    GenerateRequest g;
    g.id = "hot";
    g.prompt = prompt;
    g.max_tokens = 4;
    return conductor->submit(std::move(g), heard.sink());
  }
  // The request that a worker got for a prompt of `tokens` tokens, and its number, from 1.
  static std::pair<TxAllocate, uint64_t> locked(const test::FakePrefill& worker, size_t tokens) {
    for (size_t i = 0; i < worker.allocated.size(); ++i)
      if (worker.allocated[i].prompt.size() == tokens) return {worker.allocated[i], i + 1};
    return {};
  }
  std::vector<int32_t> prompt;
  Heard busy;
};

}  // namespace

TEST_CASE("a hot prefix is pinned for the worker that is chosen in spite of it") {
  Hot c;
  Heard heard;
  c.p[1]->done.cached_tokens = c.p[1]->done.peer_tokens = 4080;
  c.p[1]->done.peer_ms = 420;  // 10 MB/s
  CHECK(c.conductor->cluster()["fetch_bytes_per_s"] > 1e9);
  c.ask(heard);
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.progress.prefill == "p1");
  const auto [pin, tx] = Hot::locked(*c.p[0], 4080);  // the last block is computed
  REQUIRE(tx > 0);
  CHECK(pin.pin_for_peer == 255);
  const TxAllocate own = Hot::locked(*c.p[1], 4096).first;
  CHECK(own.request == pin.request);
  CHECK(own.remote_prefix.tx == tx);
  CHECK(own.remote_prefix.control == c.p[0]->server->address());
  CHECK(c.metrics.text().find("mc_conductor_replicated_tokens_total 4080") != std::string::npos);
  CHECK(c.conductor->explain("hot")["outcome"]["peer_tokens"] == 4080);
  CHECK(c.conductor->cluster()["fetch_bytes_per_s"] < 50e6);
  CHECK(c.metrics.text().find(R"(part_error_seconds_count{part="fetch"} 1)") != std::string::npos);
}

TEST_CASE("a prefix that cannot be pinned is computed") {
  Hot c;
  c.p[0]->full = true;
  Heard heard;
  c.ask(heard);
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.progress.prefill == "p1");
  const auto [own, tx] = Hot::locked(*c.p[1], 4096);
  REQUIRE(tx > 0);
  CHECK(own.remote_prefix.tx == 0);
  CHECK(c.metrics.text().find(R"(mc_conductor_tx_total{op="lend",result="failed"} 1)") !=
        std::string::npos);
}

TEST_CASE("a client that leaves ends the pin too, within a second") {
  Hot c;
  c.p[1]->silent = true;
  Heard heard;
  const auto id = c.ask(heard);
  REQUIRE(test::until(c.loop, [&] { return c.p[1]->prefills.size() == 1; }));
  const std::string request = c.p[1]->allocated[0].request;
  c.conductor->cancel(id, "the client is gone");
  CHECK(test::until(
      c.loop,
      [&] {
        return c.p[0]->aborted.contains(request) && c.p[1]->aborted.contains(request) &&
               c.d[0]->aborted.contains(request);
      },
      1s));
}

}  // namespace remote_prefix_test
}  // namespace mc::serve
