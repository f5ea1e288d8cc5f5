// What arrives where: writes, reads, messages, immediate data, inline data, several pieces.
#include <sys/mman.h>

#include <thread>

#include "net.h"

namespace mc::emu {

TEST_CASE("a write lands in the peer's memory and nowhere else") {
  Pair net;
  net.a.fill('a');
  net.b.fill('b');
  CHECK(net.a.post(IBV_WR_RDMA_WRITE, net.a.sge(100, 70'000), net.b.address(5000),
                   net.b.mr->rkey) == 0);
  ibv_wc wc = net.a.next();
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RDMA_WRITE);
  CHECK(wc.qp_num == net.a.qp->qp_num);
  CHECK(net.b.memory[4999] == 'b');
  CHECK(net.b.memory[5000] == 'a');
  CHECK(net.b.memory[74'999] == 'a');
  CHECK(net.b.memory[75'000] == 'b');
  CHECK(net.b.quiet());
}

TEST_CASE("a read fetches the peer's bytes") {
  Pair net;
  for (size_t i = 0; i < net.b.memory.size(); ++i) net.b.memory[i] = char(i * 7 % 251);
  CHECK(net.a.post(IBV_WR_RDMA_READ, uint32_t(net.b.memory.size()), net.b) == 0);
  ibv_wc wc = net.a.next();
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_RDMA_READ);
  CHECK(wc.byte_len == net.b.memory.size());
  CHECK(net.a.memory == net.b.memory);
}

TEST_CASE("a dma-buf is reached at the addresses that it was given, and no further") {
  Pair net;
  const auto page = uint64_t(sysconf(_SC_PAGESIZE));
  const uint64_t bytes = 8 * page, from = 2 * page, length = 4 * page, address = uint64_t{1} << 46;
  int fd = memfd_create("dma-buf", MFD_CLOEXEC);
  REQUIRE(ftruncate(fd, off_t(bytes)) == 0);
  auto* seen = static_cast<char*>(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0));
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  ibv_pd* pd = net.b.pd;
  CHECK(ibv_reg_dmabuf_mr(pd, from, length, address, -1, access) == nullptr);
  CHECK(errno == EBADF);
  CHECK(ibv_reg_dmabuf_mr(pd, from, bytes, address, fd, access) == nullptr);
  CHECK(errno == EINVAL);
  CHECK(ibv_reg_dmabuf_mr(pd, from, length, address + 8, fd, access) == nullptr);
  CHECK(errno == EINVAL);
  ibv_mr* mr = ibv_reg_dmabuf_mr(pd, from, length, address, fd, access);
  REQUIRE(mr != nullptr);
  close(fd);
  net.a.fill('d');
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, net.a.sge(0, 100), address + length - 100, mr->rkey) == 0);
  CHECK(net.a.next().status == IBV_WC_SUCCESS);
  CHECK(seen[from + length - 101] == 0);
  CHECK(seen[from + length - 100] == 'd');
  CHECK(seen[from + length - 1] == 'd');
  CHECK(seen[from + length] == 0);
  // As the local end too: its own bytes, by the same addresses.
  ibv_sge own{address + length - 150, 100, mr->lkey};  // half of it zeros
  REQUIRE(net.b.post(IBV_WR_RDMA_WRITE, own, net.a.address(1000), net.a.mr->rkey) == 0);
  CHECK(net.b.next().status == IBV_WC_SUCCESS);
  CHECK(net.a.memory[999] == 'd');
  CHECK(net.a.memory[1000] == 0);
  CHECK(net.a.memory[1049] == 0);
  CHECK(net.a.memory[1050] == 'd');
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, net.a.sge(0, 101), address + length - 100, mr->rkey) == 0);
  CHECK(net.a.next().status == IBV_WC_REM_ACCESS_ERR);
  CHECK(ibv_dereg_mr(mr) == 0);
  munmap(seen, bytes);
}

