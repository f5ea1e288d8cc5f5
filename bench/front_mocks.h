// What stands behind a front in front_bench, in a process of its own: workers for a conductor, or
// an HTTP server that streams the same. Both give a request's first token at once and one every
// step.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "cost/model_spec.h"
#include "http/server.h"
#include "io/loop.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "serve/protocol/messages.h"

namespace mc::bench {

inline constexpr uint32_t kTokens = 8;
inline constexpr Duration kStep = std::chrono::milliseconds(5);

class MockWorker {
 public:
  MockWorker(io::Loop& loop, const std::string& conductor, std::string name, bool prefill,
             uint32_t block_tokens)
      : loop_(loop),
        server_(*rpc::Server::open(loop, "127.0.0.1:0", metrics_)),
        client_(*rpc::Client::connect(loop, conductor, rpc::Channel::kShm)) {
    server_->offer_shm("mock");
    me_.node = std::move(name);
    me_.role = prefill ? "prefill" : "decode";
    me_.epoch = 1;
    me_.control = server_->address();
    me_.model = "tiny";
    me_.block_tokens = block_tokens;
    me_.fingerprint = cost::tiny().fingerprint(block_tokens);
    me_.context_max = 262144;
    me_.load.blocks_total = me_.load.blocks_free = 1 << 20;
    me_.events_first = 1;
    server_->on<serve::Abort>(
        [this](const serve::Abort& m, const rpc::Call&) -> Result<rpc::Empty> {
          running_.erase(m.request);
          return rpc::Empty{};
        });
    prefill ? serve_prefill() : serve_decode();
    loop_.every(std::chrono::milliseconds(200), [this] { beat(); });
    beat();
  }
  bool joined() const { return joined_; }

  // Decode: a request's KV is there. Its first token leaves at once.
  void begin(const std::string& request) {
    running_[request] = 1;
    send({request});
  }
  std::function<void(const std::string& request)> computed;  // prefill
  bool hold = false;                                         // decode: no token after the first

 private:
  void beat() {
    client_->call(me_, std::chrono::seconds(1),
                  [this](const Result<serve::HeartbeatAck>& ack) { joined_ = ack.has_value(); });
  }
  void serve_prefill() {
    server_->on<serve::TxAllocate>(
        [this](const serve::TxAllocate& m, const rpc::Call&) -> Result<serve::TxAllocated> {
          serve::TxAllocated a;
          a.tx = ++tx_;
          requests_.insert(m.request);
          return a;
        });
    server_->on<serve::Prefill>(
        [this](const serve::Prefill& m, const rpc::Call&) -> Result<serve::PrefillDone> {
          if (!requests_.contains(m.request)) return fail(Code::kNotFound, "no such transaction");
          computed(m.request);
          return serve::PrefillDone{};
        });
    server_->on<serve::TxCommit>(
        [this](const serve::TxCommit& m, const rpc::Call&) -> Result<serve::TxCommitted> {
          requests_.erase(m.request);
          return serve::TxCommitted{};
        });
    server_->on<serve::Snapshot>(
        [this](const serve::Snapshot&, const rpc::Call&) -> Result<serve::KvSnapshot> {
          serve::KvSnapshot s;
          s.epoch = me_.epoch;
          return s;
        });
  }
  void serve_decode() {
    server_->on<serve::Reserve>(
        [this](const serve::Reserve&, const rpc::Call&) -> Result<serve::Reservation> {
          serve::Reservation r;
          r.control = server_->address();
          r.guard = 7;
          return r;
        });
    loop_.every(kStep, [this] { step(); });
  }
  void step() {
    std::vector<std::string> all;
    if (hold) return;
    for (const auto& [request, n] : running_) all.push_back(request);
    if (!all.empty()) send(all);
  }
  void send(const std::vector<std::string>& requests) {
    serve::TokenBatch batch;
    batch.node = me_.node;
    for (const std::string& request : requests) {
      serve::TokenUpdate u;
      u.request = request;
      u.tokens = {65};
      if (++running_[request] > kTokens) {
        u.finish = "length";
        running_.erase(request);
      }
      batch.updates.push_back(std::move(u));
    }
    client_->call(batch, std::chrono::seconds(1), [](const Result<rpc::Empty>&) {});
  }

  io::Loop& loop_;
  Metrics metrics_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<rpc::Client> client_;
  serve::Heartbeat me_;
  bool joined_ = false;
  uint64_t tx_ = 0;
  std::unordered_set<std::string> requests_;           // prefill: allocated
  std::unordered_map<std::string, uint32_t> running_;  // decode: tokens sent, and one
};

// The same streams from an HTTP server.
class MockOrigin {
 public:
  explicit MockOrigin(io::Loop& loop)
      : http_(*http::Server::open(loop, "127.0.0.1:0", options(),
                                  [this](const http::Exchange& x) { begin(x); })) {
    loop.every(kStep, [this] { step(); });
  }
  const std::string& address() const { return http_->address(); }

 private:
  static http::ServerOptions options() {
    http::ServerOptions o;
    o.connections_max = 8192;
    return o;
  }
  static std::string event(bool last) {
    return std::string(
               "data: {\"id\":\"x-1\",\"object\":\"text_completion\",\"created\":1700000000,"
               "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"text\":\"A\",\"logprobs\":"
               "null,\"finish_reason\":") +
           (last ? "\"length\"}]}\n\ndata: [DONE]\n\n" : "null}]}\n\n");
  }
  // "/read" and "/parse": the body is read, or parsed as JSON too, and nothing else.
  void begin(const http::Exchange& x) {
    const bool parse = x.request().path == "/parse";
    if (parse || x.request().path == "/read") {
      const bool good = !parse || parse_json(x.request().body).has_value();
      return x.reply(good ? 200 : 400, "text/plain", "[DONE]");
    }
    x.start(200, "text/event-stream; charset=utf-8");
    x.write(event(false));
    running_.emplace_back(x, 1);
  }
  void step() {
    for (auto& [x, n] : running_) {
      x.write(event(++n == kTokens));
      if (n == kTokens) x.end();
    }
    std::erase_if(running_, [](const auto& r) { return r.second == kTokens; });
  }
  std::unique_ptr<http::Server> http_;
  std::vector<std::pair<http::Exchange, uint32_t>> running_;
};

}  // namespace mc::bench
