// An external engine with the interfaces of vLLM: the OpenAI API with streams and usage, /health,
// /v1/models, a prefix cache of blocks with names of its own, and a publisher of its events. It
// answers a prompt with letters, one an event, and keeps each request as it came. With a connector
// it is also half of a pair: it keeps what it prefilled for another to fetch, or answers what
// another prefilled. It has a bootstrap server too: who meets another there answers only when
// both are there.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "http/server.h"
#include "tests/unit/serve/publisher.h"

namespace mc::serve::test {

struct MockEngine {
  MockEngine(io::Loop& l, std::string served, uint64_t block_tokens)
      : loop(l), model(std::move(served)), block(block_tokens), publisher(l) {
    http = *http::Server::open(l, "127.0.0.1:0", {}, [this](const http::Exchange& x) { page(x); });
  }
  std::string url() const { return "http://" + http->address(); }
  // What POST /register takes for it.
  std::string registration(const std::string& name, const char* role = "both") const {
    Json j = {{"instance_id", name},
              {"url", url()},
              {"modelname", model},
              {"type", "vLLM"},
              {"endpoint", publisher.events()},
              {"replay_endpoint", publisher.replay()},
              {"block_size", block},
              {"tenant_id", "default"},
              {"dp_rank", 0},
              {"role", role}};
    if (!key.empty()) j["api_key"] = key;
    return dump_json(j);
  }

  // Leading tokens of a prompt that it had; then it has all full blocks.
  uint64_t compute(const std::vector<int32_t>& prompt, const std::string& salt = {},
                   const std::string& lora = {}) {
    std::vector<int32_t> apart;  // what enters the names beside tokens
    for (const char c : salt + lora) apart.push_back(-1 - static_cast<uint8_t>(c));
    uint64_t hit = 0;
    std::optional<uint64_t> parent;
    Hashes fresh;
    std::optional<uint64_t> fresh_parent;
    std::vector<int32_t> fresh_tokens;
    for (size_t at = 0; at + block <= prompt.size(); at += block) {
      std::vector<int32_t> prefix = apart;
      prefix.insert(prefix.end(), prompt.begin(),
                    prompt.begin() + static_cast<ptrdiff_t>(at + block));
      const auto [it, made] = names.try_emplace(prefix, names.size() * 7919 + 1);
      if (made) {
        if (fresh.empty()) fresh_parent = parent;
        fresh.push_back(it->second);
        fresh_tokens.insert(fresh_tokens.end(), prefix.end() - static_cast<ptrdiff_t>(block),
                            prefix.end());
      } else if (fresh.empty()) {
        hit = at + block;
      }
      parent = it->second;
    }
    if (fresh.empty() || silent) return hit;
    publisher.publish({tells_extras
                           ? stored_map(fresh, fresh_parent, fresh_tokens, block, salt, lora)
                           : stored(fresh, fresh_parent, fresh_tokens, block)});
    return hit;
  }

  // As its template has it: nobody else's does.
  std::vector<int32_t> tokens_of(const Json& body) const {
    std::string text;
    const Json* const prompt = member(body, "prompt");
    if (prompt != nullptr && prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number())
      return prompt->get<std::vector<int32_t>>();
    if (prompt != nullptr && prompt->is_string())
      text = prompt->get<std::string>();
    else if (const Json* messages = member(body, "messages"))
      text = "<the mock's own system message>" + dump_json(*messages) + "<assistant>";
    else if (const Json* input = member(body, "input"))  // of a response
      text = "<the mock's own system message>" +
             dump_json(Json::array({{{"role", "user"}, {"content", *input}}})) + "<assistant>";
    else
      text = dump_json(body);
    std::vector<int32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
    return tokens;
  }

  void tokenize(const http::Exchange& x) {
    ++tokenized;
    if (!tokenizes) return x.reply(404, "application/json", R"({"detail":"Not Found"})");
    if (hold_tokens) return held_tokens.push_back(x);
    const auto body = parse_json(x.request().body);
    REQUIRE(body);
    const auto tokens = tokens_of(*body);
    const Json answered = {{"count", tokens.size()}, {"max_model_len", 4096}, {"tokens", tokens}};
    x.reply(200, "application/json", dump_json(answered));
  }

  void render(const http::Exchange& x) {
    rendered.push_back(*parse_json(x.request().body));
    if (rendering.empty()) return x.reply(404, "application/json", R"({"detail":"Not Found"})");
    x.reply(200, "application/json", rendering);
  }

  void page(const http::Exchange& x) {
    const std::string& path = x.request().path;
    if (!well) return x.reply(500, "text/plain", "broken\n");
    if (!key.empty()) {
      const auto given = x.request().headers.find("authorization");
      if (given == x.request().headers.end() || given->second != "Bearer " + key)
        return x.reply(401, "application/json", R"({"error":{"message":"no key"}})");
    }
    if (path == "/query") {
      const Json engines = {{"0", {{"engine_id", engine_id}, {"worker_addr", {{"0", {}}}}}}};
      return x.reply(200, "application/json", dump_json(engines));
    }
    if (path == "/health") return x.reply(200, "text/plain", "");
    if (path == "/v1/models") {
      Json data = Json::array({{{"id", model}, {"parent", nullptr}}});
      if (!adapter.empty()) data.push_back({{"id", adapter}, {"parent", model}});
      const Json models = {{"object", "list"}, {"data", data}};
      return x.reply(200, "application/json", dump_json(models));
    }
    if (path == "/metrics" && metrics.empty()) return x.reply(404, "text/plain", "none\n");
    if (path == "/metrics") return x.reply(200, "text/plain", metrics);
    if (path == "/tokenize") return tokenize(x);
    if (path == "/v1/chat/completions/render") return render(x);
    if (delay.count() == 0) return generate(x);
    loop.after(delay, [this, x] { generate(x); });
  }

