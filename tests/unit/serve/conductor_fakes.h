// Workers that do what a test tells them, on the conductor's own loop.
#pragma once
#include <doctest/doctest.h>
#include <atomic>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "io/loop.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "serve/conductor/conductor.h"
#include "serve/protocol/messages.h"
#include "tests/slow.h"

namespace mc::serve::test {

using namespace std::chrono_literals;

inline bool until(io::Loop& loop, const std::function<bool()>& done, Duration limit = 30s) {
  const Time end = loop.clock().now() + limit;
  while (!done()) {
    if (loop.clock().now() > end) return false;
    if (!loop.turn(5ms)) return false;
  }
  return true;
}

struct FakeWorker {
  FakeWorker(io::Loop& l, const std::string& conductor, const NodeId& node, const char* role)
      : loop(l) {
    server = *rpc::Server::open(loop, "127.0.0.1:0", metrics);
    client = *rpc::Client::connect(loop, conductor);
    me.node = node;
    me.role = role;
    me.epoch = 1;
    me.control = server->address();
    me.model = "tiny";
    me.block_tokens = 16;
    me.fingerprint = cost::tiny().fingerprint(16);
    me.context_max = 262144;
    me.load.blocks_total = me.load.blocks_free = 100000;
    me.events_first = 1;
    server->on<Abort>([this](const Abort& m, const rpc::Call&) -> Result<rpc::Empty> {
      aborted[m.request] = m.reason;
      return rpc::Empty{};
    });
  }
  ~FakeWorker() { loop.cancel(timer); }
  void live() {
    timer = loop.every(50ms, [this] { beat(); });
    beat();
  }
  void beat() {
    client->call(me, 1s, [this, n = ++beats](const Result<HeartbeatAck>& ack) {
      joined = ack.has_value();
      if (ack) heard = n;
      if (ack) acked = ack->events_seen;
      if (!ack) error = ack.error().what;
    });
  }

