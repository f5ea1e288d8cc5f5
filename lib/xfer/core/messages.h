// Control messages of transfers: segment descriptors, notifications, queue pairs.
//
// Thread: values.
#pragma once
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/units.h"
#include "wire/codec.h"

namespace mc::xfer {

inline constexpr size_t kBuffersMax = 4096;
inline constexpr size_t kAddressesMax = 64;  // of a segment, and its NICs

struct BufferInfo {
  uint64_t offset = 0;  // in the segment's address space
  uint64_t bytes = 0;
  std::string location;      // "cpu:0", "cuda:1", "*"
  uint64_t remote_addr = 0;  // in the owner's address space, for process_vm_readv; 0: not offered
  uint32_t shm_id = 0;       // which memfd the fd server passes; 0: not engine-owned
  bool writable = false;
  // With remote_addr: address of a word in the owner that holds `alive` while the buffer is
  // offered.
  uint64_t alive_addr = 0, alive = 0;
  // Of a file: its path at the owner, its device and its inode. The words `dev` and `ino` follow
  // the word at alive_addr.
  std::string path;
  uint64_t dev = 0, ino = 0;
  bool is_file() const { return !path.empty(); }
  // Its RDMA address, and its key on each of the segment's `rdma` devices; 0: not registered there.
  uint64_t rdma_addr = 0;
  std::vector<uint32_t> rkeys;
  // Of a device: the handle with which processes of this host open it (device::Device::share), and
  // whether they may write to it. The word at alive_addr says whether it is still offered.
  wire::Blob device_handle;
  bool device_writes = false;
  uint64_t base_addr = 0;  // in the owner's address space, for Engine::segment_offset; 0: not told
  // Where it lies, as the owner numbers its NUMA nodes and GPUs, plus one; 0: not known. What spans
  // several nodes counts as on that of its first byte.
  uint32_t node = 0, gpu = 0;
  static void fields(auto& a, auto& m) {
    a(m.offset, m.bytes, m.location, m.remote_addr, m.shm_id, m.writable, m.alive_addr, m.alive,
      m.path, m.dev, m.ino, m.rdma_addr, wire::at_most<kAddressesMax>(m.rkeys), m.device_handle,
      m.device_writes, m.base_addr, m.node, m.gpu);
  }
};

struct NicInfo {             // the NIC that carries the data address of the same index
  std::string name;          // "eth0"; "" when unknown
  uint32_t prefix_bits = 0;  // of the address's subnet; 0: unknown
  int32_t numa = -1;
  std::string gpu;  // nearest GPU
  uint64_t speed_mbit = 0;
  static void fields(auto& a, auto& m) { a(m.name, m.prefix_bits, m.numa, m.gpu, m.speed_mbit); }
};

struct RdmaNic {
  NicInfo nic;
  uint64_t epoch = 0;  // changes when the device is reopened, and with it all its keys
  bool ethernet = false;
  wire::Blob gid;
  std::vector<uint32_t> gpu_tiers;  // of the NIC, from each of the owner's GPUs; empty: unknown
  static void fields(auto& a, auto& m) {
    a(m.nic, m.epoch, m.ethernet, m.gid, wire::at_most<kAddressesMax>(m.gpu_tiers));
  }
};

struct SegmentDescriptor {
  static constexpr const char* kName = "segment";
  NodeId node;
  Generation generation;  // changes at every restart and re-registration
  std::string host_id;    // same host: the same boot and IPC/PID namespace
  uint32_t pid = 0, uid = 0;
  std::string shm_socket;        // abstract unix socket that passes memfds; empty: none
  std::vector<std::string> tcp;  // data addresses "host:port", one per rail
  wire::Blob secret;             // a data connection proves that it knows this
  std::vector<BufferInfo> buffers;
  std::vector<NicInfo> nics;  // of the addresses in `tcp`
  std::string net_id;         // peers with the same id are reached over loopback; "": unknown
  std::string rdma_control;   // "host:port" that answers the messages of RDMA below; empty: none
  std::vector<RdmaNic> rdma;
  static void fields(auto& a, auto& m) {
    a(m.node, m.generation, m.host_id, m.pid, m.uid, m.shm_socket,
      wire::at_most<kAddressesMax>(m.tcp), m.secret, wire::at_most<kBuffersMax>(m.buffers),
      wire::at_most<kAddressesMax>(m.nics), m.net_id, m.rdma_control,
      wire::at_most<kAddressesMax>(m.rdma));
  }
};

// Memory that a device's own copies reach, and NICs: neither the host's nor a file.
inline bool of_device(const BufferInfo& buffer) {
  const std::string kind = buffer.location.substr(0, buffer.location.find(':'));
  return !kind.empty() && kind != "cpu" && kind != "*" && !buffer.is_file();
}

// Identifies a process by its secret. Its address and its node's name may pass to another process.
inline uint64_t instance_of(const std::string& secret) {
  return xxh3(secret.data(), secret.size());
}

struct Notified {
  static constexpr const char* kName = "notified";
  static void fields(auto& a, auto&) { a(); }
};

struct Notify {  // sent to the owner's control address, after the data arrived
  static constexpr const char* kName = "notify";
  using Reply = Notified;
  NodeId from;
  uint64_t instance = 0;  // of the process that has the data
  std::string name;
  wire::Blob payload;
  static void fields(auto& a, auto& m) { a(m.from, m.instance, m.name, m.payload); }
};

// ---- RDMA: sent to the owner's `rdma_control`

struct QueuePairInfo {  // one end of a connection
  uint32_t number = 0, psn = 0, lid = 0, mtu = 0, reads = 0;
  wire::Blob gid;
  static void fields(auto& a, auto& m) { a(m.number, m.psn, m.lid, m.mtu, m.reads, m.gid); }
};

struct QueuePairOpened {
  static constexpr const char* kName = "queue-pair-opened";
  QueuePairInfo mine;
  // If the device has another epoch than the client knows: its buffers, and their keys there.
  uint64_t epoch = 0;
  std::vector<uint64_t> offsets;
  std::vector<uint32_t> rkeys;
  static void fields(auto& a, auto& m) {
    a(m.mine, m.epoch, wire::at_most<kBuffersMax>(m.offsets), wire::at_most<kBuffersMax>(m.rkeys));
  }
};

struct OpenQueuePair {
  static constexpr const char* kName = "open-queue-pair";
  using Reply = QueuePairOpened;
  wire::Blob secret;   // of the segment's descriptor: its holder may connect
  uint32_t nic = 0;    // which of `rdma`
  uint64_t epoch = 0;  // of that device as the client knows it
  QueuePairInfo mine;
  static void fields(auto& a, auto& m) { a(m.secret, m.nic, m.epoch, m.mine); }
};

struct QueuePairClosed {
  static constexpr const char* kName = "queue-pair-closed";
  uint64_t epoch = 0;           // of the device now; 0: it is gone
  std::vector<uint32_t> rkeys;  // of the buffers in the request; 0: not offered
  static void fields(auto& a, auto& m) { a(m.epoch, wire::at_most<kBuffersMax>(m.rkeys)); }
};

// After the reply no byte sent over that queue pair lands any more.
struct CloseQueuePair {
  static constexpr const char* kName = "close-queue-pair";
  using Reply = QueuePairClosed;
  wire::Blob secret;
  uint32_t nic = 0;
  uint32_t number = 0;  // of the owner's end
  std::vector<uint64_t> offsets;
  static void fields(auto& a, auto& m) {
    a(m.secret, m.nic, m.number, wire::at_most<kBuffersMax>(m.offsets));
  }
};

inline constexpr size_t kQueuePairsMax = 4096;  // of a message

struct QueuePairsKept {
  static constexpr const char* kName = "queue-pairs-kept";
  static void fields(auto& a, auto&) { a(); }
};

// Says that the client still holds these queue pairs of the owner. Those that nothing is said of
// go first when the owner has too many.
struct KeepQueuePairs {
  static constexpr const char* kName = "keep-queue-pairs";
  using Reply = QueuePairsKept;
  wire::Blob secret;
  std::vector<uint32_t> nics, numbers;  // of one length
  static void fields(auto& a, auto& m) {
    a(m.secret, wire::at_most<kQueuePairsMax>(m.nics), wire::at_most<kQueuePairsMax>(m.numbers));
  }
};

struct GuardRaised {
  static constexpr const char* kName = "guard-raised";
  static void fields(auto& a, auto&) { a(); }
};

struct RaiseGuard {  // sets the word at `offset` to `value` if it holds less
  static constexpr const char* kName = "raise-guard";
  using Reply = GuardRaised;
  wire::Blob secret;
  uint64_t generation = 0, offset = 0, value = 0;
  static void fields(auto& a, auto& m) { a(m.secret, m.generation, m.offset, m.value); }
};

struct MachineDescription {
  static constexpr const char* kName = "machine";
  wire::Blob json;  // topo/formats/json.h: too long for a str on large machines
  static void fields(auto& a, auto& m) { a(m.json); }
};

struct DescribeMachine {  // sent to any node that serves transfers: returns its hardware
  static constexpr const char* kName = "describe-machine";
  using Reply = MachineDescription;
  static void fields(auto& a, auto&) { a(); }
};

struct DescribeSegment {  // sent to the owner's control address
  static constexpr const char* kName = "describe-segment";
  using Reply = SegmentDescriptor;
  NodeId asker;
  static void fields(auto& a, auto& m) { a(m.asker); }
};

}  // namespace mc::xfer
