// Drives the life of requests: events to the machine, and its actions carried out by the nodes.
//
// A message takes no time, but `overhead` passes from the decision until the prompt is in its
// queue.
#include <algorithm>

#include "sim/cluster/cluster_state.h"

namespace mc::sim {
namespace {

constexpr uint64_t kBoundless = uint64_t{1} << 40;  // blocks of a node that caches nothing

}  // namespace

void Cluster::submit(uint32_t id) {
  const SimRequest& request = requests_[id];
  sched::RequestArrived event{.request = id + 1};
  event.ask.tokens = event.ask.prompt_tokens = request.tokens;
  event.ask.max_tokens = static_cast<uint32_t>(request.answer);
  if (cache_blocks() > 0 || pool_.index() != nullptr)
    for (const BlockHash& h : request.hashes) event.tags.push_back(h.tag());
  tell(std::move(event));
}

// What is for clients, logs and metrics has nobody here, and there are no external engines.
void Cluster::carry_out(const sched::RequestAction& action) {
  if (const auto* step = std::get_if<sched::SendStep>(&action)) return send(*step);
  if (const auto* abort = std::get_if<sched::AbortAt>(&action)) {
    if (of(abort->of).attempt == abort->of.attempt)
      abandon(static_cast<uint32_t>(abort->of.request - 1));
  } else if (std::holds_alternative<sched::TriedAgain>(action)) {
    ++result_.restarted;
  } else if (const auto* end = std::get_if<sched::FinishRequest>(&action)) {
    const auto id = static_cast<uint32_t>(end->request - 1);
    if (end->progress.predicted_ttft_ms > 0)
      result_.requests[id].predicted_ttft_ms = end->progress.predicted_ttft_ms;
    ended(id, end->status, end->error ? end->error->code : "");
    if (machine_.waiting() > 0) tell(sched::RoomFreed{});
  }
}

void Cluster::send(const sched::SendStep& step) {
  SimRequest& request = of(step.of);
  switch (step.step) {
    case sched::Step::kReserve: return reserve(step);
    case sched::Step::kPin: {
      request.from = numbers_.at(step.to.node);
      const SimNode& n = nodes_[request.from];
      request.pinned.take(n.cache.get(), request.hashes, request.tokens, 0, now_);
      const uint64_t there = n.look(request).blocks() * block();
      request.pinned_tokens = std::min(step.tokens, there + step.coming);
      return tell(sched::StepAnswered{.of = step.of, .step = step.step});
    }
    case sched::Step::kAllocate:
      request.stage = Stage::kSent;
      return events_.push(
          now_ + o_.overhead,
          {Kind::kQueue, static_cast<uint32_t>(step.of.request - 1), step.of.attempt});
    case sched::Step::kPrefill:         // by its name, with kAllocate
    case sched::Step::kCommit: return;  // the node cached the blocks when they were computed
  }
}

// The decode node locks blocks, or has no room for them.
void Cluster::reserve(const sched::SendStep& step) {
  SimRequest& request = of(step.of);
  request.attempt = step.of.attempt;
  request.prefill = numbers_.at(step.with.node);
  request.decode = numbers_.at(step.to.node);
  request.prefill_joined = step.with.joined;
  request.decode_joined = step.to.joined;
  if (request.hashes.empty()) request.hashes = block_hashes(*request.arrived->record, block());
  SimNode& n = nodes_[request.decode];
  sched::StepAnswered answer{.of = step.of, .step = step.step};
  const Time before = n.decoder->deadline();
  request.reserved =
      n.decoder->reserve({step.of.request - 1, request.tokens, request.answer}, now_).has_value();
  if (!request.reserved) answer.outcome = fail(Code::kNoSpace, "%s has no room", n.name.c_str());
  if (n.decoder->deadline() != before) restep(request.decode);
  speak(n);
  tell(std::move(answer));
}

// As in a heartbeat, at each change.
void Cluster::speak(SimNode& n) {
  n.worker.blocks_free = n.free_blocks();
  n.worker.growth = n.decoder->memory()->growth();
  n.worker.reserved_blocks = 0;
  ++n.worker.spoke;
  roster_.note(n.worker);
}

bool Cluster::there(const SimRequest& request, bool prefill) const {
  const SimNode& n = nodes_[prefill ? request.prefill : request.decode];
  return n.worker.joined == (prefill ? request.prefill_joined : request.decode_joined);
}

void Cluster::release(SimRequest& request) {
  if (!std::exchange(request.reserved, false) || !there(request, false)) return;
  SimNode& n = nodes_[request.decode];
  const Time before = n.decoder->deadline();
  n.decoder->release(static_cast<uint64_t>(&request - requests_.data()), now_);
  if (n.decoder->deadline() != before) restep(request.decode);
  speak(n);
}

void Cluster::ended(uint32_t id, int http, const std::string& reason) {
  trace::RequestResult& out = result_.requests[id];
  out.status = http == 200   ? trace::Status::kOk
               : http == 429 ? trace::Status::kRejected
                             : trace::Status::kFailed;
  out.http = http;
  out.reason = reason;
  rejected_ += http != 200;
  requests_[id].stage = Stage::kOutside;
  std::vector<BlockHash>().swap(requests_[id].hashes);
  last_ = now_;
  --unfinished_;
}

// Ends the attempt on all nodes that are still there.
void Cluster::abandon(uint32_t id) {
  SimRequest& request = requests_[id];
  const uint32_t node = request.prefill;
  SimNode& p = nodes_[node];
  const bool here = there(request, true);
  if (request.stage == Stage::kComputing && here) {
    if (p.computing() && p.prefiller->runs() == id) {
      request.spent += now_ - p.prefiller->since();
      p.keep(request, p.prefiller->done(now_) / block());
    }
    if (p.cache && request.tx != 0) {
      p.cache->drop(request.tx);
      tell_index(node);
    }
  }
  if ((request.stage == Stage::kQueued || request.stage == Stage::kComputing) && here)
    p.prefiller->remove(id, now_);
  result_.wasted_prefill_s += to_seconds(request.spent);
  cancel_flow(request);
  if (here) {
    std::erase(p.behind, id);
    p.arrived(id, now_);
  }
  request.pinned.drop();
  request.held.drop();
  pool_.cancel(id, now_);
  pool_moved();
  release(request);
  request.attempt = 0;
  request.stage = Stage::kOutside;
  request.fetching = request.told = request.prepared = false;
  request.pool = {};
  request.fetched_blocks = request.fetched_tokens = request.pinned_tokens = request.reused = 0;
  request.from = kNowhere;
  request.tx = 0;
  request.fetch_took = request.spent = {};
  if (here) start(node);
}

// The node serves from now on, as prefill or decode.
void Cluster::join(uint32_t i) {
  SimNode& n = nodes_[i];
  n.worker = {};
  n.worker.node = n.worker.control = n.name;
  n.worker.epoch = n.epoch;
  n.worker.prefill = n.prefill;
  n.worker.slot = slot(i);
  if (n.prefill) n.worker.pool = pool_.use();
  const uint64_t cached = cache_blocks() > 0 ? cache_blocks() : kBoundless;
  n.worker.blocks_total = n.prefill ? cached : o_.decode_tokens / block();
  n.worker.blocks_free = n.worker.blocks_total;
  if (!n.prefill) n.worker.growth = n.decoder->memory()->growth();
  n.worker.ledger.set_order(order());
  roster_.join(n.worker);
  if (machine_.waiting() > 0) tell(sched::RoomFreed{});
}

// It serves no more.
void Cluster::leave(uint32_t i, const char* why, bool changed_role) {
  SimNode& n = nodes_[i];
  const sched::WorkerRef ref = n.worker.ref();
  roster_.leave(n.worker);
  n.worker = {};
  std::erase(drained_, i);
  if (n.prefill) {
    index_.retire(slot(i));
    index_.sweep(SIZE_MAX);
  }
  tell(sched::WorkerGone{ref, n.prefill, why, changed_role});
  if (machine_.waiting() > 0) tell(sched::RoomFreed{});
}

void Cluster::drain(uint32_t i, bool draining) {
  nodes_[i].worker.draining = draining;
  roster_.note(nodes_[i].worker);
  std::erase(drained_, i);
  if (draining) drained_.push_back(i);
}

}  // namespace mc::sim
