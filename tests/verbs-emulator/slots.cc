// Taking and freeing slots of the fabric's tables, and reaping what dead processes left in them.
#include <unistd.h>

#include <cstring>

#include "fabric.h"

namespace mc::emu {
namespace {

bool is_free(const ContextSlot& s) { return s.generation.load() == 0; }
bool is_free(const QpSlot& s) { return s.number.load() == 0; }
bool is_free(const CqSlot& s) { return s.generation.load() == 0; }
bool is_free(const SrqSlot& s) { return s.generation.load() == 0; }
bool is_free(const MrSlot& s) { return s.used.load() == 0; }

uint64_t ring_bytes(const ReceiveRing& ring) { return ring.capacity * sizeof(ReceiveWork); }

}  // namespace

// From the cursor on, so that a freed slot rests as long as possible. With `tables` held.
template <class Slot>
Slot* Fabric::take(Slot* table, uint32_t size, uint32_t& cursor) {
  for (uint32_t i = 0; i < size; ++i) {
    Slot& slot = table[(cursor + i) % size];
    if (!is_free(slot)) continue;
    cursor = (cursor + i + 1) % size;
    return &slot;
  }
  return nullptr;
}

ContextSlot* Fabric::take_context(uint32_t nic) {
  Held held(layout_->tables);
  uint32_t& cursor = layout_->cursors[0];
  ContextSlot* slot = take(layout_->context, kContextsMax, cursor);
  if (slot == nullptr) return nullptr;
  init_lock(slot->life);
  init_lock(slot->lock);
  slot->gone = 0;
  slot->dead = 0;
  slot->pending = 0;
  slot->pid = getpid();
  slot->nic = nic;
  slot->events_count = 0;
  slot->generation.store(1);
  return slot;
}

QpSlot* Fabric::take_qp(uint32_t context) {
  Held held(layout_->tables);
  QpSlot* slot = take(layout_->qp, kQpsMax, layout_->cursors[1]);
  if (slot == nullptr) return nullptr;
  if (slot->generation == 0) init_lock(slot->lock);
  slot->generation = slot->generation % 1023 + 1;
  uint32_t at = index(*slot);
  if (layout_->qps_high.load() <= at) layout_->qps_high.store(at + 1);
  Held own(slot->lock);
  slot->state.store(IBV_QPS_RESET);
  slot->events.store(0);
  slot->context = context;
  slot->peer_nic = -1;
  slot->peer_number = 0;
  slot->access = 0;
  slot->claimed = 0;
  slot->srq = {};
  slot->ring = {};
  slot->number.store(slot->generation << 14 | at);
  return slot;
}

CqSlot* Fabric::take_cq(uint32_t context, uint32_t capacity) {
  uint64_t offset = allocate(capacity * sizeof(Completion));
  if (offset == 0) return nullptr;
  Held held(layout_->tables);
  CqSlot* slot = take(layout_->cq, kCqsMax, layout_->cursors[2]);
  if (slot == nullptr) return nullptr;
  if (slot->last_generation == 0) init_lock(slot->lock);
  Held own(slot->lock);
  slot->head.store(0);
  slot->tail.store(0);
  slot->armed.store(0);
  slot->notify.store(0);
  slot->events.store(0);
  slot->overrun = 0;
  slot->context = context;
  slot->capacity = capacity;
  slot->offset = offset;
  slot->generation.store(++slot->last_generation);
  return slot;
}

SrqSlot* Fabric::take_srq(uint32_t context, uint32_t capacity) {
  ReceiveRing ring{};
  if (!make_ring(ring, capacity)) return nullptr;
  Held held(layout_->tables);
  SrqSlot* slot = take(layout_->srq, kSrqsMax, layout_->cursors[3]);
  if (slot == nullptr) return nullptr;
  if (slot->last_generation == 0) init_lock(slot->lock);
  Held own(slot->lock);
  slot->events.store(0);
  slot->context = context;
  slot->limit = 0;
  slot->ring = ring;
  slot->generation.store(++slot->last_generation);
  return slot;
}

MrSlot* Fabric::take_mr(uint32_t context) {
  Held held(layout_->tables);
  MrSlot* slot = take(layout_->mr, kMrsMax, layout_->cursors[4]);
  if (slot == nullptr) return nullptr;
  slot->generation = slot->generation % 0xffff + 1;
  slot->context = context;
  slot->used.store(1);
  return slot;
}

bool Fabric::make_ring(ReceiveRing& ring, uint32_t capacity) {
  ring = {};
  if (capacity == 0) return true;
  ring.offset = allocate(capacity * sizeof(ReceiveWork));
  ring.capacity = ring.offset != 0 ? capacity : 0;
  return ring.offset != 0;
}

void Fabric::free_qp(QpSlot& slot) {
  ReceiveRing ring;
  {
    Held held(slot.lock);
    slot.state.store(IBV_QPS_RESET);
    slot.number.store(0);
    ring = slot.ring;
    slot.ring = {};
  }
  release(ring.offset, ring_bytes(ring));
}

void Fabric::free_cq(CqSlot& slot) {
  uint64_t offset = 0, bytes = 0;
  {
    Held held(slot.lock);
    offset = slot.offset;
    bytes = slot.capacity * sizeof(Completion);
    slot.generation.store(0);
  }
  release(offset, bytes);
}

void Fabric::free_srq(SrqSlot& slot) {
  ReceiveRing ring;
  {
    Held held(slot.lock);
    ring = slot.ring;
    slot.generation.store(0);
  }
  release(ring.offset, ring_bytes(ring));
}

void Fabric::free_mr(MrSlot& slot) { slot.used.store(0); }

void Fabric::free_context(ContextSlot& slot) { slot.generation.store(0); }

void Fabric::reap() {
  for (ContextSlot& context : layout_->context) {
    uint32_t ended = 1;  // 2: a process reaps it
    if (is_free(context) || alive(context) || !context.gone.compare_exchange_strong(ended, 2))
      continue;
    uint32_t owner = index(context);
    for (MrSlot& mr : layout_->mr) {
      if (is_free(mr) || mr.context != owner) continue;
      mr.key.store(0);
      if (drain(mr)) free_mr(mr);
    }
    for (uint32_t i = 0; i < layout_->qps_high.load(); ++i) {
      QpSlot& qp = layout_->qp[i];
      if (is_free(qp) || qp.context != owner) continue;
      layout_->hazard[i].mr.store(0);
      layout_->hazard[i].qp.store(0);
      free_qp(qp);
    }
    for (CqSlot& cq : layout_->cq)
      if (!is_free(cq) && cq.context == owner) free_cq(cq);
    for (SrqSlot& srq : layout_->srq)
      if (!is_free(srq) && srq.context == owner) free_srq(srq);
    free_context(context);
  }
}

}  // namespace mc::emu
