// What reliable connections refuse: keys, bounds, access, states; and how both ends then stand.
#include "net.h"
#include "tests/verbs-emulator/qp_states.h"

namespace mc::emu {
namespace {

// The write fails with `status`, what follows it is flushed, and both ends are in error.
void refused(End& a, End& b, ibv_wc_status status, int event) {
  ibv_wc first = a.next(), second = a.next();
  CHECK(first.status == status);
  CHECK(second.status == IBV_WC_WR_FLUSH_ERR);
  CHECK(second.wr_id == 2);
  CHECK(a.state() == IBV_QPS_ERR);
  CHECK(b.state() == IBV_QPS_ERR);
  CHECK(b.event() == event);
}

}  // namespace

TEST_CASE("a stale key is refused for ever, even when its slot is used again") {
  Pair net;
  uint32_t stale = net.b.mr->rkey;
  REQUIRE(ibv_dereg_mr(net.b.mr) == 0);
  net.b.mr =
      ibv_reg_mr(net.b.pd, net.b.memory.data(), net.b.memory.size(), int(net.b.options.access));
  REQUIRE(net.b.mr->rkey != stale);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, net.a.sge(0, 8), net.b.address(), stale, 1) == 0);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 2) == 0);
  refused(net.a, net.b, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_CASE("an access beyond the region is refused and moves nothing") {
  Pair net;
  net.a.fill('a');
  uint64_t last = net.b.address(net.b.memory.size() - 8);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, net.a.sge(0, 9), last, net.b.mr->rkey, 1) == 0);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 2) == 0);
  refused(net.a, net.b, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  CHECK(net.b.memory.back() == 0);
}

TEST_CASE("a region without remote write refuses it") {
  Pair net({}, {}, {.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ});
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 1) == 0);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 2) == 0);
  refused(net.a, net.b, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_CASE("a key of another protection domain or of another NIC is refused") {
  FabricOptions options;
  options.nics = 2;
  Net fabric(options);
  End a(0), b(1), other(1, {.nic = 1});
  connect(a, b);
  ibv_pd* pd = ibv_alloc_pd(b.context);
  ibv_mr* mr = ibv_reg_mr(pd, b.memory.data(), 64, int(b.options.access));
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, a.sge(0, 8), b.address(), mr->rkey) == 0);
  CHECK(a.next().status == IBV_WC_REM_ACCESS_ERR);
  reconnect(a, b);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 8, other) == 0);
  CHECK(a.next().status == IBV_WC_REM_ACCESS_ERR);
  ibv_dereg_mr(mr);
  ibv_dealloc_pd(pd);
}

TEST_CASE("a bad local key ends the request here, and the peer does not notice") {
  Pair net;
  ibv_sge bad = net.a.sge(0, 8);
  bad.lkey ^= 0x10000;
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, bad, net.b.address(), net.b.mr->rkey) == 0);
  CHECK(net.a.next().status == IBV_WC_LOC_PROT_ERR);
  CHECK(net.a.state() == IBV_QPS_ERR);
  CHECK(net.b.state() == IBV_QPS_RTS);
}

TEST_CASE("a message longer than its receive fails at both ends") {
  Pair net;
  REQUIRE(net.b.receive(net.b.sge(0, 10)) == 0);
  REQUIRE(net.a.post(IBV_WR_SEND, 11, net.b) == 0);
  CHECK(net.a.next().status == IBV_WC_REM_INV_REQ_ERR);
  CHECK(net.b.next().status == IBV_WC_LOC_LEN_ERR);
  CHECK(net.b.state() == IBV_QPS_ERR);
}

TEST_CASE("a message waits for a receive, or its RNR retries end") {
  Net fabric;
  End a(0), b(1);
  connect(a, b);
  REQUIRE(a.post(IBV_WR_SEND, 4, b) == 0);
  CHECK(a.quiet());
  REQUIRE(b.receive(b.sge(0, 10)) == 0);
  CHECK(a.next().status == IBV_WC_SUCCESS);
  CHECK(b.next().status == IBV_WC_SUCCESS);
  a.rnr_retry = 2;
  reconnect(a, b);
  REQUIRE(a.post(IBV_WR_SEND, 4, b) == 0);
  CHECK(a.next().status == IBV_WC_RNR_RETRY_EXC_ERR);
  CHECK(b.state() == IBV_QPS_RTS);
}