TEST_CASE("pieces are gathered in order, and inline data may change after posting") {
  Pair net;
  memcpy(net.a.memory.data(), "onetwothree", 11);
  ibv_sge pieces[] = {net.a.sge(6, 5), net.a.sge(3, 3), net.a.sge(0, 3)};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = pieces;
  wr.num_sge = 3;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  wr.wr.rdma = {net.b.address(), net.b.mr->rkey};
  set_port(*net.net.fabric, 1, false);
  set_retry_percent(*net.net.fabric, 0);
  REQUIRE(ibv_post_send(net.a.qp, &wr, &bad) == 0);
  net.a.fill('x');
  set_port(*net.net.fabric, 1, true);
  CHECK(net.a.next().status == IBV_WC_SUCCESS);
  CHECK(std::string(net.b.memory.data(), 11) == "threetwoone");
}

TEST_CASE("messages take receives in order, with their length and immediate data") {
  Pair net;
  for (uint64_t i = 0; i < 3; ++i) REQUIRE(net.b.receive(net.b.sge(i * 100, 100), 40 + i) == 0);
  net.a.fill('m');
  REQUIRE(net.a.post(IBV_WR_SEND, 10, net.b, 1) == 0);
  REQUIRE(net.a.post(IBV_WR_SEND_WITH_IMM, 20, net.b, 2) == 0);
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, net.a.sge(0, 30), net.b.address(5000),
                     net.b.mr->rkey, 3) == 0);
  for (uint64_t id = 1; id <= 3; ++id) CHECK(net.a.next().wr_id == id);
  ibv_wc first = net.b.next(), second = net.b.next(), third = net.b.next();
  CHECK(first.wr_id == 40);
  CHECK(first.byte_len == 10);
  CHECK(first.opcode == IBV_WC_RECV);
  CHECK(first.src_qp == net.a.qp->qp_num);
  CHECK((first.wc_flags & IBV_WC_WITH_IMM) == 0);
  CHECK(second.wr_id == 41);
  CHECK(second.imm_data == 0x1234);
  CHECK(third.wr_id == 42);
  CHECK(third.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(net.b.memory[9] == 'm');
  CHECK(net.b.memory[10] == 0);
  CHECK(net.b.memory[119] == 'm');
  CHECK(net.b.memory[200] == 0);  // a write's receive is only counted
  CHECK(net.b.memory[5029] == 'm');
}

TEST_CASE("only signalled requests complete, and slots come back when they are polled") {
  Pair net({}, {.send_wr = 4});
  for (uint64_t id = 1; id <= 3; ++id) REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, id, 0) == 0);
  CHECK(net.a.quiet());
  REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 4) == 0);
  CHECK(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, 5) == ENOMEM);
  CHECK(net.a.next().wr_id == 4);
  CHECK(net.a.quiet());
  for (uint64_t id = 1; id <= 4; ++id) CHECK(net.a.post(IBV_WR_RDMA_WRITE, 8, net.b, id, 0) == 0);
}

TEST_CASE("the extended interface posts a batch, or nothing of it") {
  Net fabric;
  End a(0), b(1);
  connect(a, b);
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(a.qp);
  memcpy(a.memory.data(), "extended", 8);
  ibv_wr_start(ex);
  ex->wr_id = 7;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(ex, b.mr->rkey, b.address(64));
  ibv_wr_set_sge(ex, a.mr->lkey, a.address(), 8);
  ibv_wr_rdma_write(ex, b.mr->rkey, b.address(128));
  char text[] = "inline";
  ibv_wr_set_inline_data(ex, text, 6);
  CHECK(ibv_wr_complete(ex) == 0);
  CHECK(a.next().status == IBV_WC_SUCCESS);
  CHECK(a.next().wr_id == 7);
  CHECK(std::string(&b.memory[64], 8) == "extended");
  CHECK(std::string(&b.memory[128], 6) == "inline");
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, b.mr->rkey, b.address());
  ibv_wr_set_inline_data(ex, a.memory.data(), 100'000);
  CHECK(ibv_wr_complete(ex) == EINVAL);
  CHECK(a.quiet());
}

TEST_CASE("a capped NIC takes its time, in the order of posting") {
  FabricOptions options;
  options.rate = 100'000'000;
  Pair net(options);
  uint64_t start = now_ns();
  for (uint64_t id = 1; id <= 8; ++id)
    REQUIRE(net.a.post(IBV_WR_RDMA_WRITE, 1 << 20, net.b, id) == 0);
  for (uint64_t id = 1; id <= 8; ++id) {
    ibv_wc wc = net.a.next();
    CHECK(wc.wr_id == id);
    CHECK(wc.status == IBV_WC_SUCCESS);
  }
  CHECK(now_ns() - start >= 8 * (uint64_t{1} << 20) * 10);
}

