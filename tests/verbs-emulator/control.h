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
