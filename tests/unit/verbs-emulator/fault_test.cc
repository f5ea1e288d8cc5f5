// Faults on command: what the client sees, and that the connection works again afterwards.
#include "net.h"

namespace mc::emu {
namespace {

void works(End& a, End& b) {
  reconnect(a, b);
  a.fill('w');
  b.fill(0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1000, b) == 0);
  CHECK(a.next().status == IBV_WC_SUCCESS);
  CHECK(b.memory[999] == 'w');
}

}  // namespace

TEST_CASE("a request outlives a short loss of the link") {
  Pair net;
  set_retry_percent(*net.net.fabric, 0);
  set_port(*net.net.fabric, 0, false);
  CHECK(net.a.event() == IBV_EVENT_PORT_ERR);
  ibv_port_attr port;
  REQUIRE(ibv_query_port(net.a.context, 1, &port) == 0);
  CHECK(port.state == IBV_PORT_DOWN);
  net.a.fill('a');
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 1000, net.b) == 0);
  CHECK(net.a.quiet());
  CHECK(net.b.memory[0] == 0);
  set_port(*net.net.fabric, 0, true);
  CHECK(net.a.event() == IBV_EVENT_PORT_ACTIVE);
  CHECK(net.a.next().status == IBV_WC_SUCCESS);
  CHECK(net.b.memory[999] == 'a');
}

TEST_CASE("retries end by command, or by the clock, when the peer's link stays down") {
  Pair net;
  set_retry_percent(*net.net.fabric, 0);
  set_port(*net.net.fabric, 1, false);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 1) == 0);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 2) == 0);
  CHECK(net.a.quiet());
  expire_retries(*net.net.fabric);
  CHECK(net.a.next().status == IBV_WC_RETRY_EXC_ERR);
  CHECK(net.a.next().status == IBV_WC_WR_FLUSH_ERR);
  set_retry_percent(*net.net.fabric, 100);
  reconnect(net.a, net.b);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 3) == 0);
  CHECK(net.a.next().status == IBV_WC_RETRY_EXC_ERR);
  set_port(*net.net.fabric, 1, true);
  works(net.a, net.b);
}

TEST_CASE("a silent NIC looks healthy and answers nothing") {
  Pair net;
  set_silent(*net.net.fabric, 1, true);
  ibv_port_attr port;
  REQUIRE(ibv_query_port(net.b.context, 1, &port) == 0);
  CHECK(port.state == IBV_PORT_ACTIVE);
  REQUIRE(net.a.post(IBV_WR_RDMA_READ, 8, net.b) == 0);
  CHECK(net.a.next().status == IBV_WC_RETRY_EXC_ERR);
  set_silent(*net.net.fabric, 1, false);
  works(net.a, net.b);
}

TEST_CASE("a rule strikes exactly the request it counts to") {
  Pair net;
  net.net.rule(Action::kError, IBV_WC_REM_OP_ERR, 2);
  for (uint64_t id = 1; id <= 4; ++id) REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, id) == 0);
  CHECK(net.a.next().status == IBV_WC_SUCCESS);
  CHECK(net.a.next().status == IBV_WC_SUCCESS);
  CHECK(net.a.next().status == IBV_WC_REM_OP_ERR);
  CHECK(net.a.next().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(rules(*net.net.fabric)[0].hits == 1);
  works(net.a, net.b);
}

TEST_CASE("a rule's chance follows its seed") {
  Pair net;
  Rule rule{};
  rule.nic = -1;
  rule.action = Action::kLose;
  rule.per_million = 500'000;
  rule.random = 11;
  uint64_t hits[2] = {0, 0};
  for (uint64_t& hit : hits) {
    add_rule(*net.net.fabric, rule);
    for (int i = 0; i < 16; ++i) REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 1, 0) == 0);
    hit = rules(*net.net.fabric)[0].hits;
    remove_rule(*net.net.fabric, 0);
    reconnect(net.a, net.b);
  }
  CHECK(hits[0] == hits[1]);
  CHECK(hits[0] > 0);
  CHECK(hits[0] < 16);
}

TEST_CASE("a lost completion never comes, though the data did") {
  Pair net;
  net.a.fill('l');
  net.net.rule(Action::kLose);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 1) == 0);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 2) == 0);
  CHECK(net.a.next().wr_id == 2);
  CHECK(net.a.quiet());
  CHECK(net.b.memory[7] == 'l');
}