TEST_CASE("several senders share a completion queue across threads") {
  Net fabric;
  ibv_context* context = open_nic(0);
  End a(0, {.context = context}), b(0, {.context = context}), c(1), d(1);
  connect(a, c);
  connect(b, d);
  auto work = [](End& from, End& to) {
    for (int i = 0; i < 500; ++i) {
      REQUIRE(from.post(IBV_WR_RDMA_WRITE, 4096, to) == 0);
      REQUIRE(from.next().status == IBV_WC_SUCCESS);
    }
  };
  std::thread other([&] { work(a, c); });
  work(b, d);
  other.join();
}

TEST_CASE("a completion channel tells once for each arming") {
  Pair net({}, {}, {.events = true});
  REQUIRE(ibv_req_notify_cq(net.b.cq, 0) == 0);
  REQUIRE(net.b.receive(net.b.sge(0, 100)) == 0);
  REQUIRE(net.b.receive(net.b.sge(0, 100)) == 0);
  REQUIRE(net.a.post(IBV_WR_SEND, 4, net.b) == 0);
  REQUIRE(net.a.post(IBV_WR_SEND, 4, net.b) == 0);
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  REQUIRE(ibv_get_cq_event(net.b.channel, &cq, &user) == 0);
  CHECK(cq == net.b.cq);
  ibv_ack_cq_events(cq, 1);
  net.b.next();
  net.b.next();
  pollfd fd{net.b.channel->fd, POLLIN, 0};
  CHECK(poll(&fd, 1, 0) == 0);

  // Armed for solicited completions only, an ordinary one stays silent.
  REQUIRE(ibv_req_notify_cq(net.b.cq, 1) == 0);
  REQUIRE(net.b.receive(net.b.sge(0, 100)) == 0);
  REQUIRE(net.b.receive(net.b.sge(0, 100)) == 0);
  REQUIRE(net.a.post(IBV_WR_SEND, 4, net.b) == 0);
  net.b.next();
  CHECK(poll(&fd, 1, 0) == 0);
  REQUIRE(net.a.post(IBV_WR_SEND, net.a.sge(0, 4), 0, 0, 1,
                     IBV_SEND_SIGNALED | IBV_SEND_SOLICITED) == 0);
  REQUIRE(ibv_get_cq_event(net.b.channel, &cq, &user) == 0);
  ibv_ack_cq_events(cq, 1);
}

TEST_CASE("queue pairs share the receives of an SRQ, which tells when it runs low") {
  Net fabric;
  ibv_context* context = open_nic(1);
  ibv_pd* pd = ibv_alloc_pd(context);
  ibv_srq_init_attr init{};
  init.attr = {8, 1, 0};
  ibv_srq* srq = ibv_create_srq(pd, &init);
  REQUIRE(srq != nullptr);
  {
    End a(0), b(1, {.srq = srq, .context = context});
    connect(a, b);
    ibv_sge into{b.address(), 100, b.mr->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.sg_list = &into;
    wr.num_sge = 1;
    for (wr.wr_id = 1; wr.wr_id <= 3; ++wr.wr_id) REQUIRE(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    ibv_srq_attr limit{0, 0, 2};
    REQUIRE(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    REQUIRE(a.post(IBV_WR_SEND, 4, b) == 0);
    REQUIRE(a.post(IBV_WR_SEND, 4, b) == 0);
    CHECK(b.next().wr_id == 1);
    CHECK(b.next().wr_id == 2);
    CHECK(b.event() == IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(ibv_destroy_srq(srq) == EBUSY);
    CHECK(b.to(IBV_QPS_ERR) == 0);
    CHECK(b.event() == IBV_EVENT_QP_LAST_WQE_REACHED);
  }
  CHECK(ibv_destroy_srq(srq) == 0);
  CHECK(ibv_dealloc_pd(pd) == 0);
  ibv_close_device(context);
}

}  // namespace mc::emu
