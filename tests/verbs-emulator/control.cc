#include "control.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace mc::emu {
namespace {

template <class F>
void for_contexts(Fabric& fabric, F f) {
  for (ContextSlot& slot : fabric->context)
    if (slot.generation.load() != 0 && slot.gone.load() == 0) f(slot);
}

void port_event(Fabric& fabric, ContextSlot& slot, ibv_event_type event) {
  {
    Held held(slot.lock);
    if (slot.events_count < kPortEventsMax) slot.events[slot.events_count++] = event;
  }
  fabric.raise(fabric.index(slot), kPortEvents);
}

void for_contexts_on(Fabric& fabric, uint32_t nic, ibv_event_type event) {
  for_contexts(fabric, [&](ContextSlot& slot) {
    if (slot.nic == nic && slot.dead.load() == 0) port_event(fabric, slot, event);
  });
}

// Those who wait for an answer try again now.
void pump_all(Fabric& fabric) {
  for_contexts(fabric, [&](ContextSlot& slot) { fabric.raise(fabric.index(slot), kPump); });
}

}  // namespace

std::optional<uint32_t> nic_named(const Fabric& fabric, const std::string& name) {
  size_t colon = name.find(':');
  uint32_t number = 0;
  const char* end = name.data() + std::min(colon, name.size());
  auto [stop, error] = std::from_chars(name.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  if (colon == std::string::npos)
    return number < fabric->nics ? std::optional(number) : std::nullopt;
  for (uint32_t i = 0; i < fabric->nics; ++i)
    if (fabric->nic[i].host == number && name.substr(colon + 1) == fabric->nic[i].name) return i;
  return std::nullopt;
}

void set_port(Fabric& fabric, uint32_t index, bool up) {
  Nic& nic = fabric->nic[index];
  if (nic.up.exchange(up) == uint32_t{up}) return;
  if (!up) {
    nic.downs++;
    nic.tx_clock.store(0);
    nic.rx_clock.store(0);
  }
  for_contexts_on(fabric, index, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
  if (up) pump_all(fabric);
}

void set_present(Fabric& fabric, uint32_t index, bool present) {
  Nic& nic = fabric->nic[index];
  if (nic.present.exchange(present) == uint32_t{present} || present) return;
  nic.generation++;
  nic.downs++;
  for_contexts(fabric, [&](ContextSlot& slot) {
    if (slot.nic != index || slot.dead.exchange(1) != 0) return;
    port_event(fabric, slot, IBV_EVENT_DEVICE_FATAL);
    uint32_t owner = fabric.index(slot);
    for (uint32_t i = 0; i < fabric->qps_high.load(); ++i) {
      QpSlot& qp = fabric->qp[i];
      if (qp.number.load() != 0 && qp.context == owner) fabric.fail_qp(qp, qp.number.load(), -1);
    }
  });
}

void set_silent(Fabric& fabric, uint32_t index, bool silent) {
  fabric->nic[index].silent.store(silent);
  if (!silent) pump_all(fabric);
}

void set_rate(Fabric& fabric, uint32_t index, uint64_t bytes_per_second) {
  Nic& nic = fabric->nic[index];
  nic.rate.store(bytes_per_second);
  nic.tx_clock.store(0);
  nic.rx_clock.store(0);
}

void set_latency(Fabric& fabric, uint32_t index, uint64_t nanoseconds) {
  fabric->nic[index].latency_ns.store(nanoseconds);
}

void set_gid(Fabric& fabric, uint32_t index, uint32_t gid_index, const ibv_gid& gid) {
  {
    Held held(fabric->tables);
    fabric->nic[index].gids[gid_index] = gid;
  }
  for_contexts_on(fabric, index, IBV_EVENT_GID_CHANGE);
}

void set_lid(Fabric& fabric, uint32_t index, uint16_t lid) {
  if (fabric->nic[index].lid.exchange(lid) != lid)
    for_contexts_on(fabric, index, IBV_EVENT_LID_CHANGE);
}

void set_pkey(Fabric& fabric, uint32_t index, uint32_t pkey_index, uint16_t key) {
  if (fabric->nic[index].pkeys[pkey_index].exchange(key) != key)
    for_contexts_on(fabric, index, IBV_EVENT_PKEY_CHANGE);
}

void set_link(Fabric& fabric, uint32_t index, bool ethernet) {
  Nic& nic = fabric->nic[index];
  Nic fresh{};
  fresh.guid = nic.guid;
  address(fresh, ethernet);
  {
    Held held(fabric->tables);
    if (nic.ethernet == fresh.ethernet && nic.lid.load() == fresh.lid.load() &&
        std::memcmp(nic.gids, fresh.gids, sizeof nic.gids) == 0)
      return;
    nic.ethernet = fresh.ethernet;
    nic.lid.store(fresh.lid.load());
    std::memcpy(nic.gids, fresh.gids, sizeof nic.gids);
  }
  for_contexts_on(fabric, index, IBV_EVENT_GID_CHANGE);
}

void fail_cqs(Fabric& fabric, uint32_t index) {
  for (CqSlot& cq : fabric->cq) {
    if (cq.generation.load() == 0 || fabric->context[cq.context].nic != index) continue;
    Held held(cq.lock);
    cq.overrun = 1;
    cq.events.fetch_or(1u << IBV_EVENT_CQ_ERR);
    fabric.raise(cq.context, kSweepCqs);
  }
}

void add_peer_memory(Fabric& fabric, const void* address, const void* seen, uint64_t length) {
  Held held(fabric->tables);
  for (PeerMemory& memory : fabric->peer_memory) {
    if (memory.pid != 0) continue;
    memory = {getpid(), reinterpret_cast<uint64_t>(address), reinterpret_cast<uint64_t>(seen),
              length};
    return;
  }
}

void remove_peer_memory(Fabric& fabric) {
  Held held(fabric->tables);
  for (PeerMemory& memory : fabric->peer_memory) memory = {};
}

void set_late(Fabric& fabric, uint32_t index, bool late) { fabric->nic[index].late.store(late); }

void set_register_time(Fabric& fabric, uint32_t index, uint64_t nanoseconds) {
  fabric->nic[index].register_ns.store(nanoseconds);
}

void set_transport(Fabric& fabric, uint32_t index, ibv_transport_type type) {
  fabric->nic[index].transport.store(type);
}

void set_limits(Fabric& fabric, uint32_t index, uint32_t max_qp_wr, uint32_t max_cqe) {
  fabric->nic[index].max_qp_wr.store(std::min(max_qp_wr, kQueueMax));
  fabric->nic[index].max_cqe.store(std::min(max_cqe, kCompletionsMax));
}

void set_mr_limit(Fabric& fabric, uint32_t index, uint64_t max_mr_size) {
  fabric->nic[index].max_mr_size.store(max_mr_size);
}

void set_retry_percent(Fabric& fabric, uint32_t percent) { fabric->retry_percent.store(percent); }

void expire_retries(Fabric& fabric) {
  fabric->expiries++;
  pump_all(fabric);
}

bool break_qp(Fabric& fabric, uint32_t number) {
  QpSlot& slot = fabric->qp[number & (kQpsMax - 1)];
  if (number == 0 || slot.number.load() != number) return false;
  fabric.fail_qp(slot, number, IBV_EVENT_QP_FATAL);
  return true;
}

uint32_t add_rule(Fabric& fabric, Rule rule) {
  Held held(fabric->rules_lock);
  for (Rule& slot : fabric->rules) {
    if (slot.id != 0) continue;
    rule.id = fabric->next_rule++;
    if (rule.count == 0) rule.count = UINT64_MAX;
    if (rule.per_million == 0) rule.per_million = 1'000'000;
    rule.hits = 0;
    slot = rule;
    fabric->rules_set++;
    return rule.id;
  }
  return 0;
}

bool remove_rule(Fabric& fabric, uint32_t id) {
  Held held(fabric->rules_lock);
  bool found = id == 0;
  for (Rule& rule : fabric->rules) {
    if (rule.id == 0 || (id != 0 && rule.id != id)) continue;
    rule = {};
    fabric->rules_set--;
    found = true;
  }
  return found;
}

std::vector<Rule> rules(Fabric& fabric) {
  Held held(fabric->rules_lock);
  std::vector<Rule> out;
  for (const Rule& rule : fabric->rules)
    if (rule.id != 0) out.push_back(rule);
  return out;
}

}  // namespace mc::emu
