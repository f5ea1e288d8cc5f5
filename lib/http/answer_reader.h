// The client of a connection, as who reads its answers.
//
// It may take bytes all the time and its socket ask for none: a socket asks for more once much of
// its buffer is free. How much is left in it tells sooner.
//
// Thread: its connection's.
#pragma once
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <limits>
#include <utility>

namespace mc::http {

struct AnswerReader {
  static constexpr int kLooks = 4;  // in vain, until it counts as one that takes nothing
  bool ended = false;               // its sending side
  bool took = false;                // bytes, since the connection's timer was set
  void wrote() {                    // to its socket
    took = true;
    left_ = std::numeric_limits<int>::max();
    looks_ = 0;
  }
  // Some time passed in which its socket asked for nothing. True: for too long it took nothing.
  bool stands_still(int fd) {
    int left = std::numeric_limits<int>::max();
    (void)ioctl(fd, SIOCOUTQ, &left);
    looks_ = left < std::exchange(left_, left) ? 0 : looks_ + 1;
    return looks_ >= kLooks;
  }

 private:
  int left_ = std::numeric_limits<int>::max();  // bytes in the socket at the last look
  int looks_ = 0;                               // since it took a byte
};

}  // namespace mc::http