TEST_CASE("a corrupted write succeeds with one byte changed") {
  Pair net;
  net.a.fill('c');
  net.net.rule(Action::kCorrupt);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 1000, net.b) == 0);
  CHECK(net.a.next().status == IBV_WC_SUCCESS);
  size_t changed = 0;
  for (size_t i = 0; i < 1000; ++i) changed += net.b.memory[i] != 'c';
  CHECK(changed == 1);
}

TEST_CASE("a partial write leaves half, then fails") {
  Pair net;
  net.a.fill('p');
  net.net.rule(Action::kPartial, IBV_WC_RETRY_EXC_ERR);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 1000, net.b) == 0);
  CHECK(net.a.next().status == IBV_WC_RETRY_EXC_ERR);
  CHECK(net.b.memory[499] == 'p');
  CHECK(net.b.memory[500] == 0);
  works(net.a, net.b);
}

TEST_CASE("a dropped request is unanswered until its retries end, and a delayed one is late") {
  Pair net;
  net.net.rule(Action::kDelay, 30'000'000);
  uint64_t start = now_ns();
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b) == 0);
  CHECK(net.a.next().status == IBV_WC_SUCCESS);
  CHECK(now_ns() - start >= 30'000'000);
  net.net.rule(Action::kDrop);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b) == 0);
  CHECK(net.a.next().status == IBV_WC_RETRY_EXC_ERR);
  works(net.a, net.b);
}

TEST_CASE("a broken queue pair tells its owner and flushes") {
  Pair net;
  set_port(*net.net.fabric, 1, false);
  set_retry_percent(*net.net.fabric, 0);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b) == 0);
  REQUIRE(break_qp(*net.net.fabric, net.a.qp->qp_num));
  CHECK(net.a.event() == IBV_EVENT_QP_FATAL);
  CHECK(net.a.next().status == IBV_WC_WR_FLUSH_ERR);
  CHECK_FALSE(break_qp(*net.net.fabric, 0x123456));
  set_port(*net.net.fabric, 1, true);
  works(net.a, net.b);
}

TEST_CASE("a NIC that is gone stays gone for those who had it") {
  Net fabric;
  End a(0), b(1);
  connect(a, b);
  REQUIRE(a.receive(a.sge(0, 8), 9) == 0);
  set_present(*fabric.fabric, 0, false);
  CHECK(a.event() == IBV_EVENT_DEVICE_FATAL);
  CHECK(a.next().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(ibv_alloc_pd(a.context) == nullptr);
  ibv_port_attr port;
  CHECK(ibv_query_port(a.context, 1, &port) == EIO);
  setenv("VERBS_EMU_HOST", "0", 1);
  int count = -1;
  ibv_free_device_list(ibv_get_device_list(&count));
  CHECK(count == 0);
  REQUIRE(b.post(IBV_WR_RDMA_WRITE, 8, a) == 0);
  CHECK(b.next().status == IBV_WC_RETRY_EXC_ERR);
  set_present(*fabric.fabric, 0, true);
  CHECK(ibv_alloc_pd(a.context) == nullptr);
  End again(0);
  works(again, b);
}

TEST_CASE("rules can cut the link and take the NIC out amid a batch") {
  Net fabric;
  End a(0), b(1);
  connect(a, b);
  set_retry_percent(*fabric.fabric, 0);
  fabric.rule(Action::kLinkDown, 0, 1);
  for (uint64_t id = 1; id <= 3; ++id) REQUIRE(a.post(IBV_WR_RDMA_WRITE, 8, b, id) == 0);
  CHECK(a.next().wr_id == 1);
  CHECK(a.quiet());
  CHECK(a.event() == IBV_EVENT_PORT_ERR);
  set_port(*fabric.fabric, 0, true);
  CHECK(a.next().wr_id == 2);
  CHECK(a.next().wr_id == 3);
  CHECK(a.event() == IBV_EVENT_PORT_ACTIVE);
  fabric.rule(Action::kRemove, 0, 1);
  for (uint64_t id = 4; id <= 6; ++id) REQUIRE(a.post(IBV_WR_RDMA_WRITE, 8, b, id) == 0);
  CHECK(a.next().status == IBV_WC_SUCCESS);
  CHECK(a.next().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(a.next().status == IBV_WC_WR_FLUSH_ERR);
  CHECK(a.event() == IBV_EVENT_DEVICE_FATAL);
}

}  // namespace mc::emu
