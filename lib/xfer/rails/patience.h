// Pure: decides how long a queue pair may take over transfers that nobody wants any more. Cancelled
// transfers, and those that lost against a second attempt, mostly end by themselves, soon. To
// destroy their queue pair at once would send everything else on it again. So
//
//   - they are waited for, for a while: 20 ms, or twice what transfers take on this rail;
//   - then another queue pair takes over what comes, if there are others on this one, and it ends
//     once they are done, or nothing has completed for as long, or after half a second;
//   - without others it ends at once.
//
// Each time one ends for that, the next wait is twice as long, up to half a second: cancels,
// however many, cost a rail a few queue pairs a second at most. Every 2 s without halve it again.
//
// Thread: one at a time (its rail's mutex).
#pragma once
#include <algorithm>

#include "base/time.h"

namespace mc::xfer {

class Patience {
 public:
  static constexpr Duration kLeast = std::chrono::milliseconds(20);
  static constexpr Duration kMost = std::chrono::milliseconds(500);
  static constexpr Duration kForget = std::chrono::seconds(2);

  // A transfer ended well, `took` after it was posted; if nobody wanted it any more, `unwanted`
  // after that began to be so.
  void ended(Duration took) { usual_ += (took - usual_) / 8; }
  void ended_unwanted(Duration unwanted) {
    if (2 * unwanted < grown_) grown_ = std::max(kLeast, grown_ - grown_ / 8);
  }

  struct Pair {
    Time unwanted = Time::max();  // since when its oldest such transfer is; max: it has none
    Time heard{};                 // when something last completed on it
    bool others = false;          // it carries transfers that are wanted
  };
  enum class Verdict : uint8_t { kKeep, kReplace, kEnd };
  Verdict judge(const Pair& pair, Time now) {
    if (pair.unwanted == Time::max()) return Verdict::kKeep;
    for (; grown_ > kLeast && now - grew_ >= kForget; grew_ += kForget)
      grown_ = std::max(grown_ / 2, kLeast);
    if (now - pair.unwanted < wait()) return Verdict::kKeep;
    grown_ = std::min(2 * grown_, kMost);
    grew_ = now;
    return pair.others ? Verdict::kReplace : Verdict::kEnd;
  }
  // Of one that was replaced at `since`. True: it ends now.
  bool over(const Pair& pair, Time since, Time now) const {
    return !pair.others || now - since >= kMost || now - std::max(pair.heard, since) >= wait();
  }

 private:
  Duration wait() const { return std::min(std::max(grown_, 2 * usual_), kMost); }
  Duration usual_{}, grown_ = kLeast;
  Time grew_{};  // or was halved since
};

}  // namespace mc::xfer
