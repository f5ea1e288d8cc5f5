// A prefill and a decode worker in one process, over the real transfer engine.
// They share one loop, and the test is the conductor.
#pragma once
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/random.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "serve/engine/dummy_engine.h"
#include "serve/prefill/prefill_worker.h"
#include "serve/worker/decode_worker.h"
#include "tests/slow.h"

namespace mc::serve {

using namespace std::chrono_literals;

inline constexpr uint32_t kBlock = 16;  // tokens

inline std::vector<int32_t> prompt_of(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> out(n);
  for (auto& t : out) t = static_cast<int32_t>(random.below(32000));
  return out;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::string finish, error;
  uint32_t kv_errors = 0;
};

// The connectors between a prefill and a decode worker.
struct Way {
  const char* name;
  Connector connector;
  bool layerwise;
};
inline constexpr Way kWays[] = {
    {"push", Connector::kPush, true}, {"push, all at the end", Connector::kPush, false},
    {"pull", Connector::kPull, true}, {"pull, all at the end", Connector::kPull, false},
    {"pool", Connector::kPool, true}, {"multi", Connector::kMulti, true}};

struct PairOptions {
  std::vector<std::string> transports{"shm", "tcp"};
  std::string master = {};  // of a store; empty: none
  std::string pool_reuse = "always";
  uint32_t prefill_blocks = 64, decode_blocks = 64;
  double time_scale = 0;
  uint32_t chunk_tokens = 64;
  Duration recompute_after{};
  Duration kv_deadline{};  // the decode worker's own; 0: what the request says
  bool cache_answers = true;
  uint32_t speculate = 0;
  std::string preempt = "auto";
  double watermark = 0.01;
  uint64_t swap_bytes = 64 << 20;
  Connector connector = Connector::kMulti;
  bool layerwise = true;
  uint32_t kv_deadline_ms = 5000;
  Duration send_timeout = 1s * kSlow;     // half of it for the other calls between workers
  Duration peer_timeout = 200ms * kSlow;  // of both engines, and of the decode worker
  const Engine *prefill_engine = nullptr, *decode_engine = nullptr;  // nullptr: the dummy
  std::vector<std::string> stages = {};  // of a pipeline that the prefill worker is the head of
  std::string fingerprint = {};          // then
  std::string faults = {};  // of transfers: rules of xfer/transports/fault/fault_plan.h
  OpenPool pool = open_store_pool;
  Duration store_timeout = 1s * kSlow;  // of both workers' calls
  TraceEvents* trace = nullptr;         // of both workers
  bool pool_layers = false;
  Guides::OpenTokenizer tokenizer = {};  // of the decode worker, for constrained answers
};

struct Pair {
  explicit Pair(io::Loop& on, PairOptions options = {}, const std::string& name = "")
      : loop(on), kv_deadline_ms(options.kv_deadline_ms), engine(cost::tiny(), kBlock) {
    const auto open_engine = [&](const std::string& node) {
      xfer::EngineOptions o;
      o.node = node + name;
      o.transports = options.transports;
      o.peer_timeout = options.peer_timeout;
      const auto script = std::filesystem::temp_directory_path() /
                          ("mc-faults-" + std::to_string(::getpid()) + "-" + o.node);
      if (!options.faults.empty()) {
        std::ofstream(script) << options.faults;
        o.fault = script.string();
      }
      auto opened = xfer::Engine::open(loop.clock(), o, metrics);
      std::filesystem::remove(script);
      REQUIRE(opened);
      return std::move(*opened);
    };
    const auto open_server = [&] {
      auto opened = rpc::Server::open(loop, "127.0.0.1:0", metrics);
      REQUIRE(opened);
      return std::move(*opened);
    };
    p_xfer = open_engine("p");
    d_xfer = open_engine("d");
    p_server = open_server();
    d_server = open_server();
    c_server = open_server();
    PrefillConfig p;
    p.epoch = 7;
    p.blocks = options.prefill_blocks;
    p.chunk_tokens = options.chunk_tokens;
    p.time_scale = options.time_scale;
    p.pool_reuse = options.pool_reuse;
    p.connector = options.connector;
    p.layerwise = options.layerwise;
    p.send_timeout = options.send_timeout;
    p.peer_budget = options.send_timeout / 2;
    p.stages = options.stages;
    p.fingerprint = options.fingerprint;
    p.pipeline_patience = 500ms * kSlow;
    p.store.master = options.master;
    p.store.timeout = options.store_timeout;
    p.pool = options.pool;
    p.trace = options.trace;
    p.pool_layers = options.pool_layers;
    const auto chosen = [&](const Engine* e) -> const Engine& { return e ? *e : engine; };
    auto opened_p =
        PrefillWorker::open(loop, *p_xfer, *p_server, chosen(options.prefill_engine), p, p_metrics);
    REQUIRE(opened_p);
    prefill = std::move(*opened_p);
    DecodeConfig d;
    d.blocks = options.decode_blocks;
    d.time_scale = options.time_scale;
    d.recompute_after = options.recompute_after;
    d.kv_deadline = options.kv_deadline;
    d.cache_answers = options.cache_answers;
    d.speculate = options.speculate;
    d.preempt = options.preempt;
    d.watermark = options.watermark;
    d.swap_bytes = options.swap_bytes;
    d.peer_timeout = options.peer_timeout;
    d.store.master = options.master;
    d.store.timeout = options.store_timeout;
    d.conductor_timeout = 3s * kSlow;
    d.tokenizer = options.tokenizer;
    d.trace = options.trace;
    auto opened_d =
        DecodeWorker::open(loop, *d_xfer, *d_server, chosen(options.decode_engine), d, d_metrics);
    REQUIRE(opened_d);
    decode = std::move(*opened_d);
    c_server->on<TokenBatch>([this](const TokenBatch& m, const rpc::Call&) -> Result<rpc::Empty> {
      if (unheard > 0 && --unheard % 2 == 0) return fail(Code::kBusy, "not heard");
      for (const TokenUpdate& u : m.updates) {
        Answer& a = answers[u.request];
        const size_t have = a.tokens.size();
        if (u.first > have + 1) return fail(Code::kStale, "tokens are missing");
        const size_t old = u.first == 0 ? 0 : std::min(have + 1 - u.first, u.tokens.size());
        repeated += old;
        a.tokens.insert(a.tokens.end(), u.tokens.begin() + static_cast<ptrdiff_t>(old),
                        u.tokens.end());
        if (!u.logprobs.empty())
          a.logprobs.insert(a.logprobs.end(), u.logprobs.begin() + static_cast<ptrdiff_t>(old),
                            u.logprobs.end());
        a.finish = u.finish;
        a.error = u.error;
        a.kv_errors = u.kv_errors;
      }
      if (unheard > 0) return fail(Code::kBusy, "heard, but the answer is lost");
      return rpc::Empty{};
    });
    to_p = std::move(*rpc::Client::connect(loop, p_server->address()));
    to_d = std::move(*rpc::Client::connect(loop, d_server->address()));
  }

