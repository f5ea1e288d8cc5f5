// Creating, changing, querying and destroying queue pairs.
#include <sched.h>

#include "objects.h"
#include "qp_states.h"

namespace mc::emu {
namespace {

// Waits until the other side's sender has left the queue pair, up to 2 s for a stopped one.
void drain_qp(Qp& qp) {
  const Fabric& fabric = *qp.context->fabric;
  uint32_t peer = qp.attr.dest_qp_num & (kQpsMax - 1), mark = fabric.index(*qp.slot) + 1;
  if (peer + 1 == mark) return;
  uint64_t until = now_ns() + 2'000'000'000;
  while (fabric->hazard[peer].qp.load() == mark && now_ns() < until &&
         fabric.alive(fabric->context[fabric->qp[peer].context]))
    sched_yield();
}

int check_create(const ibv_qp_init_attr_ex& init, const Nic& nic) {
  const uint32_t deepest = nic.max_qp_wr.load() != 0 ? nic.max_qp_wr.load() : kQueueMax;
  const ibv_qp_cap& cap = init.cap;
  if (init.qp_type != IBV_QPT_RC) return EOPNOTSUPP;
  if (init.send_cq == nullptr || init.recv_cq == nullptr) return EINVAL;
  if (cap.max_send_wr > deepest || cap.max_recv_wr > deepest || cap.max_send_sge > kSgeMax ||
      cap.max_recv_sge > kSgeMax || cap.max_inline_data > kInlineMax)
    return EINVAL;
  return 0;
}

void fill_slot(Qp& qp, QpSlot& slot, const ibv_pd* pd, uint32_t nic) {
  Held held(slot.lock);
  slot.nic = nic;
  slot.pd = pd->handle;
  slot.send_cq = qp.send_cq->ref;
  slot.recv_cq = qp.recv_cq->ref;
  if (qp.srq != nullptr) slot.srq = qp.srq->ref;
}

ibv_qp* create(ibv_pd* ibpd, ibv_qp_init_attr_ex* init) {
  Context& context = *of(ibpd)->context;
  if (context.dead()) return none(EIO);
  if (int rc = check_create(*init, context.nic()); rc != 0) return none(rc);
  auto qp = std::make_shared<Qp>();
  qp->context = &context;
  qp->send_cq = of(init->send_cq);
  qp->recv_cq = of(init->recv_cq);
  qp->srq = init->srq != nullptr ? of(init->srq) : nullptr;
  init->cap.max_send_sge = std::max(init->cap.max_send_sge, 1u);
  init->cap.max_recv_sge = std::max(init->cap.max_recv_sge, 1u);
  if (qp->srq != nullptr) init->cap.max_recv_wr = 0;
  qp->cap = qp->attr.cap = init->cap;
  qp->signal_all = init->sq_sig_all != 0;
  qp->room = int(qp->cap.max_send_wr);
  size_t size = std::max(qp->cap.max_send_wr, 1u);
  qp->ring.resize(size);
  qp->sges.resize(size * qp->cap.max_send_sge);
  qp->inlined.resize(size * qp->cap.max_inline_data + 1);
  QpSlot* slot = context.fabric->take_qp(context.index);
  if (slot == nullptr) return none(ENOMEM);
  qp->slot = slot;
  qp->number = slot->number.load();
  if (!context.fabric->make_ring(slot->ring, qp->cap.max_recv_wr)) {
    context.fabric->free_qp(*slot);
    return none(ENOMEM);
  }
  fill_slot(*qp, *slot, ibpd, context.nic_index);
  qp->head.self = qp.get();
  ibv_qp& base = qp->head.ex.qp_base;
  base.context = ibpd->context;
  base.qp_context = init->qp_context;
  base.pd = ibpd;
  base.send_cq = init->send_cq;
  base.recv_cq = init->recv_cq;
  base.srq = init->srq;
  base.handle = context.fabric->index(*slot);
  base.qp_num = qp->number;
  base.state = IBV_QPS_RESET;
  base.qp_type = IBV_QPT_RC;
  pthread_mutex_init(&base.mutex, nullptr);
  pthread_cond_init(&base.cond, nullptr);
  fill_extended(qp->head.ex);
  of(ibpd)->users++;
  qp->send_cq->users++;
  qp->recv_cq->users++;
  if (qp->srq != nullptr) qp->srq->users++;
  std::lock_guard lock(context.mutex);
  context.qps[qp->number] = qp;
  return &base;
}

int check_modify(const Qp& qp, const ibv_qp_attr& attr, int mask) {
  const Nic& nic = qp.context->nic();
  if ((mask & IBV_QP_PORT) != 0 && attr.port_num != 1) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 &&
      (attr.pkey_index >= kPkeysMax || nic.pkeys[attr.pkey_index].load() == 0))
    return EINVAL;
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (attr.path_mtu < IBV_MTU_256 || uint32_t(attr.path_mtu) > nic.mtu))
    return EINVAL;
  if ((mask & IBV_QP_TIMEOUT) != 0 && attr.timeout > 31) return EINVAL;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && attr.retry_cnt > 7) return EINVAL;
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attr.rnr_retry > 7) return EINVAL;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attr.min_rnr_timer > 31) return EINVAL;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attr.max_rd_atomic > 16) return EINVAL;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && attr.max_dest_rd_atomic > 16) return EINVAL;
  if ((mask & IBV_QP_AV) != 0) {
    const ibv_ah_attr& to = attr.ah_attr;
    if (nic.ethernet != 0 && to.is_global == 0) return EINVAL;  // RoCE is addressed by GID alone
    if (to.port_num != 1 || to.sl > 15) return EINVAL;
    if (to.is_global != 0) {
      if (to.grh.sgid_index >= kGidsMax) return EINVAL;
      if (nic.gids[to.grh.sgid_index].global.subnet_prefix == 0 &&
          nic.gids[to.grh.sgid_index].global.interface_id == 0)
        return EINVAL;
    }
  }
  return 0;
}

