// Segment descriptors: what one process offers, as its peers learn it over the control plane.
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

struct BufferInfo {
  uint64_t offset = 0;  // where the buffer stands in its segment's address space
  uint64_t bytes = 0;
  std::string location;      // "cpu:0", "cuda:1", "*"
  uint64_t remote_addr = 0;  // in the owner's address space, for process_vm_readv; 0: not offered
  uint32_t shm_id = 0;       // which memfd the shm channel hands out; 0: not engine-owned
  bool writable = false;
  // With remote_addr: a word of the owner that holds `alive` as long as the buffer is offered.
  uint64_t alive_addr = 0, alive = 0;
  // Of a file: its path there, and what tells it from others. A word `dev` and a word `ino` lie
  // behind the word at alive_addr.
  std::string path;
  uint64_t dev = 0, ino = 0;
  bool is_file() const { return !path.empty(); }
  static void fields(auto& a, auto& m) {
    a(m.offset, m.bytes, m.location, m.remote_addr, m.shm_id, m.writable, m.alive_addr, m.alive,
      m.path, m.dev, m.ino);
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

struct SegmentDescriptor {
  static constexpr const char* kName = "segment";
  NodeId node;
  Generation generation;  // changes at every restart and re-registration
  std::string host_id;    // same host: the same boot and IPC/PID namespace
  uint32_t pid = 0, uid = 0;
  std::string shm_socket;        // abstract unix socket that hands out memfds; empty: none
  std::vector<std::string> tcp;  // data addresses "host:port", one a rail
  wire::Blob secret;             // what a data connection must prove to know
  std::vector<BufferInfo> buffers;
  std::vector<NicInfo> nics;  // of the addresses in `tcp`
  std::string net_id;         // peers with the same are reached over loopback; "": unknown
  static void fields(auto& a, auto& m) {
    a(m.node, m.generation, m.host_id, m.pid, m.uid, m.shm_socket, m.tcp, m.secret, m.buffers,
      m.nics, m.net_id);
  }
};

// Of the secret of a process: names it, as its address and its node's name do not.
inline uint64_t instance_of(const std::string& secret) {
  return xxh3(secret.data(), secret.size());
}

struct Notified {
  static constexpr const char* kName = "notified";
  static void fields(auto& a, auto&) { a(); }
};

struct Notify {  // asked of the owner's control address, after the data is there
  static constexpr const char* kName = "notify";
  using Reply = Notified;
  NodeId from;
  uint64_t instance = 0;  // of the process that has the data
  std::string name;
  wire::Blob payload;
  static void fields(auto& a, auto& m) { a(m.from, m.instance, m.name, m.payload); }
};

struct MachineDescription {
  static constexpr const char* kName = "machine";
  wire::Blob json;  // topo/json.h: too long for a str on large machines
  static void fields(auto& a, auto& m) { a(m.json); }
};

struct DescribeMachine {  // asked of any node that serves transfers: what hardware it runs on
  static constexpr const char* kName = "describe-machine";
  using Reply = MachineDescription;
  static void fields(auto& a, auto&) { a(); }
};

struct DescribeSegment {  // asked of the owner's control address
  static constexpr const char* kName = "describe-segment";
  using Reply = SegmentDescriptor;
  NodeId asker;
  static void fields(auto& a, auto& m) { a(m.asker); }
};

}  // namespace mc::xfer
