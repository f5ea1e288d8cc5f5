// RDMA NICs for tests: those of the emulator where its library is the one that is loaded
// (LD_LIBRARY_PATH, as ctest sets it), else this machine's own, else none.
#pragma once
#include <cstdlib>
#include <memory>
#include <string>

#include "xfer/transports/rdma/open.h"

#ifdef MC_TEST_EMULATOR
#include <unistd.h>

#include "tests/verbs-emulator/control.h"
#endif

namespace mc::xfer {

#ifdef MC_TEST_EMULATOR

// A fabric of one host; its NICs reach each other. Programs started from here have the same.
class TestFabric {
 public:
  static TestFabric& get() {
    static TestFabric fabric;
    return fabric;
  }
  emu::Fabric* fabric() { return fabric_.get(); }  // null: there is none
  uint32_t nic(const std::string& name) { return *emu::nic_named(*fabric_, "0:" + name); }
  uint32_t rule(emu::Action action, uint64_t argument = 0, uint64_t skip = 0, uint64_t count = 1) {
    emu::Rule rule{};
    rule.nic = -1;
    rule.action = action;
    rule.argument = argument;
    rule.skip = skip;
    rule.count = count;
    return emu::add_rule(*fabric_, rule);
  }
  uint64_t hits(uint32_t id) {
    for (const emu::Rule& rule : emu::rules(*fabric_))
      if (rule.id == id) return rule.hits;
    return 0;
  }
  // All as it was: no rules, every NIC there, up and fast.
  void heal() {
    emu::remove_rule(*fabric_, 0);
    emu::set_retry_percent(*fabric_, 100);
    emu::remove_peer_memory(*fabric_);
    for (uint32_t i = 0; i < kNics; ++i) {
      emu::set_present(*fabric_, i, true);
      emu::set_port(*fabric_, i, true);
      emu::set_silent(*fabric_, i, false);
      emu::set_link(*fabric_, i, false);
      emu::set_pkey(*fabric_, i, 0, 0xffff);
      for (uint32_t key = 1; key < emu::kPkeysMax; ++key) emu::set_pkey(*fabric_, i, key, 0);
      emu::set_transport(*fabric_, i, IBV_TRANSPORT_IB);
      emu::set_limits(*fabric_, i, 0, 0);
      emu::set_mr_limit(*fabric_, i, 0);
      emu::set_late(*fabric_, i, false);
      emu::set_register_time(*fabric_, i, 0);
      emu::set_rate(*fabric_, i, 0);
      emu::set_latency(*fabric_, i, 0);
    }
  }
  static constexpr uint32_t kNics = 4;

 private:
  TestFabric() {
    std::string why;
    if (const char* path = ::getenv("VERBS_EMU_FABRIC")) {
      fabric_ = emu::Fabric::open(path, &why);
      return;
    }
    path_ = "/dev/shm/mc-conformance." + std::to_string(::getpid());
    emu::FabricOptions options;
    options.hosts = 1;
    options.nics = kNics;
    if (!emu::Fabric::create(path_, options, &why)) return;
    fabric_ = emu::Fabric::open(path_, &why);
    owner_ = ::getpid();
    ::setenv("VERBS_EMU_FABRIC", path_.c_str(), 1);
  }
  ~TestFabric() {
    if (!path_.empty() && owner_ == ::getpid()) ::unlink(path_.c_str());
  }
  std::shared_ptr<emu::Fabric> fabric_;
  std::string path_;
  pid_t owner_ = 0;
};
inline bool has_emulator() {
  return TestFabric::get().fabric() != nullptr && !rdma::device_names().empty() &&
         rdma::device_names().front() == "emu0";
}

#else
inline bool has_emulator() { return false; }
#endif

inline bool has_rdma() {
#ifdef MC_TEST_EMULATOR
  TestFabric::get();
#endif
  return !rdma::device_names().empty();
}

}  // namespace mc::xfer
