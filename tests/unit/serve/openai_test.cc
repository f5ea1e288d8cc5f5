#include "serve/request/openai.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "serve/answers/openai_writer.h"
#include "serve/answers/text_stream.h"

using namespace mc;
using namespace mc::serve;

namespace {

const model::Tokenizer kBytes = model::Tokenizer::bytes_only(32000);
const ApiLimits kLimits{.tokenizer = &kBytes, .model = "tiny", .context_max = 1000, .vocab = 32000};

auto parse(const std::string& body, bool chat = false) {
  return parse_completion(body, chat, kLimits);
}

std::string bytes(const CompletionRequest& r) {
  std::string s;
  for (const int32_t t : r.prompt) s += static_cast<char>(t);
  return s;
}

struct Bad {
  const char* body;
  int status;
  const char* param;
  const char* code;
  const char* text;  // in the message
};

std::string all(TextStream& s, std::string_view text) {
  std::string out;
  for (const int32_t t : kBytes.encode(text)) out += s.push(t);
  return out + s.flush();
}

}  // namespace

TEST_CASE(
    "a text that the context cannot hold is refused by its bytes, before it is tokenized (F7)") {
  ApiLimits limits = kLimits;
  limits.tokenizer = nullptr;  // it would not live through it
  limits.text_max = 1000;
  const std::string long_text(600, 'x');
  const auto refused = [&](const std::string& body, bool chat) {
    const auto r = parse_completion(body, chat, limits);
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().status == 400);
    CHECK(r.error().code == "context_length_exceeded");
  };
  refused(R"({"model":"tiny","prompt":")" + long_text + long_text + R"("})", false);
  const std::string message = R"({"role":"user","content":")" + long_text + R"("})";
  const std::string parts =
      R"({"role":"user","content":[{"type":"text","text":")" + long_text + R"("}]})";
  refused(R"({"model":"tiny","messages":[)" + message + "," + parts + "]}", true);
}

TEST_CASE("the largest body follows from the context") {
  const auto tiny = limits_of(kBytes, "tiny", 512, 32000, model::ChatTemplate::kPlain);
  CHECK(tiny.text_max == 512);
  CHECK(tiny.body_max() == (1 << 20) + 512 * 6 + 512 * 16);
  CHECK(limits_of(kBytes, "m", 1 << 30, 32000, model::ChatTemplate::kPlain).body_max() == 32 << 20);
  const model::Tokenizer few = model::Tokenizer::bytes_only(100);  // other bytes are left out
  CHECK(limits_of(few, "m", 512, 100, model::ChatTemplate::kPlain).body_max() == 32 << 20);
}

TEST_CASE("prompts may be text, token ids, or an array of one of these") {
  CHECK(bytes(*parse(R"({"model":"tiny","prompt":"hi"})")) == "hi");
  CHECK(bytes(*parse(R"({"model":"tiny","prompt":["hi"]})")) == "hi");
  CHECK(parse(R"({"model":"tiny","prompt":[1,2,31999]})")->prompt ==
        std::vector<int32_t>{1, 2, 31999});
  CHECK(parse(R"({"model":"tiny","prompt":[[1,2]]})")->prompt == std::vector<int32_t>{1, 2});
}

TEST_CASE("every option arrives, and absent or null ones keep their defaults") {
  const auto r = parse(R"({"model":"tiny","prompt":"x","max_tokens":7,"min_tokens":2,"stop":"END",
    "ignore_eos":true,"temperature":0.5,"seed":-1,"stream":true,"cache_salt":"t","user":"u",
    "stop_token_ids":[5],"stream_options":{"include_usage":true,"continuous_usage_stats":true},
    "n":1,"some_new_field":{"a":1}})");
  REQUIRE(r);
  CHECK(r->max_tokens == 7);
  CHECK(r->min_tokens == 2);
  CHECK(r->stop == std::vector<std::string>{"END"});
  CHECK(r->stop_token_ids == std::vector<int32_t>{5});
  CHECK(r->ignore_eos);
  CHECK(r->temperature == 0.5);
  CHECK(r->seed == UINT64_MAX);
  CHECK(r->stream);
  CHECK(r->include_usage);
  CHECK(r->continuous_usage);
  CHECK(r->cache_salt == "t");
  const auto d = parse(R"({"model":"tiny","prompt":"x","max_tokens":null,"stop":null})");
  REQUIRE(d);
  CHECK(d->max_tokens == 16);
  CHECK(d->stop.empty());
  CHECK(!d->stream);
}

