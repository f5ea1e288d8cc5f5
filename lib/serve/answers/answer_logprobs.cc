#include "serve/answers/answer_logprobs.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/result.h"
#include "model/tokens/text.h"

namespace mc::serve {
namespace {

bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t n = model::character_size(bytes);
    if (n == 0) return false;
    bytes.remove_prefix(n);
  }
  return true;
}

Json bytes_json(std::string_view text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

}  // namespace

uint64_t characters_in(std::string_view text) {
  uint64_t n = 0;
  for (; !text.empty(); ++n) text.remove_prefix(std::max<size_t>(1, model::character_size(text)));
  return n;
}

void AnswerLogprobs::add(int32_t token, TokenLogprobs logprobs) {
  added_.push_back({token, std::move(logprobs)});
}

Json AnswerLogprobs::take() {
  Json all = form_.chat ? of_chat() : of_completion();
  added_.clear();
  return all;
}

std::string AnswerLogprobs::text(int32_t token) const {
  if (form_.token_ids) return strf("token_id:%d", token);
  const std::string_view bytes = tokenizer_.special(token) && tokenizer_.bytes(token).empty()
                                     ? tokenizer_.piece(token)
                                     : tokenizer_.bytes(token);
  if (is_text(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char c : bytes) name += strf("\\x%02x", static_cast<uint8_t>(c));
  return name;
}

Json AnswerLogprobs::of_chat() const {
  const auto entry = [&](int32_t token, double logprob) {
    return Json{{"token", text(token)},
                {"logprob", logprob},
                {"bytes", bytes_json(tokenizer_.bytes(token))}};
  };
  Json content = Json::array();
  for (const Added& a : added_) {
    Json top = Json::array();
    for (size_t i = 0; i < a.logprobs.top.size(); ++i)
      top.push_back(entry(a.logprobs.top[i], a.logprobs.top_logprobs[i]));
    Json one = entry(a.token, a.logprobs.logprob);
    one["top_logprobs"] = std::move(top);
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The token itself is among its `top_logprobs`, also where it is none of the likeliest.
Json AnswerLogprobs::of_completion() {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (const Added& a : added_) {
    Json top = Json::object();
    for (size_t i = 0; i < a.logprobs.top.size(); ++i)
      top[text(a.logprobs.top[i])] = a.logprobs.top_logprobs[i];
    const std::string name = text(a.token);
    top[name] = a.logprobs.logprob;
    tokens.push_back(name);
    logprobs.push_back(a.logprobs.logprob);
    tops.push_back(std::move(top));
    offsets.push_back(offset_);
    offset_ += characters_in(tokenizer_.bytes(a.token));
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(tokens)},
          {"top_logprobs", std::move(tops)}};
}

}  // namespace mc::serve
