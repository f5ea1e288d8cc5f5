// Many faults at once: whatever happens, each request completes once, and the bytes of those that
// succeeded are there.
#include <thread>

#include "net.h"

namespace mc::emu {
namespace {

constexpr uint32_t kBytes = 3000;

// Keeps some requests in flight on one connection and connects anew after an error.
struct Sender {
  End& a;
  End& b;
  uint64_t posted = 0, good = 0, failed = 0;
  bool once = true;  // no completion came twice, or for nothing

  void batch() {
    char mark = char('a' + posted % 23);
    std::fill(a.memory.begin(), a.memory.begin() + kBytes, mark);
    uint32_t seen = 0;
    int expected = 0;
    for (uint64_t id = 0; id < 4; ++id)
      if (a.post(IBV_WR_RDMA_WRITE, a.sge(0, kBytes), b.address(id * kBytes), b.mr->rkey, id) == 0)
        ++expected;
    posted += uint64_t(expected);
    uint32_t landed = 0;
    for (; expected > 0; --expected) {
      ibv_wc wc = a.next();
      uint32_t bit = 1u << wc.wr_id;
      once = once && wc.status != IBV_WC_TM_RNDV_INCOMPLETE && (seen & bit) == 0;
      seen |= bit;
      (wc.status == IBV_WC_SUCCESS ? good : failed)++;
      if (wc.status == IBV_WC_SUCCESS) landed |= bit;
    }
    for (uint32_t id = 0; id < 4; ++id)
      if ((landed >> id & 1) != 0) once = once && b.memory[id * kBytes + kBytes - 1] == mark;
    if (landed == 15) return;
    once = once && eventually([&] {
             return a.to(IBV_QPS_RESET) == 0 && b.to(IBV_QPS_RESET) == 0 && connected(a, b);
           });
  }
};

}  // namespace

TEST_CASE("each request completes once while links flap, queue pairs break and retries expire") {
  Net net;
  set_retry_percent(*net.fabric, 0);
  ibv_context* near = open_nic(0);
  ibv_context* far = open_nic(1);
  {
    End a1(0, {.context = near}), a2(0, {.context = near});
    End b1(1, {.context = far}), b2(1, {.context = far});
    connect(a1, b1);
    connect(a2, b2);
    Sender first{a1, b1}, second{a2, b2};
    std::atomic<bool> stop{false};
    std::atomic<uint32_t> rounds{0};
    std::thread trouble([&] {
      for (uint32_t i = 0; !stop.load(); ++i, ++rounds) {
        set_port(*net.fabric, i % 2, false);
        if (i % 3 == 0) expire_retries(*net.fabric);
        set_port(*net.fabric, i % 2, true);
        if (i % 5 == 0) net.rule(Action::kDrop, 0, i % 7);
        if (i % 5 == 1) break_qp(*net.fabric, (i % 2 == 0 ? a1 : b2).qp->qp_num);
        if (i % 11 == 0) expire_retries(*net.fabric);
        sched_yield();
      }
      remove_rule(*net.fabric, 0);
      expire_retries(*net.fabric);
    });
    std::thread other([&] {
      while (rounds.load() < 200) second.batch();
    });
    while (rounds.load() < 200) first.batch();
    other.join();
    stop.store(true);
    trouble.join();
    for (Sender* sender : {&first, &second}) {
      CHECK(sender->once);
      CHECK(sender->good + sender->failed == sender->posted);
      CHECK(sender->posted % 4 == 0);
    }
    reconnect(a1, b1);
    REQUIRE(a1.post(IBV_WR_RDMA_WRITE, 8, b1) == 0);
    CHECK(a1.next().status == IBV_WC_SUCCESS);
  }
  ibv_close_device(near);
  ibv_close_device(far);
}

}  // namespace mc::emu
