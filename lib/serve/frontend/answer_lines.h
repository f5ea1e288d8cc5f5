// Lets an engine's stream of server-sent events pass by whole lines, so that a stream that is cut
// has no half of one: what comes behind it would be a part of that line to the client.
//
// Thread: values.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace mc::serve {

class AnswerLines {
 public:
  // What may pass now. A line that is not complete is held back, unless it is long.
  std::string pass(std::string_view bytes) {
    const size_t end = bytes.find_last_of("\r\n");
    const size_t whole = end == bytes.npos ? 0 : end + 1;
    std::string out;
    if (whole > 0) out = std::exchange(held_, {}).append(bytes.substr(0, whole));
    held_.append(bytes.substr(whole));
    if (held_.size() > kHeldMax) out += std::exchange(held_, {});
    last_.append(out, out.size() - std::min(out.size(), kLast));
    last_.erase(0, last_.size() - std::min(last_.size(), kLast));
    return out;
  }
  std::string rest() { return std::exchange(held_, {}); }  // of a stream that ended well
  // Of one that did not: what ends the event that has begun to pass.
  std::string cut() {
    held_.clear();
    if (last_.empty() || last_.ends_with("\n\n") || last_.ends_with("\n\r\n")) return {};
    return last_.ends_with('\n') ? "\n" : "\n\n";
  }

 private:
  static constexpr size_t kHeldMax = 64 * 1024;  // bytes of a line
  static constexpr size_t kLast = 3;             // bytes that say whether an event has ended
  std::string held_, last_;
};

}  // namespace mc::serve
