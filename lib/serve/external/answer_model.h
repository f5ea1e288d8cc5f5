// Puts the client's name for the model into an engine's answer as it passes; all else stays.
//
// The name stands in "model" of an answer, of each event of a stream, and of what these hold as
// "response" or "message". Bytes are held back only within such a value. An event may have several
// lines of data.
//
// Thread: values.
#pragma once
#include <string>
#include <string_view>
#include <utility>

namespace mc::serve {

class AnswerModel {
 public:
  AnswerModel(std::string theirs, std::string ours, bool events)
      : theirs_(std::move(theirs)), ours_(std::move(ours)), events_(events) {}
  std::string pass(std::string_view chunk);
  std::string rest() { return std::exchange(held_, {}); }  // of an answer that was cut

 private:
  static constexpr size_t kLevels = 2;      // of objects that are looked at
  static constexpr size_t kHeldMax = 4096;  // bytes of a name
  void begin_event();
  void take_of_line(char c, std::string& out);
  void take(char c, std::string& out);
  void take_in_string(char c, std::string& out);
  void end_string(std::string& out);
  bool names_model() const;

  std::string theirs_, ours_;
  bool events_;
  // Of an event's line: its bytes, up to where its data may begin; whether it has data; and the
  // byte before.
  size_t line_ = 0;
  bool data_ = true;
  char before_ = 0;
  size_t depth_ = 0;
  bool object_[kLevels + 1] = {};  // what is open at each depth is an object
  bool key_next_ = false, in_string_ = false, escaped_ = false, is_key_ = false, held_now_ = false;
  std::string outer_, key_;  // the last names of members at depth 1, and at the present one
  std::string held_;
};

}  // namespace mc::serve