TEST_CASE("F83, F84: members that ask for what is done anyway pass, and a missing seed is none") {
  const auto r = parse(R"({"model":"tiny","prompt":"x","n":1,"best_of":1,"echo":false,"suffix":null,
    "presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1.0,"min_p":0,"logit_bias":{},
    "logprobs":false,"response_format":{"type":"text"},"tool_choice":"auto","tools":[],
    "store":true,"metadata":{"a":"b"},"service_tier":"auto"})");
  REQUIRE_MESSAGE(r, r.error().message);
  CHECK_FALSE(r->seed.has_value());
  CHECK(parse(R"({"model":"tiny","prompt":"x","seed":0})")->seed == 0u);
}

TEST_CASE("a constraint arrives in its form, whichever member has it") {
  const auto form = [](const std::string& members) {
    const auto r = parse(R"({"model":"tiny","prompt":"x",)" + members + "}");
    REQUIRE_MESSAGE(r, r.error().message);
    return std::pair(r->constraint.kind(), r->constraint.text);
  };
  using model::grammar::Form;
  using Pair = std::pair<Form, std::string>;
  CHECK(form(R"("response_format":{"type":"text"})") == Pair(Form::kNone, ""));
  CHECK(form(R"("response_format":{"type":"json_object"})") == Pair(Form::kJsonObject, ""));
  const std::string schema = R"({"type":"object","properties":{"z":true,"a":true}})";
  const Pair want(Form::kJsonSchema, schema);
  CHECK(form(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,
      "schema":)" +
             schema + "}}") == want);
  CHECK(form(R"("guided_json":)" + schema) == want);
  CHECK(form(R"("structured_outputs":{"json":)" + schema + R"(,"regex":null})") == want);
  CHECK(form(R"("guided_json":")" + std::string(R"({\"type\":\"null\"})") + "\"") ==
        Pair(Form::kJsonSchema, R"({"type":"null"})"));
  CHECK(form(R"("structured_outputs":{"regex":"a+"})") == Pair(Form::kRegex, "a+"));
  CHECK(form(R"("guided_choice":["a","b"])") == Pair(Form::kChoice, R"(["a","b"])"));
  CHECK(form(R"("guided_grammar":"root ::= [a-z]")") == Pair(Form::kGbnf, "root ::= [a-z]"));
  CHECK(form(R"("guided_json_object":true)") == Pair(Form::kJsonObject, ""));
  CHECK(form(R"("guided_json_object":false)") == Pair(Form::kNone, ""));
}

TEST_CASE("F83, F84: penalties, min_p and biases arrive as they were asked for") {
  const auto r = parse(R"({"model":"tiny","prompt":"x","presence_penalty":-0.5,
    "frequency_penalty":2,"repetition_penalty":1.1,"min_p":0.1,
    "logit_bias":{"5":1.5,"31999":-100}})");
  REQUIRE_MESSAGE(r, r.error().message);
  CHECK(r->controls.presence_penalty == -0.5);
  CHECK(r->controls.frequency_penalty == 2);
  CHECK(r->controls.repetition_penalty == 1.1);
  CHECK(r->controls.min_p == 0.1);
  CHECK(r->controls.bias_tokens == std::vector<int32_t>{5, 31999});
  CHECK(r->controls.bias == std::vector<double>{1.5, -100});
  CHECK(r->controls.valid(32000));
  CHECK_FALSE(r->controls.valid(31999));
  std::string many;
  for (int i = 0; i < 301; ++i) many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  const auto over = parse(R"({"model":"tiny","prompt":"x","logit_bias":{)" + many + "}}");
  REQUIRE_FALSE(over);
  CHECK(over.error().param == "logit_bias");
  CHECK(over.error().message.find("301 tokens") != std::string::npos);
}

