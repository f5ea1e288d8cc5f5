// Send queues: posting, timing, retries and completions. Requests run in the thread that posts
// them when nothing holds them up, else in whichever thread polls or the engine's.
#include <cstring>

#include "objects.h"

namespace mc::emu {
namespace {

constexpr uint64_t kPatience = 10'000'000;  // between tries that no clock ends

// What the responder's min_rnr_timer codes mean, in units of 10 us.
constexpr uint32_t kRnrUnits[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                    16,    24,   32,   48,    64,    96,    128,   192,
                                    256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                    4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};

uint64_t reserve(std::atomic<uint64_t>& clock, uint64_t rate, uint64_t bytes, uint64_t now) {
  if (rate == 0) return now;
  uint64_t before = clock.load(), end;
  do end = std::max(before, now) + bytes * 1'000'000'000 / rate;
  while (!clock.compare_exchange_weak(before, end));
  return end;
}

// When a request that is posted now is through: both ends' capacity is taken in order of posting.
uint64_t due_time(const Qp& qp, const Work& work) {
  if (qp.peer_nic < 0) return 0;
  Nic& own = qp.context->nic();
  Nic& peer = (*qp.context->fabric)->nic[qp.peer_nic];
  bool read = work.opcode == IBV_WR_RDMA_READ;
  Nic& from = read ? peer : own;
  Nic& to = read ? own : peer;
  uint64_t latency = (own.latency_ns.load() + peer.latency_ns.load()) * (read ? 2 : 1);
  if (latency == 0 && from.rate.load() == 0 && to.rate.load() == 0) return 0;
  uint64_t now = now_ns();
  uint64_t sent = reserve(from.tx_clock, from.rate.load(), work.bytes, now);
  return std::max(sent, reserve(to.rx_clock, to.rate.load(), work.bytes, now)) + latency;
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return IBV_WC_SEND;
    default: return IBV_WC_RDMA_WRITE;
  }
}

int check_work(const Qp& qp, const ibv_send_wr& wr) {
  if (wr.opcode > IBV_WR_RDMA_READ) return EOPNOTSUPP;
  if (wr.num_sge < 0 || uint32_t(wr.num_sge) > qp.cap.max_send_sge) return EINVAL;
  if (wr.opcode == IBV_WR_RDMA_READ) {
    if ((wr.send_flags & IBV_SEND_INLINE) != 0 || qp.attr.max_rd_atomic == 0) return EINVAL;
  }
  if ((wr.send_flags & IBV_SEND_INLINE) == 0) return 0;
  uint64_t bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
  return bytes > qp.cap.max_inline_data ? EINVAL : 0;
}

// Nobody answered. False: its retries are used up.
bool try_again(Qp& qp, Work& work) {
  Layout& layout = **qp.context->fabric;
  qp.context->nic().retries++;
  uint32_t expiries = layout.expiries.load(), percent = layout.retry_percent.load();
  if (work.attempts == 0) work.expiries = expiries;
  if (work.expiries != expiries) return false;
  bool timed = qp.attr.timeout != 0 && percent != 0;
  if (timed && work.attempts > qp.attr.retry_cnt) return false;
  if (timed || work.attempts == 0) ++work.attempts;
  work.due = now_ns() + (timed ? (uint64_t{4096} << qp.attr.timeout) * percent / 100 : kPatience);
  return true;
}

bool receiver_not_ready(Qp& qp, Work& work, uint64_t timer) {
  if (work.rnr_attempts >= qp.attr.rnr_retry && qp.attr.rnr_retry != 7) return false;
  ++work.rnr_attempts;
  qp.context->nic().retries++;
  work.due = now_ns() + uint64_t{kRnrUnits[timer & 31]} * 10'000;
  return true;
}

void finish(Qp& qp, const Outcome& outcome) {
  const Work& work = qp.ring[qp.first];
  bool lose = work.fate.struck && work.fate.action == Action::kLose;
  if (outcome.status != IBV_WC_SUCCESS) qp.slot->state.store(IBV_QPS_ERR);
  complete(qp, outcome.status, outcome.bytes, lose);
}

}  // namespace

