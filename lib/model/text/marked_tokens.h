// Tokens that are found in a text as they are written, before it is cut: added and special ones.
//
// Thread: const calls, any.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mc::model {

class MarkedTokens {
 public:
  struct Mark {
    std::string text;
    int32_t token = 0;
    bool takes_left = false, takes_right = false;  // the white space beside it
  };
  void add(Mark mark);  // an empty text is none
  void sort();          // once all are added
  // The longest that a text starts with; null: none.
  const Mark* at(std::string_view text) const;
  bool empty() const { return by_first_.empty(); }

 private:
  std::unordered_map<char, std::vector<Mark>> by_first_;  // byte; longest first
};

}  // namespace mc::model
