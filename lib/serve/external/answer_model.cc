#include "serve/external/answer_model.h"

#include "base/json.h"

namespace mc::serve {
namespace {
constexpr size_t kKeyMax = 16;  // longer names of members are of no interest
constexpr std::string_view kData = "data:";
}  // namespace

void AnswerModel::begin_event() {
  depth_ = 0;
  key_next_ = in_string_ = escaped_ = is_key_ = held_now_ = false;
}

bool AnswerModel::names_model() const {
  if (key_ != "model") return false;
  return depth_ == 1 || (depth_ == 2 && (outer_ == "response" || outer_ == "message"));
}

void AnswerModel::end_string(std::string& out) {
  in_string_ = false;
  if (is_key_ && depth_ == 1) outer_ = key_;
  is_key_ = false;
  if (!std::exchange(held_now_, false)) return;
  const auto name = parse_json(held_);
  if (name && name->is_string() && name->get_ref<const std::string&>() == theirs_)
    append_quoted(out, ours_);
  else
    out += held_;
  held_.clear();
}

void AnswerModel::take_in_string(char c, std::string& out) {
  const bool ends = c == '"' && !escaped_;
  escaped_ = c == '\\' && !escaped_;
  if (is_key_ && !ends && key_.size() < kKeyMax) key_ += c;
  (held_now_ ? held_ : out) += c;
  if (held_now_ && held_.size() > kHeldMax) {
    held_now_ = false;
    out += rest();
  }
  if (ends) end_string(out);
}

void AnswerModel::take(char c, std::string& out) {
  if (in_string_) return take_in_string(c, out);
  const bool seen = depth_ <= kLevels;
  switch (c) {
    case '"':
      in_string_ = true;
      is_key_ = depth_ > 0 && seen && std::exchange(key_next_, false);
      if (is_key_) key_.clear();
      held_now_ = depth_ > 0 && seen && !is_key_ && object_[depth_] && names_model();
      (held_now_ ? held_ : out) += c;
      return;
    case '{':
    case '[':
      if (++depth_ <= kLevels) {
        object_[depth_] = key_next_ = c == '{';
        key_.clear();
      }
      break;
    case '}':
    case ']':
      if (depth_ > 0) --depth_;
      key_next_ = false;
      break;
    case ',': key_next_ = depth_ > 0 && seen && object_[depth_]; break;
    default: break;
  }
  out += c;
}

std::string AnswerModel::pass(std::string_view chunk) {
  std::string out;
  out.reserve(chunk.size() + 64);
  for (const char c : chunk) {
    if (events_)
      take_of_line(c, out);
    else
      take(c, out);
  }
  return out;
}

// The data of an event is that of all its lines, and an empty line ends it.
void AnswerModel::take_of_line(char c, std::string& out) {
  const bool of_end = c == '\n' && before_ == '\r';  // of a line that was over
  before_ = c;
  if (!of_end && (c == '\n' || c == '\r')) {
    out += rest() + c;
    if (line_ == 0) begin_event();
    in_string_ = escaped_ = is_key_ = held_now_ = false;  // no string goes on in another line
    line_ = 0;
    data_ = true;
  } else if (!of_end && line_ < kData.size()) {
    data_ = data_ && c == kData[line_++];
    if (!data_) line_ = kData.size();
    out += c;
  } else if (!of_end && data_) {
    take(c, out);
  } else {
    out += c;
  }
}

}  // namespace mc::serve
