#pragma once
// What every process that opens a fabric maps: one file (in /dev/shm) that holds the software NICs
// and all that a peer must see of a queue pair, a completion queue or a memory region. Work queues
// of senders stay in their own process; receive queues and completion rings lie in the heap behind
// these tables, because the sender of a message fills them.
//
// Thread: any thread of any process. Fields that are not atomic are guarded by the lock of their
// slot, or written once before the slot is published. Locks are robust: the death of a holder
// leaves consistent data, because every change is published by its last store.
// Units: bytes, nanoseconds of CLOCK_MONOTONIC, bytes per second.

#include <infiniband/verbs.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace mc::emu {

constexpr uint64_t kMagic = 0x6362'6166'756d'6531;
constexpr uint32_t kLayoutVersion = 3;
constexpr uint32_t kHostsMax = 64;
constexpr uint32_t kNicsMax = 64;
constexpr uint32_t kContextsMax = 512;
constexpr uint32_t kQpsMax = 1 << 14;  // the low bits of a queue pair number
constexpr uint32_t kCqsMax = 1 << 12;
constexpr uint32_t kSrqsMax = 1 << 10;
constexpr uint32_t kMrsMax = 1 << 16;  // the high bits of a key
constexpr uint32_t kRulesMax = 64;
constexpr uint32_t kPeerMemoryMax = 16;
constexpr uint32_t kGidsMax = 4;
constexpr uint32_t kPkeysMax = 4;
constexpr uint32_t kSgeMax = 16;
constexpr uint32_t kPortEventsMax = 64;
constexpr uint32_t kHeapClasses = 40;
constexpr uint64_t kHeapBytes = uint64_t{1} << 30;
constexpr uint32_t kMessageMax = 1u << 31;
constexpr uint32_t kInlineMax = 1024;
constexpr uint32_t kQueueMax = 1 << 15;        // work requests in one queue
constexpr uint32_t kCompletionsMax = 1 << 20;  // entries of one completion queue

// Process-shared and robust; see shared_lock.h.
struct SharedLock {
  pthread_mutex_t mutex;
};

// A slot of a table, with the generation it had: a reused slot is another object.
struct Ref {
  uint32_t slot = 0;
  uint32_t generation = 0;  // 0: none
};

struct Nic {
  char name[IBV_SYSFS_NAME_MAX];
  uint32_t host;
  uint32_t ethernet;  // 1: RoCE, addressed by GID; 0: InfiniBand, addressed by LID too
  uint64_t guid;      // host byte order
  std::atomic<uint16_t> lid;
  uint32_t mtu;  // ibv_mtu
  ibv_gid gids[kGidsMax];
  std::atomic<uint16_t> pkeys[kPkeysMax];    // 0: none; bit 15: a full member
  std::atomic<int32_t> transport;            // ibv_transport_type
  std::atomic<uint64_t> register_ns;         // a GiB, to register it; 0: no time
  std::atomic<uint32_t> max_qp_wr, max_cqe;  // 0: what the emulator has
  std::atomic<uint64_t> max_mr_size;         // 0: what the emulator has
  std::atomic<uint32_t> late;                // 1: writes to device memory are seen after reads
  std::atomic<uint32_t> present;             // 0: taken out of its host
  std::atomic<uint32_t> generation;          // grows when it is taken out
  std::atomic<uint32_t> up;
  std::atomic<uint32_t> downs;   // grows with every link loss, so that short ones count too
  std::atomic<uint32_t> silent;  // 1: swallows all traffic while the port looks healthy
  std::atomic<uint64_t> rate;    // bytes per second each way; 0: no limit
  std::atomic<uint64_t> latency_ns;
  std::atomic<uint64_t> tx_clock, rx_clock;  // when what is reserved ends
  std::atomic<uint64_t> tx_bytes, rx_bytes, done, failed, retries;
};

// Bits of ContextSlot::pending.
constexpr uint32_t kSweepQps = 1, kSweepCqs = 2, kSweepSrqs = 4, kPortEvents = 8, kPump = 16;

// An opened device.
struct ContextSlot {
  SharedLock life;  // held by the engine thread while the process lives
  SharedLock lock;
  std::atomic<uint32_t> generation;  // 0: free
  std::atomic<uint32_t> gone;        // 1: its process ended without closing it; 2: being reaped
  std::atomic<uint32_t> dead;        // its NIC was taken out
  std::atomic<uint32_t> pending;     // what the engine thread shall look at
  std::atomic<uint32_t> doorbell;    // futex
  int32_t pid;
  uint32_t nic;
  uint32_t events[kPortEventsMax];  // ibv_event_type; guarded by lock
  uint32_t events_count;
};

struct ReceiveWork {
  uint64_t wr_id;
  uint32_t sges;
  uint32_t reserved;
  ibv_sge sge[kSgeMax];
};

struct ReceiveRing {
  uint64_t offset;  // in the file; entries of ReceiveWork
  uint32_t capacity;
  uint32_t head, tail;  // grow without end
};