  void generate(const http::Exchange& x) {
    const std::string& path = x.request().path;
    const http::Request& r = x.request();
    came.push_back({path, r.body, r.headers, r.query, r.method});
    const auto parsed = parse_json(x.request().body);  // some is no JSON to a strict reader
    const Json body = parsed ? *parsed : Json::object();
    asked.push_back(body);
    ids.push_back(x.request().headers.at("x-request-id"));
    if (status != 200)
      return x.reply(status, "application/json", R"({"error":{"message":"the mock says no"}})",
                     answer_headers);
    if (mute) return x.reply(200, answer_type, "");
    if (!answer.empty()) return x.reply(answer_status, answer_type, answer, answer_headers);
    meet(x, body);
  }

  // As half of a pair that gets a request at once: the first one says that it is there, the
  // second answers when the first is.
  void meet(const http::Exchange& x, const Json& body) {
    const Json* const kv = member(body, "kv_transfer_params");
    const Json* const room = member(body, "bootstrap_room");
    const bool named = kv != nullptr && kv->contains("transfer_id");
    if (!named && room == nullptr) return reply_to(x, body);
    const std::string at = named ? (*kv)["transfer_id"].get<std::string>() : dump_json(*room);
    const bool first = named ? kv->value("do_remote_decode", false) : partner == nullptr;
    if (first) {
      rooms.push_back(at);
      return reply_to(x, body);
    }
    REQUIRE(partner != nullptr);
    const auto& there = partner->rooms;
    if (std::find(there.begin(), there.end(), at) != there.end()) return reply_to(x, body);
    loop.after(std::chrono::milliseconds(1), [this, x, body] { meet(x, body); });
  }

  void reply_to(const http::Exchange& x, const Json& body) {
    const std::vector<int32_t> prompt = tokens_of(body);
    const std::string named = body.value("model", model);
    const uint64_t cached =
        compute(prompt, body.value("cache_salt", ""), named == model ? "" : named);
    const Json usage = {{"prompt_tokens", prompt.size()},
                        {"completion_tokens", 3},
                        {"prompt_tokens_details", {{"cached_tokens", cached}}}};
    const Json* const kv = member(body, "kv_transfer_params");
    if (connector && kv != nullptr && kv->value("do_remote_decode", false)) {
      REQUIRE(body.value("max_tokens", body.value("max_output_tokens", 0)) == 1);
      REQUIRE_FALSE(body.value("stream", false));
      const Json handed = {
          {"do_remote_decode", false},  {"do_remote_prefill", true},
          {"remote_engine_id", url()},  {"remote_block_ids", {asked.size(), asked.size() + 1}},
          {"remote_host", "127.0.0.1"}, {"remote_port", 5600}};
      const Json first = {{"choices", Json::array({{{"text", "a"}}})},
                          {"usage", usage},
                          {"kv_transfer_params", handed}};
      return x.reply(200, "application/json", dump_json(first));
    }
    if (padding > 0) {
      x.start(200, "application/json");
      x.on_gone([this] { ++gone; });
      x.write(std::string(padding, ' '));
      return held.push_back(x);
    }
    if (!body.value("stream", false)) {
      const Json whole = {
          {"model", model}, {"choices", Json::array({{{"text", "abc"}}})}, {"usage", usage}};
      return x.reply(200, "application/json", dump_json(whole));
    }
    x.start(200, "text/event-stream");
    x.on_gone([this] { ++gone; });
    held.push_back(x);
    if (hang) return;
    for (const char* text : {"a", "b", "c"}) {
      const Json chunk = {{"model", model}, {"choices", Json::array({{{"text", text}}})}};
      x.write("data: " + dump_json(chunk) + "\n\n");
      if (cut) return;  // the test ends the connection: held.clear()
    }
    const Json last = {{"model", model}, {"choices", Json::array()}, {"usage", usage}};
    x.write("data: " + dump_json(last) + "\n\ndata: [DONE]\n\n");
    x.end();
  }

  io::Loop& loop;
  const std::string model;
  const uint64_t block;
  Publisher publisher;
  std::unique_ptr<http::Server> http;
  std::map<std::vector<int32_t>, uint64_t> names;  // of blocks, by all tokens up to their end
  bool connector = true;
  MockEngine* partner = nullptr;   // where it is the second half of a pair asked at once
  std::vector<std::string> rooms;  // where it was, as the first half
  std::string engine_id = "e-0";   // at its bootstrap server
  bool well = true, hang = false, cut = false, mute = false;
  int status = 200, gone = 0;
  std::string key;  // that it wants; empty: none
  int answer_status = 200;
  std::string answer, answer_type = "application/json";  // instead of its own
  size_t padding = 0;                                    // blanks in their place, and no end
  http::Headers answer_headers;                          // of these, and of its refusals
  std::string adapter;                                   // a LoRA adapter that it lists
  std::string metrics;                                   // empty: it has none
  bool tells_extras = false;                             // in its events
  bool silent = false;                                   // it has no events
  std::string rendering;                                 // what /render says; empty: it has none
  std::vector<Json> rendered;                            // what it was asked
  bool tokenizes = true, hold_tokens = false;
  int tokenized = 0;
  std::vector<http::Exchange> held_tokens;
  Duration delay{};  // before it begins to answer
  struct Came {
    std::string path, body;
    std::map<std::string, std::string> headers, query;
    std::string method;
  };
  std::vector<Came> came;  // every request for an answer, as it came
  std::vector<Json> asked;
  std::vector<std::string> ids;
  std::vector<http::Exchange> held;
};

}  // namespace mc::serve::test
