#include "cost/model_spec.h"

#include <array>

#include "base/hash.h"
#include "base/json.h"
#include "base/units.h"

namespace mc::cost {
namespace {

Result<> check_keys(const Json& object, const char* where, const std::vector<std::string>& known) {
  for (const auto& [key, value] : object.items()) {
    bool found = false;
    for (const auto& k : known) found = found || k == key;
    if (found) continue;
    const std::string near = nearest(key, known);
    return fail(Code::kInvalid, "%s: unknown key '%s'%s", where, escape(key).c_str(),
                near.empty() ? "" : (": did you mean '" + near + "'?").c_str());
  }
  return {};
}

Result<uint32_t> small(const Json& json, const char* key, uint64_t max) {
  MC_TRY(const uint64_t n, get_uint(json, key));
  if (n == 0 || n > max)
    return fail(Code::kInvalid, "'%s' is %llu, want 1 to %llu", key,
                static_cast<unsigned long long>(n), static_cast<unsigned long long>(max));
  return static_cast<uint32_t>(n);
}

// Without measured coefficients, from the operations of a step: 2 per parameter and token, 4 per
// layer, hidden unit and pair of tokens in attention (causal), on a machine of 2.5 PFLOP/s and
// 16 TB/s (8 x A800) at half its peak.
CostModel from_shape(const ModelSpec& s) {
  constexpr double kFlops = 2.5e15 * 0.5, kMemory = 16.3e12 * 0.58;
  CostModel c;
  c.c0 = 0.02;
  c.c1 = 2.0 * static_cast<double>(s.parameters) / kFlops;
  c.c2 = 2.0 * s.layers * static_cast<double>(s.hidden) / kFlops;
  c.t0 = static_cast<double>(s.parameters) * s.element_bytes / kMemory + 0.005;
  c.t1 = 0.001;
  c.t2 = static_cast<double>(s.kv_bytes_per_token()) / kMemory;
  return c;
}

// The keys of a cost model in JSON, and where each value is.
template <class Model>
auto cost_fields(Model& c) {
  return std::to_array<std::pair<const char*, decltype(&c.c0)>>(
      {{"c0-s", &c.c0},
       {"c1-s-per-token", &c.c1},
       {"c2-s-per-token2", &c.c2},
       {"load-bytes-per-s", &c.load_bytes_per_s},
       {"t0-s", &c.t0},
       {"t1-s-per-request", &c.t1},
       {"t2-s-per-token", &c.t2},
       {"transfer-bytes-per-s", &c.transfer_bytes_per_s}});
}

Result<CostModel> parse_cost(const Json& json) {
  CostModel c;
  const auto fields = cost_fields(c);
  std::vector<std::string> known;
  for (const auto& [key, value] : fields) known.emplace_back(key);
  MC_TRY_(check_keys(json, "cost", known));
  for (const auto& [key, value] : fields) {
    MC_TRY(*value, get_number_or(json, key, *value));
    if (*value < 0) return fail(Code::kInvalid, "'%s' is negative", key);
  }
  if (c.load_bytes_per_s == 0 || c.transfer_bytes_per_s == 0)
    return fail(Code::kInvalid,
                "'load-bytes-per-s' or 'transfer-bytes-per-s' is 0: want bytes a second above 0");
  return c;
}

std::string shape(const ModelSpec& s) {
  return strf("%s with %u layers, %u KV heads of %u, hidden size %u, %u bytes a number",
              escape(s.name).c_str(), s.layers, s.kv_heads, s.head_dim, s.hidden, s.element_bytes);
}

}  // namespace

std::string ModelSpec::fingerprint(uint64_t block_tokens) const {
  return strf(
      "model=%s layers=%u kv-heads=%u head-dim=%u element-bytes=%u mla=%d layout=HND "
      "block=%llu hash=sha256-chain%s%s",
      name.c_str(), layers, kv_heads, head_dim, element_bytes, mla ? 1 : 0,
      static_cast<unsigned long long>(block_tokens), variant.empty() ? "" : " ", variant.c_str());
}

std::string ModelSpec::pool_name() const {
  if (variant.empty()) return name;
  return strf("%s~%016llx", name.c_str(), static_cast<unsigned long long>(xxh3(variant)));
}

Result<ModelSpec> slice_of(const ModelSpec& whole, uint32_t stage, uint32_t stages) {
  if (stages == 0 || stage >= stages || stages > whole.layers)
    return fail(Code::kInvalid, "stage %u of %u: want stages from 1 on, %u at most for %u layers",
                stage + 1, stages, whole.layers, whole.layers);
  if (stages == 1) return whole;
  const auto cut = [&](uint64_t i) { return static_cast<uint32_t>(whole.layers * i / stages); };
  ModelSpec slice = whole;
  slice.first_layer = cut(stage);
  slice.layers = cut(stage + 1) - slice.first_layer;
  slice.layers_after = whole.layers - cut(stage + 1);
  const double share = static_cast<double>(slice.layers) / whole.layers;
  CostModel& c = slice.cost;
  for (double* part : {&c.c0, &c.c1, &c.c2, &c.t0, &c.t1, &c.t2}) *part *= share;
  slice.variant += strf("%slayers=%u-%u/%u", slice.variant.empty() ? "" : " ", slice.first_layer,
                        cut(stage + 1), whole.layers);
  return slice;
}

double prefill_seconds(const ModelSpec& spec, uint64_t n, uint64_t p) {
  const CostModel& c = spec.cost;
  const double all = static_cast<double>(n), reused = static_cast<double>(p < n ? p : n);
  return c.c0 + c.c1 * (all - reused) + c.c2 * (all * all - reused * reused) +
         reused * static_cast<double>(spec.kv_bytes_per_token()) / c.load_bytes_per_s;
}

double step_seconds(const ModelSpec& spec, uint64_t batch, uint64_t context_tokens) {
  if (batch == 0) return 0;
  return spec.cost.t0 + spec.cost.t1 * static_cast<double>(batch - 1) +
         spec.cost.t2 * static_cast<double>(context_tokens);
}

ModelSpec tiny() {
  ModelSpec s;
  s.name = "tiny";
  s.layers = 4;
  s.kv_heads = 2;
  s.head_dim = 32;
  s.hidden = 128;
  s.vocab = 32000;
  s.element_bytes = 2;  // 2 (K, V) x 2 heads x 32 x 2 bytes x 4 layers = 1 KiB a token
  s.context_max = 262144;
  s.parameters = 10'000'000;
  s.cost = {.c0 = 0.002,
            .c1 = 2e-6,
            .c2 = 2e-12,
            .load_bytes_per_s = 8e9,
            .t0 = 0.002,
            .t1 = 0.0002,
            .t2 = 1e-9,
            .transfer_bytes_per_s = 2e9};
  return s;
}

Result<ModelSpec> parse_spec(const Json& json) {
  if (!json.is_object()) return fail(Code::kInvalid, "want an object, got %s", json.type_name());
  MC_TRY_(check_keys(json, "model spec",
                     {"name", "layers", "kv-heads", "head-dim", "hidden", "vocab", "element-bytes",
                      "mla", "context-max", "parameters", "cost"}));
  ModelSpec s;
  MC_TRY(s.name, get_string(json, "name"));
  MC_TRY(s.layers, small(json, "layers", 1000));
  MC_TRY(s.kv_heads, small(json, "kv-heads", 1024));
  MC_TRY(s.head_dim, small(json, "head-dim", 8192));
  MC_TRY(s.hidden, small(json, "hidden", 1 << 20));
  MC_TRY(s.vocab, small(json, "vocab", 1 << 24));
  MC_TRY(s.element_bytes, small(json, "element-bytes", 8));
  MC_TRY(s.context_max, small(json, "context-max", 1u << 30));
  MC_TRY(s.mla, get_bool_or(json, "mla", false));
  MC_TRY(s.parameters, get_uint(json, "parameters"));
  s.cost = from_shape(s);
  if (json.contains("cost")) {
    MC_TRY(s.cost, parse_cost(json["cost"]));
  }
  return s;
}

Result<ModelSpec> load_spec(const std::string& name_or_path) {
  if (name_or_path == "tiny") return tiny();
  auto json = read_json_file(name_or_path);
  if (!json)
    return fail(json.error().code,
                "model spec '%s': %s: want 'tiny' or a file such as those in "
                "configs/models",
                name_or_path.c_str(), json.error().what.c_str());
  auto parsed = parse_spec(*json);
  if (!parsed)
    return fail(Code::kInvalid, "model spec %s: %s", name_or_path.c_str(),
                parsed.error().what.c_str());
  return parsed;
}

Json to_json(const ModelSpec& s) {
  Json cost;
  for (const auto& [key, value] : cost_fields(s.cost)) cost[key] = *value;
  return {{"name", s.name},
          {"layers", s.layers},
          {"kv-heads", s.kv_heads},
          {"head-dim", s.head_dim},
          {"hidden", s.hidden},
          {"vocab", s.vocab},
          {"element-bytes", s.element_bytes},
          {"mla", s.mla},
          {"context-max", s.context_max},
          {"parameters", s.parameters},
          {"cost", cost}};
}

Result<CostModel> load_cost(const std::string& path, const ModelSpec& spec) {
  const auto json = read_json_file(path);
  if (!json)
    return fail(json.error().code, "%s: want a file that mc-prefill --calibrate wrote",
                json.error().what.c_str());
  const auto measured = parse_spec(*json);
  if (!measured) return fail(Code::kInvalid, "%s: %s", path.c_str(), measured.error().what.c_str());
  if (shape(*measured) != shape(spec))
    return fail(Code::kInvalid, "%s has the times of %s, the model is %s", path.c_str(),
                shape(*measured).c_str(), shape(spec).c_str());
  return measured->cost;
}

}  // namespace mc::cost