TEST_CASE("F89: several prompts and choices arrive, and what an answer begins with") {
  const auto texts = parse(R"({"model":"tiny","prompt":["ab","c"],"n":2,"best_of":3,"echo":true})");
  REQUIRE_MESSAGE(texts, texts.error().message);
  CHECK(texts->prompt == std::vector<int32_t>{'a', 'b'});
  CHECK(texts->more_prompts == std::vector<std::vector<int32_t>>{{'c'}});
  CHECK(texts->n == 2);
  CHECK(texts->best_of == 3);
  CHECK(texts->echo == std::vector<std::string>{"ab", "c"});
  const auto ids = parse(R"({"model":"tiny","prompt":[[97,98],[99],"d"],"n":4})");
  REQUIRE_MESSAGE(ids, ids.error().message);
  CHECK(ids->more_prompts == std::vector<std::vector<int32_t>>{{'c'}, {'d'}});
  CHECK(ids->best_of == 4);
  CHECK(ids->echo.empty());
  std::string many = "\"x\"";
  for (int i = 1; i < 129; ++i) many += ",\"x\"";
  const auto over = parse(R"({"model":"tiny","prompt":[)" + many + "]}");
  REQUIRE_FALSE(over);
  CHECK(over.error().param == "prompt");
  // The longest counts.
  const auto wide = parse(R"({"model":"tiny","prompt":["x",")" + std::string(990, 'y') + R"("]})");
  REQUIRE_FALSE(wide);
  CHECK(wide.error().code == "context_length_exceeded");
}

TEST_CASE("F89: logprobs are a number in a completion, and a boolean and a number in a chat") {
  const auto asked = [](const std::string& members, bool chat) {
    const char* const prompt =
        chat ? R"("messages":[{"role":"user","content":"x"}])" : R"("prompt":"x")";
    return parse(R"({"model":"tiny",)" + std::string(prompt) + "," + members + "}", chat);
  };
  const auto logprobs = [&](const std::string& members, bool chat) {
    const auto r = asked(members, chat);
    REQUIRE_MESSAGE(r, r.error().message);
    return r->controls.logprobs;
  };
  CHECK(logprobs(R"("logprobs":null)", false) == 0);
  CHECK(logprobs(R"("logprobs":false)", false) == 0);
  CHECK(logprobs(R"("logprobs":0)", false) == 1);
  CHECK(logprobs(R"("logprobs":5)", false) == 6);
  CHECK(logprobs(R"("logprobs":false,"top_logprobs":0)", true) == 0);
  CHECK(logprobs(R"("logprobs":true)", true) == 1);
  CHECK(logprobs(R"("logprobs":true,"top_logprobs":20)", true) == 21);
  const std::pair<const char*, const char*> bad[] = {
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":false,"top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("logprobs":3)", "logprobs"},
      {R"("echo":true)", "echo"},
      {R"("n":1,"best_of":2)", "best_of"}};
  for (const auto& [members, param] : bad) {
    const auto r = asked(members, true);
    REQUIRE_FALSE(r);
    CHECK(r.error().param == param);
  }
}

