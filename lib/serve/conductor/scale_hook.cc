#include "serve/conductor/scale_hook.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/units.h"

namespace mc::serve {
namespace {

// Starts the shell in its own process group with default signals. After fork() it may only do what
// a signal handler may: other threads can have held locks.
pid_t start_shell(const std::string& command, const std::string& prefill,
                  const std::string& decode) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::setpgid(0, 0);
  ::execl("/bin/sh", "sh", "-c", command.c_str(), "scale-hook", prefill.c_str(), decode.c_str(),
          static_cast<char*>(nullptr));
  ::_exit(127);
}

}  // namespace

ScaleHook::~ScaleHook() {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ScaleHook::tell(size_t prefill, size_t decode, Time now) {
  if (command_.empty()) return;
  if (running()) {
    next_ = {prefill, decode};
    return;
  }
  start(prefill, decode, now);
}

void ScaleHook::start(size_t prefill, size_t decode, Time now) {
  pid_ = start_shell(command_, std::to_string(prefill), std::to_string(decode));
  if (pid_ < 0) {
    pid_ = 0;
    return log_warn("conductor", "--scale-hook: fork: %s", std::strerror(errno));
  }
  ::setpgid(pid_, pid_);  // the child does it too: either may be first
  since_ = now;
}

void ScaleHook::tick(Time now) {
  if (!running()) return;
  int status = 0;
  const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  if (ended == 0) {
    if (now - since_ < kLimit) return;
    log_warn("conductor", "--scale-hook did not end within %s: killed", to_text(kLimit).c_str());
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
  } else if (ended == pid_ && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
    log_warn("conductor", "--scale-hook ended with status %d",
             WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  pid_ = 0;
  if (const auto next = std::exchange(next_, std::nullopt)) start(next->first, next->second, now);
}

}  // namespace mc::serve
