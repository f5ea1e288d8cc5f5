// Reads one call of a tool that is no JSON, byte by byte, and writes its arguments as JSON.
//
// Forms: qwen3_coder `<function=NAME>`, `<parameter=KEY>` VALUE `</parameter>` each, `</function>`,
// where VALUE may stand on lines of its own; glm45 NAME, `<arg_key>KEY</arg_key>` and
// `<arg_value>VALUE</arg_value>` each, `</tool_call>`.
//
// Values are written without their types: the tool's schema says them. What may be a text only goes
// on as it comes; others when they are complete, and are a text where they are of no type that the
// schema has. A call counts with its first argument's key, or with its end. Pure. Thread: values.
// Source: the chat templates of Qwen3-Coder and GLM 4.5.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "model/text/chat.h"
#include "serve/answers/call_scanner.h"

namespace mc::serve {

// What types of JSON an argument may have, by its name: bits. One that is not there is a text.
using ParameterTypes = std::map<std::string, uint8_t, std::less<>>;
using ToolTypes = std::map<std::string, ParameterTypes, std::less<>>;  // by tool
// Of a tool's `parameters`, a JSON schema.
ParameterTypes parameter_types(const Json& schema);

class XmlCallScanner final : public CallReader {
 public:
  static constexpr size_t kValueMax = 65536;  // a longer value is a text, whatever its type
  static constexpr size_t kSyntaxMax = 4096;  // between two values

  // Begins behind `<tool_call>`; `inside`: behind `<function=`. `names`, `types` outlive it.
  void begin(model::ToolCallFormat format, const Names& names, const ToolTypes& types, bool inside);
  State push(char c) override;
  void end() override;
  std::string take_rest() override { return std::move(syntax_); }

 private:
  enum class At : uint8_t { kOpen, kName, kBetween, kKey, kBehindKey, kValue };
  enum class Fit : uint8_t { kNone, kPart, kAll };
  Fit fit(std::string_view mark) const;
  std::string_view element(size_t end_bytes) const;
  void next(At at);
  State name_step(char c);
  State name_ends(std::string_view name);
  State between_step();
  State key_step(char c);
  State begin_value();
  State value_step(char c);
  void value_byte(char c);
  State value_ends();
  State finish();
  State no_call();
  bool glm() const { return format_ == model::ToolCallFormat::kGlm45; }

  model::ToolCallFormat format_ = model::ToolCallFormat::kNone;
  const Names* names_ = nullptr;
  const ToolTypes* types_ = nullptr;
  At at_ = At::kOpen;
  std::string syntax_;  // since the last value
  size_t from_ = 0;     // of it: where what is read now begins
  bool any_ = false;    // an argument
  std::string key_;
  uint8_t type_ = 0;                      // of the value
  bool streams_ = false, first_ = false;  // it goes on as it comes; nothing of it came yet
  std::string value_, held_;              // held_: what may be its end
};

}  // namespace mc::serve