  io::Loop& loop;
  Metrics metrics;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<rpc::Client> client;
  io::Loop::Handle timer = 0;
  Heartbeat me;
  // The conductor has heard of what `me` is now: an answer to an earlier beat does not say so.
  bool tells() {
    return until(loop, [this, next = beats + 1] { return heard >= next; });
  }
  bool joined = false;
  uint64_t beats = 0, heard = 0;  // heartbeats sent, and the last one that was answered
  uint64_t acked = 0;
  std::string error;
  std::map<std::string, std::string> aborted;
};

struct FakeDecode : FakeWorker {
  FakeDecode(io::Loop& l, const std::string& conductor, const NodeId& node)
      : FakeWorker(l, conductor, node, "decode") {
    server->on<Reserve>([this](const Reserve& m, const rpc::Call&) -> Result<Reservation> {
      reserved.push_back(m);
      if (full) return fail(Code::kNoSpace, "no blocks");
      Reservation r;
      r.control = server->address();
      r.guard = 7;
      r.sampling = sampling;
      r.continues = continues;
      return r;
    });
    live();
  }
  void send(const std::string& request, std::vector<int32_t> tokens, const std::string& finish,
            const std::string& why = {}) {
    TokenUpdate u;
    u.request = request;
    u.tokens = std::move(tokens);
    u.finish = finish;
    u.error = why;
    client->call(TokenBatch{me.node, {u}}, 1s, [](const Result<rpc::Empty>&) {});
  }
  bool full = false;
  uint32_t sampling = kConstraints;  // 0: of an older release
  bool continues = true;             // false: the same
  std::vector<Reserve> reserved;
};

struct FakePrefill : FakeWorker {
  FakePrefill(io::Loop& l, const std::string& conductor, const NodeId& node)
      : FakeWorker(l, conductor, node, "prefill") {
    server->on_later<TxAllocate>(
        [this](const TxAllocate& m, const rpc::Call&, const rpc::Reply<TxAllocated>& reply) {
          allocated.push_back(m);
          if (full) return reply.error({Code::kNoSpace, "no blocks"});
          open.insert(m.request);
          if (late) return answers_late.push_back(reply);
          TxAllocated a;
          a.tx = ++tx;
          reply(a);
        });
    server->on_later<Prefill>(
        [this](const Prefill& m, const rpc::Call&, const rpc::Reply<PrefillDone>& reply) {
          const std::string request = m.request;
          if (!open.contains(request)) return reply.error({Code::kNotFound, "it was refused"});
          prefills.push_back(request);
          if (silent) return waiting.push_back(reply);
          if (broken) return reply.error({Code::kInternal, "the engine broke"});
          if (ends) return reply.error({Code::kUnavailable, "it ended before it answered"});
          reply(done);
          if (then) then(request);
        });
    server->on<TxCommit>([this](const TxCommit& m, const rpc::Call&) -> Result<TxCommitted> {
      committed.push_back(m.request);
      if (commit_fails != Code{}) return fail(commit_fails, "no commit here");
      return TxCommitted{};
    });
    server->on<Snapshot>([this](const Snapshot& m, const rpc::Call&) -> Result<KvSnapshot> {
      ++snapshots;
      KvSnapshot s;
      s.epoch = me.epoch;
      s.seq = me.events_last;
      const size_t half = cache.size() / 2;
      if (m.from == 0 && half > 0) {  // two pages
        s.blocks.assign(cache.begin(), cache.begin() + static_cast<ptrdiff_t>(half));
        s.next = half;
      } else {
        s.blocks.assign(cache.begin() + static_cast<ptrdiff_t>(m.from), cache.end());
      }
      return s;
    });
    live();
  }
  bool full = false, broken = false, silent = false, ends = false;
  bool late = false;  // no answer to TxAllocate
  Code commit_fails{};
  uint64_t tx = 0;
  int snapshots = 0;
  PrefillDone done{.cached_tokens = 16, .pool_tokens = 0, .prefill_ms = 1};
  std::function<void(const std::string& request)> then;
  std::vector<TxAllocate> allocated;
  std::vector<std::string> prefills;
  std::vector<std::string> committed;
  std::set<std::string> open;  // allocated
  std::vector<rpc::Reply<PrefillDone>> waiting;
  std::vector<rpc::Reply<TxAllocated>> answers_late;
  std::vector<BlockHash> cache;
};

inline ConductorOptions quick() {
  ConductorOptions o;
  o.listen = "127.0.0.1:0";
  o.block_size = 16;
  o.worker_ttl = 400ms * kSlow;
  o.step_timeout = 500ms * kSlow;
  o.prefill_timeout = 1s * kSlow;
  o.answer_timeout = 10s * kSlow;
  o.token_timeout = 700ms * kSlow;
  o.queue_timeout = 700ms * kSlow;
  return o;
}

// Where no timeout is what a test waits for: a machine that stands still for seconds passes it.
inline ConductorOptions patient() {
  ConductorOptions o = quick();
  o.worker_ttl = o.step_timeout = o.prefill_timeout = o.token_timeout = o.queue_timeout = 60s;
  return o;
}

inline GenerateRequest asking(std::vector<int32_t> prompt, const std::string& salt = {}) {
  GenerateRequest g;
  g.prompt = std::move(prompt);
  g.cache_salt = salt;
  return g;
}

// What one request was told.
struct Heard {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> said;
  bool done = false;
  std::optional<RequestError> failed;
  Progress progress;
  ResponseSink sink() {
    ResponseSink l;
    l.on_tokens = [this](const Progress&, const std::vector<int32_t>& t,
                         const std::vector<TokenLogprobs>& logprobs) {
      said.insert(said.end(), logprobs.begin(), logprobs.end());
      tokens.insert(tokens.end(), t.begin(), t.end());
    };
    l.on_done = [this](const Progress& p, const std::optional<RequestError>& f) {
      CHECK(!done);
      done = true;
      progress = p;
      failed = f;
    };
    return l;
  }
};

// A clock that may jump ahead, as for a process that stood still.
struct JumpClock final : Clock {
  Time now() const override { return steady.now() + Duration(jumped.by.load()); }
  SteadyClock steady;
  struct Jump {  // while other threads look at the clock
    std::atomic<int64_t> by{0};
    void operator+=(Duration d) { by += d.count(); }
  } jumped;
};

// A conductor and some fake workers. Prefill p0 makes decode answer with two tokens by itself.
struct Cluster {
  explicit Cluster(int prefills = 1, int decodes = 1, ConductorOptions options = patient()) {
    conductor = *Conductor::open(loop, options, 42, metrics);
    for (int i = 0; i < decodes; ++i)
      d.push_back(std::make_unique<FakeDecode>(loop, conductor->control(), strf("d%d", i)));
    for (int i = 0; i < prefills; ++i) {
      p.push_back(std::make_unique<FakePrefill>(loop, conductor->control(), strf("p%d", i)));
      p.back()->then = [this](const std::string& request) { answer(request); };
    }
    for (auto& w : d) serve_model(w->me);
    for (auto& w : p) serve_model(w->me);
    REQUIRE(until(loop, [&] { return conductor->not_ready().empty(); }));
  }
  void serve_model(Heartbeat& me) const {
    me.model = conductor->spec().name;
    me.fingerprint = conductor->spec().fingerprint(16);
  }
  FakeDecode& decode_of(const std::string& request) {
    for (auto& w : d)
      for (const Reserve& r : w->reserved)
        if (r.request == request) return *w;
    return *d[0];
  }
  void answer(const std::string& request) { decode_of(request).send(request, {65, 66}, "length"); }
  Conductor::Id submit(Heard& heard, uint32_t n = 40, int32_t first = 0) {
    GenerateRequest g;
    g.id = "r";
    for (uint32_t i = 0; i < n; ++i) g.prompt.push_back(static_cast<int32_t>(i) + first);
    g.max_tokens = 4;
    return conductor->submit(std::move(g), heard.sink());
  }
  bool finish(Heard& heard) {
    return until(loop, [&] { return heard.done; });
  }

  JumpClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  std::unique_ptr<Conductor> conductor;
  std::vector<std::unique_ptr<FakeDecode>> d;
  std::vector<std::unique_ptr<FakePrefill>> p;
};

}  // namespace mc::serve::test