TEST_CASE("bad requests are refused with status, parameter and reason") {
  const Bad table[] = {
      {"", 400, "", "invalid_json", "not taken"},
      {"{", 400, "", "invalid_json", "not taken"},
      {"[]", 400, "", "", "not a JSON object"},
      {R"({"prompt":"x"})", 400, "model", "", "missing"},
      {R"({"model":3,"prompt":"x"})", 400, "model", "", "want a string"},
      {R"({"model":"gpt","prompt":"x"})", 404, "model", "model_not_found", "'gpt'"},
      {R"({"model":"tiny"})", 400, "prompt", "", "missing"},
      {R"({"model":"tiny","prompt":""})", 400, "prompt", "", "empty"},
      {R"({"model":"tiny","prompt":[]})", 400, "prompt", "", "empty"},
      {R"({"model":"tiny","prompt":{}})", 400, "prompt", "", "want a string"},
      {R"({"model":"tiny","prompt":7})", 400, "prompt", "", "want a string"},
      {R"({"model":"tiny","prompt":[1,"a"]})", 400, "prompt", "", "token ids"},
      {R"({"model":"tiny","prompt":[1.5]})", 400, "prompt", "", "token ids"},
      {R"({"model":"tiny","prompt":[-1]})", 400, "prompt", "", "token id -1"},
      {R"({"model":"tiny","prompt":[32000]})", 400, "prompt", "", "token id 32000"},
      {R"({"model":"tiny","prompt":[99999999999999999999]})", 400, "prompt", "", "token ids"},
      {R"({"model":"tiny","prompt":["a",""]})", 400, "prompt", "", "empty"},
      {R"({"model":"tiny","prompt":["a",[1,"b"]]})", 400, "prompt", "", "token ids"},
      {R"({"model":"tiny","prompt":["a",{}]})", 400, "prompt", "", "want a string"},
      {R"({"model":"tiny","prompt":[[["a"]]]})", 400, "prompt", "", "token ids"},
      {R"({"model":"tiny","prompt":"x","max_tokens":"7"})", 400, "max_tokens", "", "an integer"},
      {R"({"model":"tiny","prompt":"x","max_tokens":0})", 400, "max_tokens", "", "is 0"},
      {R"({"model":"tiny","prompt":"x","max_tokens":-1})", 400, "max_tokens", "", "is -1"},
      {R"({"model":"tiny","prompt":"x","max_tokens":1.5})", 400, "max_tokens", "", "an integer"},
      {R"({"model":"tiny","prompt":"x","max_tokens":18446744073709551615})", 400, "max_tokens", "",
       "want 1 to"},
      {R"({"model":"tiny","prompt":"x","max_tokens":1000})", 400, "prompt",
       "context_length_exceeded", "1000 tokens"},
      {R"({"model":"tiny","prompt":"x","min_tokens":17})", 400, "min_tokens", "",
       "over max_tokens"},
      {R"({"model":"tiny","prompt":"x","n":17})", 400, "n", "", "1 to 16"},
      {R"({"model":"tiny","prompt":"x","n":0})", 400, "n", "", "1 to 16"},
      {R"({"model":"tiny","prompt":"x","best_of":17})", 400, "best_of", "", "1 to 16"},
      {R"({"model":"tiny","prompt":"x","n":3,"best_of":2})", 400, "best_of", "", "less than n"},
      {R"({"model":"tiny","prompt":"x","n":1,"best_of":2,"stream":true})", 400, "best_of", "",
       "in streams"},
      {R"({"model":"tiny","prompt":["1","2","3","4","5","6","7","8","9"],"n":15})", 400, "prompt",
       "", "9 prompts with 15 answers"},
      {R"({"model":"tiny","prompt":"x","echo":1})", 400, "echo", "", "a boolean"},
      {R"({"model":"tiny","prompt":"x","echo":true,"logprobs":1})", 400, "echo", "",
       "with 'logprobs'"},
      {R"({"model":"tiny","prompt":"x","logprobs":21})", 400, "logprobs", "", "0 to 20"},
      {R"({"model":"tiny","prompt":"x","logprobs":true})", 400, "logprobs", "", "an integer"},
      {R"({"model":"tiny","prompt":"x","top_logprobs":3})", 400, "top_logprobs", "", "of chats"},
      {R"({"model":"tiny","prompt":"x","suffix":"y"})", 400, "suffix", "", "not supported"},
      {R"({"model":"tiny","prompt":"x","presence_penalty":2.5})", 400, "presence_penalty", "",
       "-2 to 2"},
      {R"({"model":"tiny","prompt":"x","frequency_penalty":-3})", 400, "frequency_penalty", "",
       "-2 to 2"},
      {R"({"model":"tiny","prompt":"x","frequency_penalty":"1"})", 400, "frequency_penalty", "",
       "a number"},
      {R"({"model":"tiny","prompt":"x","repetition_penalty":0})", 400, "repetition_penalty", "",
       "0.01 to 100"},
      {R"({"model":"tiny","prompt":"x","logit_bias":{"5":"1"}})", 400, "logit_bias", "", "numbers"},
      {R"({"model":"tiny","prompt":"x","logit_bias":{"5":101}})", 400, "logit_bias", "",
       "-100 to 100"},
      {R"({"model":"tiny","prompt":"x","logit_bias":{"32000":1}})", 400, "logit_bias", "",
       "no token id"},
      {R"({"model":"tiny","prompt":"x","logit_bias":{"-1":1}})", 400, "logit_bias", "",
       "no token id"},
      {R"({"model":"tiny","prompt":"x","logit_bias":[5]})", 400, "logit_bias", "", "an object"},
      {R"({"model":"tiny","prompt":"x","min_p":1.1})", 400, "min_p", "", "0 to 1"},
      {R"({"model":"tiny","prompt":"x","seed":9223372036854775808})", 400, "seed", "",
       "'seed' is 9223372036854775808, want"},
      {R"({"model":"tiny","prompt":"x","response_format":{"type":"grammar"}})", 400,
       "response_format", "", "of type 'grammar' is not supported"},
      {R"({"model":"tiny","prompt":"x","response_format":{"type":"json_schema"}})", 400,
       "response_format", "", "no 'json_schema'"},
      {R"({"model":"tiny","prompt":"x","response_format":{"type":"json_schema","json_schema":
          {"schema":{"properties":{"a":{"if":{}}}}}}})",
       400, "response_format", "", "#/properties/a/if is not supported"},
      {R"({"model":"tiny","prompt":"x","guided_regex":"(a"})", 400, "guided_regex", "",
       "'(' without ')'"},
      {R"({"model":"tiny","prompt":"x","guided_regex":"a","guided_choice":["a"]})", 400,
       "guided_choice", "", "one form"},
      {R"({"model":"tiny","prompt":"x","guided_choice":"a"})", 400, "guided_choice", "",
       "no array of texts"},
      {R"({"model":"tiny","prompt":"x","guided_grammar":"start: \"a\""})", 400, "guided_grammar",
       "", "Lark"},
      {R"({"model":"tiny","prompt":"x","structured_outputs":{"structural_tag":"x"}})", 400,
       "structured_outputs", "", "'structured_outputs.structural_tag' is not supported"},
      {R"({"model":"tiny","prompt":"x","guided_regex":"a","ignore_eos":true})", 400, "ignore_eos",
       "", "not supported with 'guided_regex'"},
      {R"({"model":"tiny","prompt":"x","guided_whitespace_pattern":" "})", 400,
       "guided_whitespace_pattern", "", "not supported"},
      {R"({"model":"tiny","prompt":"x","stream":"yes"})", 400, "stream", "", "a boolean"},
      {R"({"model":"tiny","prompt":"x","stream_options":{}})", 400, "stream_options", "",
       "without 'stream'"},
      {R"({"model":"tiny","prompt":"x","temperature":3})", 400, "temperature", "", "0 to 2"},
      {R"({"model":"tiny","prompt":"x","temperature":"hot"})", 400, "temperature", "", "a number"},
      {R"({"model":"tiny","prompt":"x","seed":1.5})", 400, "seed", "", "an integer"},
      {R"({"model":"tiny","prompt":"x","stop":5})", 400, "stop", "", "a string"},
      {R"({"model":"tiny","prompt":"x","stop":""})", 400, "stop", "", "0 bytes"},
      {R"({"model":"tiny","prompt":"x","stop_token_ids":["a"]})", 400, "stop_token_ids", "",
       "token ids"},
      {R"({"model":"tiny","prompt":"x","cache_salt":1})", 400, "cache_salt", "", "a string"},
  };
  for (const Bad& b : table) {
    CAPTURE(b.body);
    const auto r = parse(b.body);
    REQUIRE(!r);
    CHECK(r.error().status == b.status);
    CHECK(r.error().param == b.param);
    CHECK(r.error().code == b.code);
    CHECK_MESSAGE(r.error().message.find(b.text) != std::string::npos, r.error().message);
  }
}

