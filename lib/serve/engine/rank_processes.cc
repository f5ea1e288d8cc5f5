#include "serve/engine/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "io/local_socket.h"

namespace mc::serve {
namespace {

constexpr int kRankSocket = 3, kRankMemory = 4;  // descriptors of a rank
constexpr size_t kReadyText = 4096;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& t : texts) out.push_back(const_cast<char*>(t.c_str()));
  out.push_back(nullptr);
  return out;
}

// Above those that the rank has them as, so that none is overwritten.
io::Fd moved_up(int fd) { return io::Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 16)); }

std::string end_of(pid_t process) {
  int status = 0;
  if (::waitpid(process, &status, 0) != process) return "ended";
  if (WIFSIGNALED(status)) return strf("was killed by signal %d", WTERMSIG(status));
  return strf("ended with status %d", WEXITSTATUS(status));
}

}  // namespace

Result<std::unique_ptr<RankProcesses>> RankProcesses::start(const std::vector<std::string>& command,
                                                            std::vector<std::string> environment,
                                                            uint32_t ranks, int memory) {
  std::unique_ptr<RankProcesses> self(new RankProcesses);
  self->stop_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!self->stop_) return fail_errno("watch ranks");
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    environment.push_back(strf("%s=%u:%d:%d:%d", kRankSeat, rank, kRankSocket, kRankMemory,
                               static_cast<int>(::getpid())));
    MC_TRY_(self->start_rank(command, environment, rank, memory));
    environment.pop_back();
  }
  return self;
}

Result<> RankProcesses::start_rank(const std::vector<std::string>& command,
                                   const std::vector<std::string>& environment, uint32_t rank,
                                   int memory) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail_errno("socket to rank %u", rank);
  Rank r{io::Fd(ends[0])};
  const io::Fd other(ends[1]), socket = moved_up(ends[1]), shared = moved_up(memory);
  if (!socket || !shared) return fail_errno("descriptors of rank %u", rank);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, socket.get(), kRankSocket);
  ::posix_spawn_file_actions_adddup2(&actions, shared.get(), kRankMemory);
  const int failed = ::posix_spawn(&r.process, "/proc/self/exe", &actions, nullptr,
                                   pointers(command).data(), pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0)
    return fail(Code::kUnavailable, "start rank %u: %s", rank, std::strerror(failed));
  ranks_.push_back(std::move(r));
  return {};
}

RankProcesses::~RankProcesses() {
  if (watcher_.joinable()) {
    (void)::eventfd_write(stop_.get(), 1);
    watcher_.join();
  }
  for (const Rank& r : ranks_) {
    if (r.process <= 0) continue;
    (void)::kill(r.process, SIGKILL);  // it keeps nothing
    (void)end_of(r.process);
  }
}

Result<> RankProcesses::wait_ready() {
  for (size_t i = 0; i < ranks_.size(); ++i)
    MC_TRY_(read_ready(static_cast<uint32_t>(i + 1), ranks_[i]));
  watcher_ = std::thread([this] { watch(); });
  return {};
}

Result<> RankProcesses::read_ready(uint32_t rank, Rank& r) {
  std::string text(kReadyText, '\0');
  const ssize_t n = ::recv(r.socket.get(), text.data(), text.size(), 0);
  if (n <= 0)
    return fail(Code::kUnavailable, "rank %u %s while it loaded the model", rank,
                end_of(std::exchange(r.process, -1)).c_str());
  text.resize(static_cast<size_t>(n));
  if (text != "ready") return fail(Code::kInvalid, "rank %u: %s", rank, text.c_str());
  log_info("engine", "rank %u is process %d", rank, static_cast<int>(r.process));
  return {};
}

// A pass that waits for a rank that ended would wait for ever: this process ends at once.
void RankProcesses::watch() {
  std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}};
  for (const Rank& r : ranks_) polled.push_back({r.socket.get(), POLLRDHUP, 0});
  while (true) {
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[0].revents != 0) return;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (polled[i + 1].revents == 0) continue;
      log_error("engine",
                "rank %zu (process %d) %s: this worker ends, conductors try its requests elsewhere",
                i + 1, static_cast<int>(ranks_[i].process), end_of(ranks_[i].process).c_str());
      std::_Exit(1);
    }
  }
}

void RankProcesses::send(int file) {
  const char one = 1;
  for (const Rank& r : ranks_)
    if (!io::send_with_fd(r.socket.get(), {&one, 1}, file, MSG_NOSIGNAL))
      log_error("engine", "send a rank its KV pool: %s", std::strerror(errno));
}

void RankSeat::ready(const std::string& error) const {
  const std::string text = error.empty() ? "ready" : error.substr(0, kReadyText);
  (void)::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

io::Fd RankSeat::receive() const {
  char one = 0;
  return std::move(io::receive_with_fd(socket.get(), {&one, 1}, 0).fd);
}

Result<RankSeat> take_rank_seat(const std::string& text) {
  unsigned rank = 0;
  int socket = -1, memory = -1, first = -1, end = 0;
  const bool read =
      std::sscanf(text.c_str(), "%4u:%9d:%9d:%9d%n", &rank, &socket, &memory, &first, &end) == 4 &&
      static_cast<size_t>(end) == text.size() && rank > 0;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) (void)std::signal(signal, SIG_IGN);
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!read || ::getppid() != first)  // or it ended before the call
    return fail(Code::kInvalid, "%s '%s': it is for the processes that a worker starts: unset it",
                kRankSeat, escape(text).c_str());
  RankSeat seat{rank, io::Fd(socket), io::Fd(memory)};
  for (const io::Fd* fd : {&seat.socket, &seat.memory})
    (void)::fcntl(fd->get(), F_SETFD, FD_CLOEXEC);
  (void)::prctl(PR_SET_NAME, strf("mc-tp-%u", rank).c_str());
  return seat;
}

}  // namespace mc::serve
