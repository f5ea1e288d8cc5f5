#include "serve/frontend/openai_proxied.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "http/strict.h"
#include "serve/request/openai_members.h"
#include "serve/translate/engine_chat.h"

namespace mc::serve {
namespace {

constexpr size_t kBytesPerToken = 4;             // of text, about
constexpr uint64_t kMediaTokens = 1024;          // of a picture or the like, about
constexpr size_t kMediaBytesMin = 256;           // of one that stands in a text by its bytes
constexpr uint32_t kIdsEnd = uint32_t{1} << 31;  // what tokens may be
// Where the text of a prompt may stand.
constexpr std::array kPromptNames = {"prompt", "messages", "input", "query"};

std::string_view prompt_text(const JsonText& body) {
  for (const char* name : kPromptNames)
    if (const auto text = body.find(name)) return *text;
  return body.text();
}

// A prompt that is a list of ids.
std::vector<int32_t> listed_tokens(const ProxiedRequest& request) {
  const auto text = request.body.find("prompt");
  return text ? parse_ids(*text, kIdsEnd).value_or(std::vector<int32_t>()) : std::vector<int32_t>();
}

// One list of ids; or one such list, or one text, in a list.
std::vector<int32_t> tokens_of_prompt(const Json& j, const ApiLimits& limits) {
  if (j.is_string()) return limits.tokenizer->encode(j.get_ref<const std::string&>());
  if (!j.is_array() || j.empty()) return {};
  if (!j[0].is_number())
    return j.size() == 1 && !j[0].is_null() ? tokens_of_prompt(j[0], limits)
                                            : std::vector<int32_t>();
  std::vector<int32_t> ids;
  ids.reserve(j.size());
  for (const Json& id : j) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) return {};
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

// Whose model a request is for.
tl::expected<void, ApiError> name_model(ProxiedRequest& r, std::string model,
                                        const ApiLimits& limits) {
  auto meaning = limits.names ? limits.names->find(model) : ModelNames(limits.model).find(model);
  if (!meaning) return tl::unexpected(no_such_model(model, limits));
  r.base = std::move(meaning->model);
  r.adapter = std::move(meaning->adapter);
  r.model = std::move(model);
  return {};
}

namespace {

// Also with slashes and ends of lines as JSON may write them.
bool is_base64(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/' || c == '-' || c == '_' || c == '=' || c == '\\';
  });
}

// Of a JSON text, where the string that begins there ends: at its last quote.
size_t string_end(std::string_view text, size_t begin) {
  for (size_t at = text.find('"', begin); at != text.npos; at = text.find('"', at + 1)) {
    size_t back = at;
    while (back > begin && text[back - 1] == '\\') --back;
    if ((at - back) % 2 == 0) return at;
  }
  return text.size();
}

// A picture, sound or document that stands in a message: a data: URL, or base64 as the member that
// the APIs have for it.
bool is_media(std::string_view value, std::string_view name) {
  if (value.size() < kMediaBytesMin) return false;
  if (value.starts_with("data:") && name != "text" && name != "content") {
    constexpr std::string_view kMark = ";base64,";
    const size_t mark = value.substr(0, kMediaBytesMin).find(kMark);
    return mark != value.npos && is_base64(value.substr(mark + kMark.size()));
  }
  return (name == "data" || name == "file_data") && is_base64(value);
}

// Tokens of a prompt's JSON, about. The bytes of pictures and the like say nothing of their tokens.
uint64_t tokens_about(std::string_view text) {
  uint64_t media = 0;
  size_t bytes = text.size(), at = 0;
  std::string_view last;  // the string before, where only a colon follows it
  while ((at = text.find('"', at)) != text.npos) {
    const size_t end = string_end(text, at + 1);
    const std::string_view value = text.substr(at + 1, end - at - 1);
    if (is_media(value, last)) {
      ++media;
      bytes -= value.size();
    }
    at = std::min(end + 1, text.size());
    const size_t next = text.find_first_not_of(" \t\r\n", at);
    last = next != text.npos && text[next] == ':' ? value : std::string_view();
  }
  return std::max<uint64_t>(1, bytes / kBytesPerToken + media * kMediaTokens);
}

}  // namespace

