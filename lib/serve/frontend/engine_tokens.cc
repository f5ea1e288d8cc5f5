#include "serve/frontend/engine_tokens.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "serve/frontend/text_work.h"

namespace mc::serve {
namespace {

constexpr size_t kQuestionMax = 4 * kMiB;
constexpr Bytes kTokensMax{32 * kMiB};  // of an answer
constexpr size_t kKeptOverhead = 256;
constexpr Duration kAnswerMax = std::chrono::seconds(5);
constexpr Duration kAbsentFor = std::chrono::minutes(1), kFailedFor = std::chrono::seconds(2);
// What a chat's tokens depend on, as /tokenize takes it.
constexpr std::array kChatMembers = {
    "messages",           "tools",         "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "chat_template", "media_io_kwargs",       "mm_processor_kwargs"};
constexpr std::array kTextMembers = {"prompt", "add_special_tokens"};

// Parts of a message that are no text, as vLLM names their members.
constexpr std::array<std::string_view, 8> kMediaMembers = {
    "\"image_url\"", "\"image_embeds\"", "\"audio_url\"", "\"audio_embeds\"",
    "\"video_url\"", "\"input_audio\"",  "\"image_pil\"", "\"input_image\""};

// A chat's chat_template_kwargs, with what an engine makes of its reasoning_effort: /tokenize does
// not take that itself. Empty: there are none.
std::string template_variables(const JsonText& body) {
  const std::string_view given = body.find("chat_template_kwargs").value_or("");
  const auto effort = body.find_string("reasoning_effort");
  auto variables = parse_json(given.empty() ? "{}" : given);
  if (!effort || !variables || !variables->is_object()) return std::string(given);
  if (!variables->contains("enable_thinking")) (*variables)["enable_thinking"] = *effort != "none";
  (*variables)["reasoning_effort"] = *effort;
  return dump_json(*variables);
}

std::vector<int32_t> tokens_in(const Json* list) {
  if (list == nullptr || !list->is_array()) return {};
  std::vector<int32_t> tokens;
  tokens.reserve(list->size());
  for (const Json& t : *list) {
    if (!t.is_number_unsigned() || t.get<uint64_t>() > INT32_MAX) return {};
    tokens.push_back(t.get<int32_t>());
  }
  return tokens;
}

// Nothing where its names and its places do not agree.
std::optional<std::vector<MediaItem>> media_in(const Json& rendered, size_t tokens) {
  const Json* const features = member(rendered, "features");
  std::vector<MediaItem> all;
  if (features == nullptr || features->is_null()) return all;
  const Json* const names = member(*features, "mm_hashes");
  const Json* const places = member(*features, "mm_placeholders");
  if (names == nullptr || !names->is_object() || places == nullptr) return std::nullopt;
  for (const auto& [kind, list] : names->items()) {
    const Json* const at = member(*places, kind.c_str());
    if (at == nullptr || !list.is_array() || !at->is_array() || list.size() != at->size())
      return std::nullopt;
    for (size_t i = 0; i < list.size(); ++i) {
      const Json* const begin = member((*at)[i], "offset");
      const Json* const length = member((*at)[i], "length");
      if (!list[i].is_string() || begin == nullptr || !begin->is_number_unsigned() ||
          length == nullptr || !length->is_number_unsigned() || begin->get<uint64_t>() > tokens ||
          length->get<uint64_t>() > tokens)
        return std::nullopt;
      all.push_back({list[i].get<std::string>(), begin->get<uint64_t>(), length->get<uint64_t>()});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const MediaItem& a, const MediaItem& b) { return a.begin < b.begin; });
  return all;
}

EnginePrompt prompt_in(const std::string& body, bool media) {
  const auto json = parse_json(body);
  if (!json) return {};
  EnginePrompt prompt;
  prompt.tokens = tokens_in(member(*json, media ? "token_ids" : "tokens"));
  if (!media) return prompt;
  auto items = media_in(*json, prompt.tokens.size());
  if (!items) return {};
  prompt.media = std::move(*items);
  return prompt;
}

size_t bytes_of(const EnginePrompt& prompt) {
  size_t bytes = 4 * prompt.tokens.size() + kKeptOverhead;
  for (const MediaItem& item : prompt.media) bytes += sizeof item + item.name.size();
  return bytes;
}

}  // namespace

std::optional<TokenQuestion> token_question(const JsonText& body, bool chat,
                                            const std::string& model, const std::string& adapter) {
  TokenQuestion q;
  const auto put = [&](const char* name, std::string_view value) {
    if (value.empty()) return;
    if (!q.members.empty()) q.members += ',';
    append_quoted(q.members, name);
    q.members.append(":").append(value);
  };
  const auto add = [&](const char* name) { put(name, body.find(name).value_or("")); };
  const auto text = body.find(chat ? "messages" : "prompt");
  if (!text || text->size() > kQuestionMax || !text->starts_with(chat ? '[' : '"'))
    return std::nullopt;
  if (chat) {
    std::for_each(kChatMembers.begin(), kChatMembers.end(), add);
    put("chat_template_kwargs", template_variables(body));
  } else {
    std::for_each(kTextMembers.begin(), kTextMembers.end(), add);
  }
  q.media = chat && std::any_of(kMediaMembers.begin(), kMediaMembers.end(),
                                [&](auto name) { return text->find(name) != text->npos; });
  q.model = model;
  q.adapter = adapter;
  const std::string whole = model + '\0' + adapter + '\0' + q.members;
  q.key = sha256(std::as_bytes(std::span(whole)));
  return q;
}

EngineTokens::EngineTokens(io::Loop& loop, ExternalEngines& engines, TextPool& pool, Duration wait)
    : loop_(loop), engines_(engines), pool_(pool), wait_(wait) {}

EngineTokens::~EngineTokens() {
  for (const auto& [key, asked] : under_way_)
    if (asked.http != 0) engines_.client().cancel(asked.http);
}

// The next in turn of those that can be asked.
ExternalEngine* EngineTokens::engine_for(const std::string& model, const std::string& adapter,
                                         bool media) const {
  const auto fits = [&](const ExternalEngine& e) {
    return e.up && e.options.serves == model &&
           loop_.now() >= (media ? e.no_render_until : e.no_tokens_until) &&
           (adapter.empty() || e.adapters.contains(adapter));
  };
  ExternalEngine *first = nullptr, *next = nullptr;
  for (const auto& [name, e] : engines_.all()) {
    if (!fits(*e)) continue;
    if (first == nullptr) first = e.get();
    if (next == nullptr && name > last_) next = e.get();
  }
  return next != nullptr ? next : first;
}

void EngineTokens::get(const TokenQuestion& question, size_t owner, Then then) {
  if (const auto known = by_key_.find(question.key); known != by_key_.end()) {
    if (holds(known->second->from)) {
      kept_.splice(kept_.begin(), kept_, known->second);
      return then(known->second->prompt);
    }
    forget(known->second);
  }
  if (const auto asked = under_way_.find(question.key); asked != under_way_.end()) {
    if (asked->second.late) return then({});
    return asked->second.waiting.push_back(std::move(then));
  }
  ExternalEngine* const e =
      wait_.count() > 0 ? engine_for(question.model, question.adapter, question.media) : nullptr;
  if (e == nullptr || under_way_.size() >= kUnderWayMax) return then({});
  last_ = e->options.name;
  const bool media = question.media;
  http::ClientRequest r = e->request("POST", media ? "/v1/chat/completions/render" : "/tokenize");
  r.headers.push_back({"content-type", "application/json"});
  r.body = "{\"model\":";
  append_quoted(r.body, question.adapter.empty() ? e->options.model : question.adapter);
  // Without what the pictures were made into: vLLM's name for that, and its older one.
  if (media) r.body += R"(,"mm_payload":"none","return_mm_kwargs":false)";
  r.body += ',' + question.members + '}';
  r.timeout = kAnswerMax;
  r.answer_max = kTokensMax;
  UnderWay& asked = under_way_[question.key];
  asked.waiting.push_back(std::move(then));
  asked.asked = {e->options.name, e->start};
  asked.owner = owner;
  asked.media = media;
  http::ClientCallbacks calls;
  calls.on_done = [this, key = question.key](const Result<http::ClientResponse>& answer) {
    answered(key, answer);
  };
  asked.http = engines_.client().send(std::move(r), std::move(calls));
  loop_.after(wait_, [this, alive = std::weak_ptr<bool>(alive_), key = question.key] {
    if (!alive.expired()) give_up(key);
  });
}

// Those that wait go on without; the answer is kept when it comes.
void EngineTokens::give_up(const Digest& key) {
  const auto it = under_way_.find(key);
  if (it == under_way_.end() || it->second.late) return;
  it->second.late = true;
  for (const Then& then : std::exchange(it->second.waiting, {})) then({});
}

void EngineTokens::answered(const Digest& key, const Result<http::ClientResponse>& answer) {
  const auto it = under_way_.find(key);
  if (it == under_way_.end()) return;
  it->second.http = 0;
  const bool media = it->second.media;
  const int status = answer ? answer->status : 0;
  if (ExternalEngine* const e = engines_.find(it->second.asked.engine);
      e != nullptr && status != 200) {
    const bool absent = status == 404 || status == 405 || status == 501;
    const bool refused = status / 100 == 4 && !absent;  // this text, or our key
    if (!refused)
      (media ? e->no_render_until : e->no_tokens_until) =
          loop_.now() + (absent ? kAbsentFor : kFailedFor);
  }
  if (status != 200) return done(key, {});
  if (answer->body.size() <= TextWork::kShort) return done(key, prompt_in(answer->body, media));
  const auto text = std::make_shared<std::string>(answer->body);
  const auto prompt = std::make_shared<EnginePrompt>();
  const auto job = pool_.submit(
      it->second.owner, text->size(), [text, prompt, media] { *prompt = prompt_in(*text, media); },
      [this, key, prompt] { done(key, std::move(*prompt)); });
  if (!job) done(key, {});
}

void EngineTokens::done(const Digest& key, EnginePrompt prompt) {
  auto node = under_way_.extract(key);
  if (node.empty()) return;
  if (!prompt.tokens.empty()) keep(key, prompt, node.mapped().asked);
  for (const Then& then : node.mapped().waiting) then(prompt);
}

void EngineTokens::keep(const Digest& key, const EnginePrompt& prompt, const Source& from) {
  if (by_key_.contains(key) || bytes_of(prompt) > kCacheBytes) return;
  kept_.push_front({key, prompt, from});
  by_key_[key] = kept_.begin();
  kept_bytes_ += bytes_of(prompt);
  while (kept_bytes_ > kCacheBytes) forget(std::prev(kept_.end()));
}

// Of one that is gone nobody knows better.
bool EngineTokens::holds(const Source& from) const {
  const ExternalEngine* const e = engines_.find(from.engine);
  return e == nullptr || e->start == from.start;
}

void EngineTokens::forget(std::list<Kept>::iterator kept) {
  kept_bytes_ -= bytes_of(kept->prompt);
  by_key_.erase(kept->key);
  kept_.erase(kept);
}

}  // namespace mc::serve
