#include "serve/pipeline/pipeline_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "serve/runtime/sequence.h"

namespace mc::serve {
namespace {

using ull = unsigned long long;
constexpr size_t kPipelinePeersMax = 1024;

}  // namespace

Result<std::unique_ptr<PipelineWorker>> PipelineWorker::open(io::Loop& loop, xfer::Engine& transfer,
                                                             rpc::Server& server,
                                                             const Engine& engine,
                                                             const PipelineConfig& config,
                                                             Metrics& metrics) {
  MC_TRY(auto core,
         WorkerCore::open(loop, transfer, engine, config.blocks, transfer.generation().n));
  auto self = std::unique_ptr<PipelineWorker>(
      new PipelineWorker(loop, transfer, server, engine, config, metrics, std::move(core)));
  MC_TRY_(self->hold_blocks());
  const KvShape shape = KvShape::of(engine.spec(), engine.block_tokens(), engine.ranks());
  if (!config.store.master.empty()) {
    MC_TRY(self->pool_,
           StoreConnector::open(loop, transfer, config.store, engine.spec().pool_name(),
                                self->core_->blocks(), metrics, shape, config.stage));
  }
  PipelineWorker* const raw = self.get();
  MC_TRY(
      self->sender_,
      make_sender(config.connector, config.layerwise,
                  {loop, transfer, self->core_->memory(), shape, self->transfer_, self->pool_.get(),
                   [raw](const std::string& address) { return raw->peer(address); }}));
  return self;
}

PipelineWorker::PipelineWorker(io::Loop& loop, xfer::Engine& transfer, rpc::Server& server,
                               const Engine& engine, const PipelineConfig& config, Metrics& metrics,
                               std::shared_ptr<WorkerCore> core)
    : loop_(loop),
      engine_(engine),
      config_(config),
      timing_{engine.spec(), config.time_scale},
      core_(std::move(core)),
      server_(server),
      computed_(metrics.counter("mc_engine_computed_tokens_total", "prompt tokens computed")),
      crossed_(metrics.counter("mc_engine_activation_bytes_total",
                               "bytes of activations from the stage before")),
      transfer_(loop, transfer, metrics) {
  on<PipelineOpen>(&PipelineWorker::open_pipeline);
  on<PipelinePing>(&PipelineWorker::ping);
  on<PipelineFetch>(&PipelineWorker::fetch);
  on<PipelinePut>(&PipelineWorker::put);
  on<PipelineBegin>(&PipelineWorker::begin);
  on<PipelineChunk>(&PipelineWorker::chunk);
  on<PipelineEnd>(&PipelineWorker::end);
}

PipelineWorker::~PipelineWorker() { core_->close(); }

// Registers a message's handler. Refuses messages of another pipeline.
template <class M>
void PipelineWorker::on(void (PipelineWorker::*handler)(const M&,
                                                        const rpc::Reply<typename M::Reply>&)) {
  server_.on_later<M>(
      [this, handler](const M& m, const rpc::Call&, const rpc::Reply<typename M::Reply>& reply) {
        if constexpr (!std::is_same_v<M, PipelineOpen>)
          if (m.pipeline != last_.pipeline)
            return reply.error({Code::kStale, "this stage serves another pipeline now"});
        (this->*handler)(m, reply);
      });
}

// Allocates all blocks: the head decides about them.
Result<> PipelineWorker::hold_blocks() {
  BlockRequest all;
  all.request = "the pipeline";
  all.blocks = config_.blocks;
  MC_TRY(const TxId tx, core_->blocks().allocate(std::move(all), loop_.now()));
  MC_TRY_(core_->blocks().start(tx));
  return {};
}

void PipelineWorker::after(Time when, std::function<void()> task) {
  loop_.at(when, [alive = std::weak_ptr(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

bool PipelineWorker::known(const std::vector<uint32_t>& blocks) const {
  return std::all_of(blocks.begin(), blocks.end(), [&](uint32_t b) { return b < config_.blocks; });
}

// ---- the pipeline

Result<> PipelineWorker::check(const PipelineOpen& m) const {
  const cost::ModelSpec& s = engine_.spec();
  MC_TRY_(wire::check_release("the head", m.release, "this stage"));
  if (draining_) return fail(Code::kBusy, "this stage is draining");
  if (m.head != 0 && m.head == last_.head && m.beginning < last_.number)
    return fail(Code::kStale, "the head has begun again since this stage-open was sent");
  if (m.fingerprint != config_.fingerprint)
    return fail(Code::kInvalid, "this stage serves '%s', the head '%s'",
                config_.fingerprint.c_str(), escape(m.fingerprint).c_str());
  if (m.blocks != config_.blocks)
    return fail(Code::kInvalid, "this stage has %u blocks, the head %u: give all the same --blocks",
                config_.blocks, m.blocks);
  if (m.first_layer != s.first_layer)
    return fail(Code::kInvalid,
                "this stage begins with layer %u, the head expects layer %u: check "
                "--stage and the order of --cpp-group",
                s.first_layer, m.first_layer);
  if ((s.layers_after == 0) != m.others.empty())
    return fail(Code::kInvalid,
                "%u layers follow this stage, and --cpp-group names %zu stages after it",
                s.layers_after, m.others.size());
  return {};
}

void PipelineWorker::open_pipeline(const PipelineOpen& m, const rpc::Reply<PipelineOpened>& reply) {
  if (const auto fits = check(m); !fits) return reply.error(fits.error());
  last_ = {0, m.head, m.beginning};
  next_.reset();
  jobs_.clear();
  if (busy_ > 0)
    return reply.error({Code::kBusy, "work of an earlier pipeline still runs: retry later"});
  if (m.others.empty()) {
    last_.pipeline = m.pipeline;
    return reply(PipelineOpened{1, wire::this_release()});
  }
  auto link = PipelineLink::open(loop_, m.others.front());
  if (!link) return reply.error(link.error());
  next_ = std::move(*link);
  last_.pipeline = m.pipeline;
  PipelineOpen on = m;
  on.first_layer += engine_.spec().layers;
  on.others.erase(on.others.begin());
  next_->call<PipelineOpen>(on, config_.patience, [reply](const Result<PipelineOpened>& opened) {
    if (!opened) return reply.error(opened.error());
    const auto fits = wire::check_release("the next stage", opened->release, "this stage");
    if (!fits) return reply.error(fits.error());
    reply(PipelineOpened{opened->stages + 1, wire::this_release()});
  });
}

void PipelineWorker::ping(const PipelinePing& m, const rpc::Reply<rpc::Empty>& reply) {
  if (next_ == nullptr) return reply(rpc::Empty{});
  next_->call<PipelinePing>(m, config_.patience,
                            [reply](const Result<rpc::Empty>& answer) { reply(answer); });
}

// ---- the KV store

void PipelineWorker::fetch(const PipelineFetch& m, const rpc::Reply<PipelineFetched>& reply) {
  if (!known(m.blocks) || m.blocks.size() != m.hashes.size())
    return reply.error({Code::kInvalid, "blocks that are not here are to be fetched"});
  struct Fetch {
    size_t found;
    uint32_t parts = 2;
    std::optional<Error> broken;
  };
  const auto all = std::make_shared<Fetch>(Fetch{m.hashes.size(), 2, {}});
  const auto part = [all, reply](size_t found) {
    all->found = std::min(all->found, found);
    if (--all->parts > 0) return;
    if (all->broken) return reply.error(*all->broken);
    reply(PipelineFetched{static_cast<uint32_t>(all->found)});
  };
  if (next_ == nullptr)
    part(m.hashes.size());
  else
    next_->call<PipelineFetch>(m, config_.work, [all, part](const Result<PipelineFetched>& answer) {
      if (!answer) all->broken = answer.error();
      part(answer ? answer->blocks : 0);
    });
  if (pool_ == nullptr) return part(0);
  StoreConnector::Wanted wanted;
  wanted.hashes = m.hashes;
  for (const uint32_t b : m.blocks)
    wanted.memory.emplace_back(core_->block(b), core_->block_bytes());
  ++busy_;
  pool_->fetch(std::move(wanted), [this, part](size_t found) {
    --busy_;
    part(found);
  });
}

void PipelineWorker::put(const PipelinePut& m, const rpc::Reply<rpc::Empty>& reply) {
  if (!known(m.blocks) || m.blocks.size() != m.hashes.size())
    return reply.error({Code::kInvalid, "blocks that are not here are to be put"});
  struct Put {
    size_t parts;
    std::optional<Error> broken;
  };
  const auto all = std::make_shared<Put>(Put{m.blocks.size() + 1, {}});
  const auto part = [all, reply] {
    if (--all->parts > 0) return;
    if (all->broken) return reply.error(*all->broken);
    reply(rpc::Empty{});
  };
  store::PutConfig as;
  as.cls = m.cls;
  as.ttl = std::chrono::milliseconds(m.keep_ms);
  for (size_t i = 0; i < m.blocks.size(); ++i) {
    if (pool_ == nullptr) {
      part();
      continue;
    }
    ++busy_;
    pool_->publish(
        m.hashes[i], m.blocks[i], {core_->block(m.blocks[i]), core_->block_bytes()},
        [this, part](bool) {
          --busy_;
          part();
        },
        as);
  }
  if (next_ == nullptr) return part();
  next_->call<PipelinePut>(m, config_.work, [all, part](const Result<rpc::Empty>& answer) {
    if (!answer) all->broken = answer.error();
    part();
  });
}

// ---- prompts

Result<PipelineWorker::JobPtr> PipelineWorker::make_job(const PipelineBegin& m) {
  const uint32_t tokens = engine_.block_tokens();
  const size_t blocks = (m.prompt.size() + tokens - 1) / tokens;
  const auto vocab = static_cast<int32_t>(engine_.spec().vocab);
  if (m.prompt.empty() || m.blocks.size() != blocks || m.reused > m.prompt.size() / tokens ||
      m.target.block_offsets.size() != blocks || !known(m.blocks) ||
      std::any_of(m.prompt.begin(), m.prompt.end(), [&](int32_t t) { return t < 0 || t >= vocab; }))
    return fail(Code::kInvalid,
                "a prompt of %zu tokens does not fit %zu blocks (%u reused) or %zu reserved ones",
                m.prompt.size(), m.blocks.size(), m.reused, m.target.block_offsets.size());
  auto job = std::make_shared<Job>();
  job->prompt = m.prompt;
  const std::vector<BlockHash> hashes = chain_hashes(m.prompt, tokens, m.cache_salt);
  job->parents = parents_of(hashes, blocks, m.cache_salt);
  job->next = job->reused = uint64_t{m.reused} * tokens;
  KvRoute& kv = job->kv;
  kv.request = m.request;
  kv.decode = m.target.control;
  kv.shift = engine_.spec().first_layer * engine_.spec().layer_bytes(tokens);
  kv.peer.guard = {m.target.guard_offset, m.target.guard};
  kv.there = m.target.blocks_here;
  for (const uint64_t offset : m.target.block_offsets) kv.peer.offsets.push_back(offset + kv.shift);
  for (const uint32_t b : m.blocks) {
    kv.ids.push_back(b);
    kv.blocks.push_back(core_->block(b));
  }
  kv.keys = hashes;
  if (const size_t rest = m.prompt.size() % tokens; rest > 0)
    kv.keys.push_back(chain_hash(job->parents.back(), std::span(job->prompt).last(rest)));
  return job;
}

void PipelineWorker::begin(const PipelineBegin& m, const rpc::Reply<PipelineDone>& reply) {
  auto job = make_job(m);
  if (!job) return reply.error(job.error());
  jobs_[m.request] = *job;
  const auto work = std::make_shared<Work>(Work{*job, reply, false, 1, {}, {}, {}});
  const auto segment = transfer_.segment(m.target.segment);
  if (segment) {
    (*job)->kv.peer.segment = *segment;
    (*job)->reachable = true;
  } else {
    work->done.code = static_cast<uint8_t>(segment.error().code);
    work->done.what = segment.error().what;
  }
  if (next_ != nullptr) pass_on(work, m);
  if (engine_.modelled_time())
    core_->free_at = std::max(core_->free_at, loop_.clock().now()) + timing_.load((*job)->reused);
  // Reused blocks may belong to a prompt whose chunks are still computing here. The empty job sends
  // them after those chunks.
  ++busy_;
  const bool queued = core_->submit(
      [] {},
      [this, work, reused = m.reused] {
        --busy_;
        work->computed = std::max(work->computed, loop_.clock().now());
        if (work->done.code == 0 && sender_->granularity() != SendGranularity::kPrompt)
          send(work, 0, reused, 0, core_->block_bytes());
        part_done(work);
      });
  if (queued) return;
  --busy_;
  work->broken = Error{Code::kBusy, "too much computing is queued"};
  part_done(work);
}

Result<PipelineWorker::JobPtr> PipelineWorker::check(const PipelineChunk& m) const {
  const auto it = jobs_.find(m.request);
  if (it == jobs_.end())
    return fail(Code::kNotFound, "request '%s' has not begun here", escape(m.request).c_str());
  const Job& job = *it->second;
  const uint64_t n = job.prompt.size(), tokens = engine_.block_tokens();
  if (m.begin != job.next || m.end <= m.begin || m.end > n || (m.end < n && m.end % tokens > 0) ||
      m.last != (m.end == n))
    return fail(Code::kInvalid,
                "a chunk of tokens %llu to %llu of %llu: want whole blocks from token %llu on",
                static_cast<ull>(m.begin), static_cast<ull>(m.end), static_cast<ull>(n),
                static_cast<ull>(job.next));
  const uint64_t bytes = (m.end - m.begin) * std::max(engine_.spec().hidden, 1u) * sizeof(float);
  if (m.rows.bytes.size() != bytes)
    return fail(Code::kInvalid, "%zu bytes of activations for %llu tokens: want %llu",
                m.rows.bytes.size(), static_cast<ull>(m.end - m.begin), static_cast<ull>(bytes));
  return it->second;
}

void PipelineWorker::chunk(const PipelineChunk& m, const rpc::Reply<PipelineDone>& reply) {
  const auto job = check(m);
  if (!job) return reply.error(job.error());
  (*job)->next = m.end;
  crossed_.add(m.rows.bytes.size());
  Activations activations;
  activations.rows.resize(m.rows.bytes.size() / sizeof(float));
  std::memcpy(activations.rows.data(), m.rows.bytes.data(), m.rows.bytes.size());
  compute(std::make_shared<Work>(Work{*job, reply, m.last, 1, {}, {}, {}}), m.begin, m.end,
          std::move(activations));
}

void PipelineWorker::end(const PipelineEnd& m, const rpc::Reply<rpc::Empty>& reply) {
  jobs_.erase(m.request);
  if (next_ == nullptr) return reply(rpc::Empty{});
  next_->call<PipelineEnd>(m, config_.work,
                           [reply](const Result<rpc::Empty>& answer) { reply(answer); });
}

rpc::Client* PipelineWorker::peer(const std::string& address) {
  auto it = peers_.find(address);
  if (it != peers_.end()) return it->second.get();
  if (peers_.size() >= kPipelinePeersMax)
    std::erase_if(peers_, [](const auto& p) { return p.second->in_flight() == 0; });
  auto client = rpc::Client::connect(loop_, address, rpc::Channel::kShm);
  if (!client) return nullptr;
  return peers_.emplace(address, std::move(*client)).first->second.get();
}

Json PipelineWorker::state() const {
  return {{"role", "stage"},
          {"stage", config_.stage + 1},
          {"first_layer", engine_.spec().first_layer},
          {"layers", engine_.spec().layers},
          {"in_pipeline", last_.pipeline != 0},
          {"requests", jobs_.size()},
          {"busy", busy_}};
}

}  // namespace mc::serve
