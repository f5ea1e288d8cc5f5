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
    "add_special_tokens", "chat_template", "chat_template_kwargs",  "media_io_kwargs",
    "mm_processor_kwargs"};
constexpr std::array kTextMembers = {"prompt", "add_special_tokens"};

std::vector<int32_t> tokens_in(const std::string& body) {
  const auto json = parse_json(body);
  const Json* const list = json ? member(*json, "tokens") : nullptr;
  if (list == nullptr || !list->is_array()) return {};
  std::vector<int32_t> tokens;
  tokens.reserve(list->size());
  for (const Json& t : *list) {
    if (!t.is_number_unsigned() || t.get<uint64_t>() > INT32_MAX) return {};
    tokens.push_back(t.get<int32_t>());
  }
  return tokens;
}

}  // namespace

std::optional<TokenQuestion> token_question(const JsonText& body, bool chat,
                                            const std::string& model, const std::string& adapter) {
  TokenQuestion q;
  const auto add = [&](const char* name) {
    const auto value = body.find(name);
    if (!value) return;
    if (!q.members.empty()) q.members += ',';
    append_quoted(q.members, name);
    q.members.append(":").append(*value);
  };
  const auto text = body.find(chat ? "messages" : "prompt");
  if (!text || text->size() > kQuestionMax || !text->starts_with(chat ? '[' : '"'))
    return std::nullopt;
  if (chat)
    std::for_each(kChatMembers.begin(), kChatMembers.end(), add);
  else
    std::for_each(kTextMembers.begin(), kTextMembers.end(), add);
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
ExternalEngine* EngineTokens::engine_for(const std::string& model,
                                         const std::string& adapter) const {
  const auto fits = [&](const ExternalEngine& e) {
    return e.up && e.options.serves == model && loop_.now() >= e.no_tokens_until &&
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
    kept_.splice(kept_.begin(), kept_, known->second);
    return then(known->second->tokens);
  }
  if (const auto asked = under_way_.find(question.key); asked != under_way_.end()) {
    if (asked->second.late) return then({});
    return asked->second.waiting.push_back(std::move(then));
  }
  ExternalEngine* const e =
      wait_.count() > 0 ? engine_for(question.model, question.adapter) : nullptr;
  if (e == nullptr || under_way_.size() >= kUnderWayMax) return then({});
  last_ = e->options.name;
  http::ClientRequest r = e->request("POST", "/tokenize");
  r.headers.push_back({"content-type", "application/json"});
  r.body = "{\"model\":";
  append_quoted(r.body, question.adapter.empty() ? e->options.model : question.adapter);
  r.body += ',' + question.members + '}';
  r.timeout = kAnswerMax;
  r.answer_max = kTokensMax;
  UnderWay& asked = under_way_[question.key];
  asked.waiting.push_back(std::move(then));
  asked.engine = last_;
  asked.owner = owner;
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
  const int status = answer ? answer->status : 0;
  if (ExternalEngine* const e = engines_.find(it->second.engine); e != nullptr && status != 200) {
    const bool absent = status == 404 || status == 405 || status == 501;
    const bool refused = status / 100 == 4 && !absent;  // this text, or our key
    if (!refused) e->no_tokens_until = loop_.now() + (absent ? kAbsentFor : kFailedFor);
  }
  if (status != 200) return done(key, {});
  if (answer->body.size() <= TextWork::kShort) return done(key, tokens_in(answer->body));
  const auto text = std::make_shared<std::string>(answer->body);
  const auto tokens = std::make_shared<std::vector<int32_t>>();
  const auto job = pool_.submit(
      it->second.owner, text->size(), [text, tokens] { *tokens = tokens_in(*text); },
      [this, key, tokens] { done(key, std::move(*tokens)); });
  if (!job) done(key, {});
}

void EngineTokens::done(const Digest& key, std::vector<int32_t> tokens) {
  auto node = under_way_.extract(key);
  if (!tokens.empty()) keep(key, tokens);
  if (node.empty()) return;
  for (const Then& then : node.mapped().waiting) then(tokens);
}

void EngineTokens::keep(const Digest& key, const std::vector<int32_t>& tokens) {
  const auto bytes_of = [](const std::vector<int32_t>& t) { return 4 * t.size() + kKeptOverhead; };
  if (by_key_.contains(key) || bytes_of(tokens) > kCacheBytes) return;
  kept_.push_front({key, tokens});
  by_key_[key] = kept_.begin();
  kept_bytes_ += bytes_of(tokens);
  while (kept_bytes_ > kCacheBytes) {
    kept_bytes_ -= bytes_of(kept_.back().tokens);
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

}  // namespace mc::serve
