// Finds the calls of tools in an answer's text as it comes. What looks like a call and is none
// comes as text; nothing is lost.
//
// A call counts once its name is known, is that of a tool of the request, and its arguments begin:
// from there they go on as they come, also where the model leaves them unfinished. The pieces,
// joined, do not depend on how the text was cut. White space around calls is dropped.
//
// Forms: hermes `<tool_call>{"name":, "arguments":}</tool_call>` (also Qwen); llama3
// `{"name":, "parameters":}` at the begin of an answer or behind `<|python_tag|>`, more of them
// behind `;`; mistral `[TOOL_CALLS]` with a list of such objects, or with NAME{..} or
// NAME[ARGS]{..}; qwen3_coder and glm45 (xml_call_scanner.h) within `<tool_call>`, the former also
// without it.
//
// Bounded: kHeldMax bytes are held back before a call counts, kCallsMax calls and kTriesMax
// failures; after these all is text. Pure. Thread: values.
// Source: the chat templates of Qwen 2.5, Hermes 2 Pro, Llama 3.1, Mistral Instruct, Qwen3-Coder
// and GLM 4.5.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/chat.h"
#include "serve/answers/call_scanner.h"
#include "serve/answers/xml_call_scanner.h"

namespace mc::serve {

struct ToolPiece {
  enum class Kind : uint8_t { kText, kCall, kArguments };
  Kind kind = Kind::kText;
  uint32_t call = 0;  // the nth of the answer
  std::string text;   // of kCall: the name
  std::string id{};   // of kCall
};

// What a request says of its tools.
struct ToolUse {
  std::set<std::string, std::less<>> names{};  // none: answers have no calls
  bool parallel = true;                        // more than one call in an answer
  ToolTypes types{};  // of arguments, where the model writes values without their types
};

class ToolStream {
 public:
  static constexpr size_t kHeldMax = 65536;
  static constexpr uint32_t kCallsMax = 128, kTriesMax = 256;

  // `tools` outlives it. `seed`: of the ids of calls.
  ToolStream(model::ToolCallFormat format, const ToolUse& tools, uint64_t seed)
      : format_(format), tools_(tools), seed_(seed) {}
  void push(std::string_view text, std::vector<ToolPiece>& out);
  void flush(std::vector<ToolPiece>& out);  // the answer has ended
  uint32_t calls() const { return calls_; }
  bool ended() const { return ended_; }  // no more is wanted of the answer

 private:
  enum class State : uint8_t { kText, kStart, kName, kBody, kBetween };
  void step(char c);
  void text_step(char c);
  void start_step(char c);
  void name_step(char c);
  void body_step(char c);
  void between_step(char c);
  void begin_body(char c, bool arguments_only);
  void begin_xml(bool inside);
  CallReader& reader();
  void no_call();
  void call_done();
  void back_to_text();
  void show(std::string_view text);
  void add(ToolPiece::Kind kind, std::string_view text);
  bool over() const { return calls_ >= kCallsMax || tries_ >= kTriesMax; }
  std::string new_id() const;

  const model::ToolCallFormat format_;
  const ToolUse& tools_;
  const uint64_t seed_;
  State state_ = State::kText;
  bool quiet_ = true;  // nothing but white space since the begin or the last call
  bool listed_ = false, ended_ = false, counted_ = false;  // counted_: the call of kBody
  std::string blank_;       // white space that is dropped if a call follows
  std::string held_;        // what may begin a mark
  std::string mark_, raw_;  // of a call that does not count yet: its mark, what follows
  std::string tail_;        // behind the arguments, or behind the call
  CallScanner scanner_;
  XmlCallScanner xml_;
  uint32_t calls_ = 0, tries_ = 0;
  std::string again_;  // to be read once more
  std::vector<ToolPiece>* out_ = nullptr;
};

}  // namespace mc::serve
