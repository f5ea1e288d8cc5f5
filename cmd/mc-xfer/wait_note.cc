#include "cmd/mc-xfer/wait_note.h"

#include <chrono>
#include <cstdio>

#include "base/result.h"
#include "base/text.h"
#include "io/thread.h"

namespace mc::xfer {
namespace {
constexpr Duration kMoment = std::chrono::seconds(1);
}  // namespace

WaitNote::WaitNote(bool shown, const std::string& peer, Duration most) {
  if (!shown || most <= kMoment) return;
  const std::string text = strf("waiting for %s to answer, for %s at most (--timeout)\n",
                                peer.c_str(), rounded_text(most).c_str());
  if (auto begun = io::start_thread([this, text] { run(text); }))  // else it waits without a word
    thread_ = std::move(*begun);
}

WaitNote::~WaitNote() {
  if (!thread_.joinable()) return;
  {
    Lock lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void WaitNote::run(const std::string& text) {
  Lock lock(mutex_);
  bool signalled = true;
  while (!over_ && signalled) signalled = ended_.wait_for(mutex_, kMoment);
  if (!over_) std::fputs(text.c_str(), stderr);
}

}  // namespace mc::xfer