TEST_CASE("chat messages are joined, and bad ones refused") {
  const auto r = parse(
      R"({"model":"tiny","messages":[{"role":"system","content":"Be brief."},
         {"role":"user","content":[{"type":"text","text":"Hi"}]}],"max_completion_tokens":9})",
      true);
  REQUIRE(r);
  CHECK(bytes(*r) == "system: Be brief.\nuser: Hi\nassistant: ");
  CHECK(r->max_tokens == 9);
  for (const char* messages :
       {"[]", "3", "[3]", R"([{"content":"x"}])", R"([{"role":"user"}])",
        R"([{"role":"user","content":5}])", R"([{"role":"user","content":[{"type":"image"}]}])"}) {
    const auto bad = parse(strf(R"({"model":"tiny","messages":%s})", messages), true);
    REQUIRE(!bad);
    CHECK(bad.error().param == "messages");
  }
}

TEST_CASE("errors have the shape clients parse") {
  const auto e = *parse_json(error_json({429, "too busy", "", "ttft_slo"}));
  CHECK(e["error"]["type"] == "rate_limit_error");
  CHECK(e["error"]["code"] == "ttft_slo");
  CHECK(e["error"]["param"].is_null());
  CHECK((*parse_json(error_json({404, "x", "model", "model_not_found"})))["error"]["type"] ==
        "invalid_request_error");
  CHECK((*parse_json(error_json({503, "x", "", ""})))["error"]["type"] == "server_error");
}

