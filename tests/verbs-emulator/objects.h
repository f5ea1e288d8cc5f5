#pragma once
// The verbs objects as the client's process holds them. Each begins with the C struct that the
// client sees; `of(pointer)` leads from that to the object.
//
// Thread: any thread, as verbs objects are. Lock order: Qp::mutex, then the locks of fabric slots
// (queue pair, shared receive queue, completion queue; one of a kind at a time), then
// Context::mutex. Context::mutex is a leaf.

#include <infiniband/verbs.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fabric.h"
#include "rules.h"

namespace mc::emu {

struct Context;
struct Qp;

struct Device {
  ibv_device device{};        // first
  char provider_room[256]{};  // providers' libraries look behind an ibv_device: zeros tell them no
  std::shared_ptr<Fabric> fabric;
  uint32_t nic = 0;
};

struct Pd {
  ibv_pd pd{};  // first
  Context* context = nullptr;
  std::atomic<uint32_t> users{0};
};

struct Mr {
  ibv_mr mr{};  // first
  MrSlot* slot = nullptr;
  void* mapping = nullptr;  // of a dma-buf; null: the client's own memory
  size_t mapped = 0;
};

struct Channel {
  ibv_comp_channel channel{};  // first
  Context* context = nullptr;
  int write_fd = -1;
};

struct Cq {
  ibv_cq cq{};  // first
  Context* context = nullptr;
  CqSlot* slot = nullptr;
  Ref ref;
  std::atomic<uint32_t> users{0};
  uint32_t comp_events = 0, async_events = 0;  // handed out; guarded by cq.mutex
};

struct Srq {
  ibv_srq srq{};  // first
  Context* context = nullptr;
  SrqSlot* slot = nullptr;
  Ref ref;
  uint32_t max_sge = 0;
  std::atomic<uint32_t> users{0};
  uint32_t async_events = 0;
};

// One work request in a send queue.
struct Work {
  uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  unsigned flags = 0;
  uint32_t imm = 0;
  uint64_t remote = 0;
  uint32_t rkey = 0;
  uint32_t sges = 0;
  uint64_t bytes = 0;
  uint64_t due = 0;       // not before; 0: at once
  uint32_t attempts = 0;  // without an answer
  uint32_t rnr_attempts = 0;
  uint32_t downs = 0;     // link losses of both ends when it was posted
  uint32_t expiries = 0;  // Layout::expiries when its retries began
  bool judged = false;    // the fault rules have seen it
  Fate fate;
};

// What was written to a device's memory and is not seen there yet.
struct LateWrite {
  int pid = 0;
  uint32_t rkey = 0;
  uint64_t address = 0;
  std::vector<char> bytes;
};

struct QpHead {
  ibv_qp_ex ex{};
  Qp* self = nullptr;
};

struct Qp {
  QpHead head;  // first
  Context* context = nullptr;
  QpSlot* slot = nullptr;
  uint32_t number = 0;
  Cq* send_cq = nullptr;
  Cq* recv_cq = nullptr;
  Srq* srq = nullptr;
  ibv_qp_cap cap{};
  bool signal_all = false;
  uint32_t async_events = 0;  // guarded by qp.mutex
  std::atomic<int> room{0};   // free entries of the send queue

  std::mutex mutex;  // guards all below
  ibv_qp_attr attr{};
  int peer_nic = -1;
  uint32_t psn = 0;
  std::vector<Work> ring;     // cap.max_send_wr
  std::vector<ibv_sge> sges;  // cap.max_send_sge for each
  std::vector<char> inlined;  // cap.max_inline_data for each
  uint32_t first = 0, count = 0;
  uint32_t unreported = 0;  // done entries that no completion has told yet
  bool flushed = false;
  std::vector<LateWrite> late;  // in order
  std::vector<Work> batch;      // between wr_start and wr_complete
  std::vector<ibv_sge> batch_sges;
  std::vector<char> batch_inlined;
  int batch_error = 0;
  bool closed = false;
};

struct ContextHead {
  verbs_context verbs{};
  Context* self = nullptr;
};

struct Context {
  ContextHead head;  // first
  std::shared_ptr<Fabric> fabric;
  ContextSlot* slot = nullptr;
  uint32_t index = 0;
  uint32_t nic_index = 0;
  int async_write = -1;
  std::thread engine;
  std::atomic<bool> stopping{false};
  std::atomic<bool> started{false};
  std::atomic<uint64_t> next_due{UINT64_MAX};

