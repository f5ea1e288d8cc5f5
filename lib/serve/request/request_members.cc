#include "serve/request/request_members.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "base/json.h"
#include "base/units.h"

namespace mc::serve {
namespace {

constexpr size_t kShownMax = 16, kShownNameMax = 64;  // of those without effect

struct MemberRow {
  const char* name;
  // A letter for each Api: D done, T for the template, R refused, N no effect, - unknown.
  const char* fates;
  const char* idle;  // JSON that asks for nothing beyond what is done; "": any other value does
};

// A name stands twice where its idle value differs. docs/members.md is made of these lines.
constexpr MemberRow kMemberRows[] = {
    {"model", "DDDDDD", ""},
    {"prompt", "D-R-D-", ""},
    {"messages", "-D-DD-", ""},
    {"input", "--D---", ""},
    {"instructions", "--D---", ""},
    {"system", "---D--", ""},
    {"tokens", "-----D", ""},
    {"stream", "DDDD--", ""},
    {"stream_options", "DDN---", ""},
    {"n", "DDRR--", "1"},
    {"best_of", "DDRR--", "1"},
    {"echo", "DDRR--", "false"},
    {"max_tokens", "DD-D--", ""},
    {"max_completion_tokens", "DD----", ""},
    {"max_output_tokens", "--D---", ""},
    {"min_tokens", "DDDD--", ""},
    {"ignore_eos", "DDDD--", ""},
    {"stop", "DDD---", ""},
    {"stop_sequences", "---D--", ""},
    {"stop_token_ids", "DDDD--", ""},
    {"include_stop_str_in_output", "RRRR--", "false"},
    {"temperature", "DDDD--", ""},
    {"top_p", "DDDD--", ""},
    {"top_k", "DDDD--", ""},
    {"min_p", "DDDD--", ""},
    {"presence_penalty", "DDDD--", ""},
    {"frequency_penalty", "DDDD--", ""},
    {"repetition_penalty", "DDDD--", ""},
    {"length_penalty", "RRRR--", "1"},
    {"use_beam_search", "RRRR--", "false"},
    {"repetition_detection", "RRRR--", ""},
    {"logit_bias", "DDDD--", ""},
    {"bad_words", "RRRR--", "[]"},
    {"allowed_token_ids", "RRRR--", ""},
    {"logits_processors", "RRRR--", "[]"},
    {"watermarking", "RRRR--", "false"},
    {"seed", "DDDD--", ""},
    {"logprobs", "DDRR--", "false"},
    {"top_logprobs", "DDRR--", "0"},
    {"prompt_logprobs", "RRRR--", ""},
    {"logprob_token_ids", "RRRR--", ""},
    {"response_format", "DDRR--", "{\"type\":\"text\"}"},
    {"text", "--D---", ""},
    {"output_format", "---R--", ""},
    {"output_config", "---R--", ""},
    {"structured_outputs", "DDDD--", ""},
    {"guided_json", "DDRR--", ""},
    {"guided_json_object", "DDRR--", "false"},
    {"guided_regex", "DDRR--", ""},
    {"guided_choice", "DDRR--", ""},
    {"guided_grammar", "DDRR--", ""},
    {"guided_whitespace_pattern", "RRRR--", ""},
    {"guided_decoding_backend", "NNNN--", ""},
    {"structural_tag", "RRRR--", ""},
    {"tools", "RDDDT-", "[]"},
    {"tool_choice", "RDDD--", "\"none\""},
    {"parallel_tool_calls", "NDD---", ""},
    {"max_tool_calls", "--N---", ""},
    {"functions", "RRRR--", "[]"},
    {"function_call", "RRRR--", "\"none\""},
    {"mcp_servers", "---R--", "[]"},
    {"web_search_options", "-R----", ""},
    {"chat_template", "RRRRR-", ""},
    {"chat_template_kwargs", "RTTTT-", "{}"},
    {"documents", "RTTTT-", "[]"},
    {"add_generation_prompt", "RT--T-", "true"},
    {"continue_final_message", "RRRRR-", "false"},
    {"add_special_tokens", "R---D-", "true"},
    {"add_special_tokens", "-R----", "false"},
    {"truncate_prompt_tokens", "RRRR--", ""},
    {"truncation_side", "RR----", ""},
    {"truncation", "--R---", "\"disabled\""},
    {"context_management", "--RR--", ""},
    {"compaction", "---R--", ""},
    {"prompt_embeds", "RR----", ""},
    {"suffix", "RR----", "\"\""},
    {"reasoning_effort", "-D--D-", "\"none\""},
    {"include_reasoning", "-RR---", "true"},
    {"thinking_token_budget", "RR----", ""},
    {"reasoning", "--R---", ""},
    {"thinking", "---D--", ""},
    {"verbosity", "-N----", "\"medium\""},
    {"modalities", "RR----", "[\"text\"]"},
    {"audio", "RR----", ""},
    {"image", "--R---", ""},
    {"moderation", "-RR---", ""},
    {"previous_response_id", "--R---", ""},
    {"previous_input_messages", "--R---", ""},
    {"conversation", "--R---", ""},
    {"background", "--R---", "false"},
    {"background_options", "--R---", ""},
    {"include", "--D---", ""},
    {"enable_response_messages", "--R---", "false"},
    {"container", "---R--", ""},
    {"thread", "---R--", ""},
    {"fallbacks", "---R--", "[]"},
    {"diagnostics", "---R--", ""},
    {"inference_geo", "---R--", ""},
    {"speed", "---R--", "\"standard\""},
    {"cache_salt", "DDDD--", ""},
    {"cache_control", "DDDD--", ""},
    {"priority", "DDDD--", ""},
    {"user", "DDD---", ""},
    {"metadata", "-NDN--", "{}"},
    {"store", "-NN---", "false"},
    {"service_tier", "-NNN--", "\"auto\""},
    {"safety_identifier", "-NN---", ""},
    {"prompt_cache_key", "-NN---", ""},
    {"prompt_cache_options", "-NN---", ""},
    {"prompt_cache_retention", "-NN---", ""},
    {"access_programs", "--N---", ""},
    {"prediction", "-N----", ""},
    {"user_profile_id", "---N--", ""},
    {"workspace_id", "---N--", ""},
    {"billing_policy", "---N--", ""},
    {"fallback_credit_token", "---N--", ""},
    {"betas", "---N--", ""},
    {"skip_special_tokens", "RRR---", "true"},
    {"spaces_between_special_tokens", "RR----", "true"},
    {"return_token_ids", "RR----", "false"},
    {"return_tokens_as_token_ids", "DD----", "false"},
    {"return_token_offsets", "RR----", "false"},
    {"return_token_strs", "----R-", "false"},
    {"return_prompt_text", "-R----", "false"},
    {"return_mm_kwargs", "RRRR--", "false"},
    {"routed_experts_prompt_start", "RR----", ""},
    {"mm_payload", "RRRR--", ""},
    {"vllm_xargs", "RRRR--", "{}"},
    {"stream_interval", "NN----", ""},
    {"request_id", "NNN---", ""},
    {"session_id", "NNN---", ""},
    {"media_io_kwargs", "NNN-N-", ""},
    {"mm_processor_kwargs", "NNN-N-", ""},
    {"kv_transfer_params", "NNNN--", ""},
    {"ec_transfer_params", "NNNN--", ""},
    {"bootstrap_host", "NNNN--", ""},
    {"bootstrap_port", "NNNN--", ""},
    {"bootstrap_room", "NNNN--", ""},
};

struct Rule {
  MemberFate fate = MemberFate::kUnknown;
  std::optional<Json> idle;
};

MemberFate fate_named(char letter) {
  switch (letter) {
    case 'D': return MemberFate::kDone;
    case 'T': return MemberFate::kTemplate;
    case 'R': return MemberFate::kRefused;
    case 'N': return MemberFate::kNoEffect;
    default: return MemberFate::kUnknown;
  }
}

using Rules = std::map<std::string_view, Rule, std::less<>>;

const Rules& rules_of(Api api) {
  static const std::array<Rules, 6> all = [] {
    std::array<Rules, 6> rules;
    for (const MemberRow& row : kMemberRows)
      for (size_t i = 0; i < rules.size(); ++i)
        if (const MemberFate fate = fate_named(row.fates[i]); fate != MemberFate::kUnknown)
          rules[i][row.name] = {fate, *row.idle == '\0' ? std::optional<Json>()
                                                        : std::optional(*parse_json(row.idle))};
    return rules;
  }();
  return all[static_cast<size_t>(api)];
}

const Rule& rule_of(std::string_view name, Api api) {
  static const Rule unknown;
  const Rules& rules = rules_of(api);
  const auto found = rules.find(name);
  return found == rules.end() ? unknown : found->second;
}

bool is_idle(const Rule& rule, const Json& value) {
  return value.is_null() || (rule.idle && value == *rule.idle) ||
         (rule.idle && *rule.idle == "none" && value == "auto");  // a choice among no tools
}

}  // namespace

MemberFate fate_of(std::string_view name, Api api) { return rule_of(name, api).fate; }

std::vector<std::string_view> known_members(Api api) {
  std::vector<std::string_view> names;
  for (const auto& [name, rule] : rules_of(api)) names.push_back(name);
  return names;
}

tl::expected<void, ApiError> check_members(const Json& body, Api api, bool templated) {
  for (const auto& [name, value] : body.get_ref<const Json::object_t&>()) {
    const Rule& rule = rule_of(name, api);
    const bool refused =
        rule.fate == MemberFate::kRefused || (rule.fate == MemberFate::kTemplate && !templated);
    if (!refused || is_idle(rule, value)) continue;
    const std::string but =
        !rule.idle || rule.idle->is_structured() ? "" : " other than " + dump_json(*rule.idle);
    return tl::unexpected(ApiError{
        400, strf("'%s'%s is not supported by own workers", name.c_str(), but.c_str()), name, ""});
  }
  return {};
}

std::string ignored_members(const Json& body, Api api, std::string_view unread) {
  std::string names;
  size_t count = 0;
  for (const auto& [name, value] : body.get_ref<const Json::object_t&>()) {
    const Rule& rule = rule_of(name, api);
    const bool unused = rule.fate == MemberFate::kNoEffect || rule.fate == MemberFate::kUnknown ||
                        (!unread.empty() && name == unread);
    if (!unused || is_idle(rule, value)) continue;
    if (count++ == kShownMax) return names + ", ..";
    const bool plain = !name.empty() && name.size() <= kShownNameMax &&
                       std::all_of(name.begin(), name.end(),
                                   [](char c) { return c > ' ' && c < 0x7f && c != ','; });
    names += (names.empty() ? "" : ", ") + (plain ? name : std::string("?"));
  }
  return names;
}

}  // namespace mc::serve
