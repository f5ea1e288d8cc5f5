#include "serve/answers/call_scanner.h"

#include "base/json.h"

namespace mc::serve {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool in_literal(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '+' || c == '-' || c == '.' ||
         c == 'E';
}

}  // namespace

void CallScanner::begin(const Names& names, std::string_view name) {
  *this = CallScanner();
  names_ = &names;
  if (name.empty()) return;
  name_ = name;
  only_arguments_ = counts_ = streams_ = true;
  at_ = At::kValue;
  key_ = "arguments";
}

CallScanner::State CallScanner::push(char c) {
  const bool between = at_ != At::kInKey && at_ != At::kNested && at_ != At::kString;
  if (between && is_space(c) && at_ != At::kLiteral) return State::kGoing;
  switch (at_) {
    case At::kOpen: at_ = At::kKey; return c == '{' ? State::kGoing : State::kNo;
    case At::kKey:
      if (c == '}') return finish();
      key_.clear();
      at_ = At::kInKey;
      return c == '"' ? State::kGoing : State::kNo;
    case At::kInKey:
      if (c == '"' && !escaped_)
        at_ = At::kColon;
      else
        key_ += c;
      escaped_ = c == '\\' && !escaped_;
      return State::kGoing;
    case At::kColon: at_ = At::kValue; return c == ':' ? State::kGoing : State::kNo;
    case At::kValue: return value_begins(c);
    case At::kNested:
      (streams_ ? fresh_ : value_) += c;
      if (in_string_) {
        in_string_ = c != '"' || escaped_;
        escaped_ = c == '\\' && !escaped_;
        return State::kGoing;
      }
      in_string_ = c == '"';
      if (c == '{' || c == '[') ++depth_;
      if (c == '}' || c == ']') --depth_;
      return depth_ == 0 ? value_ends() : State::kGoing;
    case At::kString:
      value_ += c;
      if (c == '"' && !escaped_) return value_ends();
      escaped_ = c == '\\' && !escaped_;
      return State::kGoing;
    case At::kLiteral:
      if (in_literal(c)) {
        value_ += c;
        return State::kGoing;
      }
      if (value_ends() == State::kNo) return State::kNo;
      return push(c);
    case At::kAfter:
      if (c == '}') return finish();
      at_ = At::kKey;
      return c == ',' ? State::kGoing : State::kNo;
  }
  return State::kNo;
}

CallScanner::State CallScanner::value_begins(char c) {
  value_ = c;
  in_string_ = escaped_ = false;
  if (c == '{' || c == '[') {
    at_ = At::kNested;
    depth_ = 1;
    if (only_arguments_ || (c == '{' && of_arguments() && !name_.empty() && !counts_)) {
      counts_ = streams_ = true;
      fresh_ = c;
    }
    return State::kGoing;
  }
  at_ = c == '"' ? At::kString : At::kLiteral;
  return c == '"' || in_literal(c) ? State::kGoing : State::kNo;
}

CallScanner::State CallScanner::value_ends() {
  at_ = At::kAfter;
  escaped_ = false;
  if (streams_) {
    streams_ = false;
    arguments_done_ = true;
    return only_arguments_ ? State::kDone : State::kGoing;
  }
  if (counts_) return State::kGoing;  // of a second member of that name too
  if (key_ == "name") return name_ends();
  return of_arguments() ? arguments_end() : State::kGoing;
}

CallScanner::State CallScanner::name_ends() {
  const auto text = parse_json(value_);
  if (!name_.empty() || !text || !text->is_string()) return State::kNo;
  name_ = text->get<std::string>();
  if (!names_->contains(name_)) return State::kNo;
  if (waiting_.empty()) return State::kGoing;
  fresh_ = std::move(waiting_);
  counts_ = arguments_done_ = true;
  return State::kGoing;
}

// Arguments that did not go on as they came.
CallScanner::State CallScanner::arguments_end() {
  auto json = parse_json(value_);
  if (!waiting_.empty() || !json) return State::kNo;
  if (json->is_string()) {
    value_ = json->get<std::string>();
    json = parse_json(value_);
  }
  if (json && json->is_null()) return State::kGoing;
  if (!json || !json->is_object()) return State::kNo;
  waiting_ = value_;
  if (name_.empty()) return State::kGoing;
  fresh_ = std::move(waiting_);
  counts_ = arguments_done_ = true;
  return State::kGoing;
}

CallScanner::State CallScanner::finish() {
  if (counts_) return State::kDone;
  if (name_.empty()) return State::kNo;
  fresh_ = "{}";
  counts_ = arguments_done_ = true;
  return State::kDone;
}

}  // namespace mc::serve
