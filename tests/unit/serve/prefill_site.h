// The objects of a prefill worker without the worker: a host that notes what they ask of it.
#pragma once
#include "pair.h"
#include "serve/prefill/prefill_shared.h"

namespace mc::serve {

struct PrefillSite final : PrefillHost {
  explicit PrefillSite(io::Loop& on, const PrefillConfig& config = {}, const Engine* with = nullptr,
                       const std::string& name = "site")
      : loop(on), dummy(cost::tiny(), kBlock) {
    xfer::EngineOptions o;
    o.node = name;
    auto opened = xfer::Engine::open(loop.clock(), o, metrics);
    REQUIRE(opened);
    transfer = std::move(*opened);
    const Engine& engine = with != nullptr ? *with : dummy;
    auto core = WorkerCore::open(loop, *transfer, engine, 64, 7);
    REQUIRE(core);
    shared =
        std::make_unique<PrefillShared>(loop, *transfer, engine, config, metrics, *core, *this);
  }
  ~PrefillSite() { shared->core->close(); }

  // As a worker has one whose Prefill came.
  PrefillJobPtr job(const std::string& request, const std::vector<int32_t>& prompt) {
    auto job = std::make_shared<PrefillJob>();
    job->kv.request = request;
    job->prompt = prompt;
    job->hashes = chain_hashes(prompt, kBlock);
    const size_t blocks = (prompt.size() + kBlock - 1) / kBlock;
    job->parents = parents_of(job->hashes, blocks, "");
    job->kv.keys = job->hashes;
    job->deliver_to = DeliverTo::kThisProcess;
    const auto tx = shared->blocks().allocate({.request = request,
                                               .hashes = job->hashes,
                                               .prompt_tokens = prompt.size(),
                                               .blocks = blocks,
                                               .lease = 1h},
                                              loop.now());
    REQUIRE(tx);
    job->tx = *tx;
    REQUIRE(shared->blocks().start(job->tx));
    job->stage = PrefillStage::kQueued;
    job->queued = loop.clock().now();
    shared->jobs.add(job);
    return job;
  }
  bool until(const std::function<bool()>& done) {
    const Time end = loop.clock().now() + 30s * kSlow;
    while (!done() && loop.clock().now() < end) REQUIRE(loop.turn(20ms));
    return done();
  }

  void fail_job(const PrefillJobPtr& job, Error why) override {
    if (job->failure) return;
    job->failure = std::move(why);
    if (job->load) job->load->cancel();
    if (on_failed) on_failed(*job);
    settle(job);
  }
  void settle(const PrefillJobPtr& job) override {
    if (!job->failure || job->busy > 0 || !shared->jobs.contains(*job)) return;
    shared->blocks().abort(job->tx);
    shared->jobs.erase(*job);
    ended.push_back(job->kv.request);
    resume();
  }
  void end_committed(const PrefillJobPtr& job) override { committed.push_back(job->kv.request); }
  void resume() override {
    if (on_resume) on_resume();
  }
  void state_changed() override {}
  rpc::Client* peer(const std::string& address) override {
    auto& client = peers[address];
    if (client == nullptr) {
      auto made = rpc::Client::connect(loop, address);
      if (!made) return nullptr;
      client = std::move(*made);
    }
    return client.get();
  }

  io::Loop& loop;
  Metrics metrics;
  DummyEngine dummy;
  std::unique_ptr<xfer::Engine> transfer;
  std::map<std::string, std::unique_ptr<rpc::Client>> peers;
  std::vector<std::string> ended;  // requests that failed and are gone
  std::vector<std::string> committed;
  std::function<void()> on_resume;
  std::function<void(const PrefillJob&)> on_failed;
  std::unique_ptr<PrefillShared> shared;
};

}  // namespace mc::serve