TEST_CASE("stream events follow the standard") {
  OpenAiWriter w("1", "tiny", 5, false, true, false);
  const auto chunk = w.chunk({.text = "a\"b"}, {3, 1, 2});
  REQUIRE(chunk.starts_with("data: "));
  REQUIRE(chunk.ends_with("\n\n"));
  const auto j = *parse_json(chunk.substr(6));
  CHECK(j["id"] == "cmpl-1");
  CHECK(j["choices"][0]["text"] == "a\"b");
  CHECK(j["choices"][0]["finish_reason"].is_null());
  CHECK(j["usage"].is_null());
  const std::string events = w.end({3, 1, 2}, Json{{"kv_errors", 0}});
  CHECK(events.ends_with("\n\ndata: [DONE]\n\n"));
  const auto last = *parse_json(events.substr(6, events.find('\n') - 6));
  CHECK(last["choices"].empty());
  CHECK(last["usage"]["total_tokens"] == 4);
  CHECK(last["usage"]["prompt_tokens_details"]["cached_tokens"] == 2);
  CHECK(last["mc"]["kv_errors"] == 0);
  OpenAiWriter chat("1", "tiny", 5, true, false, false);
  const auto first = *parse_json(chat.chunk({.text = "x"}, {}).substr(6));
  CHECK(first["choices"][0]["delta"]["role"] == "assistant");
  CHECK(first["choices"][0]["delta"]["content"] == "x");
  CHECK(!first.contains("usage"));
  CHECK(!(*parse_json(
      chat.chunk({.text = "y", .finish = "stop"}, {}).substr(6)))["choices"][0]["delta"]
             .contains("role"));
  CHECK(chat.end({}, Json()) == "data: [DONE]\n\n");
}

TEST_CASE("an event is the JSON it always was, whatever stands in names and text") {
  for (const bool chat : {false, true}) {
    OpenAiWriter w("i\"d", "mo\\del", 5, chat, false, true);
    for (const std::string text : {"", "a", "\"\\\n\x01", "na\xC3\xAFve"}) {
      const auto event = w.chunk({.text = text, .finish = "stop"}, {3, 1, 2});
      REQUIRE(event.starts_with("data: {"));
      CHECK(event.find('\n') == event.size() - 2);  // an event is one line
      const auto j = parse_json(event.substr(6));
      REQUIRE_MESSAGE(j, event);
      CHECK((*j)["id"].get<std::string>().ends_with("i\"d"));
      CHECK((*j)["model"] == "mo\\del");
      const Json& choice = (*j)["choices"][0];
      CHECK((chat ? choice["delta"]["content"] : choice["text"]) == text);
      CHECK(choice["finish_reason"] == "stop");
      CHECK((*j)["usage"]["total_tokens"] == 4);
      // Nothing said twice, nothing left out: it prints as it was written.
      CHECK("data: " + dump_json(*j) + "\n\n" == event);
    }
  }
}

TEST_CASE("text comes out as it went in, character by whole character") {
  TextStream s(kBytes, {});
  CHECK(all(s, "na\xC3\xAFve \xF0\x9F\x98\x80!") == "na\xC3\xAFve \xF0\x9F\x98\x80!");
  TextStream halves(kBytes, {});
  CHECK(halves.push(0xC3).empty());
  CHECK(halves.push(0xAF) == "\xC3\xAF");
}

