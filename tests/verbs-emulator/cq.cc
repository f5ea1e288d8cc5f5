// Completion queues: rings in the fabric that this process polls and any sender may fill.
#include <sched.h>

#include <algorithm>
#include <array>

#include "objects.h"

namespace mc::emu {

Push push(const Fabric& fabric, Ref ref, const Completion& completion) {
  CqSlot& slot = fabric->cq[ref.slot];
  Held held(slot.lock);
  if (slot.generation.load() != ref.generation || ref.generation == 0) return Push::kQuiet;
  uint32_t tail = slot.tail.load(std::memory_order_relaxed);
  if (slot.overrun != 0 || tail - slot.head.load() >= slot.capacity) {
    if (slot.overrun == 0) {
      slot.overrun = 1;
      slot.events.fetch_or(1u << IBV_EVENT_CQ_ERR);
      fabric.raise(slot.context, kSweepCqs);
    }
    return Push::kOverrun;
  }
  fabric.at<Completion>(slot.offset)[tail % slot.capacity] = completion;
  slot.tail.store(tail + 1);
  uint32_t armed = slot.armed.load();
  bool notify = armed == 1 || (armed == 2 && completion.solicited != 0);
  if (notify) slot.armed.store(0);
  return notify ? Push::kNotify : Push::kQuiet;
}

void push_own(Qp& qp, Cq& cq, const Completion& completion) {
  Push pushed = push(*qp.context->fabric, cq.ref, completion);
  if (pushed == Push::kNotify) notify_channel(cq);
  if (pushed == Push::kOverrun)
    qp.context->fabric->fail_qp(*qp.slot, qp.number, IBV_EVENT_QP_FATAL);
}

Push push_far(const Fabric& fabric, Ref ref, const Completion& completion) {
  Push pushed = push(fabric, ref, completion);
  if (pushed == Push::kNotify) {
    CqSlot& slot = fabric->cq[ref.slot];
    slot.notify.store(1);
    fabric.raise(slot.context, kSweepCqs);
  }
  return pushed;
}

void forget_completions(Cq& cq, uint32_t qp_number) {
  CqSlot& slot = *cq.slot;
  Held held(slot.lock);
  auto* ring = cq.context->fabric->at<Completion>(slot.offset);
  uint32_t to = slot.head.load(), tail = slot.tail.load();
  for (uint32_t from = to; from != tail; ++from)
    if (ring[from % slot.capacity].qp_number != qp_number)
      ring[to++ % slot.capacity] = ring[from % slot.capacity];
  slot.tail.store(to);
}

namespace {

uint32_t most(const Context& context) {  // entries of a queue
  const uint32_t limit = context.nic().max_cqe.load();
  return limit != 0 ? limit : kCompletionsMax;
}

void give_back(Context& context, const Completion& completion) {
  std::lock_guard lock(context.mutex);
  auto found = context.qps.find(completion.qp_number);
  if (found != context.qps.end()) found->second->room += int(completion.released);
}

void copy_out(const Completion& from, ibv_wc& to) {
  to = {};
  to.wr_id = from.wr_id;
  to.status = ibv_wc_status(from.status);
  to.opcode = ibv_wc_opcode(from.opcode);
  to.byte_len = from.bytes;
  to.imm_data = from.imm;
  to.qp_num = from.qp_number;
  to.src_qp = from.peer_number;
  to.wc_flags = from.flags;
  to.slid = from.peer_lid;
}

constexpr int kTakenAtOnce = 16;

int take_some(Cq& cq, int count, ibv_wc* out) {
  CqSlot& slot = *cq.slot;
  std::array<Completion, kTakenAtOnce> done;
  int taken = 0;
  size_t releasing = 0;
  {
    Held held(slot.lock);
    auto* ring = cq.context->fabric->at<Completion>(slot.offset);
    uint32_t head = slot.head.load(), tail = slot.tail.load();
    for (; taken < count && head != tail; ++head, ++taken) {
      const Completion& completion = ring[head % slot.capacity];
      copy_out(completion, out[taken]);
      if (completion.released != 0) done[releasing++] = completion;
    }
    slot.head.store(head, std::memory_order_release);
  }
  for (size_t i = 0; i < releasing; ++i) give_back(*cq.context, done[i]);
  return taken;
}

int take(Cq& cq, int count, ibv_wc* out) {
  int taken = 0;
  while (taken < count) {
    int some = take_some(cq, std::min(count - taken, kTakenAtOnce), out + taken);
    taken += some;
    if (some < kTakenAtOnce) break;
  }
  return taken;
}

}  // namespace

int poll_cq(ibv_cq* ibcq, int count, ibv_wc* out) {
  Cq& cq = *of(ibcq);
  Context& context = *cq.context;
  if (context.next_due.load(std::memory_order_relaxed) != UINT64_MAX) run_due(context, now_ns());
  if (cq.slot->head.load() != cq.slot->tail.load()) return take(cq, count, out);
  sched_yield();  // a polling client must not starve the peer it waits for
  return 0;
}

int request_notify(ibv_cq* ibcq, int solicited_only) {
  of(ibcq)->slot->armed.store(solicited_only != 0 ? 2 : 1);
  return 0;
}

}  // namespace mc::emu

