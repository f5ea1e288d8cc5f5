// One work request on the wire: the sender's thread plays both ends. It checks what the responder
// would check against the fabric's tables and moves the bytes between the two processes with one
// system call, so a stopped peer still serves, as on hardware, and memory that is gone is an error.
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "control.h"
#include "objects.h"

extern "C" {  // of the thread sanitizer's runtime, where the process has it
[[gnu::weak]] void AnnotateIgnoreReadsBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreReadsEnd(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace mc::emu {
namespace {

constexpr uint64_t kChunk = 1 << 20;  // between looks at whether access was withdrawn

struct Spans {  // up to kSgeMax pieces of memory
  std::array<iovec, kSgeMax> piece;
  size_t count = 0;
  void add(uint64_t address, uint64_t bytes) {
    if (bytes > 0) piece[count++] = {reinterpret_cast<void*>(address), bytes};
  }
  uint64_t total() const {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; ++i) bytes += piece[i].iov_len;
    return bytes;
  }
  // The first `bytes` of what is left, taken off.
  Spans take(uint64_t bytes) {
    Spans front;
    size_t used = 0;
    while (used < count && bytes > 0) {
      iovec& next = piece[used];
      uint64_t n = std::min<uint64_t>(bytes, next.iov_len);
      front.piece[front.count++] = {next.iov_base, n};
      bytes -= n;
      next.iov_base = static_cast<char*>(next.iov_base) + n;
      next.iov_len -= n;
      if (next.iov_len == 0) ++used;
    }
    std::copy(piece.begin() + long(used), piece.begin() + long(count), piece.begin());
    count -= used;
    return front;
  }
};

// The responder as it was when the request entered.
struct Far {
  QpSlot* slot = nullptr;
  uint32_t number = 0;
  int pid = 0;
  uint32_t nic = 0, pd = 0;
  ReceiveWork claim;  // of a message
};

// Tells who withdraws access that a copy is under way.
class Touching {
 public:
  explicit Touching(Hazard& hazard) : hazard_(hazard) {}
  ~Touching() {
    hazard_.mr.store(0, std::memory_order_release);
    hazard_.qp.store(0, std::memory_order_release);
  }
  Touching(const Touching&) = delete;
  Touching& operator=(const Touching&) = delete;
  Hazard* operator->() { return &hazard_; }

 private:
  Hazard& hazard_;
};

Outcome done(ibv_wc_status status, uint64_t bytes = 0) {
  return {Verdict::kDone, status, uint32_t(bytes), 0};
}
Outcome silence() { return {Verdict::kSilence, IBV_WC_SUCCESS, 0, 0}; }

bool is_write(const Work& work) {
  return work.opcode == IBV_WR_RDMA_WRITE || work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool is_message(const Work& work) {
  return work.opcode == IBV_WR_SEND || work.opcode == IBV_WR_SEND_WITH_IMM;
}
bool takes_receive(const Work& work) {
  return is_message(work) || work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

bool reachable(const Nic& nic) {
  return nic.present.load() != 0 && nic.up.load() != 0 && nic.silent.load() == 0;
}

// Whether the NIC still has the address that leads to it.
bool addressed(const ibv_ah_attr& path, const Nic& to) {
  if (path.is_global == 0) return path.dlid == to.lid.load();
  for (const ibv_gid& gid : to.gids)
    if (memcmp(gid.raw, path.grh.dgid.raw, sizeof gid.raw) == 0) return true;
  return false;
}

// Of the same partition, and not both limited members of it.
bool same_partition(const Nic& a, uint32_t a_index, const Nic& b, uint32_t b_index) {
  const uint32_t one = a.pkeys[a_index].load(), other = b.pkeys[b_index].load();
  return (one & 0x7fff) != 0 && (one & 0x7fff) == (other & 0x7fff) && ((one | other) & 0x8000) != 0;
}

// The responder refuses: its queue pair goes to the error state, as ours will.
Outcome refuse(Qp& qp, const Far& far, ibv_wc_status status, int event) {
  qp.context->fabric->fail_qp(*far.slot, far.number, event);
  return done(status);
}

bool gather(const Qp& qp, const Work& work, const ibv_sge* sges, const char* inlined, Spans& out) {
  if ((work.flags & IBV_SEND_INLINE) != 0) {
    out.add(reinterpret_cast<uint64_t>(inlined), work.bytes);
    return true;
  }
  unsigned access = 0;
  if (work.opcode == IBV_WR_RDMA_READ) access = IBV_ACCESS_LOCAL_WRITE;
  for (uint32_t i = 0; i < work.sges; ++i) {
    if (sges[i].length == 0) continue;
    Span span = check_key(*qp.context->fabric, sges[i].lkey, qp.context->nic_index,
                          qp.head.ex.qp_base.pd->handle, access, sges[i].addr, sges[i].length);
    if (!span.ok) return false;
    out.add(span.address, sges[i].length);
  }
  return true;
}

// Enters the responder's queue pair. Anything but success with `far` set ends this try.
Outcome enter(Qp& qp, const Work& work, Touching& touching, Far& far) {
  const Fabric& fabric = *qp.context->fabric;
  QpSlot& slot = fabric->qp[qp.attr.dest_qp_num & (kQpsMax - 1)];
  if (slot.number.load() != qp.attr.dest_qp_num) return silence();
  Held held(slot.lock);
  uint32_t state = slot.state.load();
  if (slot.number.load() != qp.attr.dest_qp_num || state < IBV_QPS_RTR || state > IBV_QPS_SQD ||
      slot.nic != uint32_t(qp.peer_nic) || slot.peer_number != qp.number ||
      slot.peer_nic != int32_t(qp.context->nic_index) || slot.expected_psn != qp.psn)
    return silence();
  const Nic &own = qp.context->nic(), &peer = fabric->nic[slot.nic];
  if (!addressed(qp.attr.ah_attr, peer) || !addressed(slot.path, own) ||
      !same_partition(own, qp.attr.pkey_index, peer, slot.pkey_index))
    return silence();
  ContextSlot& owner = fabric->context[slot.context];
  if (owner.dead.load() != 0 || !fabric.alive(owner)) return silence();
  far.slot = &slot;
  far.number = qp.attr.dest_qp_num;
  far.pid = owner.pid;
  far.nic = slot.nic;
  far.pd = slot.pd;
  bool read = work.opcode == IBV_WR_RDMA_READ;
  unsigned needed = 0;
  if (read) needed = IBV_ACCESS_REMOTE_READ;
  if (is_write(work)) needed = IBV_ACCESS_REMOTE_WRITE;
  uint64_t mtu = uint64_t{128} << qp.attr.path_mtu;
  if ((slot.access & needed) != needed || (read && slot.reads_max == 0) ||
      (work.bytes > (uint64_t{128} << slot.path_mtu) && uint32_t(qp.attr.path_mtu) > slot.path_mtu))
    return done(IBV_WC_REM_INV_REQ_ERR);
  if (takes_receive(work)) {
    if (slot.claimed == 0 && !claim_receive(fabric, slot))
      return {Verdict::kNotReady, IBV_WC_SUCCESS, 0, slot.rnr_timer};
    far.claim = slot.claim;
  }
  touching->qp.store(fabric.index(slot) + 1);
  qp.psn = (qp.psn + uint32_t(std::max<uint64_t>(1, (work.bytes + mtu - 1) / mtu))) & 0xffffff;
  slot.expected_psn = qp.psn;
  return done(IBV_WC_SUCCESS);
}

bool readable_here(const Spans& spans) {
  for (size_t i = 0; i < spans.count; ++i) {
    char byte;
    iovec into{&byte, 1}, first{spans.piece[i].iov_base, 1};
    iovec last{static_cast<char*>(spans.piece[i].iov_base) + spans.piece[i].iov_len - 1, 1};
    if (process_vm_readv(getpid(), &into, 1, &first, 1, 0) != 1) return false;
    if (process_vm_readv(getpid(), &into, 1, &last, 1, 0) != 1) return false;
  }
  return true;
}

// What a NIC moves is no access of the thread that posted it: a thread sanitizer would take the
// same bytes, read twice by hedging, for a race.
class NotThisThread {
 public:
  NotThisThread() {
    if (AnnotateIgnoreReadsBegin != nullptr) AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    if (AnnotateIgnoreWritesBegin != nullptr) AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~NotThisThread() {
    if (AnnotateIgnoreWritesEnd != nullptr) AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    if (AnnotateIgnoreReadsEnd != nullptr) AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
};

ibv_wc_status move_chunk(int pid, bool read, const Spans& near, const Spans& far, uint64_t bytes) {
  const NotThisThread moving;
  ssize_t moved = (read ? process_vm_readv : process_vm_writev)(pid, near.piece.data(), near.count,
                                                                far.piece.data(), far.count, 0);
  if (moved == ssize_t(bytes)) return IBV_WC_SUCCESS;
  if (moved < 0 && errno == ESRCH) return IBV_WC_RETRY_EXC_ERR;
  if (moved < 0 && errno == EPERM)
    fprintf(stderr, "verbs emulator: may not touch the memory of process %d (ptrace scope)\n", pid);
  return readable_here(near) ? IBV_WC_REM_OP_ERR : IBV_WC_LOC_PROT_ERR;
}

// Moves `bytes`; calls valid() before every chunk.
template <class Valid>
ibv_wc_status move(int pid, bool read, const Spans& here, const Spans& there, uint64_t bytes,
                   Valid valid) {
  if (bytes <= kChunk && bytes == here.total() && bytes == there.total())
    return valid() ? move_chunk(pid, read, here, there, bytes) : IBV_WC_REM_ACCESS_ERR;
  Spans near_left = here, far_left = there;
  while (bytes > 0) {
    if (!valid()) return IBV_WC_REM_ACCESS_ERR;
    uint64_t n = std::min(bytes, kChunk);
    Spans near = near_left.take(n), far = far_left.take(n);
    ibv_wc_status status = move_chunk(pid, read, near, far, n);
    if (status != IBV_WC_SUCCESS) return status;
    bytes -= n;
  }
  return IBV_WC_SUCCESS;
}

// Flips a byte in the middle of what has arrived.
void corrupt(int pid, bool read, const Spans& here, const Spans& there) {
  const Spans& at = read ? here : there;
  if (at.count == 0) return;
  if (read) pid = getpid();
  char byte;
  iovec near{&byte, 1};
  iovec far{static_cast<char*>(at.piece[0].iov_base) + at.piece[0].iov_len / 2, 1};
  if (process_vm_readv(pid, &near, 1, &far, 1, 0) != 1) return;
  byte = char(byte ^ 0x20);
  process_vm_writev(pid, &near, 1, &far, 1, 0);
}

void count_bytes(Qp& qp, const Work& work) {
  Nic& own = qp.context->nic();
  Nic& peer = (*qp.context->fabric)->nic[qp.peer_nic];
  bool read = work.opcode == IBV_WR_RDMA_READ;
  (read ? peer : own).tx_bytes += work.bytes;
  (read ? own : peer).rx_bytes += work.bytes;
}

template <class Valid>
Outcome transfer(Qp& qp, Work& work, const Far& far, const Spans& here, const Spans& there,
                 Valid valid) {
  bool read = work.opcode == IBV_WR_RDMA_READ;
  bool partial = work.fate.struck && work.fate.action == Action::kPartial;
  uint64_t bytes = partial ? work.bytes / 2 : work.bytes;
  ibv_wc_status status = move(far.pid, read, here, there, bytes, valid);
  if (status == IBV_WC_RETRY_EXC_ERR) return silence();
  if (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_OP_ERR)
    return refuse(qp, far, status, IBV_EVENT_QP_ACCESS_ERR);
  if (status == IBV_WC_SUCCESS && partial) return done(ibv_wc_status(work.fate.argument));
  if (status != IBV_WC_SUCCESS) return done(status);
  if (work.fate.struck && work.fate.action == Action::kCorrupt) corrupt(far.pid, read, here, there);
  count_bytes(qp, work);
  return done(IBV_WC_SUCCESS, work.bytes);
}

// Keeps what is written for later. False: it cannot be read.
bool keep_late(Qp& qp, const Work& work, const Spans& here, int pid, uint64_t address) {
  LateWrite late{pid, work.rkey, address, std::vector<char>(work.bytes)};
  const NotThisThread moving;
  iovec into{late.bytes.data(), late.bytes.size()};
  if (process_vm_readv(getpid(), &into, 1, here.piece.data(), here.count, 0) != ssize_t(work.bytes))
    return false;
  qp.late.push_back(std::move(late));
  return true;
}

Outcome one_sided(Qp& qp, Work& work, const Spans& here, Touching& touching, const Far& far) {
  if (work.bytes == 0) return done(IBV_WC_SUCCESS);
  const Fabric& fabric = *qp.context->fabric;
  const MrSlot& region = fabric->mr[work.rkey >> 16];
  touching->mr.store((work.rkey >> 16) + 1);
  unsigned access =
      work.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  Span span = check_key(fabric, work.rkey, far.nic, far.pd, access, work.remote, work.bytes);
  if (!span.ok) return refuse(qp, far, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  Spans there;
  there.add(span.address, work.bytes);
  if (work.opcode == IBV_WR_RDMA_READ && region.of_device != 0) show_late(qp);
  if (is_write(work) && region.of_device != 0 && fabric->nic[far.nic].late.load() != 0) {
    if (!keep_late(qp, work, here, far.pid, span.address)) return done(IBV_WC_LOC_PROT_ERR);
    count_bytes(qp, work);
    return done(IBV_WC_SUCCESS, work.bytes);
  }
  return transfer(qp, work, far, here, there, [&] { return region.key.load() == work.rkey; });
}

// Completes the receive that this message took. False: the responder flushed it meanwhile.
bool complete_receive(Qp& qp, const Work& work, const Far& far, ibv_wc_status status) {
  const Fabric& fabric = *qp.context->fabric;
  Completion completion{};
  completion.wr_id = far.claim.wr_id;
  completion.status = status;
  completion.opcode = is_write(work) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  completion.bytes = uint32_t(work.bytes);
  completion.imm = work.imm;
  completion.qp_number = far.number;
  completion.peer_number = qp.number;
  completion.flags = work.opcode == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM;
  completion.peer_lid = qp.context->nic().lid;
  completion.solicited = (work.flags & IBV_SEND_SOLICITED) != 0 || status != IBV_WC_SUCCESS ? 1 : 0;
  Push pushed;
  {
    Held held(far.slot->lock);
    if (far.slot->number.load() != far.number || far.slot->claimed == 0) return false;
    far.slot->claimed = 0;
    pushed = push_far(fabric, far.slot->recv_cq, completion);
  }
  if (pushed == Push::kOverrun) fabric.fail_qp(*far.slot, far.number, IBV_EVENT_QP_FATAL);
  return true;
}

Outcome message(Qp& qp, Work& work, const Spans& here, const Far& far) {
  Spans there;
  uint64_t left = work.bytes;
  for (uint32_t i = 0; i < far.claim.sges && left > 0; ++i) {
    const ibv_sge& sge = far.claim.sge[i];
    uint64_t n = std::min<uint64_t>(left, sge.length);
    if (n == 0) continue;
    Span span = check_key(*qp.context->fabric, sge.lkey, far.nic, far.pd, IBV_ACCESS_LOCAL_WRITE,
                          sge.addr, n);
    if (!span.ok) {
      complete_receive(qp, work, far, IBV_WC_LOC_PROT_ERR);
      return refuse(qp, far, IBV_WC_REM_OP_ERR, -1);
    }
    there.add(span.address, n);
    left -= n;
  }
  if (left > 0) {
    complete_receive(qp, work, far, IBV_WC_LOC_LEN_ERR);
    return refuse(qp, far, IBV_WC_REM_INV_REQ_ERR, -1);
  }
  const QpSlot& slot = *far.slot;
  return transfer(qp, work, far, here, there, [&] { return slot.number.load() == far.number; });
}

// What a fault rule does before the request goes out. True: that is all of it.
bool suffer(Qp& qp, const Work& work, Outcome& outcome) {
  Fabric& fabric = *qp.context->fabric;
  switch (work.fate.action) {
    case Action::kError: outcome = done(ibv_wc_status(work.fate.argument)); return true;
    case Action::kDelay:
      outcome = {Verdict::kLater, IBV_WC_SUCCESS, 0, work.fate.argument};
      return true;
    case Action::kLinkDown: set_port(fabric, qp.context->nic_index, false); return false;
    case Action::kRemove: set_present(fabric, qp.context->nic_index, false); return false;
    case Action::kQpFatal:
      fabric.fail_qp(*qp.slot, qp.number, IBV_EVENT_QP_FATAL);
      outcome = done(IBV_WC_WR_FLUSH_ERR);
      return true;
    case Action::kPartial:
    case Action::kDrop:
    case Action::kCorrupt:
    case Action::kLose: return false;
  }
  return false;
}

}  // namespace

void show_late(Qp& qp) {
  const Fabric& fabric = *qp.context->fabric;
  for (LateWrite& late : qp.late) {
    if (fabric->mr[late.rkey >> 16].key.load() != late.rkey) continue;
    const NotThisThread moving;
    iovec from{late.bytes.data(), late.bytes.size()};
    iovec to{reinterpret_cast<void*>(late.address), late.bytes.size()};
    process_vm_writev(late.pid, &from, 1, &to, 1, 0);
  }
  qp.late.clear();
}

Outcome execute(Qp& qp, Work& work, const ibv_sge* sges, const char* inlined) {
  Fabric& fabric = *qp.context->fabric;
  uint32_t nic_index = qp.context->nic_index;
  if (!work.judged) {
    work.judged = true;
    work.fate = judge(*fabric, {nic_index, uint32_t(work.opcode), qp.number, work.bytes});
    Outcome outcome;
    if (work.fate.struck && suffer(qp, work, outcome)) return outcome;
    if (qp.context->dead()) return done(IBV_WC_WR_FLUSH_ERR);
  }
  Spans here;
  if (work.bytes > kMessageMax) return done(IBV_WC_LOC_LEN_ERR);
  if (!gather(qp, work, sges, inlined, here)) return done(IBV_WC_LOC_PROT_ERR);
  if (work.fate.struck && work.fate.action == Action::kDrop) return silence();
  if (qp.peer_nic < 0) return silence();
  const Nic& own = fabric->nic[nic_index];
  const Nic& peer = fabric->nic[qp.peer_nic];
  if (!reachable(own) || !reachable(peer)) return silence();
  uint32_t downs = own.downs.load() + peer.downs.load();
  if (work.downs != downs) {  // the link was lost while it was under way: sent again
    work.downs = downs;
    return silence();
  }
  Touching touching(fabric->hazard[fabric.index(*qp.slot)]);
  Far far;
  Outcome entered = enter(qp, work, touching, far);
  if (entered.verdict != Verdict::kDone) return entered;
  if (entered.status != IBV_WC_SUCCESS)
    return refuse(qp, far, entered.status, IBV_EVENT_QP_REQ_ERR);
  Outcome outcome =
      is_message(work) ? message(qp, work, here, far) : one_sided(qp, work, here, touching, far);
  if (outcome.status == IBV_WC_SUCCESS && outcome.verdict == Verdict::kDone &&
      takes_receive(work) && !complete_receive(qp, work, far, IBV_WC_SUCCESS))
    return silence();
  return outcome;
}

}  // namespace mc::emu
