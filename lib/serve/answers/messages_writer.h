// Writes answers in the form of Anthropic's messages.
//
// Thread: values. Source: Anthropic API reference, messages and their streams.
#pragma once
#include <string>
#include <string_view>

#include "serve/answers/answer_writer.h"

namespace mc::serve {

// {"type": "error", "error": {"type", "message"}}; the type follows from the status.
std::string messages_error_json(const ApiError& error);

class MessagesWriter : public AnswerWriter {
 public:
  MessagesWriter(const std::string& id, std::string model)
      : id_("msg_" + id), model_(std::move(model)) {}
  std::string chunk(const AnswerPart& part, const Usage& usage) override;
  std::string end(const Usage& usage, const Json& mc) override;
  std::string failed(const ApiError& error) override;
  std::string whole(std::span<const AnswerPart> choices, const Usage& usage,
                    const Json& mc) override;

 private:
  Json message(const Usage& usage) const;
  void open(std::string& out, bool text, Json block);
  void close(std::string& out);
  void delta(std::string& out, const char* type, const char* key, std::string_view text) const;

  const std::string id_, model_;
  bool begun_ = false, open_ = false, in_text_ = false;
  int index_ = -1;  // of the content block
  std::string finish_, stop_;
};

}  // namespace mc::serve