void count_text(ProxiedRequest& r, std::string_view prompt) {
  r.tokens_about = tokens_about(prompt);
  r.pieces = TextAffinity::pieces(prompt, xxh3(r.base + '\n' + r.adapter));
}

tl::expected<ProxiedRequest, ApiError> parse_proxied(std::string path, std::string body,
                                                     const ApiLimits& limits) {
  ProxiedRequest r;
  r.base = limits.model;
  auto text = JsonText::parse(std::move(body));
  if (!text)
    return tl::unexpected(
        ApiError{400, "the body is not taken: " + text.error().what, "", "invalid_json"});
  r.path = std::move(path);
  r.body = std::move(*text);
  if (r.body.find("model")) {
    auto model = r.body.find_string("model");
    if (!model) return bad("model", "'model' is no string");
    if (auto named = name_model(r, std::move(*model), limits); !named)
      return tl::unexpected(std::move(named.error()));
  }
  r.stream = r.body.find("stream") == "true";
  count_text(r, prompt_text(r.body));
  return r;
}

tl::expected<ProxiedRequest, ApiError> parse_passed(std::string path, std::string body,
                                                    const PassedForm& form,
                                                    const ApiLimits& limits) {
  ProxiedRequest r;
  r.base = limits.model;
  r.path = std::move(path);
  r.method = form.method;
  r.type = form.type;
  std::string model = form.model;
  std::string_view prompt;
  if (form.method == "POST") {
    auto text = FormText::parse(std::move(body), form.type);
    if (!text)
      return tl::unexpected(
          ApiError{400, "the body is not taken: " + text.error().what, "", "invalid_form"});
    r.form = std::move(*text);
    for (const char* const name :
         {"cache_salt", "kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"})
      if (r.form->has(name)) return bad(name, strf("'%s' is not taken in a form", name));
    const auto named = r.form->find("model");
    if (!named && r.form->has("model")) return bad("model", "'model' is no single field");
    if (named) model = *named;
    r.stream = r.form->find("stream") == "true";
    prompt = r.form->find("prompt").value_or("");
  }
  if (!model.empty())
    if (auto named = name_model(r, std::move(model), limits); !named)
      return tl::unexpected(std::move(named.error()));
  count_text(r, prompt);
  return r;
}

