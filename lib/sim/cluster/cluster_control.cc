// Looks at the load of all nodes, and moves nodes between the sides by it.
#include "sched/load.h"
#include "sim/cluster/cluster_state.h"

namespace mc::sim {

Sample Cluster::measure() const {
  Sample s;
  s.at_s = to_seconds(now_ - start_);
  s.rejected = rejected_;
  for (const SimNode& n : nodes_) {
    if (n.down) continue;
    if (n.prefill) {
      ++s.prefill_nodes;
      s.prefill_load +=
          sched::prefill_load(n.worker.ledger.wait_ms(now_), n.computing(), o_.admission.ttft_slo);
      s.queued += n.worker.requests;
    }
    if (n.decoder && (!n.prefill || coupled_)) {
      ++s.decode_nodes;
      const uint64_t batch = n.decoder->running() + n.decoder->waiting();
      const double step = cost_.step_ms(batch, n.decoder->context() + n.decoder->waiting_tokens());
      s.decode_load += sched::decode_load(step, o_.admission.tbt_slo);
      s.decoding += batch;
    }
  }
  if (s.prefill_nodes) s.prefill_load /= static_cast<double>(s.prefill_nodes);
  if (s.decode_nodes) s.decode_load /= static_cast<double>(s.decode_nodes);
  return s;
}

// As a live conductor's autoscaler: nothing is decided while a node moves.
void Cluster::control() {
  for (SimNode& n : nodes_)
    n.worker.blocks_cached = n.prefill && !n.down && n.cache ? n.cache->dram_used() : 0;
  if (moves_.moving(now_)) {
    control_.hold(now_);
  } else {
    const Sample s = measure();
    control_.sample(s.prefill_load, s.decode_load);
    if (now_ >= control_.deadline()) move(control_.decide(s.prefill_nodes, s.decode_nodes, now_));
  }
  if (!over()) events_.push(now_ + std::chrono::seconds(1), {Kind::kControl});
}

// The node with the least work left drains, then changes sides.
void Cluster::move(const sched::PdDecision& d) {
  const sched::FleetWorker* const chosen = moves_.move(d.move, now_);
  if (chosen == nullptr) return;
  drained_.push_back(numbers_.at(chosen->node));
  result_.moves.push_back(
      {to_seconds(now_ - start_), chosen->node, chosen->prefill ? "decode" : "prefill", d.reason});
}

// Nodes that drained and have no request left change sides, or go.
void Cluster::settle_roles() {
  for (const uint32_t i : std::vector<uint32_t>(drained_)) {
    SimNode& n = nodes_[i];
    if (n.worker.requests > 0 || n.computing()) continue;
    const bool goes = std::exchange(n.leaving, false);
    leave(i, goes ? "it was taken away" : "it changes sides", true);
    if (goes) {
      n.down = n.away = true;
      if (n.cache) n.cache->lose_all();
      pool_.unmount(i, now_);
      pool_moved();
    } else {
      n.prefill ? become_decode(i) : become_prefill(i);
    }
  }
}

void Cluster::finish() {
  MC_CHECK(unfinished_ == 0);
  result_.duration_s = to_seconds(last_ - start_);
  if (const PoolTraffic* const pool = pool_.traffic()) {
    result_.pool_reads = pool->totals().reads;
    result_.pool_read_bytes = pool->totals().read_bytes;
    result_.pool_put_bytes = pool->totals().put_bytes;
    result_.pool_evicted = pool->pool().evicted();
  }
  for (const SimNode& n : nodes_) {
    if (n.decoder) {
      result_.steps += static_cast<double>(n.decoder->totals().steps);
      result_.token_steps += static_cast<double>(n.decoder->totals().token_steps);
    }
    if (n.decoder && n.decoder->memory() != nullptr)
      for (const Preemption& p : n.decoder->memory()->preemptions()) {
        ++result_.preemptions;
        result_.preempted_to_host += p.way == serve::KvWay::kHost;
      }
    if (n.prefill)
      result_.prefill_busy_share.push_back(result_.duration_s > 0 ? n.busy_s / result_.duration_s
                                                                  : 0);
  }
}

}  // namespace mc::sim
