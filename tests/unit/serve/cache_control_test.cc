// What requests say of how they are to be cached.
#include <doctest/doctest.h>

#include <ctime>

#include "serve/request/openai.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::serve;
using namespace std::chrono_literals;

namespace cache_control_test {
namespace {

const model::Tokenizer kBytes = model::Tokenizer::bytes_only(32000);
const ApiLimits kLimits{
    .tokenizer = &kBytes, .model = "tiny", .context_max = 100000, .vocab = 32000};

tl::expected<CompletionRequest, ApiError> text(const std::string& control) {
  return parse_completion(
      R"({"model":"tiny","prompt":"0123456789","cache_control":)" + control + "}", false, kLimits);
}
tl::expected<CompletionRequest, ApiError> chat(const std::string& messages,
                                               const std::string& more = "") {
  return parse_completion(R"({"model":"tiny","messages":[)" + messages + "]" + more + "}", true,
                          kLimits);
}

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

const std::string kRules(100, 'r'), kAsk = R"({"role":"user","content":"what is that?"})";

}  // namespace

TEST_CASE("a request may be a context, for a time, or not worth keeping") {
  CHECK(text(R"({"type":"context"})")->cache.context_tokens == 10);
  CHECK(text(R"({"type":"context"})")->cache.ttl == 5min);
  CHECK(text(R"({"type":"context","ttl":"1h"})")->cache.ttl == 1h);
  CHECK(text(R"({"type":"context","ttl":90})")->cache.ttl == 90s);
  CHECK(!text(R"({"type":"context"})")->cache.ephemeral);
  CHECK(text(R"({"type":"ephemeral"})")->cache.ephemeral);
  CHECK(text(R"({"type":"ephemeral"})")->cache.context_tokens == 0);
  CHECK(text(R"({"type":"ephemeral","ttl":"5m"})")->cache.context_tokens == 10);
  CHECK(text("null")->cache.context_tokens == 0);
}

TEST_CASE("a message, or a part of one, that says so makes a context of all up to there") {
  const std::string system = R"({"role":"system","content":")" + kRules + "\"";
  const auto none = chat(system + "}," + kAsk);
  REQUIRE(none);
  CHECK(none->cache.context_tokens == 0);
  const auto marked = chat(system + R"(,"cache_control":{"type":"ephemeral"}},)" + kAsk);
  REQUIRE_MESSAGE(marked, marked.error().message);
  CHECK(marked->prompt == none->prompt);
  CHECK(marked->cache.context_tokens >= 100);
  CHECK(marked->cache.context_tokens < marked->prompt.size() - 13);
  CHECK(marked->cache.ttl == 5min);
  const auto part = chat(R"({"role":"system","content":[{"type":"text","text":")" + kRules +
                         R"(","cache_control":{"type":"context","ttl":"10m"}}]},)" + kAsk);
  REQUIRE_MESSAGE(part, part.error().message);
  CHECK(part->cache.context_tokens == marked->cache.context_tokens);
  CHECK(part->cache.ttl == 10min);
  // Beside it the rest may be ephemeral.
  const auto both = chat(system + R"(,"cache_control":{"type":"context"}},)" + kAsk,
                         R"(,"cache_control":{"type":"ephemeral"})");
  REQUIRE(both);
  CHECK(both->cache.ephemeral);
  CHECK(both->cache.context_tokens == marked->cache.context_tokens);
}

TEST_CASE("hints in all messages of a long chat take no quadratic time") {
  std::string all;
  for (int i = 0; i < 4096; ++i)
    all += std::string(i > 0 ? "," : "") +
           R"({"role":"user","content":"x","cache_control":{"type":"context","ttl":"1h"}})";
  const double before = cpu_seconds();
  const auto r = chat(all);
  CHECK(cpu_seconds() - before < 3 * kSlow);  // ten times that, were they copied at each hint
  REQUIRE_MESSAGE(r, r.error().message);
  CHECK(r->cache.ttl == 1h);
  CHECK(r->cache.context_tokens >= 4096);
}

TEST_CASE("what makes no sense of it is 400, and names cache_control") {
  for (const char* wrong :
       {"7", "[]", "{}", R"({"type":"forever"})", R"({"type":3})", R"({"type":"context","ttl":0})",
        R"({"type":"context","ttl":"7"})", R"({"type":"context","ttl":"2d"})",
        R"({"type":"context","ttl":-5})", R"({"type":"context","ttl":[]})",
        R"({"type":"context","ttl":86401})"}) {
    CAPTURE(wrong);
    const auto r = text(wrong);
    REQUIRE(!r);
    CHECK(r.error().status == 400);
    CHECK(r.error().param == "cache_control");
    CHECK(!chat(R"({"role":"user","content":"x","cache_control":)" + std::string(wrong) + "}"));
  }
}

}  // namespace cache_control_test
