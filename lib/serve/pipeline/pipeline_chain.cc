#include "serve/pipeline/pipeline_chain.h"

#include <utility>

#include "base/log.h"
#include "base/random.h"

namespace mc::serve {

Result<std::unique_ptr<PipelineChain>> PipelineChain::open(io::Loop& loop,
                                                           PipelineChainConfig config, Owner owner,
                                                           Metrics& metrics) {
  MC_CHECK(!config.stages.empty());
  auto self = std::unique_ptr<PipelineChain>(
      new PipelineChain(loop, std::move(config), std::move(owner), metrics));
  MC_TRY(self->link_, PipelineLink::open(loop, self->config_.stages.front()));
  self->ticker_ = loop.every(self->config_.ping, [raw = self.get()] { raw->tick(); });
  return self;
}

PipelineChain::PipelineChain(io::Loop& loop, PipelineChainConfig config, Owner owner,
                             Metrics& metrics)
    : loop_(loop),
      config_(std::move(config)),
      owner_(std::move(owner)),
      alive_(metrics.gauge("mc_engine_pipeline_ready", "1 while all stages after this one answer")),
      lost_(metrics.counter("mc_engine_pipeline_lost_total",
                            "times that the pipeline lost a stage")) {}

PipelineChain::~PipelineChain() { loop_.cancel(ticker_); }

void PipelineChain::tick() {
  if (asking_) return;
  if (!ready_) return begin();
  asking_ = true;
  link_->call<PipelinePing>({pipeline_}, config_.patience, [this](const Result<rpc::Empty>& reply) {
    asking_ = false;
    if (!reply) lose(reply.error());
  });
}

void PipelineChain::begin() {
  if (!owner_.clear()) return;
  PipelineOpen m;
  m.pipeline = pipeline_ = mix64(config_.seed + ++begun_);
  m.fingerprint = config_.fingerprint;
  m.blocks = config_.blocks;
  m.first_layer = config_.first_layer;
  m.others.assign(config_.stages.begin() + 1, config_.stages.end());
  m.release = wire::this_release();
  m.head = config_.seed;
  m.beginning = begun_;
  asking_ = true;
  link_->call<PipelineOpen>(m, config_.patience, [this](const Result<PipelineOpened>& reply) {
    asking_ = false;
    const Result<> fits = !reply
                              ? Result<>(fail(reply.error()))
                              : wire::check_release("the next stage", reply->release, "the head");
    if (!fits) {
      if (trouble_ != fits.error().what)
        log_warn("serve", "the pipeline cannot start, retrying: %s", fits.error().what.c_str());
      trouble_ = fits.error().what;
      return;
    }
    log_info("serve", "the pipeline runs with %zu stages", processes());
    trouble_.clear();
    ready_ = true;
    alive_.set(1);
    owner_.began();
  });
}

void PipelineChain::lose(const Error& why) {
  if (!ready_) return;
  ready_ = false;
  alive_.set(0);
  lost_.add();
  trouble_ = why.what;
  log_warn("serve", "the pipeline is lost, restarting it: %s", why.what.c_str());
  owner_.lost(why);
  link_->cancel(why);
}

}  // namespace mc::serve