int accept(Qp& qp, Work work, const ibv_sge* sges, const char* inlined) {
  if (qp.room.load() <= 0) return ENOMEM;
  qp.room--;
  uint32_t at = (qp.first + qp.count) % uint32_t(qp.ring.size());
  if ((work.flags & IBV_SEND_INLINE) != 0) {
    memcpy(&qp.inlined[size_t{at} * qp.cap.max_inline_data], inlined, work.bytes);
    work.sges = 0;
  } else if (work.sges > 0) {
    memcpy(&qp.sges[size_t{at} * qp.cap.max_send_sge], sges, work.sges * sizeof *sges);
  }
  work.due = due_time(qp, work);
  work.downs = qp.context->nic().downs.load();
  if (qp.peer_nic >= 0) work.downs += (*qp.context->fabric)->nic[qp.peer_nic].downs.load();
  qp.ring[at] = work;
  ++qp.count;
  return 0;
}

void complete(Qp& qp, ibv_wc_status status, uint32_t bytes, bool lose) {
  const Work& work = qp.ring[qp.first];
  Completion completion{};
  completion.wr_id = work.wr_id;
  completion.status = status;
  completion.opcode = completion_opcode(work.opcode);
  completion.bytes = bytes;
  completion.qp_number = qp.number;
  completion.solicited = status != IBV_WC_SUCCESS;
  bool told = (work.flags & IBV_SEND_SIGNALED) != 0 || qp.signal_all || status != IBV_WC_SUCCESS;
  Nic& nic = qp.context->nic();
  (status == IBV_WC_SUCCESS ? nic.done : nic.failed)++;
  qp.first = (qp.first + 1) % uint32_t(qp.ring.size());
  --qp.count;
  ++qp.unreported;
  if (!told || lose) return;
  completion.released = qp.unreported;
  qp.unreported = 0;
  push_own(qp, *qp.send_cq, completion);
}

void flush(Qp& qp) {
  while (qp.count > 0) complete(qp, IBV_WC_WR_FLUSH_ERR, 0, false);
  flush_receives(qp);
}

void pump(Qp& qp) {
  while (qp.count > 0) {
    uint32_t state = qp.slot->state.load();
    if (state == IBV_QPS_ERR) return flush(qp);
    if (state != IBV_QPS_RTS) return;
    uint32_t at = qp.first;
    Work& work = qp.ring[at];
    if (work.due != 0 && work.due > now_ns()) return schedule(*qp.context, qp, work.due);
    Outcome outcome = execute(qp, work, &qp.sges[size_t{at} * qp.cap.max_send_sge],
                              &qp.inlined[size_t{at} * qp.cap.max_inline_data]);
    switch (outcome.verdict) {
      case Verdict::kDone: finish(qp, outcome); break;
      case Verdict::kSilence:
        if (!try_again(qp, work)) finish(qp, {Verdict::kDone, IBV_WC_RETRY_EXC_ERR, 0, 0});
        break;
      case Verdict::kNotReady:
        if (!receiver_not_ready(qp, work, outcome.wait_ns))
          finish(qp, {Verdict::kDone, IBV_WC_RNR_RETRY_EXC_ERR, 0, 0});
        break;
      case Verdict::kLater: work.due = now_ns() + outcome.wait_ns; break;
    }
  }
}

int post_send(ibv_qp* ibqp, ibv_send_wr* list, ibv_send_wr** bad) {
  Qp& qp = *of(ibqp);
  std::lock_guard lock(qp.mutex);
  uint32_t state = qp.slot->state.load();
  int rc = state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR ? EINVAL : 0;
  char gathered[kInlineMax];
  for (; list != nullptr; list = list->next) {
    if (rc == 0) rc = check_work(qp, *list);
    if (rc != 0) break;
    Work work;
    work.wr_id = list->wr_id;
    work.opcode = list->opcode;
    work.flags = list->send_flags;
    work.imm = list->imm_data;
    work.remote = list->wr.rdma.remote_addr;
    work.rkey = list->wr.rdma.rkey;
    work.sges = uint32_t(list->num_sge);
    bool inlined = (list->send_flags & IBV_SEND_INLINE) != 0;
    for (int i = 0; i < list->num_sge; ++i) {
      const ibv_sge& sge = list->sg_list[i];
      if (inlined) memcpy(gathered + work.bytes, reinterpret_cast<void*>(sge.addr), sge.length);
      work.bytes += sge.length;
    }
    rc = accept(qp, work, list->sg_list, gathered);
    if (rc != 0) break;
  }
  pump(qp);
  if (rc != 0 && bad != nullptr) *bad = list;
  return rc;
}

}  // namespace mc::emu