struct QpSlot {
  SharedLock lock;
  std::atomic<uint32_t> number;  // the queue pair number; 0: free
  std::atomic<uint32_t> state;   // ibv_qp_state
  std::atomic<uint32_t> events;  // bits 1 << ibv_event_type for the owner's async queue
  uint32_t generation;
  uint32_t context;
  uint32_t nic;
  uint32_t pd;
  Ref send_cq, recv_cq, srq;
  int32_t peer_nic;  // of its address vector; -1: nobody
  uint32_t peer_number;
  uint32_t access;
  uint32_t expected_psn;
  uint32_t rnr_timer;
  uint32_t reads_max;
  uint32_t path_mtu;
  ibv_ah_attr path;  // its address vector
  uint16_t pkey_index;
  uint32_t claimed;  // 1: `claim` was taken off a queue for a message that is under way
  ReceiveWork claim;
  ReceiveRing ring;
};

struct SrqSlot {
  SharedLock lock;
  std::atomic<uint32_t> generation;  // 0: free
  std::atomic<uint32_t> events;
  uint32_t last_generation;
  uint32_t context;
  uint32_t pd;
  uint32_t limit;
  ReceiveRing ring;
};

struct Completion {
  uint64_t wr_id;
  uint32_t status, opcode, bytes, imm, qp_number, peer_number, flags;
  uint32_t released;   // send queue entries that are free once this is polled
  uint32_t solicited;  // or an error: wakes a waiter that wants only these
  uint16_t peer_lid;
  uint16_t reserved;
};

struct CqSlot {
  SharedLock lock;
  std::atomic<uint32_t> generation;  // 0: free
  std::atomic<uint32_t> head, tail;  // grow without end
  std::atomic<uint32_t> armed;       // 0 no, 1 next, 2 next solicited
  std::atomic<uint32_t> notify;      // a completion event is due
  std::atomic<uint32_t> events;      // bits 1 << ibv_event_type
  uint32_t last_generation;
  uint32_t overrun;
  uint32_t context;
  uint32_t vector;
  uint32_t capacity;
  uint64_t offset;  // entries of Completion
};

struct MrSlot {
  std::atomic<uint32_t> key;  // 0: not valid (free, or draining)
  std::atomic<uint32_t> used;
  uint32_t generation;
  uint32_t context;
  uint32_t nic;
  uint32_t pd;
  uint32_t access;
  uint32_t of_device;  // 1: memory of a device, by its dma-buf or its address
  uint64_t address, length, iova;
};

// What the sender of a queue pair touches right now; who withdraws access waits for it.
struct Hazard {
  std::atomic<uint32_t> mr;  // slot + 1
  std::atomic<uint32_t> qp;  // slot + 1 of the other side
};

enum class Action : uint32_t {
  kError,    // completes with status `argument`, moves nothing
  kPartial,  // moves half, then completes with status `argument`
  kDelay,    // takes `argument` nanoseconds longer
  kDrop,     // unanswered until its retries end
  kCorrupt,  // flips one byte of what arrives
  kLose,     // done, but its completion never comes
  kLinkDown,
  kRemove,
  kQpFatal,
};
constexpr uint32_t kActions = 9;

struct Rule {
  uint32_t id;         // 0: free
  int32_t nic;         // of the requester; -1: any
  uint32_t opcodes;    // bits 1 << ibv_wr_opcode; 0: any
  uint32_t qp_number;  // of the requester; 0: any
  uint64_t bytes_min;
  uint64_t skip;   // left to pass
  uint64_t count;  // left to hit
  uint32_t per_million;
  Action action;
  uint64_t argument;
  uint64_t random;
  uint64_t hits;
};

// Memory of a device that a kernel module lets NICs register by its address (as nvidia_peermem
// does), and where it is seen by the host.
struct PeerMemory {
  int32_t pid;  // 0: free
  uint64_t address, seen, length;
};

struct Layout {
  uint64_t magic;
  uint32_t version;
  uint32_t nics;
  uint64_t bytes;
  SharedLock tables;  // taking and freeing slots, the heap
  SharedLock rules_lock;
  std::atomic<uint32_t> rules_set;
  std::atomic<uint32_t> next_pd;
  std::atomic<uint32_t> retry_percent;  // of the real time; 0: the clock ends no retry
  std::atomic<uint32_t> expiries;       // grows when a command ends all retries
  uint32_t next_rule;
  uint32_t cursors[5];  // of contexts, qps, cqs, srqs, mrs
  std::atomic<uint32_t> qps_high;
  uint64_t heap_next;
  uint64_t heap_free[kHeapClasses];
  Rule rules[kRulesMax];
  PeerMemory peer_memory[kPeerMemoryMax];
  Nic nic[kNicsMax];
  ContextSlot context[kContextsMax];
  Hazard hazard[kQpsMax];
  QpSlot qp[kQpsMax];
  SrqSlot srq[kSrqsMax];
  CqSlot cq[kCqsMax];
  MrSlot mr[kMrsMax];
};

}  // namespace mc::emu
