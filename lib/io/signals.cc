#include "io/signals.h"

#include <sys/signalfd.h>

#include <csignal>

namespace mc::io {

namespace {

// nohup(1) and systemd's IgnoreSIGHUP have it so; blocked it would come all the same.
bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

Signals::Signals(Loop& loop, std::function<void(int)> stop, std::function<void()> reread)
    : loop_(loop) {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (reread || !is_ignored(SIGHUP)) sigaddset(&set, SIGHUP);
  MC_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  fd_.reset(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  MC_CHECK(fd_);
  watch_ = loop_.watch_fd(fd_.get(), [this, stop = std::move(stop), reread = std::move(reread)] {
    signalfd_siginfo info{};
    while (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo == SIGHUP && reread)
        reread();
      else
        stop(++count_);
    }
  });
}

Signals::~Signals() { loop_.unwatch(watch_); }

}  // namespace mc::io
