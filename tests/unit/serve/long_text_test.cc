// F7: long texts are worked on beside the loop, and refused by their bytes before that.
#include <ctime>
#include <fstream>

#include "api_site.h"
#include "base/json.h"
#include "text_model.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace {

double cpu_seconds(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string long_body(size_t bytes, const char* before = R"({"prompt":")",
                      const char* after = R"("})") {
  return before + std::string(bytes, 'x') + after;
}

constexpr const char* kSlowSchema = R"({"type":"string","pattern":"(a|b|c|d|e|f){99999}"})";

}  // namespace

TEST_CASE("the loop spends little of what a long text costs") {
  Site s;
  const std::string body = long_body(200000);
  const double whole = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  const double own = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  const auto r = s.ask("/tokenize", body);
  CHECK(r.status == 200);
  CHECK(r.body.starts_with(R"({"count":200000,)"));
  // The loop also collects the client's answer.
  CHECK(cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - own <
        0.4 * (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - whole));
}

TEST_CASE("a body that is larger than the context can need is not read") {
  Site s;
  const auto r = s.ask("/v1/completions", long_body(31 << 20, R"({"model":"tiny","prompt":")"));
  CHECK(r.status == 413);
}

TEST_CASE("long prompts are answered as short ones are, and their errors have their request's id") {
  Site s;
  s.headers.clear();
  const auto good = s.ask("/v1/completions", long_body(20000, R"({"model":"tiny","prompt":")"));
  CHECK(good.status == 200);
  CHECK(parse_json(good.body)->at("usage").at("prompt_tokens") == 20000);
  const auto bad = s.ask("/v1/completions", long_body(20000, R"({"model":"none","prompt":")"));
  CHECK(bad.status == 404);
  CHECK(bad.body.find("model_not_found") != std::string::npos);
  const auto none = s.ask("/query", "[" + std::string(20000, ' ') + "]");
  CHECK(none.status == 400);
  CHECK(none.body.find("want a JSON object") != std::string::npos);
}

// A model's template may take seconds, whatever the length of the chat: all others waited.
TEST_CASE("the loop renders no slow template, however short the chat") {
  ConductorOptions options = patient();
  options.choice.model = text_model(
      "{%- for i in range(300) -%}{%- for j in range(1000) -%}{%- endfor -%}{%- endfor -%}"
      "<|im_start|>{{ messages[0].content }}<|im_end|>");
  Site s(options);
  for (const char* const path :
       {"/v1/chat/completions", "/v1/responses", "/v1/chat/completions/render", "/tokenize"}) {
    const bool responses = std::string_view(path) == "/v1/responses";
    const std::string body =
        R"({"model":"texts",)" +
        std::string(responses ? R"("input":"x"})"
                              : R"("messages":[{"role":"user","content":"x"}]})");
    const double whole = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double own = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    const auto r = s.ask(path, body);
    CHECK_MESSAGE(r.status == 200, r.body);
    const double loop = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - own;
    CHECK_MESSAGE(loop < 0.4 * (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - whole), path);
  }
}

// A short schema may take as long to compile as a long text to read: the loop stood still
// meanwhile.
TEST_CASE("the loop compiles no form of answers, however short the request") {
  Site s;
  for (const char* const form :
       {R"("guided_json":SCHEMA)", R"("guided_j\u0073on":SCHEMA)",
        R"("response_format":{"type":"json_schema","json_schema":{"schema":SCHEMA}})",
        R"("structured_outputs":{"json":SCHEMA})"}) {
    std::string body = R"({"model":"tiny","prompt":"x","max_tokens":2,)" + std::string(form) + "}";
    body.replace(body.find("SCHEMA"), 6, kSlowSchema);
    REQUIRE(body.size() < TextWork::kShort);
    const double whole = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double own = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    s.ask("/v1/completions", body);
    const double loop = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - own;
    CHECK_MESSAGE(loop < 0.4 * (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - whole), form);
  }
}
