// Serves the routes that change a running cluster.
//
//   POST /admin/scale-in   {"worker": NAME} or {"role": "prefill" | "decode"} or nothing
//
// It drains and ends a worker: the one named, else the least loaded of the role, else of the idler
// side. The answer names it: {"worker", "role"}. 404: no such worker; 409: its side would have none
// left. Without API keys only peers on the conductor's host may ask.
//
// Thread: the loop's.
#pragma once
#include "http/server.h"
#include "serve/conductor/conductor.h"

namespace mc::serve {

bool is_admin_route(const std::string& path);
// Returns: true when it was one of these routes and is answered. `keyed`: the peer showed an
// admin's key.
bool serve_admin(const http::Exchange& x, Conductor& conductor, bool keyed);

}  // namespace mc::serve
