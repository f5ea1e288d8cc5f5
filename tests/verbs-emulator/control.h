#pragma once
// What tests and the verbs-emulator command do to a fabric while clients run on it: settings of a
// NIC, faults, and the fault rules.
//
// Thread: any thread of any process.

#include <optional>
#include <string>
#include <vector>

#include "fabric.h"

namespace mc::emu {

// "HOST:NAME" or the index in the fabric; nothing if there is no such NIC.
std::optional<uint32_t> nic_named(const Fabric& fabric, const std::string& name);

void set_port(Fabric& fabric, uint32_t nic, bool up);  // events for who has it open
// Out: contexts on it stay dead for ever, their queue pairs flush; in again: a new device.
void set_present(Fabric& fabric, uint32_t nic, bool present);
void set_silent(Fabric& fabric, uint32_t nic, bool silent);
void set_rate(Fabric& fabric, uint32_t nic, uint64_t bytes_per_second);
void set_latency(Fabric& fabric, uint32_t nic, uint64_t nanoseconds);

// Addresses and partitions, with the events of a subnet manager or of the host's network. What was
// connected by an address that is gone gets no answer any more.
void set_gid(Fabric& fabric, uint32_t nic, uint32_t index, const ibv_gid& gid);  // zeros: none
void set_lid(Fabric& fabric, uint32_t nic, uint16_t lid);
void set_pkey(Fabric& fabric, uint32_t nic, uint32_t index, uint16_t key);  // 0: none
void set_link(Fabric& fabric, uint32_t nic, bool ethernet);  // with a new fabric's addresses
// Its completion queues are dead: CQ_ERR for their owners, and no completion comes any more.
void fail_cqs(Fabric& fabric, uint32_t nic);
// From now on NICs register this memory of a device by its address; `seen`: where the host sees it.
void add_peer_memory(Fabric& fabric, const void* address, const void* seen, uint64_t length);
void remove_peer_memory(Fabric& fabric);
// What queue pairs write to memory of a device behind this NIC is seen there once one of their
// reads of such memory has followed, or they end. On hardware a read pushes earlier writes along.
void set_late(Fabric& fabric, uint32_t nic, bool late);
// To register memory takes that long a GiB.
void set_register_time(Fabric& fabric, uint32_t nic, uint64_t nanoseconds);
// What a device says of itself, to who asks from now on.
void set_transport(Fabric& fabric, uint32_t nic, ibv_transport_type type);
void set_limits(Fabric& fabric, uint32_t nic, uint32_t max_qp_wr, uint32_t max_cqe);  // 0: the most
void set_mr_limit(Fabric& fabric, uint32_t nic, uint64_t max_mr_size);                // 0: the most

// Retries take this share of their real time; 0: only expire_retries ends them.
void set_retry_percent(Fabric& fabric, uint32_t percent);
// Every request that waits for an answer now has waited enough.
void expire_retries(Fabric& fabric);

// QP_FATAL for its owner and the error state. False: no such queue pair.
bool break_qp(Fabric& fabric, uint32_t number);

// Zero count means for ever. 0: the table is full.
uint32_t add_rule(Fabric& fabric, Rule rule);
bool remove_rule(Fabric& fabric, uint32_t id);  // 0: all of them
std::vector<Rule> rules(Fabric& fabric);

}  // namespace mc::emu