void apply(Qp& qp, const ibv_qp_attr& from, int mask) {
  ibv_qp_attr& to = qp.attr;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) to.qp_access_flags = from.qp_access_flags;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) to.pkey_index = from.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) to.port_num = from.port_num;
  if ((mask & IBV_QP_AV) != 0) to.ah_attr = from.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) to.path_mtu = from.path_mtu;
  if ((mask & IBV_QP_TIMEOUT) != 0) to.timeout = from.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) to.retry_cnt = from.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) to.rnr_retry = from.rnr_retry;
  if ((mask & IBV_QP_RQ_PSN) != 0) to.rq_psn = from.rq_psn & 0xffffff;
  if ((mask & IBV_QP_SQ_PSN) != 0) to.sq_psn = from.sq_psn & 0xffffff;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) to.max_rd_atomic = from.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) to.min_rnr_timer = from.min_rnr_timer;
  if ((mask & IBV_QP_DEST_QPN) != 0) to.dest_qp_num = from.dest_qp_num & 0xffffff;
  if ((mask & IBV_QP_SQ_PSN) != 0) qp.psn = to.sq_psn;
  if ((mask & IBV_QP_AV) != 0) {
    const ibv_ah_attr& av = to.ah_attr;
    const Fabric& fabric = *qp.context->fabric;
    qp.peer_nic = av.is_global != 0 ? fabric.find_nic(av.grh.dgid) : fabric.find_nic(av.dlid);
    if (qp.peer_nic >= 0 && fabric->nic[qp.peer_nic].ethernet != qp.context->nic().ethernet)
      qp.peer_nic = -1;
  }
}

void publish(Qp& qp, ibv_qp_state next, int mask) {
  QpSlot& slot = *qp.slot;
  Held held(slot.lock);
  slot.peer_nic = qp.peer_nic;
  slot.peer_number = qp.attr.dest_qp_num;
  slot.access = qp.attr.qp_access_flags;
  slot.rnr_timer = qp.attr.min_rnr_timer;
  slot.reads_max = qp.attr.max_dest_rd_atomic;
  slot.path_mtu = uint32_t(qp.attr.path_mtu);
  slot.path = qp.attr.ah_attr;
  slot.pkey_index = qp.attr.pkey_index;
  if ((mask & IBV_QP_RQ_PSN) != 0) slot.expected_psn = qp.attr.rq_psn;
  if (next == IBV_QPS_RESET) {
    slot.claimed = 0;
    slot.ring.head = slot.ring.tail = 0;
    slot.peer_nic = -1;
  }
  slot.state.store(next);
}

void reset(Qp& qp) {
  qp.count = qp.first = qp.unreported = 0;
  qp.room = int(qp.cap.max_send_wr);
  qp.flushed = false;
  qp.peer_nic = -1;
  qp.attr = {};
  qp.attr.cap = qp.cap;
  forget_completions(*qp.send_cq, qp.number);
  if (qp.recv_cq != qp.send_cq) forget_completions(*qp.recv_cq, qp.number);
}

}  // namespace
}  // namespace mc::emu

