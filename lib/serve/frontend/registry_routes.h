// The pages by which external engines join a conductor, and other routers ask its index:
//
//   POST /register (or /admin/register)   an engine, see serve/external/external_engines.h; again:
//   replaces it POST /unregister                      {"instance_id"} POST /query {"model",
//   "token_ids", "block_size", "tenant_id",
//                                          "instance_id", "lora_name", "cache_salt"}
//   POST /query_by_hash                   {"seq_hashes"}: an engine's own, or ours as 64 hex digits
//
// Both queries answer {tenant: {instance: {"longest_matched", "GPU", "CPU", "DISK",
// "DP": {rank: n}}}}, in tokens. Who may register may direct prompts elsewhere: only peers on this
// host may.
//
// Thread: the loop's.
#pragma once
#include "http/server.h"
#include "serve/conductor/conductor.h"

namespace mc::serve {

bool is_registry_route(const std::string& path);
// True when it was one of these pages, and is answered.
bool serve_registry(const http::Exchange& x, Conductor& conductor);

}  // namespace mc::serve