TEST_CASE("a queue pair must be brought up in order, with all that each step wants") {
  Net fabric;
  End a(0), b(1);
  CHECK(a.to_rtr(b.qp->qp_num, b.gid()) == EINVAL);
  CHECK(a.receive(a.sge(0, 8)) == EINVAL);
  CHECK(a.to(IBV_QPS_INIT) == EINVAL);  // without its port
  REQUIRE(a.to_init() == 0);
  CHECK(a.receive(a.sge(0, 8)) == 0);
  CHECK(a.post(IBV_WR_RDMA_WRITE, 8, b) == EINVAL);
  CHECK(a.to_rts() == EINVAL);
  REQUIRE(a.to_rtr(b.qp->qp_num, b.gid()) == 0);
  CHECK(a.post(IBV_WR_RDMA_WRITE, 8, b) == EINVAL);
  REQUIRE(a.to_rts() == 0);
  CHECK(a.state() == IBV_QPS_RTS);
  REQUIRE(a.to(IBV_QPS_ERR) == 0);
  CHECK(a.next().status == IBV_WC_WR_FLUSH_ERR);  // the receive
  CHECK(a.post(IBV_WR_RDMA_WRITE, 8, b) == 0);
  CHECK(a.next().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(a.receive(a.sge(0, 8)) == 0);
  CHECK(a.next().status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("the table of transitions wants what it requires and takes nothing else") {
  const Transition* up = transition(IBV_QPS_RTR, IBV_QPS_RTS);
  REQUIRE(up != nullptr);
  int all = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
            IBV_QP_MAX_QP_RD_ATOMIC;
  CHECK(mask_fits(*up, all | IBV_QP_STATE));
  CHECK(mask_fits(*up, all | IBV_QP_ACCESS_FLAGS));
  CHECK_FALSE(mask_fits(*up, all & ~IBV_QP_TIMEOUT));
  CHECK_FALSE(mask_fits(*up, all | IBV_QP_DEST_QPN));
  CHECK(transition(IBV_QPS_RESET, IBV_QPS_RTS) == nullptr);
  CHECK(transition(IBV_QPS_ERR, IBV_QPS_RTS) == nullptr);
  CHECK(transition(IBV_QPS_RTS, IBV_QPS_ERR) != nullptr);
}

TEST_CASE("nobody answers for a queue pair that is not connected back") {
  Net fabric;
  set_retry_percent(*fabric.fabric, 1);
  End a(0), b(1), c(1);
  connect(a, b);
  REQUIRE(c.to_init() == 0);
  REQUIRE(a.to(IBV_QPS_RESET) == 0);
  REQUIRE(a.to_init() == 0);
  REQUIRE(a.to_rtr(c.qp->qp_num, c.gid()) == 0);
  REQUIRE(a.to_rts() == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 8, c) == 0);
  CHECK(a.next().status == IBV_WC_RETRY_EXC_ERR);
}

TEST_CASE("a full completion queue is an error with its event, not lost data") {
  Pair net({}, {.cqe = 4, .send_wr = 16});
  for (uint64_t id = 1; id <= 6; ++id) REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, id) == 0);
  int first = net.a.event(), second = net.a.event();
  CHECK(((first == IBV_EVENT_CQ_ERR && second == IBV_EVENT_QP_FATAL) ||
         (first == IBV_EVENT_QP_FATAL && second == IBV_EVENT_CQ_ERR)));
  CHECK(net.a.state() == IBV_QPS_ERR);
  for (uint64_t id = 1; id <= 4; ++id) CHECK(net.a.next().wr_id == id);
}

TEST_CASE("objects in use are not destroyed, and bad requests are refused at once") {
  Pair net;
  CHECK(ibv_dealloc_pd(net.a.pd) == EBUSY);
  CHECK(ibv_destroy_cq(net.a.cq) == EBUSY);
  CHECK(net.a.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, net.b) == EOPNOTSUPP);
  ibv_send_wr wr{}, *bad = nullptr;
  wr.num_sge = 5;
  CHECK(ibv_post_send(net.a.qp, &wr, &bad) == EINVAL);
  CHECK(bad == &wr);
  CHECK(net.a.post(IBV_WR_RDMA_WRITE, net.a.sge(0, 1000), net.b.address(), net.b.mr->rkey, 1,
                   IBV_SEND_INLINE) == EINVAL);
  errno = 0;
  CHECK(ibv_reg_mr(net.a.pd, nullptr, 4096, int{IBV_ACCESS_LOCAL_WRITE}) == nullptr);
  CHECK(errno == EFAULT);
  CHECK(ibv_reg_mr(net.a.pd, net.a.memory.data(), 64, int{IBV_ACCESS_REMOTE_WRITE}) == nullptr);
  CHECK(errno == EINVAL);
  CHECK(net.a.state() == IBV_QPS_RTS);
}

}  // namespace mc::emu
