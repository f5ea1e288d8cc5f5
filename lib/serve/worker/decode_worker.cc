#include "serve/worker/decode_worker.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "xfer/memory/copy.h"

namespace mc::serve {
namespace {

constexpr Duration kExpiry = std::chrono::milliseconds(20);
constexpr Duration kFenceAgain = std::chrono::milliseconds(50);
constexpr Duration kDeadline = std::chrono::minutes(1);  // of KV, where the request names none

// A peer that wrote past its blocks may have changed the word. It is set all the same: no value is
// used twice.
void set_guard_word(std::byte* word, uint64_t value) {
  if (xfer::raise_guard_word(word, value)) return;
  log_error("decode", "a peer wrote over a guard word: other KV here may be wrong, too");
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(word)).store(value);
}

}  // namespace

Result<std::unique_ptr<DecodeWorker>> DecodeWorker::open(io::Loop& loop, xfer::Engine& transfer,
                                                         rpc::Server& server, const Engine& engine,
                                                         const DecodeConfig& config,
                                                         Metrics& metrics,
                                                         std::shared_ptr<WorkerCore> core) {
  if (core == nullptr) {
    MC_TRY(core, WorkerCore::open(loop, transfer, engine, config.blocks, transfer.generation().n));
  }
  auto self = std::unique_ptr<DecodeWorker>(
      new DecodeWorker(loop, transfer, server, engine, config, metrics, std::move(core)));
  if (!config.store.master.empty()) {
    MC_TRY(self->pool_,
           StoreConnector::open(loop, transfer, config.store, engine.spec().pool_name(),
                                self->blocks_, metrics, self->shape_));
    self->pool_->assume(engine.spec().cost.transfer_bytes_per_s);
    self->memory_.use(self->pool_.get());
  }
  return self;
}

DecodeWorker::DecodeWorker(io::Loop& loop, xfer::Engine& transfer, rpc::Server& server,
                           const Engine& engine, const DecodeConfig& config, Metrics& metrics,
                           std::shared_ptr<WorkerCore> core)
    : loop_(loop),
      transfer_(transfer),
      control_(server.address()),
      engine_(engine),
      config_(config),
      epoch_(config.epoch ? config.epoch : transfer.generation().n),
      next_guard_(transfer.generation().n),
      core_(std::move(core)),
      blocks_(core_->blocks()),
      shape_(KvShape::of(engine.spec(), engine.block_tokens(), engine.ranks())),
      batch_(Timing{engine.spec(), config.time_scale}, {config.tbt_slo, 0}),
      to_conductors_(loop, transfer.describe().node, config.token_retry, config.conductor_timeout),
      running_(metrics.gauge("vllm:num_requests_running", "requests in the batch",
                             {{"role", "decode"}})),
      waiting_(metrics.gauge("vllm:num_requests_waiting", "requests not in the batch yet",
                             {{"role", "decode"}})),
      usage_(metrics.gauge("vllm:kv_cache_usage_perc", "share of the blocks in use")),
      generated_(metrics.counter("vllm:generation_tokens_total", "tokens generated")),
      guessed_(metrics.counter("vllm:spec_decode_num_draft_tokens_total",
                               "tokens guessed from a request's text and checked")),
      accepted_(metrics.counter("vllm:spec_decode_num_accepted_tokens_total",
                                "guessed tokens that came true")),
      kv_errors_(metrics.counter("mc_engine_kv_errors_total", "KV blocks that did not verify")),
      failed_(metrics.counter("mc_engine_failed_requests_total", "requests ended as errors")),
      recomputed_(metrics.counter("mc_engine_recomputed_requests_total",
                                  "requests whose KV did not arrive and was computed here")),
      fetched_(metrics.counter("mc_engine_pool_kv_blocks_total",
                               "KV blocks of prompts fetched from the pool")),
      answer_blocks_(metrics.counter("mc_engine_answer_blocks_total",
                                     "blocks with generated tokens, kept for later prompts")),
      step_seconds_(metrics.histogram("mc_engine_step_seconds", "time of a decode step")),
      pulls_(loop, transfer, metrics),
      memory_(
          loop, *core_, engine, batch_,
          {config.preempt, config.watermark, config.swap_bytes, config.time_scale}, metrics,
          {.unused = [this](const SequencePtr& s) { try_free(s); },
           .fail = [this](const SequencePtr& s, const std::string& why) { fail_sequence(s, why); },
           .fence = [this](const SequencePtr& s) { quarantine(s); },
           .alive =
               [this](const SequencePtr& s) {
                 TokenUpdate u;  // without tokens
                 u.request = s->request;
                 to_conductors_.send(s->conductor, {std::move(u)});
               },
           .step = [this] { step(); }}),
      guides_(loop, engine, config.tokenizer) {
  for (size_t i = WorkerCore::kGuardWords; i-- > 0;) free_slots_.push_back(i);
  for (const char* state : {"free", "cached", "used"})
    block_gauges_[state] =
        &metrics.gauge("mc_engine_blocks", "KV blocks by state", {{"state", state}});
  metrics
      .gauge("vllm:cache_config_info", "the shape of the KV cache",
             {{"block_size", std::to_string(engine.block_tokens())},
              {"num_gpu_blocks", std::to_string(config.blocks)}})
      .set(1);
  server.on<Reserve>([this](const Reserve& m, const rpc::Call& c) { return reserve(m, c); });
  server.on_later<KvOffer>([this](const KvOffer& m, const rpc::Call&,
                                  const rpc::Reply<rpc::Empty>& reply) { offered(m, reply); });
  server.on<KvReady>([this](const KvReady& m, const rpc::Call& c) { return kv_ready(m, c); });
  server.on<KvFailed>([this](const KvFailed& m, const rpc::Call&) { return kv_failed(m); });
  server.on<Abort>([this](const Abort& m, const rpc::Call&) { return abort(m); });
  ticker_ = loop_.every(kExpiry, [this] {
    expire();
    memory_.tick(loop_.now());
  });
  gauge();
}

