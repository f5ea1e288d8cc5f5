// The client of a connection, as who reads its answers.
//
// It may take bytes all the time and its socket ask for none: a socket asks for more once much of
// its buffer is free. How much is left in it tells sooner.
//
// Thread: its connection's.
#pragma once
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "http/pace.h"

namespace mc::http {

struct AnswerReader {
  explicit AnswerReader(const AnswerPace& p) : pace(p) {}
  static constexpr int kLooks = 4;  // in vain, until it counts as one that takes nothing
  bool ended = false;               // its sending side
  bool took = false;                // bytes, since the connection's timer was set
  AnswerPace pace;
  void wrote(size_t bytes) {  // to its socket
    pace.wrote(bytes);
    took = true;
    left_ = std::numeric_limits<int>::max();
    looks_ = 0;
  }
  // Some time passed in which its socket asked for nothing. True: for too long it took nothing.
  bool stands_still(int fd) {
    const int left = left_in(fd, std::numeric_limits<int>::max());
    looks_ = left < std::exchange(left_, left) ? 0 : looks_ + 1;
    return looks_ >= kLooks;
  }
  // Asked now and then while bytes wait for it. False: for long it took too few.
  bool keeps(int fd, Time now) {
    return pace.keeps(static_cast<uint64_t>(std::max(0, left_in(fd, 0))), now);
  }

 private:
  static int left_in(int fd, int unknown) {  // bytes that its system has not acknowledged
    int left = unknown;
    (void)ioctl(fd, SIOCOUTQ, &left);
    return left;
  }
  int left_ = std::numeric_limits<int>::max();  // bytes in the socket at the last look
  int looks_ = 0;                               // since it took a byte
};

}  // namespace mc::http
