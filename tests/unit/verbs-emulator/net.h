#pragma once
// A fabric of two hosts in one process, and connected ends on it, for the emulator's tests.
//
// Thread: one.

#include <doctest/doctest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/verbs-emulator/control.h"

namespace mc::emu {

// Waits for the condition at most 20 s.
template <class F>
bool eventually(F condition) {
  uint64_t until = now_ns() + 20'000'000'000;
  while (!condition()) {
    if (now_ns() > until) return false;
    sched_yield();
  }
  return true;
}

struct Net {
  std::string path;
  std::shared_ptr<Fabric> fabric;

  explicit Net(FabricOptions options = {}) {
    static int made = 0;
    path = "/dev/shm/mc-emu-test." + std::to_string(getpid()) + "." + std::to_string(made++);
    std::string why;
    REQUIRE_MESSAGE(Fabric::create(path, options, &why), why);
    fabric = Fabric::open(path, &why);
    REQUIRE_MESSAGE(fabric != nullptr, why);
    setenv("VERBS_EMU_FABRIC", path.c_str(), 1);
  }
  ~Net() { unlink(path.c_str()); }
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  uint32_t rule(Action action, uint64_t argument = 0, uint64_t skip = 0, uint64_t count = 1) {
    Rule rule{};
    rule.nic = -1;
    rule.action = action;
    rule.argument = argument;
    rule.skip = skip;
    rule.count = count;
    return add_rule(*fabric, rule);
  }
};

inline ibv_context* open_nic(uint32_t host, int nic = 0) {
  setenv("VERBS_EMU_HOST", std::to_string(host).c_str(), 1);
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  REQUIRE(list != nullptr);
  REQUIRE(count > nic);
  ibv_context* context = ibv_open_device(list[nic]);
  ibv_free_device_list(list);
  REQUIRE(context != nullptr);
  return context;
}

struct EndOptions {
  int cqe = 64;
  uint32_t send_wr = 16, recv_wr = 16;
  int nic = 0;
  bool events = false;
  ibv_srq* srq = nullptr;
  ibv_context* context = nullptr;  // else opened
  unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
};

// One queue pair with its device, a completion queue and 1 MiB of registered memory.
struct End {
  EndOptions options;
  ibv_context* context;
  ibv_pd* pd;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq;
  ibv_qp* qp;
  std::vector<char> memory = std::vector<char>(1 << 20);
  ibv_mr* mr;
  uint8_t rnr_retry = 7, retry_cnt = 1, timeout = 8;

  explicit End(uint32_t host, EndOptions with = {}) : options(with) {
    context = with.context != nullptr ? with.context : open_nic(host, with.nic);
    pd = ibv_alloc_pd(context);
    if (with.events) channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, with.cqe, nullptr, channel, 0);
    REQUIRE(cq != nullptr);
    make_qp();
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), int(with.access));
    REQUIRE(mr != nullptr);
  }
  ~End() {
    ibv_destroy_qp(qp);
    ibv_dereg_mr(mr);
    ibv_destroy_cq(cq);
    if (channel != nullptr) ibv_destroy_comp_channel(channel);
    ibv_dealloc_pd(pd);
    if (options.context == nullptr) ibv_close_device(context);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void make_qp() {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.srq = options.srq;
    init.cap = {options.send_wr, options.recv_wr, 4, 4, 256};
    init.qp_type = IBV_QPT_RC;
    qp = ibv_create_qp(pd, &init);
    REQUIRE(qp != nullptr);
  }

  int to_init() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  int to_rtr(uint32_t peer_qp, const ibv_gid& peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer_qp;
    attr.rq_psn = 77;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = peer;
    attr.ah_attr.port_num = 1;
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }
  int to_rts() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = timeout;
    attr.retry_cnt = retry_cnt;
    attr.rnr_retry = rnr_retry;
    attr.sq_psn = 77;
    attr.max_rd_atomic = 4;
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  int to(ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
  }
  ibv_qp_state state() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    REQUIRE(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
    return attr.qp_state;
  }
  ibv_gid gid() const {
    ibv_gid gid;
    REQUIRE(ibv_query_gid(context, 1, 0, &gid) == 0);
    return gid;
  }

  ibv_sge sge(uint64_t offset, uint32_t bytes) const {
    return {reinterpret_cast<uint64_t>(memory.data()) + offset, bytes, mr->lkey};
  }
  uint64_t address(uint64_t offset = 0) const {
    return reinterpret_cast<uint64_t>(memory.data()) + offset;
  }
  // One request over [0, bytes) of both memories; 0 or the errno.
  int post(ibv_wr_opcode opcode, uint32_t bytes, const End& peer, uint64_t id = 1,
           unsigned flags = IBV_SEND_SIGNALED) {
    return post(opcode, sge(0, bytes), peer.address(), peer.mr->rkey, id, flags);
  }
  int post(ibv_wr_opcode opcode, ibv_sge from, uint64_t remote, uint32_t rkey, uint64_t id = 1,
           unsigned flags = IBV_SEND_SIGNALED) {
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &from;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.imm_data = 0x1234;
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    return ibv_post_send(qp, &wr, &bad);
  }
  int receive(ibv_sge into, uint64_t id = 1) {
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &into;
    wr.num_sge = 1;
    return ibv_post_recv(qp, &wr, &bad);
  }
  // The next completion, waiting for it; IBV_WC_TM_RNDV_INCOMPLETE if none comes.
  ibv_wc next() {
    ibv_wc wc{};
    wc.status = IBV_WC_TM_RNDV_INCOMPLETE;
    eventually([&] { return ibv_poll_cq(cq, 1, &wc) != 0; });
    return wc;
  }
  bool quiet() {
    ibv_wc wc;
    return ibv_poll_cq(cq, 1, &wc) == 0;
  }
  // The next async event, acknowledged; -1 if none comes within 20 s.
  int event() {
    pollfd fd{context->async_fd, POLLIN, 0};
    if (poll(&fd, 1, 20'000) != 1) return -1;
    ibv_async_event event;
    if (ibv_get_async_event(context, &event) != 0) return -1;
    ibv_ack_async_event(&event);
    return event.event_type;
  }
  void fill(char with) { std::fill(memory.begin(), memory.end(), with); }
};

// False: a step was refused, as when a fault strikes in between.
inline bool connected(End& a, End& b) {
  return a.to_init() == 0 && b.to_init() == 0 && a.to_rtr(b.qp->qp_num, b.gid()) == 0 &&
         b.to_rtr(a.qp->qp_num, a.gid()) == 0 && a.to_rts() == 0 && b.to_rts() == 0;
}
inline void connect(End& a, End& b) { REQUIRE(connected(a, b)); }
inline void reconnect(End& a, End& b) {
  for (End* end : {&a, &b}) REQUIRE(end->to(IBV_QPS_RESET) == 0);
  connect(a, b);
}

struct Pair {
  Net net;
  End a, b;
  explicit Pair(FabricOptions fabric = {}, EndOptions first = {}, EndOptions second = {})
      : net(fabric), a(0, first), b(1, second) {
    connect(a, b);
  }
};

}  // namespace mc::emu