using namespace mc::emu;

extern "C" {

ibv_cq* ibv_create_cq(ibv_context* ibcontext, int cqe, void* user, ibv_comp_channel* channel,
                      int vector) {
  Context& context = *of(ibcontext);
  if (context.dead()) return none(EIO);
  if (cqe <= 0 || uint32_t(cqe) > most(context) || vector < 0 ||
      vector >= ibcontext->num_comp_vectors)
    return none(EINVAL);
  CqSlot* slot = context.fabric->take_cq(context.index, uint32_t(cqe));
  if (slot == nullptr) return none(ENOMEM);
  slot->vector = uint32_t(vector);
  auto* cq = new Cq;
  cq->context = &context;
  cq->slot = slot;
  cq->ref = {context.fabric->index(*slot), slot->generation.load()};
  cq->cq.context = ibcontext;
  cq->cq.channel = channel;
  cq->cq.cq_context = user;
  cq->cq.handle = cq->ref.slot;
  cq->cq.cqe = cqe;
  pthread_mutex_init(&cq->cq.mutex, nullptr);
  pthread_cond_init(&cq->cq.cond, nullptr);
  std::lock_guard lock(context.mutex);
  if (channel != nullptr) ++channel->refcnt;
  context.cqs[cq->ref.slot] = cq;
  return &cq->cq;
}

int ibv_resize_cq(ibv_cq* ibcq, int cqe) {
  Cq& cq = *of(ibcq);
  Fabric& fabric = *cq.context->fabric;
  if (cqe <= 0 || uint32_t(cqe) > most(*cq.context)) return EINVAL;
  auto capacity = uint32_t(cqe);
  uint64_t offset = fabric.allocate(capacity * sizeof(Completion));
  if (offset == 0) return ENOMEM;
  uint64_t old = 0, old_bytes = 0;
  int rc = 0;
  {
    Held held(cq.slot->lock);
    CqSlot& slot = *cq.slot;
    uint32_t head = slot.head.load(), waiting = slot.tail.load() - head;
    if (waiting > capacity) {
      old = offset;
      old_bytes = capacity * sizeof(Completion);
      rc = EINVAL;
    } else {
      for (uint32_t i = 0; i < waiting; ++i)
        fabric.at<Completion>(offset)[i] =
            fabric.at<Completion>(slot.offset)[(head + i) % slot.capacity];
      old = slot.offset;
      old_bytes = slot.capacity * sizeof(Completion);
      slot.offset = offset;
      slot.capacity = capacity;
      slot.head.store(0);
      slot.tail.store(waiting);
      ibcq->cqe = cqe;
    }
  }
  fabric.release(old, old_bytes);
  return rc;
}

int ibv_destroy_cq(ibv_cq* ibcq) {
  Cq* cq = of(ibcq);
  Context& context = *cq->context;
  if (cq->users != 0) return EBUSY;
  {
    std::lock_guard lock(context.mutex);
    context.cqs.erase(cq->ref.slot);
    if (ibcq->channel != nullptr) --ibcq->channel->refcnt;
  }
  context.fabric->free_cq(*cq->slot);
  // As the real library: until the client has acknowledged the events it took.
  pthread_mutex_lock(&ibcq->mutex);
  while (ibcq->comp_events_completed != cq->comp_events ||
         ibcq->async_events_completed != cq->async_events)
    pthread_cond_wait(&ibcq->cond, &ibcq->mutex);
  pthread_mutex_unlock(&ibcq->mutex);
  pthread_mutex_destroy(&ibcq->mutex);
  pthread_cond_destroy(&ibcq->cond);
  delete cq;
  return 0;
}

}  // extern "C"
