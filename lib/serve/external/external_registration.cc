#include "serve/external/external_registration.h"

#include <algorithm>

#include "base/json.h"
#include "base/options.h"
#include "base/units.h"
#include "io/address.h"
#include "io/file.h"
#include "io/secret_json.h"
#include "serve/external/event_stream.h"
#include "tls/client_tls.h"

namespace mc::serve {
namespace {

constexpr size_t kServesMax = 256, kApiKeyMax = 4096;
constexpr size_t kUnknownMax = 4, kUnknownNameMax = 64;  // members that are named, and their bytes

// 0 is what some registries send for "unknown".
Result<uint64_t> small_number(const Json& json, const char* key, uint64_t max) {
  MC_TRY(const uint64_t n, get_uint_or(json, key, 0));
  if (n > max)
    return fail(Code::kInvalid, "%s: want at most %llu", key, static_cast<unsigned long long>(max));
  return n;
}

// Adds the key of "key_file" and the name of "ca_file". Who posts a registration may not make us
// read a file.
auto with_files(const Json& json) {
  return [&json](ExternalOptions o) -> Result<ExternalOptions> {
    MC_TRY(o.ca_file, get_string_or(json, "ca_file", ""));
    if (!o.ca_file.empty()) {
      MC_TRY_(check_external(o));
      MC_TRY_(tls::check_ca_file(o.ca_file));
    }
    MC_TRY(const std::string path, get_string_or(json, "key_file", ""));
    if (path.empty()) return o;
    MC_TRY(o.api_key, io::read_secret_file(path, kApiKeyMax));
    while (o.api_key.ends_with('\n') || o.api_key.ends_with('\r')) o.api_key.pop_back();
    if (o.api_key.empty()) return fail(Code::kInvalid, "key_file %s is empty", path.c_str());
    MC_TRY_(check_external(o));
    return o;
  };
}

Result<> check_pair(const ExternalOptions& o) {
  if (!at_once(o.pair) && o.bootstrap.empty()) return {};
  if (!at_once(o.pair) || o.role != "prefill") {
    if (!o.bootstrap.empty())
      return fail(Code::kInvalid,
                  "bootstrap is for an engine of role prefill whose pair is concurrent or sglang");
    if (o.role == "both")
      return fail(Code::kInvalid, "pair %s: want role prefill or decode", name(o.pair));
    return {};
  }
  const std::string scheme = "http://";
  const auto at =
      io::parse_address(o.bootstrap.substr(std::min(scheme.size(), o.bootstrap.size())));
  if (!o.bootstrap.starts_with(scheme) || !at || at->port == 0 || at->host.empty())
    return fail(Code::kInvalid, "bootstrap '%s': want http://host:port, which pair %s needs",
                escape(o.bootstrap).c_str(), name(o.pair));
  return {};
}

}  // namespace

bool are_halves(const ExternalOptions& first, const ExternalOptions& second) {
  return first.role == "prefill" && second.role == "decode" && first.kv_group == second.kv_group &&
         first.pair == second.pair && first.serves == second.serves;
}

Result<> check_external(const ExternalOptions& o) {
  if (o.name.empty() || o.name.size() > 128 ||
      !std::all_of(o.name.begin(), o.name.end(), [](char c) { return c > ' ' && c < 0x7f; }))
    return fail(Code::kInvalid, "instance_id: want 1 to 128 printable characters");
  if (o.url.empty() && o.events.empty())
    return fail(Code::kInvalid, "engine %s has neither url nor endpoint", o.name.c_str());
  const bool secure = o.url.starts_with("https://");
  if (!o.url.empty() && !secure && !o.url.starts_with("http://"))
    return fail(Code::kInvalid, "url '%s': want http://host:port or https://host:port",
                escape(o.url).c_str());
  if (!o.ca_file.empty() && !secure)
    return fail(Code::kInvalid, "ca_file is for an https url, not '%s'", escape(o.url).c_str());
  if (!o.events.empty()) MC_TRY_(event_address(o.events));
  if (!o.replay.empty()) MC_TRY_(event_address(o.replay));
  if (o.role != "both" && o.role != "prefill" && o.role != "decode")
    return fail(Code::kInvalid, "role '%s': want both, prefill or decode", escape(o.role).c_str());
  if (o.role != "both" && o.url.empty())
    return fail(Code::kInvalid, "engine %s has a role but no url", o.name.c_str());
  MC_TRY_(check_pair(o));
  const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
  if (o.api_key.size() > kApiKeyMax || !std::all_of(o.api_key.begin(), o.api_key.end(), printable))
    return fail(Code::kInvalid, "api_key: want at most %zu printable characters", kApiKeyMax);
  if (o.serves.size() > kServesMax)
    return fail(Code::kInvalid, "model: want at most %zu characters", kServesMax);
  if (o.block_tokens > 65536) return fail(Code::kInvalid, "block_size: want at most 65536");
  return {};
}

Result<ExternalOptions> parse_external(const Json& json) {
  if (!json.is_object()) return fail(Code::kInvalid, "want a JSON object with instance_id and url");
  ExternalOptions o;
  MC_TRY(o.name, get_string(json, "instance_id"));
  MC_TRY(o.url, get_string_or(json, "url", ""));
  MC_TRY(o.model, get_string_or(json, "modelname", ""));
  MC_TRY(o.serves, get_string_or(json, "model", ""));
  MC_TRY(o.tenant, get_string_or(json, "tenant_id", "default"));
  MC_TRY(o.events, get_string_or(json, "endpoint", ""));
  MC_TRY(o.replay, get_string_or(json, "replay_endpoint", ""));
  MC_TRY(const uint64_t block, small_number(json, "block_size", 65536));
  MC_TRY(o.rank, small_number(json, "dp_rank", 1 << 16));
  MC_TRY(o.role, get_string_or(json, "role", "both"));
  MC_TRY(o.kv_group, get_string_or(json, "kv_group", "default"));
  MC_TRY(const std::string pair, get_string_or(json, "pair", name(PairKind::kSequential)));
  MC_TRY(o.pair, parse_pair_kind(pair));
  MC_TRY(o.bootstrap, get_string_or(json, "bootstrap", ""));
  MC_TRY(o.api_key, get_string_or(json, "api_key", ""));
  o.block_tokens = static_cast<uint32_t>(block);
  for (const char* key : {"lora_name", "additionalsalt"}) {
    MC_TRY(const std::string value, get_string_or(json, key, ""));
    if (!value.empty())
      return fail(Code::kInvalid, "%s '%s': only caches of the model itself are indexed", key,
                  escape(value).c_str());
  }
  while (o.url.ends_with('/')) o.url.pop_back();
  while (o.bootstrap.ends_with('/')) o.bootstrap.pop_back();
  MC_TRY_(check_external(o));
  return o;
}

std::string unknown_members(const Json& registration) {
  static const std::vector<std::string> known = {
      "instance_id",   "url",       "model",   "modelname", "endpoint", "replay_endpoint",
      "block_size",    "tenant_id", "dp_rank", "type",      "role",     "kv_group",
      "pair",          "bootstrap", "api_key", "key_file",  "ca_file",  "lora_name",
      "additionalsalt"};
  std::string all;
  size_t found = 0;
  for (const auto& [key, value] : registration.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (++found > kUnknownMax) return all + "; ...";
    const std::string name = key.substr(0, kUnknownNameMax), near = nearest(name, known);
    all += strf("%sunknown member '%s'%s", all.empty() ? "" : "; ", escape(name).c_str(),
                near.empty() ? "" : (": did you mean " + near + "?").c_str());
  }
  return all;
}

Json registration_json(const ExternalOptions& o) {
  Json j = {{"instance_id", o.name},        {"url", o.url},         {"modelname", o.model},
            {"tenant_id", o.tenant},        {"endpoint", o.events}, {"replay_endpoint", o.replay},
            {"block_size", o.block_tokens}, {"dp_rank", o.rank},    {"role", o.role},
            {"kv_group", o.kv_group}};
  if (at_once(o.pair)) j["pair"] = name(o.pair);
  if (!o.bootstrap.empty()) j["bootstrap"] = o.bootstrap;
  if (!o.serves.empty()) j["model"] = o.serves;
  if (!o.api_key.empty()) j["api_key"] = o.api_key;
  return j;
}

Result<std::vector<ExternalOptions>> read_external(const std::string& path, bool written) {
  MC_TRY(const Json list, io::unquoted(read_json_file(path)));
  if (!list.is_array()) return fail(Code::kInvalid, "%s: want a list of engines", path.c_str());
  std::vector<ExternalOptions> all;
  for (const Json& j : list) {
    auto o = parse_external(j).and_then(with_files(j));
    // First: the member that is missing may be the one with a spelling mistake.
    if (const std::string unknown = j.is_object() && !written ? unknown_members(j) : "";
        !unknown.empty())
      return fail(Code::kInvalid, "%s: engine %zu: %s", path.c_str(), all.size(), unknown.c_str());
    if (!o)
      return fail(Code::kInvalid, "%s: engine %zu: %s", path.c_str(), all.size(),
                  o.error().what.c_str());
    all.push_back(std::move(*o));
  }
  const auto has_key = [](const Json& j) {
    const auto key = get_string_or(j, "api_key", "");
    return key && !key->empty();
  };
  if (std::any_of(list.begin(), list.end(), has_key))
    if (const auto secret = io::check_secret_file(path); !secret)
      return fail(secret.error().code, "%s, as it has an api_key; or name a key_file in its place",
                  secret.error().what.c_str());
  return all;
}

}  // namespace mc::serve
