// Receive queues and shared receive queues: rings in the fabric, filled here and emptied by the
// senders of messages.
#include <cstring>

#include "objects.h"

namespace mc::emu {
namespace {

int append(const Fabric& fabric, ReceiveRing& ring, uint32_t max_sge, const ibv_recv_wr& wr) {
  if (wr.num_sge < 0 || uint32_t(wr.num_sge) > max_sge) return EINVAL;
  if (ring.tail - ring.head >= ring.capacity) return ENOMEM;
  auto& work = fabric.at<ReceiveWork>(ring.offset)[ring.tail % ring.capacity];
  work.wr_id = wr.wr_id;
  work.sges = uint32_t(wr.num_sge);
  if (wr.num_sge > 0) memcpy(work.sge, wr.sg_list, work.sges * sizeof *wr.sg_list);
  ++ring.tail;
  return 0;
}

int append_all(const Fabric& fabric, ReceiveRing& ring, uint32_t max_sge, ibv_recv_wr* list,
               ibv_recv_wr** bad) {
  for (; list != nullptr; list = list->next) {
    int rc = append(fabric, ring, max_sge, *list);
    if (rc == 0) continue;
    if (bad != nullptr) *bad = list;
    return rc;
  }
  return 0;
}

bool take(const Fabric& fabric, ReceiveRing& ring, ReceiveWork& out) {
  if (ring.head == ring.tail) return false;
  out = fabric.at<ReceiveWork>(ring.offset)[ring.head % ring.capacity];
  ++ring.head;
  return true;
}

bool take_shared(const Fabric& fabric, const Ref& ref, ReceiveWork& out) {
  SrqSlot& srq = fabric->srq[ref.slot];
  Held held(srq.lock);
  if (srq.generation.load() != ref.generation || !take(fabric, srq.ring, out)) return false;
  if (srq.limit != 0 && srq.ring.tail - srq.ring.head < srq.limit) {
    srq.limit = 0;
    srq.events.fetch_or(1u << IBV_EVENT_SRQ_LIMIT_REACHED);
    fabric.raise(srq.context, kSweepSrqs);
  }
  return true;
}

}  // namespace

bool claim_receive(const Fabric& fabric, QpSlot& slot) {
  bool taken = slot.srq.generation != 0 ? take_shared(fabric, slot.srq, slot.claim)
                                        : take(fabric, slot.ring, slot.claim);
  if (taken) slot.claimed = 1;
  return taken;
}

void flush_receives(Qp& qp) {
  const Fabric& fabric = *qp.context->fabric;
  QpSlot& slot = *qp.slot;
  bool notify = false;
  {
    Held held(slot.lock);
    Completion completion{};
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.opcode = IBV_WC_RECV;
    completion.qp_number = qp.number;
    completion.solicited = 1;
    while (slot.claimed != 0 || take(fabric, slot.ring, slot.claim)) {
      slot.claimed = 0;
      completion.wr_id = slot.claim.wr_id;
      notify |= push(fabric, slot.recv_cq, completion) == Push::kNotify;
    }
  }
  if (notify) notify_channel(*qp.recv_cq);
  if (qp.srq != nullptr && !qp.flushed) {
    slot.events.fetch_or(1u << IBV_EVENT_QP_LAST_WQE_REACHED);
    fabric.raise(slot.context, kSweepQps);
  }
  qp.flushed = true;
}

int post_recv(ibv_qp* ibqp, ibv_recv_wr* list, ibv_recv_wr** bad) {
  Qp& qp = *of(ibqp);
  int rc = 0;
  bool failed = false;
  {
    Held held(qp.slot->lock);
    if (qp.slot->state.load() == IBV_QPS_RESET || qp.srq != nullptr) {
      if (bad != nullptr) *bad = list;
      return EINVAL;
    }
    rc = append_all(*qp.context->fabric, qp.slot->ring, qp.cap.max_recv_sge, list, bad);
    failed = qp.slot->state.load() == IBV_QPS_ERR;
  }
  if (failed) {
    std::lock_guard lock(qp.mutex);
    flush(qp);
  }
  return rc;
}

int post_srq_recv(ibv_srq* ibsrq, ibv_recv_wr* list, ibv_recv_wr** bad) {
  Srq& srq = *of(ibsrq);
  Held held(srq.slot->lock);
  return append_all(*srq.context->fabric, srq.slot->ring, srq.max_sge, list, bad);
}

}  // namespace mc::emu

using namespace mc::emu;

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* ibpd, ibv_srq_init_attr* init) {
  Context& context = *of(ibpd)->context;
  if (context.dead()) return none(EIO);
  if (init->attr.max_wr == 0 || init->attr.max_wr > kQueueMax || init->attr.max_sge > kSgeMax)
    return none(EINVAL);
  SrqSlot* slot = context.fabric->take_srq(context.index, init->attr.max_wr);
  if (slot == nullptr) return none(ENOMEM);
  slot->pd = ibpd->handle;
  auto* srq = new Srq;
  srq->context = &context;
  srq->slot = slot;
  srq->ref = {context.fabric->index(*slot), slot->generation.load()};
  srq->max_sge = std::max(init->attr.max_sge, 1u);
  init->attr.max_sge = srq->max_sge;
  srq->srq.context = ibpd->context;
  srq->srq.srq_context = init->srq_context;
  srq->srq.pd = ibpd;
  srq->srq.handle = srq->ref.slot;
  pthread_mutex_init(&srq->srq.mutex, nullptr);
  pthread_cond_init(&srq->srq.cond, nullptr);
  of(ibpd)->users++;
  std::lock_guard lock(context.mutex);
  context.srqs[srq->ref.slot] = srq;
  return &srq->srq;
}

int ibv_modify_srq(ibv_srq* ibsrq, ibv_srq_attr* attr, int mask) {
  Srq& srq = *of(ibsrq);
  if ((mask & ~IBV_SRQ_LIMIT) != 0) return EOPNOTSUPP;
  Held held(srq.slot->lock);
  if (attr->srq_limit > srq.slot->ring.capacity) return EINVAL;
  if ((mask & IBV_SRQ_LIMIT) != 0) srq.slot->limit = attr->srq_limit;
  return 0;
}

int ibv_query_srq(ibv_srq* ibsrq, ibv_srq_attr* attr) {
  Srq& srq = *of(ibsrq);
  Held held(srq.slot->lock);
  *attr = {srq.slot->ring.capacity, srq.max_sge, srq.slot->limit};
  return 0;
}

int ibv_destroy_srq(ibv_srq* ibsrq) {
  Srq* srq = of(ibsrq);
  Context& context = *srq->context;
  if (srq->users != 0) return EBUSY;
  {
    std::lock_guard lock(context.mutex);
    context.srqs.erase(srq->ref.slot);
  }
  context.fabric->free_srq(*srq->slot);
  pthread_mutex_lock(&ibsrq->mutex);
  while (ibsrq->events_completed != srq->async_events)
    pthread_cond_wait(&ibsrq->cond, &ibsrq->mutex);
  pthread_mutex_unlock(&ibsrq->mutex);
  pthread_mutex_destroy(&ibsrq->mutex);
  pthread_cond_destroy(&ibsrq->cond);
  of(ibsrq->pd)->users--;
  delete srq;
  return 0;
}

}  // extern "C"