std::vector<int32_t> own_tokens(const ProxiedRequest& request, const ApiLimits& limits) {
  const bool chat = request.path == "/v1/chat/completions";
  if (!chat && request.path != "/v1/completions") return {};
  const char* const name = chat ? "messages" : "prompt";
  const auto text = request.body.find(name);
  if (auto ids = text && !chat ? parse_ids(*text, kIdsEnd) : std::nullopt) return std::move(*ids);
  const auto json = text ? parse_json(*text) : Result<Json>(fail(Code::kNotFound, "no prompt"));
  if (!json || !check_text(*json, name, limits)) return {};
  if (!chat) return tokens_of_prompt(*json, limits);
  Json others = Json::object();
  for (const char* const other :
       {"tools", "documents", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt"})
    if (const auto value = request.body.find(other))
      if (auto read = parse_json(*value)) others[other] = std::move(*read);
  auto prompt = read_messages(*json, others, limits);
  return prompt ? std::move(prompt->tokens) : std::vector<int32_t>();
}

namespace {

tl::expected<CompletionRequest, ApiError> own_request(const std::string& path,
                                                      const std::string& body,
                                                      const ApiLimits& limits) {
  if (generates(path)) return parse_generation(path, body, limits);
  return tl::unexpected(ApiError{404, "own workers do not serve " + path, "", ""});
}

// Of a request that engines make a chat of.
std::optional<TokenQuestion> question_of_other(const ProxiedRequest& request) {
  if (!generates(request.path)) return std::nullopt;
  const auto body = parse_json(request.body.text());
  const auto chat = body ? engine_chat(request.path, *body) : std::nullopt;
  const auto text = chat ? JsonText::parse(dump_json(*chat)) : Result<JsonText>(JsonText());
  if (!text) return std::nullopt;
  return token_question(*text, true, request.base, request.adapter);
}

}  // namespace

tl::expected<ParsedRequest, ApiError> parse_asked(const std::string& path, const std::string& body,
                                                  bool engines, const ApiLimits& limits) {
  const bool chat = path == "/v1/chat/completions", completion = path == "/v1/completions";
  ParsedRequest asked;
  if (!engines) {
    asked.own = own_request(path, body, limits);
    if (!asked.own) return tl::unexpected(asked.own.error());
    return asked;
  }
  auto proxied = parse_proxied(path, body, limits);
  if (!proxied) return tl::unexpected(proxied.error());
  asked.proxied = std::make_shared<ProxiedRequest>(std::move(*proxied));
  asked.own = completion ? completion_of_text(asked.proxied->body, limits)
                         : own_request(path, body, limits);
  if (!chat && !completion) {
    asked.question = question_of_other(*asked.proxied);
    return asked;
  }
  const bool other = asked.proxied->base != limits.model;  // whose tokenizer we do not have
  if (!asked.own && !other) asked.proxied->tokens = own_tokens(*asked.proxied, limits);
  // A text's tokens are the same here, if we have the model's tokenizer; a chat's may differ.
  if (chat || other || limits.tokenizer->style() == model::Tokenizer::Style::kBytes)
    asked.question =
        token_question(asked.proxied->body, chat, asked.proxied->base, asked.proxied->adapter);
  if (other) asked.proxied->tokens = listed_tokens(*asked.proxied);
  return asked;
}

GenerateRequest generate_request(ParsedRequest& asked, std::string id, uint64_t seed,
                                 const std::function<std::string(const std::string&)>& salt) {
  GenerateRequest g;
  g.id = std::move(id);
  if (asked.own) {
    CompletionRequest& r = *asked.own;
    g.prompt = std::move(r.prompt);
    g.cache_salt = r.cache_salt;
    g.priority = r.priority;
    g.cache = r.cache;
    g.max_tokens = r.max_tokens;
    g.min_tokens = r.min_tokens;
    g.ignore_eos = r.ignore_eos;
    g.stop_tokens = r.stop_token_ids;
    g.seed = r.seed.value_or(seed);
    g.temperature = r.temperature;
    g.top_k = r.top_k;
    g.top_p = r.top_p;
    g.controls = std::move(r.controls);
    g.constraint = std::move(r.constraint);
  } else {
    const ApiError& e = asked.own.error();
    g.refusal = RequestError{e.status, e.code, e.message, 0, e.param};
    g.cache_salt = asked.proxied->body.find_string("cache_salt").value_or("");
  }
  g.cache_salt = salt(g.cache_salt);
  if (asked.proxied)  // who has another salt has other texts
    for (uint64_t& piece : asked.proxied->pieces) piece = mix64(piece ^ xxh3(g.cache_salt));
  g.proxied = std::move(asked.proxied);
  return g;
}

namespace {

// Whether a list of tokens, as Connection is one, has that name.
bool lists_token(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    std::string_view token = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    token.remove_prefix(std::min(token.find_first_not_of(" \t"), token.size()));
    token = token.substr(0, token.find_last_not_of(" \t") + 1);
    if (http::same_text(token, name)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> headers_to_pass(
    const std::map<std::string, std::string>& headers, bool keyed) {
  static constexpr std::array<std::string_view, 23> kOurs = {"accept-encoding",
                                                             "connection",
                                                             "content-length",
                                                             "content-type",
                                                             "cookie",
                                                             "expect",
                                                             "forwarded",
                                                             "host",
                                                             "keep-alive",
                                                             "origin",
                                                             "proxy-authenticate",
                                                             "proxy-authorization",
                                                             "proxy-connection",
                                                             "referer",
                                                             "te",
                                                             "trailer",
                                                             "transfer-encoding",
                                                             "upgrade",
                                                             "user-agent",
                                                             "x-forwarded-for",
                                                             "x-forwarded-host",
                                                             "x-forwarded-proto",
                                                             "x-request-id"};
  const auto connection = headers.find("connection");
  const std::string_view named =
      connection == headers.end() ? std::string_view() : std::string_view(connection->second);
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [name, value] : headers) {
    const bool key = name == "authorization" || name == "x-api-key";
    if (std::find(kOurs.begin(), kOurs.end(), name) != kOurs.end() || name.starts_with("sec-") ||
        (keyed && key) || lists_token(named, name))
      continue;
    all.emplace_back(name, value);
  }
  return all;
}

}  // namespace mc::serve
