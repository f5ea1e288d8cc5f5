#include "serve/answers/tool_stream.h"

#include <algorithm>

#include "base/random.h"

namespace mc::serve {
namespace {

constexpr std::string_view kHermesEnd = "</tool_call>", kArgs = "[ARGS]", kCallId = "[CALL_ID]",
                           kBareCall = "<function=";  // qwen3_coder's, without its <tool_call>
constexpr size_t kNameHeldMax = 512;                  // bytes of NAME[CALL_ID]..[ARGS]

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-.:/[]").find(c) != std::string_view::npos;
}

// The name in front of arguments: NAME, NAME[ARGS] or NAME[CALL_ID]ID[ARGS]; "": none of these.
std::string_view bare_name(std::string_view text) {
  if (text.ends_with(kArgs)) text.remove_suffix(kArgs.size());
  text = text.substr(0, text.find(kCallId));
  return text.find_first_of("[]") == std::string_view::npos ? text : std::string_view();
}

}  // namespace

void ToolStream::push(std::string_view text, std::vector<ToolPiece>& out) {
  out_ = &out;
  for (const char c : text) {
    step(c);
    while (!again_.empty()) {
      const std::string more = std::exchange(again_, {});
      for (size_t i = 0; i < more.size(); ++i) {
        step(more[i]);
        if (!again_.empty()) {
          again_ += more.substr(i + 1);
          break;
        }
      }
    }
  }
}

void ToolStream::flush(std::vector<ToolPiece>& out) {
  out_ = &out;
  while (!ended_ && (state_ == State::kStart || state_ == State::kName ||
                     (state_ == State::kBody && !counted_))) {
    no_call();
    push(std::exchange(again_, {}), out);
  }
  if (!ended_ && state_ == State::kBody) {
    reader().end();
    add(ToolPiece::Kind::kArguments, reader().take_arguments());
  }
  if (ended_ || state_ != State::kText) return;  // what is left of a call is its syntax
  const std::string held = std::exchange(held_, {});
  if (!held.empty()) show(held);
  if (calls_ == 0) add(ToolPiece::Kind::kText, blank_);
}

void ToolStream::step(char c) {
  if (ended_) return;
  switch (state_) {
    case State::kText: return text_step(c);
    case State::kStart: return start_step(c);
    case State::kName: return name_step(c);
    case State::kBody: return body_step(c);
    case State::kBetween: return between_step(c);
  }
}

void ToolStream::text_step(char c) {
  const auto marks = model::tool_call_marks(format_);
  if (over() || marks.empty()) return show({&c, 1});
  const std::string_view mark = marks[0];
  if (format_ == model::ToolCallFormat::kLlama3 && c == '{' && quiet_ && calls_ == 0 &&
      held_.empty() && tries_ == 0) {
    mark_.clear();
    raw_.clear();
    return begin_body(c, false);
  }
  const std::string_view other = format_ == model::ToolCallFormat::kQwen3Coder ? kBareCall : mark;
  held_ += c;
  while (!held_.empty() && !mark.starts_with(held_) && !other.starts_with(held_)) {
    const char first = held_[0];
    held_.erase(0, 1);
    show({&first, 1});
  }
  if (held_ != mark && held_ != other) return;
  mark_ = std::exchange(held_, {});
  raw_.clear();
  listed_ = false;
  state_ = State::kStart;
  if (model::calls_in_xml(format_)) begin_xml(mark_ == kBareCall);
}

// Behind a mark.
void ToolStream::start_step(char c) {
  const bool mistral = format_ == model::ToolCallFormat::kMistral;
  if (c == '{') return begin_body(c, false);
  raw_ += c;
  if (is_blank(c) && raw_.size() < kNameHeldMax) return;
  if (mistral && c == '[' && !listed_) {
    listed_ = true;
  } else if (mistral && of_name(c) && !listed_) {
    state_ = State::kName;
  } else {
    no_call();
  }
}

void ToolStream::name_step(char c) {
  if (c == '{') return begin_body(c, true);
  raw_ += c;
  if (!of_name(c) || raw_.size() > kNameHeldMax) no_call();
}

void ToolStream::begin_body(char c, bool arguments_only) {
  std::string_view name;
  if (arguments_only) {
    name = bare_name(
        std::string_view(raw_).substr(std::min(raw_.find_first_not_of(" \n\r\t"), raw_.size())));
    if (!tools_.names.contains(name)) {
      raw_ += c;
      return no_call();
    }
  }
  scanner_.begin(tools_.names, name);
  state_ = State::kBody;
  counted_ = false;
  tail_.clear();
  body_step(c);
}