  std::mutex mutex;                                       // guards all below
  std::set<std::pair<uint64_t, uint32_t>> timers;         // when, queue pair number
  std::unordered_map<uint32_t, std::shared_ptr<Qp>> qps;  // by number
  std::unordered_map<uint32_t, Cq*> cqs;                  // by slot
  std::unordered_map<uint32_t, Srq*> srqs;
  std::set<Mr*> mrs;
  std::set<Pd*> pds;
  std::set<Channel*> channels;

  Nic& nic() const { return (*fabric)->nic[nic_index]; }
  bool dead() const { return slot->dead.load() != 0; }
};

inline Device* of(ibv_device* device) { return reinterpret_cast<Device*>(device); }
inline Context* of(ibv_context* context) {
  char* start = reinterpret_cast<char*>(context) - offsetof(verbs_context, context);
  return reinterpret_cast<ContextHead*>(start)->self;
}
inline Pd* of(ibv_pd* pd) { return reinterpret_cast<Pd*>(pd); }
inline Mr* of(ibv_mr* mr) { return reinterpret_cast<Mr*>(mr); }
inline Channel* of(ibv_comp_channel* channel) { return reinterpret_cast<Channel*>(channel); }
inline Cq* of(ibv_cq* cq) { return reinterpret_cast<Cq*>(cq); }
inline Srq* of(ibv_srq* srq) { return reinterpret_cast<Srq*>(srq); }
inline Qp* of(ibv_qp* qp) { return reinterpret_cast<QpHead*>(qp)->self; }
inline Qp* of(ibv_qp_ex* qp) { return reinterpret_cast<QpHead*>(qp)->self; }

// errno = error; return the null that the verb returns.
inline std::nullptr_t none(int error) {
  errno = error;
  return nullptr;
}

// ---- engine.cc: the thread of an open device, timers and events
void start_engine(Context& context);
void stop_engine(Context& context);
void schedule(Context& context, Qp& qp, uint64_t due);
void run_due(Context& context, uint64_t now);  // also called by pollers, for low latency
void notify_channel(Cq& cq);

// ---- cq.cc
enum class Push { kQuiet, kNotify, kOverrun };
// Appends to a completion queue of any process. kNotify: an armed queue wants an event.
Push push(const Fabric& fabric, Ref cq, const Completion& completion);
void push_own(Qp& qp, Cq& cq, const Completion& completion);
// The same for a queue of another device.
Push push_far(const Fabric& fabric, Ref cq, const Completion& completion);
void forget_completions(Cq& cq, uint32_t qp_number);
int poll_cq(ibv_cq* cq, int count, ibv_wc* out);
int request_notify(ibv_cq* cq, int solicited_only);

// ---- mr.cc: what a key allows
struct Span {
  uint64_t address = 0;
  bool ok = false;
};
// Where [address, +length) of the region lies in its owner's memory, if key, PD, NIC and access
// fit.
Span check_key(const Fabric& fabric, uint32_t key, uint32_t nic, uint32_t pd, unsigned access,
               uint64_t address, uint64_t length);

// ---- send.cc
int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad);
int accept(Qp& qp, Work work, const ibv_sge* sges, const char* inlined);  // qp.mutex held
void pump(Qp& qp);  // does what is due; qp.mutex held
void complete(Qp& qp, ibv_wc_status status, uint32_t bytes, bool lose);  // the first; mutex held
void flush(Qp& qp);  // completes all with a flush error, once; qp.mutex held

// ---- wire.cc
enum class Verdict { kDone, kSilence, kNotReady, kLater };
struct Outcome {
  Verdict verdict = Verdict::kDone;
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t bytes = 0;
  uint64_t wait_ns = 0;  // kNotReady, kLater
};
Outcome execute(Qp& qp, Work& work, const ibv_sge* sges, const char* inlined);
void show_late(Qp& qp);  // what was late is seen now; qp.mutex held

// ---- recv.cc
int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad);
// Takes the next receive of the queue pair into slot.claim; its lock held. False: none is posted.
bool claim_receive(const Fabric& fabric, QpSlot& slot);
void flush_receives(Qp& qp);

// ---- qp.cc
ibv_qp* create_qp_extended(ibv_context* context, ibv_qp_init_attr_ex* init);

// ---- qp_ex.cc
void fill_extended(ibv_qp_ex& ex);

}  // namespace mc::emu
