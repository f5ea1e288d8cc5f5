#include "cmd/mc-conductor/chat.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>

#include "base/json.h"
#include "http/client.h"

namespace mc {
namespace {

constexpr size_t kErrorBytesMax = 64 * 1024;

struct ChatOptions {
  std::string url = "http://127.0.0.1:8000", mode = "auto";
  uint32_t max_tokens = 400;
  double temperature = 0;
  std::vector<std::string> words;
  void describe(OptionList& v) {
    v("url", url, "of the OpenAI API");
    v("mode", mode,
      "answer as the model's template has it, go on with the text, or auto: by template",
      {"auto", "chat", "complete"});
    v("max-tokens", max_tokens, "of each answer");
    v("temperature", temperature, "0: always the likeliest token");
  }
};

class Chat {
 public:
  explicit Chat(const ChatOptions& options) : o_(options), url_(options.url) {
    while (url_.ends_with('/')) url_.pop_back();
  }

  Result<> begin() {
    auto models = get(url_ + "/v1/models");
    if (!models && models.error().code == Code::kUnavailable)
      return fail(Code::kUnavailable,
                  "%s: start a cluster (scripts/loopback up) or name one that runs with --url",
                  models.error().what.c_str());
    if (!models) return fail(std::move(models).error());
    const auto data = models->find("data");
    if (data == models->end() || !data->is_array() || data->empty())
      return fail(Code::kUnavailable, "%s/v1/models names no model", url_.c_str());
    MC_TRY(model_, get_string((*data)[0], "id"));
    MC_TRY(const std::string text, get_string_or((*data)[0], "chat_template", ""));
    chat_ = o_.mode == "chat" || (o_.mode == "auto" && text != "plain");
    return {};
  }

  // Sends what was said so far and this, and prints the answer.
  Result<> say(const std::string& text) {
    Json body = {{"model", model_},
                 {"stream", true},
                 {"max_tokens", o_.max_tokens},
                 {"temperature", o_.temperature}};
    if (chat_) {
      messages_.push_back({{"role", "user"}, {"content", text}});
      body["messages"] = messages_;
    } else {
      body["prompt"] = text;
      std::fputs(text.c_str(), stdout);
    }
    answer_.clear();
    MC_TRY_(stream(dump_json(body)));
    std::fputs("\n", stdout);
    if (chat_) messages_.push_back({{"role", "assistant"}, {"content", answer_}});
    return {};
  }

 private:
  // Turns the loop until the request is over: the client ends it when its time is.
  Result<http::ClientResponse> send(http::ClientRequest request, http::ClientCallbacks callbacks) {
    std::optional<Result<http::ClientResponse>> done;
    callbacks.on_done = [&](Result<http::ClientResponse> r) { done = std::move(r); };
    client_.send(std::move(request), std::move(callbacks));
    while (!done) MC_TRY_(loop_.turn(std::chrono::hours(1)));
    return std::move(*done);
  }

  static Error refusal(const std::string& url, int status, const std::string& body) {
    std::string why = escape(body.substr(0, kErrorBytesMax));
    if (const auto json = parse_json(body); json && json->is_object())
      if (const auto error = json->find("error"); error != json->end())
        why = get_string(*error, "message").value_or(why);
    return {status == 429 || status >= 500 ? Code::kUnavailable : Code::kInvalid,
            strf("%s: HTTP %d: %s", url.c_str(), status, why.c_str())};
  }

  Result<Json> get(const std::string& url) {
    http::ClientRequest request;
    request.url = url;
    request.timeout = std::chrono::seconds(10);
    MC_TRY(const http::ClientResponse r, send(std::move(request), {}));
    if (r.status != 200) return fail(refusal(url, r.status, r.body));
    return parse_json(r.body);
  }

  Result<> stream(std::string body) {
    http::ClientRequest request;
    request.method = "POST";
    request.url = url_ + (chat_ ? "/v1/chat/completions" : "/v1/completions");
    request.headers = {{"content-type", "application/json"}};
    request.body = std::move(body);
    http::SseParser events;
    std::string whole;  // of an answer that is an error
    Result<> shown_all;
    int status = 0;
    http::ClientCallbacks callbacks;
    callbacks.on_headers = [&](int code, const auto&, Time) { status = code; };
    callbacks.on_chunk = [&](std::string_view chunk, Time) {
      if (status != 200) {
        whole += chunk.substr(0, kErrorBytesMax - std::min(kErrorBytesMax, whole.size()));
      } else if (!events.feed(chunk, [&](std::string_view data) {
                   if (shown_all) shown_all = show(data);
                 })) {
        shown_all = fail(Code::kCorrupt, "an event of more than 1 MiB");
      }
    };
    const std::string url = request.url;
    MC_TRY(const http::ClientResponse r, send(std::move(request), std::move(callbacks)));
    if (r.status != 200) return fail(refusal(url, r.status, whole + r.body));
    return shown_all;
  }

  Result<> show(std::string_view data) {
    if (data == "[DONE]") return {};
    MC_TRY(const Json event, parse_json(data));
    if (!event.is_object()) return fail(Code::kCorrupt, "an event that is no object");
    if (const auto error = event.find("error"); error != event.end())
      return fail(Code::kUnavailable, "the answer broke off: %s", dump_json(*error).c_str());
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return {};
    const Json* choice = &(*choices)[0];
    if (chat_ && choice->is_object())
      if (const auto delta = choice->find("delta"); delta != choice->end()) choice = &*delta;
    const std::string text = get_string(*choice, chat_ ? "content" : "text").value_or("");
    answer_ += text;
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
      return fail(Code::kUnavailable, "writing the answer failed");
    return {};
  }

  const ChatOptions& o_;
  std::string url_;  // without a slash at its end
  SteadyClock clock_;
  io::Loop loop_{clock_};
  http::Client client_{loop_};
  std::string model_, answer_;
  bool chat_ = true;
  Json messages_ = Json::array();
};

Result<int> chat(const ChatOptions& o) {
  std::signal(SIGPIPE, SIG_IGN);
  Chat chat(o);
  MC_TRY_(chat.begin());
  if (!o.words.empty()) {
    std::string text;
    for (const std::string& word : o.words) text += (text.empty() ? "" : " ") + word;
    MC_TRY_(chat.say(text));
    return 0;
  }
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  std::string line;
  while (true) {
    if (terminal) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    MC_TRY_(chat.say(line));
  }
  return 0;
}

}  // namespace

void add_chat(Program& program) {
  program.verb<ChatOptions>(
      "chat", "talk with a served model; answers stream", [](Verb& v, ChatOptions& o) {
        v.positional_many("TEXT", o.words, "what is said; without it, each line of stdin", false);
        v.example("mc-conductor chat --url http://127.0.0.1:8000 Once upon a time",
                  "let a model without a chat template go on with the words");
        v.run_with([&o](Context&) { return chat(o); });
      });
}

}  // namespace mc
