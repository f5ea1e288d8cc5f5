// Serves the routes that register external engines and query the prefix index.
//
//   POST /register, /admin/register   an engine (serve/external/external_engines.h); one of the
//                                     same name is replaced
//   POST /unregister                  {"instance_id"}
//   POST /query                       {"model", "token_ids", "block_size", "tenant_id",
//                                      "instance_id", "lora_name", "cache_salt"}
//   POST /query_by_hash               {"seq_hashes"}: an engine's own, or ours as 64 hex digits
//
// Both queries answer {tenant: {instance: {"longest_matched", "GPU", "CPU", "DISK",
// "DP": {rank: n}}}}, in tokens. A registration can direct prompts elsewhere: who may ask is in
// serve/frontend/api_routes.cc.
//
// Thread: the loop's.
#pragma once
#include "base/json_fwd.h"
#include "http/server.h"
#include "serve/conductor/conductor.h"

namespace mc::serve {

void register_engine(const http::Exchange& x, const Json& json, Conductor& conductor);
void unregister_engine(const http::Exchange& x, const Json& json, Conductor& conductor);
void query_tokens(const http::Exchange& x, const Json& json, Conductor& conductor);
void query_hashes(const http::Exchange& x, const Json& json, Conductor& conductor);

}  // namespace mc::serve
