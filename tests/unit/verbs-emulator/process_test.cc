// Peers in another process: stopped, killed, and what they leave.
#include <sys/wait.h>
#include <csignal>

#include "net.h"

namespace mc::emu {
namespace {

struct Card {
  uint32_t qp, rkey;
  uint64_t address;
  ibv_gid gid;
};

// A process with an end on host 1 that does nothing but be there.
struct Child {
  pid_t pid;
  int to, from;
  Card card{};

  Child() {
    int down[2], up[2];
    REQUIRE(pipe(down) == 0);
    REQUIRE(pipe(up) == 0);
    pid = fork();
    if (pid == 0) serve(down[0], up[1]);
    close(down[0]);
    close(up[1]);
    to = down[1];
    from = up[0];
  }
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(to);
    close(from);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void connect(End& end) {
    Card mine{end.qp->qp_num, end.mr->rkey, end.address(), end.gid()};
    REQUIRE(read(from, &card, sizeof card) == ssize_t(sizeof card));
    REQUIRE(write(to, &mine, sizeof mine) == ssize_t(sizeof mine));
    char ready;
    REQUIRE(read(from, &ready, 1) == 1);
    REQUIRE(end.to_init() == 0);
    REQUIRE(end.to_rtr(card.qp, card.gid) == 0);
    REQUIRE(end.to_rts() == 0);
  }

  [[noreturn]] static void serve(int in, int out) {
    alarm(60);
    End end(1);
    end.fill('k');
    Card mine{end.qp->qp_num, end.mr->rkey, end.address(), end.gid()}, peer;
    bool ok = write(out, &mine, sizeof mine) == ssize_t(sizeof mine) &&
              read(in, &peer, sizeof peer) == ssize_t(sizeof peer) && end.to_init() == 0 &&
              end.to_rtr(peer.qp, peer.gid) == 0 && end.to_rts() == 0 && write(out, "r", 1) == 1;
    char done;
    if (ok) ok = read(in, &done, 1) == 0;
    _exit(ok ? 0 : 1);
  }
};

}  // namespace

TEST_CASE("a stopped peer still serves one-sided requests, as hardware does") {
  Net fabric;
  Child child;  // before this process has threads
  End a(0);
  child.connect(a);
  kill(child.pid, SIGSTOP);
  int status = 0;
  REQUIRE(waitpid(child.pid, &status, WUNTRACED) == child.pid);
  REQUIRE(a.post(IBV_WR_RDMA_READ, a.sge(0, 4096), child.card.address, child.card.rkey) == 0);
  CHECK(a.next().status == IBV_WC_SUCCESS);
  CHECK(a.memory[4095] == 'k');
}

TEST_CASE("a killed peer does not answer, and what it held is reaped") {
  Net fabric;
  uint32_t left = 0;
  auto held = [&] {
    left = 0;
    for (const MrSlot& mr : (*fabric.fabric)->mr) left += mr.used.load();
    for (const CqSlot& cq : (*fabric.fabric)->cq) left += cq.generation.load() != 0 ? 1 : 0;
    for (uint32_t i = 0; i < 64; ++i) left += (*fabric.fabric)->qp[i].number.load() != 0 ? 1 : 0;
    return left;
  };
  {
    Child child;
    End a(0);
    child.connect(a);
    REQUIRE(a.post(IBV_WR_RDMA_READ, a.sge(0, 8), child.card.address, child.card.rkey) == 0);
    CHECK(a.next().status == IBV_WC_SUCCESS);
    CHECK(held() == 6);
    kill(child.pid, SIGKILL);
    REQUIRE(waitpid(child.pid, nullptr, 0) == child.pid);
    REQUIRE(a.post(IBV_WR_RDMA_READ, a.sge(0, 8), child.card.address, child.card.rkey) == 0);
    CHECK(a.next().status == IBV_WC_RETRY_EXC_ERR);
    fabric.fabric->reap();
    CHECK(held() == 3);
  }
  CHECK(held() == 0);
}

}  // namespace mc::emu
