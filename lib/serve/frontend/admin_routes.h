// What changes a running cluster:
//
//   POST /admin/scale-in   {"worker": NAME} or {"role": "prefill" | "decode"} or nothing: lets a
//   worker
//                          drain and end, the least loaded one of the idler side unless it is named
//
// Answers name the worker: {"worker", "role"}. 404: there is no such worker; 409: its side would
// have none left. Without API keys only peers on the conductor's host may ask.
//
// Thread: the loop's.
#pragma once
#include "http/server.h"
#include "serve/conductor/conductor.h"

namespace mc::serve {

bool is_admin_route(const std::string& path);
// True when it was one of these pages, and is answered. `keyed`: who asks showed an admin's key.
bool serve_admin(const http::Exchange& x, Conductor& conductor, bool keyed);

}  // namespace mc::serve
