// Simulates a device in host memory, for machines that have none. Host code must not touch its
// memory: the pages are mapped without access, and only the device's own copies reach them, through
// another mapping. Its streams are threads; another process can open its handles. Faults can be
// injected: slow, full, busy, failing, lost.
//
// For tests, drills, and `--device stand-in`. What runs on it exercises the same code as a GPU, at
// the speed of memcpy, and says nothing about a GPU's speed.
//
// Thread: as Device; inject() from any, at any time.
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "base/time.h"
#include "device/device.h"

namespace mc::device {

struct InjectedFaults {
  Duration latency{};          // of each copy and launch
  uint64_t bytes_per_s = 0;    // 0: as fast as it goes
  uint64_t fails_from = ~0ul;  // copies and launches from this one on fail, counted from 0
  bool busy = false;           // allocations and streams fail with kBusy
  bool lost = false;           // everything fails from now on; cannot be undone
};

class StandIn : public Device {
 public:
  struct Config {
    int ordinal = 0;
    uint64_t bytes = 1ul << 30;  // of its memory
    bool peers = true;           // other stand-ins can be reached
    bool shares = true;          // with other processes
    bool dma_bufs = true;        // a descriptor that NICs of an emulator map
    bool graphs = true;          // work can be captured
    std::string pci{};           // of the GPU that it replaces; "": none
  };
  static std::shared_ptr<StandIn> make(const Clock& clock, Config config);
  virtual void inject(const InjectedFaults& faults) = 0;
  // The host's address of the bytes at a device address, for tests.
  virtual std::byte* seen_by_device(const std::byte* address) = 0;
  struct Counts {
    uint64_t copies = 0;        // submitted one by one
    uint64_t launches = 0;      // of kernels and graphs
    uint64_t running_most = 0;  // at a time
    uint64_t nic_writes = 0;    // calls of see_nic_writes()
    uint64_t pinned = 0;        // calls of allocate_host()
    uint64_t held = 0;          // results of pin() that live
  };
  virtual Counts counts() const = 0;
};

}  // namespace mc::device