  // Runs the loop until `done`, at most 30 seconds.
  bool until(const std::function<bool()>& done) {
    const Time end = loop.clock().now() + 30s * kSlow;
    for (Time before; !done() && (before = loop.clock().now()) < end;) {
      REQUIRE(loop.turn(20ms));
      stood_still = stood_still || loop.clock().now() - before > 250ms;
    }
    return done();
  }
  template <class M>
  Result<typename M::Reply> call(rpc::Client& client, const M& message, Duration budget = 5s) {
    std::optional<Result<typename M::Reply>> answer;
    client.call<M>(message, budget, [&](Result<typename M::Reply> r) { answer = std::move(r); });
    REQUIRE(until([&] { return answer.has_value(); }));
    return *answer;
  }

  Result<Reservation> reserve(const std::string& id, const std::vector<int32_t>& prompt,
                              uint32_t max_tokens = 4) {
    Reserve m;
    m.request = id;
    m.conductor = c_server->address();
    m.prompt = prompt;
    m.max_tokens = max_tokens;
    m.ignore_eos = constraint.none();
    m.controls = controls;
    m.constraint = constraint.to_send();
    m.answered = answered;
    m.seed = seed;
    m.temperature = temperature;
    m.kv_deadline_ms = kv_deadline_ms * kSlow;
    return call(*to_d, m);
  }
  Result<TxAllocated> allocate(const std::string& id, const std::vector<int32_t>& prompt,
                               const Reservation& target, uint32_t lease_ms = 10'000) {
    TxAllocate m;
    m.request = id;
    m.prompt = prompt;
    m.target = target;
    m.lease_ms = lease_ms;
    return call(*to_p, m);
  }
  // Runs a whole request. Returns the reply of Prefill.
  PrefillDone serve(const std::string& id, const std::vector<int32_t>& prompt,
                    uint32_t max_tokens = 4) {
    const auto target = reserve(id, prompt, max_tokens);
    REQUIRE_MESSAGE(target, target.error().what);
    const auto tx = allocate(id, prompt, *target);
    REQUIRE_MESSAGE(tx, tx.error().what);
    const auto done = call(*to_p, Prefill{tx->tx}, 20s * kSlow);  // a store may time out on the way
    REQUIRE_MESSAGE(done, done.error().what);
    REQUIRE(until([&] { return !answers[id].finish.empty(); }));
    CHECK(answers[id].finish == "length");
    CHECK(answers[id].error == "");
    CHECK(answers[id].tokens.size() == max_tokens);
    const auto committed = call(*to_p, TxCommit{tx->tx});
    REQUIRE_MESSAGE(committed, committed.error().what);
    return *done;
  }
  void abort_both(const std::string& id) {
    CHECK(call(*to_p, Abort{id, "the client left"}));
    CHECK(call(*to_d, Abort{id, "the client left"}));
  }
  // Slices that failed and were sent again, of all transports.
  double failed_slices() const {
    std::istringstream lines(metrics.text());
    double sum = 0;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("mc_xfer_failures_total"))
        sum += std::stod(line.substr(line.rfind(' ')));
    return sum;
  }
  // Nothing is held on either side.
  bool at_rest() {
    const BlockCounts p = prefill->cache().counts();
    const WorkerLoad d = decode->load();
    return p.used == 0 && prefill->cache().transactions() == 0 && decode->idle() &&
           d.blocks_free == d.blocks_total;
  }
  bool comes_to_rest() {
    const bool rests = until([&] { return at_rest(); });
    prefill->cache().check();
    return rests;
  }

  io::Loop& loop;
  const uint32_t kv_deadline_ms;
  SamplingControls controls;  // of what is reserved next
  Constraint constraint;      // the same
  uint32_t answered = 0;      // the same
  bool stood_still = false;   // the machine did, in until(): calls may have been given up
  double temperature = 0;
  uint64_t seed = 0;
  DummyEngine engine;
  Metrics metrics, p_metrics, d_metrics;
  std::unique_ptr<xfer::Engine> p_xfer, d_xfer;
  std::unique_ptr<rpc::Server> p_server, d_server, c_server;
  std::map<std::string, Answer> answers;
  int unheard = 0;      // messages of tokens to lose: the answer of one, all of the next, ...
  size_t repeated = 0;  // tokens that came again
  std::unique_ptr<PrefillWorker> prefill;
  std::unique_ptr<DecodeWorker> decode;
  std::unique_ptr<rpc::Client> to_p, to_d;
};

}  // namespace mc::serve
