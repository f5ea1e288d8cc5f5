// Writes answers in the form of OpenAI's responses.
//
// Thread: values. Source: OpenAI API reference, responses and their streaming events.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "serve/answers/answer_writer.h"

namespace mc::serve {

// What an answer repeats of its request, a JSON object, for ResponsesWriter.
std::string response_echo(const Json& request);

class ResponsesWriter : public AnswerWriter {
 public:
  // `echo`: by response_echo().
  ResponsesWriter(const std::string& id, std::string model, int64_t created, std::string echo)
      : id_(id), model_(std::move(model)), echo_(std::move(echo)), created_(created) {}
  std::string chunk(const AnswerPart& part, const Usage& usage) override;
  std::string end(const Usage& usage, const Json& mc) override;
  std::string failed(const ApiError& error) override;
  std::string whole(std::span<const AnswerPart> choices, const Usage& usage,
                    const Json& mc) override;

 private:
  enum class Open : uint8_t { kNone, kText, kCall };
  std::string take(const AnswerPart& part);
  void say(std::string& out, std::string_view text);
  void open_call(std::string& out, const ToolPiece& piece);
  void close(std::string& out);
  std::string item_id() const;
  Json item(const char* status) const;  // the open one
  Json response(const char* status) const;
  Json ended(const Usage& usage, const Json& mc) const;
  std::string event(const char* type, const Json& members);

  const std::string id_, model_, echo_;
  const int64_t created_;
  uint64_t sequence_ = 0, items_ = 0;  // events so far; items that are closed
  Open open_ = Open::kNone;
  std::string text_, call_, name_;  // of the open item: text or arguments; id and name of a call
  std::string output_;              // closed items, JSON with commas
  std::string finish_;
  bool begun_ = false;
};

}  // namespace mc::serve
