#include "serve/external/answer_events.h"

namespace mc::serve {

uint32_t AnswerEvents::pass(std::string_view bytes) {
  uint32_t begun = 0;
  for (const char c : bytes) {
    if (c == '\n' || c == '\r') {
      at_ = 0;
      may_ = true;
    } else if (may_ && at_ < kName.size()) {
      may_ = c == kName[at_++];
    } else if (may_ && c != ' ') {
      if (c == '{') ++begun;
      may_ = false;
    }
  }
  return begun;
}

}  // namespace mc::serve
