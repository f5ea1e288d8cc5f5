// Counts the events of a stream of server-sent events that have data, as its bytes pass.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <string_view>

namespace mc::serve {

class AnswerEvents {
 public:
  // How many lines `data: {..` begin in these bytes, wherever they are cut. Comments that only keep
  // a connection open, and the `[DONE]` at the end, are none.
  uint32_t pass(std::string_view bytes);

 private:
  static constexpr std::string_view kName = "data:";
  size_t at_ = 0;  // in the line, as long as it may be one
  bool may_ = true;
};

}  // namespace mc::serve
