// Writes completions and chats.
//
// Thread: values. Source: OpenAI API reference, completions and chat.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "serve/answers/answer_writer.h"

namespace mc::serve {

class OpenAiWriter : public AnswerWriter {
 public:
  OpenAiWriter(const std::string& id, std::string model, int64_t created, bool chat,
               bool include_usage, bool continuous_usage);
  std::string chunk(const AnswerPart& part, const Usage& usage) override;  // one event
  std::string end(const Usage& usage, const Json& mc) override;  // the usage, if wanted, and [DONE]
  std::string failed(const ApiError& error) override;
  std::string whole(std::span<const AnswerPart> choices, const Usage& usage,
                    const Json& mc) override;

 private:
  Json head(const char* completion, const char* chat) const;
  void append_delta(std::string& out, const AnswerPart& part);
  const std::string id_, model_;
  const int64_t created_;
  const bool chat_, include_usage_, continuous_usage_;
  std::string open_;         // how each event begins
  std::vector<bool> begun_;  // choices
};

}  // namespace mc::serve
