// Network namespaces joined by shaped links (veth and tbf), for what only shows on links slower
// than this machine. Each is held by a child process and ends with it: a crash leaves nothing
// behind. Needs root. Make them before any thread.
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "io/fd.h"

namespace mc::bench {

// A child that runs `work`, which writes its answer to a pipe; killed with its parent.
class Child {
 public:
  static Result<Child> start(const std::function<void(int)>& work) {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return fail_errno("pipe");
    Child child;
    child.out_ = io::Fd(fds[0]);
    const io::Fd in(fds[1]);
    child.pid_ = ::fork();
    if (child.pid_ < 0) return fail_errno("fork");
    if (child.pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      work(in.get());
      ::_exit(0);
    }
    return child;
  }
  Child() = default;
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)), out_(std::move(other.out_)) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(out_, other.out_);
    return *this;
  }
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  // All it writes until it closes the pipe.
  std::string answer() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(out_.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }

 private:
  pid_t pid_ = 0;
  io::Fd out_;
};

inline void say(int fd, const std::string& text) {
  if (::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) ::_exit(1);
  ::close(fd);
}

class Namespace {
 public:
  static Result<Namespace> make() {
    Namespace out;
    MC_TRY(out.holder_, Child::start([](int fd) {
             say(fd, ::unshare(CLONE_NEWNET) == 0 ? "" : "no");
             for (;;) ::pause();
           }));
    if (!out.holder_.answer().empty())
      return fail(Code::kDenied, "network namespaces need root (or CAP_SYS_ADMIN)");
    MC_TRY_(out.command("ip link set lo up"));
    return out;
  }
  // The calling process, of one thread, and what it starts are in it from now on.
  Result<> enter() const {
    const io::Fd fd(::open(("/proc/" + std::to_string(holder_.pid()) + "/ns/net").c_str(),
                           O_RDONLY | O_CLOEXEC));
    if (!fd || ::setns(fd.get(), CLONE_NEWNET) != 0) return fail_errno("enter a namespace");
    return {};
  }
  Result<> command(const std::string& words) const {
    return run("nsenter -n -t " + std::to_string(holder_.pid()) + " " + words);
  }
  static Result<> run(const std::string& words) {
    if (std::system((words + " >&2").c_str()) != 0)
      return fail(Code::kUnsupported, "'%s' failed (needs root, iproute2, sch_tbf)", words.c_str());
    return {};
  }
  // A link to `other`: an interface of that name at both ends, shaped to `rate` ("1gbit") each way,
  // with a queue of 20 ms. The burst holds the largest segment that TCP hands down, headers and
  // all: with a smaller one the kernel cuts each of them, most of a core for 500 Mbit/s.
  Result<> join(const Namespace& other, const std::string& name, const std::string& address,
                const std::string& other_address, const std::string& rate) const {
    MC_TRY_(run("ip link add " + name + " netns " + std::to_string(holder_.pid()) +
                " type veth peer name " + name + " netns " + std::to_string(other.holder_.pid())));
    const Namespace* ends[] = {this, &other};
    const std::string* addresses[] = {&address, &other_address};
    for (int i = 0; i < 2; ++i) {
      MC_TRY_(ends[i]->command("ip addr add " + *addresses[i] + "/24 dev " + name));
      MC_TRY_(ends[i]->command("ip link set " + name + " up"));
      MC_TRY_(ends[i]->command("tc qdisc add dev " + name + " root tbf rate " + rate +
                               " burst 128kb latency 20ms"));
    }
    return {};
  }

 private:
  Child holder_;
};

}  // namespace mc::bench