TEST_CASE("the token that ends an answer of the dummy engine is no text") {
  TextStream s(kBytes, {});
  CHECK(s.push('a') + s.push(2) + s.push('\t') + s.flush() == "a\t");
  CHECK(kBytes.encode("\x02") == std::vector<int32_t>{2});  // in a prompt it is a byte
  CHECK(kBytes.bytes(2) == "\x02");
}

TEST_CASE("bytes that are no text are replaced, never passed on") {
  TextStream s(kBytes, {});
  CHECK(all(s, "a\xFFz") == "a\xEF\xBF\xBDz");
  TextStream cut(kBytes, {});
  CHECK(all(cut, "a\xE2\x82") == "a\xEF\xBF\xBD");
  TextStream surrogate(kBytes, {});
  const auto out = all(surrogate, "\xED\xA0\x80");
  CHECK(out.find('\xED') == std::string::npos);
}

TEST_CASE("tokens beyond bytes are words of their own") {
  TextStream a(kBytes, {}), b(kBytes, {});
  const auto x = a.push(31999), y = b.push(31998);
  CHECK(x != y);
  CHECK(x[0] == ' ');
}

TEST_CASE("a stop string ends the text before itself, wherever tokens are cut") {
  TextStream s(kBytes, {"END", "ENOUGH"});
  CHECK(all(s, "the END of it") == "the ");
  CHECK(s.stopped());
  TextStream held(kBytes, {"END"});
  CHECK(held.push('E').empty());
  CHECK(held.push('N').empty());
  CHECK(held.push('x') == "ENx");
  CHECK(held.push('E').empty());
  CHECK(held.flush() == "E");
  CHECK(!held.stopped());
}

TEST_CASE("a stop string that ends within min_tokens is text; one that ends behind them stops") {
  const auto said = [](uint32_t min_tokens, const char* text) {
    TextStream s(kBytes, {"END", "x"}, false, {}, min_tokens);
    const std::string out = all(s, text);
    return out + (s.stopped() ? "|" + s.stopped_by() : "");
  };
  CHECK(said(0, "an END") == "an |END");
  CHECK(said(5, "an END, END of it") == "an |END");  // its last letter is the sixth
  CHECK(said(6, "an END, END of it") == "an END, |END");
  CHECK(said(6, "an END of it") == "an END of it");
  CHECK(said(2, "xxxx") == "xx|x");
  CHECK(said(9, "xxxx") == "xxxx");
  CHECK(said(1, "\xC3\xAFx") == "\xC3\xAF|x");
}

TEST_CASE("a long list of ids is the same prompt, and is refused for the same reasons") {
  ApiLimits limits = kLimits;
  limits.context_max = 100'000;
  std::string list;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 4000; ++i) {
    list += (i > 0 ? "," : "") + std::to_string(i * 7 % 32000);
    ids.push_back(i * 7 % 32000);
  }
  const auto ask = [&](const std::string& prompt, const std::string& more = {}) {
    return parse_completion(R"({"model":"tiny","prompt":)" + prompt + more + "}", false, limits);
  };
  const auto flat = ask("[" + list + "]", R"(,"echo":true,"n":2,"max_tokens":3)");
  REQUIRE(flat);
  CHECK(flat->prompt == ids);
  CHECK(flat->echo == std::vector<std::string>{kBytes.decode(ids)});
  CHECK(flat->n == 2);
  const auto several = ask("[[" + list + "],[1]]");
  REQUIRE(several);
  CHECK(several->prompt == ids);
  CHECK(several->more_prompts.size() == 1);
  CHECK(ask("[" + list + ",32000]").error().param == "prompt");
  CHECK(ask("[" + list + ",-1]").error().param == "prompt");
  CHECK(ask("[" + list + ",]").error().code == "invalid_json");
  CHECK(ask("[" + list + "]", R"(,"suffix":"x")").error().param == "suffix");
  limits.context_max = 4000;
  CHECK(ask("[" + list + "]").error().code == "context_length_exceeded");
}