DecodeWorker::~DecodeWorker() {
  core_->close();
  loop_.cancel(ticker_);
}

void DecodeWorker::after(Time when, std::function<void()> task) {
  loop_.at(when, [alive = std::weak_ptr(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

WorkerLoad DecodeWorker::load(const std::string& conductor) const {
  WorkerLoad l;
  const BlockCounts counts = blocks_.counts();
  l.waiting = static_cast<uint32_t>(batch_.waiting_for_kv() + batch_.ready() + batch_.preempted());
  l.running = static_cast<uint32_t>(batch_.batch().size());
  l.blocks_total = counts.free + counts.cached + counts.used;
  l.blocks_free = counts.free + counts.cached;
  l.blocks_cached = counts.cached;
  l.tbt_ms = to_ms(batch_.step_time_all());
  l.growth = memory_.growth();
  if (conductor.empty()) return l;
  for (const auto& [request, s] : sequences_) {
    if (s->ended || s->conductor == conductor) continue;
    ++l.others_requests;
    l.others_tokens += s->prompt + s->answered;  // its tokens belong to a step
  }
  return l;
}

void DecodeWorker::gauge() {
  const BlockCounts c = blocks_.counts();
  block_gauges_["free"]->set(static_cast<double>(c.free));
  block_gauges_["cached"]->set(static_cast<double>(c.cached));
  block_gauges_["used"]->set(static_cast<double>(c.used));
  running_.set(static_cast<double>(batch_.batch().size()));
  waiting_.set(static_cast<double>(batch_.waiting_for_kv() + batch_.ready() + batch_.preempted()));
  usage_.set(static_cast<double>(c.used) / static_cast<double>(config_.blocks));
}

Result<> DecodeWorker::check(const Reserve& m) const {
  // Queued on the way for an earlier process: its sender does not wait for this one.
  if (m.epoch != 0 && m.epoch != epoch_)
    return fail(Code::kStale, "request '%s' is for an earlier process of this worker",
                escape(m.request).c_str());
  if (draining_) return fail(Code::kBusy, "this decode worker is draining: use another");
  const uint64_t context = m.prompt.size() + uint64_t{m.max_tokens};
  if (m.prompt.empty() || m.max_tokens == 0 || context > engine_.spec().context_max)
    return fail(Code::kInvalid,
                "%zu prompt and %u output tokens: want 1 or more of each, and at most "
                "%llu in total",
                m.prompt.size(), m.max_tokens,
                static_cast<unsigned long long>(engine_.spec().context_max));
  const auto vocab = static_cast<int32_t>(engine_.spec().vocab);
  if (std::any_of(m.prompt.begin(), m.prompt.end(), [&](int32_t t) { return t < 0 || t >= vocab; }))
    return fail(Code::kInvalid, "a prompt token is outside the vocabulary of %d", vocab);
  if (m.answered >= m.prompt.size())
    return fail(Code::kInvalid, "%u tokens of the answer in a prompt of %zu: want fewer",
                m.answered, m.prompt.size());
  if (!m.controls.valid(engine_.spec().vocab))
    return fail(Code::kInvalid, "a penalty, min_p, logit_bias or logprobs is outside its range");
  if (sequences_.contains(m.request))
    return fail(Code::kExists, "request '%s' is here already", escape(m.request).c_str());
  if (free_slots_.empty())
    return fail(Code::kNoSpace, "%zu requests have reservations already: retry later",
                WorkerCore::kGuardWords);
  return {};
}

Result<Reservation> DecodeWorker::reserve(const Reserve& m, const rpc::Call& call) {
  const Time now = call.now;
  MC_TRY_(check(m));
  SequencePtr s = make_sequence(m, engine_.block_tokens());
  MC_TRY(s->guide, guides_.open(m.constraint.received(), m.stop_tokens, m.prompt, m.answered));
  s->own = colocated_ && m.prefill == control_;
  if (config_.speculate > 0 && engine_.checks_guesses()) s->speculation.emplace(config_.speculate);
  MC_TRY_(memory_.reserve(s, now));
  Reservation r;
  if (!s->own) r.segment = transfer_.describe();
  r.control = control_;
  r.ranks = shape_.ranks;
  r.sampling = guides_.able() ? kConstraints : kControls;
  r.continues = true;
  for (size_t i = 0; !s->own && i < s->parents.size(); ++i)
    r.block_offsets.push_back(core_->block_offset(memory_.id(*s, i)));
  s->settled = s->own;  // no other process writes
  s->slot = free_slots_.back();
  free_slots_.pop_back();
  s->guard = ++next_guard_;
  set_guard_word(core_->guard_word(s->slot), s->guard);
  r.guard_offset = core_->guard_offset(s->slot);
  r.guard = s->guard;
  r.blocks_here = static_cast<uint32_t>(s->here);
  s->reserved = now;
  s->span = {config_.tracer, telemetry::from_wire(call.trace_id), now};
  s->steps = telemetry::steps_below(s->span, loop_.clock());
  Duration patience =
      m.kv_deadline_ms > 0 ? Duration(std::chrono::milliseconds(m.kv_deadline_ms)) : kDeadline;
  for (const Duration own : {config_.kv_deadline, s->own ? Duration{} : config_.recompute_after})
    if (own.count() > 0) patience = std::min(patience, own);
  MC_TRY_(batch_.wait(m.request, m.prompt.size(), now + patience));
  sequences_.emplace(m.request, std::move(s));
  gauge();
  return r;
}

Result<rpc::Empty> DecodeWorker::abort(const Abort& m) {
  auto it = sequences_.find(m.request);
  if (it == sequences_.end() || it->second->ended) return rpc::Empty{};
  log_debug("decode", "request %s aborted: %s", m.request.c_str(), m.reason.c_str());
  to_conductors_.drop(it->second->conductor, m.request);
  it->second->end_span(loop_.now(), m.reason);
  end(SequencePtr(it->second));
  return rpc::Empty{};
}

// ---- steps

void DecodeWorker::step() {
  if (std::exchange(stepping_, true)) return;
  memory_.bring_back();
  for (const std::string& request : batch_.admit()) {
    Sequence& s = *sequences_.at(request);
    if (s.joined != Time{}) continue;  // it was preempted
    s.joined = loop_.now();
    if (config_.trace != nullptr)
      config_.trace->span("request", "wait for KV", s.reserved, s.arrived, request);
  }
  std::vector<SequencePtr> running;
  for (const std::string& request : batch_.batch()) running.push_back(sequences_.at(request));
  std::vector<SequencePtr> batch = memory_.grow(std::move(running));
  gauge();
  if (batch.empty())
    stepping_ = false;
  else
    run(std::move(batch));
}

void DecodeWorker::run(std::vector<SequencePtr> batch) {
  const Time start = loop_.clock().now();
  Time due = start;
  if (engine_.modelled_time())  // after the work that the prefill instance has begun
    due = core_->free_at = std::max(core_->free_at, start) + batch_.step_time();
  const auto step = std::make_shared<DecodeStep>(engine_, std::move(batch));
  for (const SequencePtr& s : step->batch()) ++s->busy;
  const auto done = [this, step, due, start] {
    // The modelled time of the step, if computing took less.
    if (loop_.clock().now() >= due) return stepped(*step, start);
    after(due, [this, step, start] { stepped(*step, start); });
  };
  if (core_->submit([step] { step->run(); }, done)) return;
  stepping_ = false;
  for (const SequencePtr& s : step->batch()) {
    --s->busy;
    fail_sequence(s, "this worker is overloaded");
  }
}

void DecodeWorker::stepped(DecodeStep& step, Time start) {
  const Time now = loop_.clock().now();
  const std::vector<SequencePtr>& batch = step.batch();
  step_seconds_.observe(to_seconds(now - start));
  if (config_.trace != nullptr)
    config_.trace->span("decode", strf("step of %zu", batch.size()), start, now,
                        batch.front()->request);
  stepping_ = false;
  for (const SequencePtr& s : batch) --s->busy;
  deliver(step);
  this->step();
}

void DecodeWorker::deliver(DecodeStep& step) {
  std::map<std::string, std::vector<TokenUpdate>> updates;  // by conductor
  for (size_t i = 0; i < step.batch().size(); ++i) {
    const SequencePtr& s = step.batch()[i];
    DecodeStep::Drawn& drawn = step.drawn()[i];
    if (s->ended) {  // aborted during the step
      try_free(s);
      continue;
    }
    if (const std::string why = s->guide ? s->guide->failure() : ""; !why.empty()) {
      fail_sequence(s, why);
      continue;
    }
    generated_.add(drawn.tokens.size());
    guessed_.add(drawn.guessed);
    accepted_.add(drawn.tokens.size() - 1);
    s->answered += static_cast<uint32_t>(drawn.tokens.size());
    batch_.advanced(s->request, drawn.tokens.size());
    TokenUpdate u;
    u.request = s->request;
    u.finish = finish_of(engine_, *s, drawn.tokens.back());
    u.tokens = std::move(drawn.tokens);
    u.logprobs = std::move(drawn.logprobs);
    u.wait_ms = to_ms(s->joined - s->verified);
    u.load_ms = to_ms(s->verified - s->arrived);
    u.decode_ms = to_ms(loop_.now() - s->joined);
    if (!u.finish.empty()) end(s);
    updates[s->conductor].push_back(std::move(u));
  }
  for (auto& [conductor, list] : updates) to_conductors_.send(conductor, std::move(list));
  gauge();
}

// ---- ends

void DecodeWorker::fail_sequence(const SequencePtr& s, const std::string& why, uint32_t kv_errors) {
  if (s->ended) return;
  failed_.add();
  log_warn("decode", "request %s failed: %s", s->request.c_str(), why.c_str());
  TokenUpdate u;
  u.request = s->request;
  u.finish = "error";
  u.error = why;
  u.kv_errors = kv_errors;
  const std::string conductor = s->conductor;
  s->end_span(loop_.now(), why);
  end(s);
  to_conductors_.send(conductor, {std::move(u)});
}

void DecodeWorker::end(const SequencePtr& s) {
  if (s->ended) return;
  s->ended = true;
  s->end_span(loop_.now());
  batch_.remove(s->request);
  if (!s->settled) quarantine(s);
  try_free(s);
}

// From now on the guard refuses writes of the prefill side. A write in flight may still land, so
// the blocks wait until it must be over.
void DecodeWorker::quarantine(const SequencePtr& s) {
  if (std::exchange(s->fencing, true)) return;
  set_guard_word(core_->guard_word(s->slot), ++next_guard_);
  std::vector<xfer::FencedRange> ranges;
  const xfer::Memory& memory = core_->memory();
  for (const std::byte* block : s->blocks)
    if (block != nullptr)
      ranges.push_back({memory.offset() + static_cast<uint64_t>(block - memory.data()),
                        core_->block_bytes(), 0, true});
  after(loop_.now() + 2 * config_.peer_timeout,
        [this, request = s->request, guard = s->guard, ranges = std::move(ranges)] {
          quarantine_over(request, guard, ranges);
        });
}

void DecodeWorker::quarantine_over(const std::string& request, uint64_t guard,
                                   std::vector<xfer::FencedRange> ranges) {
  auto it = sequences_.find(request);
  if (it == sequences_.end() || it->second->guard != guard) return;
  if (!it->second->settled && !transfer_.fence(ranges)) {
    std::erase_if(ranges, [](const xfer::FencedRange& range) { return range.done; });
    after(loop_.now() + kFenceAgain, [this, request, guard, ranges = std::move(ranges)] {
      quarantine_over(request, guard, ranges);
    });
    return;
  }
  it->second->settled = true;
  try_free(SequencePtr(it->second));
}

void DecodeWorker::try_free(const SequencePtr& s) {
  if (!s->ended || !s->settled || s->busy > 0 || std::exchange(s->freed, true)) return;
  cache_answer(*s);
  memory_.release(s);
  free_slots_.push_back(s->slot);
  sequences_.erase(s->request);
  gauge();
}

// Of a sequence that decoded, all tokens but the last have their KV.
void DecodeWorker::cache_answer(const Sequence& s) {
  if (s.kv != KvPlace::kHere) return;  // preempted
  if (!config_.cache_answers || s.joined == Time{} || (pool_ == nullptr && !colocated_)) return;
  const StepScope scope(s.steps);
  const size_t tokens = engine_.block_tokens(), whole = (s.tokens.size() - 1) / tokens;
  for (size_t i = s.prompt / tokens; i < whole; ++i) {
    answer_blocks_.add();
    if (pool_ != nullptr)
      pool_->publish(s.parents[i + 1], memory_.id(s, i), {s.blocks[i], core_->block_bytes()},
                     [this](bool) { gauge(); });
  }
  // From the last on, so that it is evicted before those that it follows.
  for (size_t i = whole; colocated_ && i-- > s.prompt / tokens;)
    blocks_.cache(memory_.id(s, i), s.parents[i + 1]);
}

}  // namespace mc::serve