using namespace mc::emu;

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  ibv_qp_init_attr_ex extended{};
  extended.qp_context = init->qp_context;
  extended.send_cq = init->send_cq;
  extended.recv_cq = init->recv_cq;
  extended.srq = init->srq;
  extended.cap = init->cap;
  extended.qp_type = init->qp_type;
  extended.sq_sig_all = init->sq_sig_all;
  ibv_qp* qp = create(pd, &extended);
  if (qp != nullptr) init->cap = extended.cap;
  return qp;
}

int ibv_modify_qp(ibv_qp* ibqp, ibv_qp_attr* attr, int mask) {
  Qp& qp = *of(ibqp);
  std::lock_guard lock(qp.mutex);
  auto current = ibv_qp_state(qp.slot->state.load());
  ibv_qp_state next = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : current;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attr->cur_qp_state != current) return EINVAL;
  const Transition* allowed = transition(current, next);
  if (allowed == nullptr || !mask_fits(*allowed, mask)) return EINVAL;
  if (int rc = check_modify(qp, *attr, mask); rc != 0) return rc;
  bool ending = next == IBV_QPS_RESET || next == IBV_QPS_ERR;
  if (qp.context->dead() && !ending) return EIO;
  apply(qp, *attr, mask);
  publish(qp, next, mask);
  ibqp->state = next;
  if (ending) drain_qp(qp);
  if (next == IBV_QPS_RESET) reset(qp);
  pump(qp);
  if (next == IBV_QPS_ERR) flush(qp);
  return 0;
}

int ibv_query_qp(ibv_qp* ibqp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  Qp& qp = *of(ibqp);
  std::lock_guard lock(qp.mutex);
  *attr = qp.attr;
  attr->qp_state = attr->cur_qp_state = ibv_qp_state(qp.slot->state.load());
  ibqp->state = attr->qp_state;
  attr->sq_psn = qp.psn;
  attr->path_mig_state = IBV_MIG_MIGRATED;
  *init = {};
  init->qp_context = ibqp->qp_context;
  init->send_cq = ibqp->send_cq;
  init->recv_cq = ibqp->recv_cq;
  init->srq = ibqp->srq;
  init->cap = qp.cap;
  init->qp_type = IBV_QPT_RC;
  init->sq_sig_all = qp.signal_all;
  return 0;
}

int ibv_destroy_qp(ibv_qp* ibqp) {
  Context& context = *of(ibqp->context);
  std::shared_ptr<Qp> qp;
  {
    std::lock_guard lock(context.mutex);
    auto found = context.qps.find(ibqp->qp_num);
    if (found == context.qps.end()) return EINVAL;
    qp = found->second;
    context.qps.erase(found);
  }
  {
    std::lock_guard lock(qp->mutex);
    qp->closed = true;
    show_late(*qp);
    context.fabric->free_qp(*qp->slot);
    drain_qp(*qp);
    forget_completions(*qp->send_cq, qp->number);
    forget_completions(*qp->recv_cq, qp->number);
  }
  pthread_mutex_lock(&ibqp->mutex);
  while (ibqp->events_completed != qp->async_events) pthread_cond_wait(&ibqp->cond, &ibqp->mutex);
  pthread_mutex_unlock(&ibqp->mutex);
  pthread_mutex_destroy(&ibqp->mutex);
  pthread_cond_destroy(&ibqp->cond);
  of(ibqp->pd)->users--;
  qp->send_cq->users--;
  qp->recv_cq->users--;
  if (qp->srq != nullptr) qp->srq->users--;
  std::lock_guard lock(context.mutex);  // as the device's thread does: engine.cc
  qp.reset();
  return 0;
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) { return &of(qp)->head.ex; }

int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }

int ibv_set_ece(ibv_qp*, ibv_ece*) { return EOPNOTSUPP; }

int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
  *ece = {};
  return 0;
}

}  // extern "C"

namespace mc::emu {

ibv_qp* create_qp_extended(ibv_context*, ibv_qp_init_attr_ex* init) {
  constexpr uint32_t kKnown = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  constexpr uint64_t kOperations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                   IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                   IBV_QP_EX_WITH_RDMA_READ;
  if ((init->comp_mask & ~kKnown) != 0) return none(EOPNOTSUPP);
  if ((init->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) return none(EINVAL);
  if ((init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 &&
      (init->send_ops_flags & ~kOperations) != 0)
    return none(EOPNOTSUPP);
  return create(init->pd, init);
}

}  // namespace mc::emu
