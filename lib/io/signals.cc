#include "io/signals.h"

#include <sys/signalfd.h>

#include <csignal>

namespace mc::io {

Signals::Signals(Loop& loop, std::function<void(int)> stop) : loop_(loop) {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  MC_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  fd_.reset(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  MC_CHECK(fd_);
  watch_ = loop_.watch_fd(fd_.get(), [this, stop = std::move(stop)] {
    signalfd_siginfo info{};
    while (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info))
      stop(++count_);
  });
}

Signals::~Signals() { loop_.unwatch(watch_); }

}  // namespace mc::io