void ToolStream::begin_xml(bool inside) {
  xml_.begin(format_, tools_.names, tools_.types, inside);
  state_ = State::kBody;
  counted_ = false;
  tail_.clear();
}

CallReader& ToolStream::reader() {
  if (model::calls_in_xml(format_)) return xml_;
  return scanner_;
}

void ToolStream::body_step(char c) {
  CallReader& call = reader();
  const bool behind = call.arguments_done();
  const auto result = call.push(c);
  if (behind) tail_ += c;
  if (!counted_) raw_ += c;
  if (!counted_ && call.counts()) {
    counted_ = true;
    raw_.clear();
    blank_.clear();
    quiet_ = true;
    ++calls_;
    add(ToolPiece::Kind::kCall, call.name());
  }
  if (counted_) add(ToolPiece::Kind::kArguments, call.take_arguments());
  if (result == CallReader::State::kDone) return call_done();
  if (result != CallReader::State::kNo && raw_.size() <= kHeldMax && tail_.size() <= kHeldMax)
    return;
  if (!counted_) return no_call();
  tail_ += call.take_rest();
  back_to_text();
}

void ToolStream::call_done() {
  ended_ = !tools_.parallel;
  tail_.clear();
  state_ = State::kBetween;
  const bool whole = format_ == model::ToolCallFormat::kGlm45 ||
                     (format_ == model::ToolCallFormat::kMistral && !listed_);
  if (whole) state_ = State::kText;
}

// Behind a call: its end, or the next one.
void ToolStream::between_step(char c) {
  tail_ += c;
  const bool blank = is_blank(c), hermes = format_ == model::ToolCallFormat::kHermes ||
                                           format_ == model::ToolCallFormat::kQwen3Coder;
  if (tail_.size() > kNameHeldMax || over()) return back_to_text();
  const size_t begin = std::min(tail_.find_first_not_of(" \n\r\t"), tail_.size());
  const std::string_view said = std::string_view(tail_).substr(begin);
  if (hermes) {
    if (said == kHermesEnd) {
      tail_.clear();
      state_ = State::kText;
    } else if (!kHermesEnd.starts_with(said)) {
      back_to_text();
    }
    return;
  }
  if (listed_ && said == "]") {
    tail_.clear();
    state_ = State::kText;
    return;
  }
  const char comma = listed_ ? ',' : ';';
  const bool separated = said.starts_with(comma);
  if (c == '{' && (separated || !listed_)) {
    mark_.clear();
    raw_ = tail_.substr(0, tail_.size() - 1);
    return begin_body(c, false);
  }
  if (!blank && !(said.size() == 1 && separated)) back_to_text();
}

void ToolStream::back_to_text() {
  state_ = State::kText;
  again_ = std::exchange(tail_, {}) + again_;
}

// What was held back is text after all; another call may begin within it.
void ToolStream::no_call() {
  ++tries_;
  state_ = State::kText;
  std::string raw = std::exchange(raw_, {});
  if (mark_.empty() && !raw.empty()) {
    mark_ = raw.substr(0, 1);
    raw.erase(0, 1);
  }
  show(std::exchange(mark_, {}));
  again_ = std::move(raw) + again_;
}

void ToolStream::show(std::string_view text) {
  for (const char c : text) {
    if (quiet_ && is_blank(c) && blank_.size() < kHeldMax) {
      blank_ += c;
      continue;
    }
    quiet_ = false;
    if (!blank_.empty()) add(ToolPiece::Kind::kText, std::exchange(blank_, {}));
    add(ToolPiece::Kind::kText, {&c, 1});
  }
}

void ToolStream::add(ToolPiece::Kind kind, std::string_view text) {
  if (text.empty()) return;
  const uint32_t call = kind == ToolPiece::Kind::kText ? 0 : calls_ - 1;
  if (kind != ToolPiece::Kind::kCall && !out_->empty() && out_->back().kind == kind &&
      out_->back().call == call) {
    out_->back().text += text;
    return;
  }
  out_->push_back({kind, call, std::string(text), ""});
  if (kind == ToolPiece::Kind::kCall) out_->back().id = new_id();
}

// Mistral's templates want nine letters and digits.
std::string ToolStream::new_id() const {
  static constexpr std::string_view kLetters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const bool mistral = format_ == model::ToolCallFormat::kMistral;
  std::string id = mistral ? "" : "call_";
  uint64_t bits = mix64(seed_ + calls_);
  for (size_t n = mistral ? 9 : 22; n > 0; --n) {
    id += kLetters[bits % kLetters.size()];
    bits = n == 12 ? mix64(seed_ ^ mix64(calls_)) : bits / kLetters.size();
  }
  return id;
}

}  // namespace mc::serve
