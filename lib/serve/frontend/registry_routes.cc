#include "serve/frontend/registry_routes.h"

#include <algorithm>
#include <optional>

#include "base/json.h"
#include "base/log.h"
#include "serve/request/openai.h"

namespace mc::serve {
namespace {

constexpr const char* kJsonType = "application/json";
constexpr size_t kQueryMax = 1 << 20;  // tokens or hashes

void refuse_route(const http::Exchange& x, int status, const std::string& what) {
  x.reply(status, kJsonType, error_json({status, what, "", ""}) + "\n");
}

void answer_route(const http::Exchange& x, const Json& json) {
  x.reply(200, kJsonType, dump_json(json) + "\n");
}

// What one instance holds, in tokens.
Json held_json(uint64_t longest, uint64_t gpu, uint64_t cpu, uint64_t disk, uint64_t rank) {
  return {{"longest_matched", longest},
          {"GPU", gpu},
          {"CPU", cpu},
          {"DISK", disk},
          {"DP", {{std::to_string(rank), longest}}}};
}

template <class Match>
Json external_held(const ExternalEngine& e, const Match& match) {
  const uint64_t block = e.cache->block_tokens();
  return held_json(block * match(ExternalCache::kAny), block * match(ExternalCache::kGpu),
                   block * match(ExternalCache::kCpu), block * match(ExternalCache::kDisk),
                   e.options.rank);
}

struct Query {
  std::string model, tenant, instance, lora, salt;
  uint64_t block = 0;  // 0: any
  std::vector<int32_t> tokens;

  bool wants(const std::string& of_tenant, const std::string& name, uint64_t size) const {
    return (tenant.empty() || tenant == of_tenant) && (instance.empty() || instance == name) &&
           (block == 0 || block == size);
  }
};

Result<Query> parse_query(const Json& json) {
  Query q;
  MC_TRY(q.model, get_string_or(json, "model", ""));
  MC_TRY(q.tenant, get_string_or(json, "tenant_id", ""));
  MC_TRY(q.instance, get_string_or(json, "instance_id", ""));
  MC_TRY(q.lora, get_string_or(json, "lora_name", ""));
  MC_TRY(q.salt, get_string_or(json, "cache_salt", ""));
  MC_TRY(q.block, get_uint_or(json, "block_size", 0));
  const Json* ids = member(json, "token_ids");
  if (ids == nullptr || !ids->is_array() || ids->size() > kQueryMax)
    return fail(Code::kInvalid, "token_ids: want a list of at most %zu", kQueryMax);
  for (const Json& id : *ids) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      return fail(Code::kInvalid, "token_ids[%zu] is no token", q.tokens.size());
    q.tokens.push_back(id.get<int32_t>());
  }
  return q;
}

std::vector<uint64_t> tags_of(const std::vector<BlockHash>& hashes) {
  std::vector<uint64_t> tags;
  for (const BlockHash& h : hashes) tags.push_back(h.tag());
  return tags;
}

Json own_held(const Conductor& conductor, const std::vector<uint64_t>& tags,
              const std::function<bool(const std::string&)>& wants) {
  Json all = Json::object();
  for (const auto& [name, blocks] : conductor.held(tags)) {
    const uint64_t n = blocks * conductor.block_size();
    if (wants(name)) all[name] = held_json(n, n, 0, 0, 0);
  }
  return all;
}

}  // namespace

void register_engine(const http::Exchange& x, const Json& json, Conductor& conductor) {
  auto options = parse_external(json);
  if (!options) return refuse_route(x, 400, options.error().what);
  if (json.contains("key_file"))
    return refuse_route(x, 400, "key_file is for the file of --foreign-engines: post api_key");
  if (json.contains("ca_file"))
    return refuse_route(x, 400, "ca_file is for the file of --foreign-engines");
  options->posted = true;
  if (auto added = conductor.external().add(*options); !added)
    return refuse_route(x, added.error().code == Code::kBusy ? 503 : 400, added.error().what);
  Json done = {{"status", "registered successfully"}, {"instance_id", options->name}};
  // Who registers may be of a later version than we are, and its engine serves all the same.
  if (const std::string unknown = unknown_members(json); !unknown.empty()) {
    log_warn("conductor", "external engine %s: %s; it is ignored", options->name.c_str(),
             unknown.c_str());
    done["ignored"] = unknown;
  }
  answer_route(x, done);
}

void unregister_engine(const http::Exchange& x, const Json& json, Conductor& conductor) {
  const auto name = get_string(json, "instance_id");
  if (!name) return refuse_route(x, 400, name.error().what);
  if (!conductor.external().remove(*name))
    return refuse_route(x, 404, "no engine is registered as '" + escape(*name) + "'");
  answer_route(x, {{"status", "unregistered successfully"}, {"removed_instances", {*name}}});
}

void query_tokens(const http::Exchange& x, const Json& json, Conductor& conductor) {
  const auto q = parse_query(json);
  if (!q) return refuse_route(x, 400, q.error().what);
  const std::string& own = conductor.spec().name;
  Json all = Json::object();
  const auto meaning = conductor.external().catalog().names()->find(q->model);
  const std::string model = q->model.empty() ? own : meaning ? meaning->model : "";
  bool known = q->model.empty() || meaning;
  if (model == own && q->lora.empty()) {
    const auto tags = tags_of(chain_hashes(q->tokens, conductor.block_size(), q->salt));
    all["default"] = own_held(conductor, tags, [&](const std::string& name) {
      return q->wants("default", name, conductor.block_size());
    });
  }
  for (const auto& [name, e] : conductor.external().all()) {
    const bool fits =
        q->model.empty() || model == e->options.serves || q->model == e->options.model;
    known |= fits;
    if (!fits || !e->cache || e->cache->block_tokens() == 0) continue;
    if (!q->wants(e->options.tenant, name, e->cache->block_tokens())) continue;
    const auto tags = tags_of(
        chain_hashes(q->tokens, e->cache->block_tokens(), e->cache->chain_salt(q->lora, q->salt)));
    const auto& cache = *e->cache;  // clang 14 captures no binding
    all[e->options.tenant][name] =
        external_held(*e, [&](uint8_t media) { return cache.match(tags, media); });
  }
  if (!known) return refuse_route(x, 404, "no instance serves '" + escape(q->model) + "'");
  answer_route(x, all);
}

// An integer is an engine's own name of a block, or the first eight bytes of our hash.
void query_hashes(const http::Exchange& x, const Json& json, Conductor& conductor) {
  const Json* list = member(json, "seq_hashes");
  if (list == nullptr || !list->is_array() || list->size() > kQueryMax)
    return refuse_route(x, 400, strf("seq_hashes: want a list of at most %zu", kQueryMax));
  std::vector<uint64_t> names, tags;
  for (const Json& h : *list) {
    if (h.is_number_integer()) {
      const uint64_t n =
          h.is_number_unsigned() ? h.get<uint64_t>() : static_cast<uint64_t>(h.get<int64_t>());
      names.push_back(n);
      tags.push_back(n);
      continue;
    }
    const auto hash = h.is_string() ? parse_block_hash(h.get<std::string>())
                                    : Result<BlockHash>(fail(Code::kInvalid, "no hash"));
    if (!hash)
      return refuse_route(x, 400,
                          strf("seq_hashes[%zu]: want an integer or 64 hex digits", tags.size()));
    uint64_t last = 0;  // an engine's name for a SHA-256
    for (size_t i = 24; i < 32; ++i) last = last << 8 | hash->bytes[i];
    names.push_back(last);
    tags.push_back(hash->tag());
  }
  Json all = {{"default", own_held(conductor, tags, [](const std::string&) { return true; })}};
  for (const auto& [name, e] : conductor.external().all()) {
    if (!e->cache || e->cache->block_tokens() == 0) continue;
    const auto& cache = *e->cache;
    all[e->options.tenant][name] =
        external_held(*e, [&](uint8_t media) { return cache.match_names(names, media); });
  }
  answer_route(x, all);
}

}  // namespace mc::serve
