// Serves the routes that change a running cluster.
//
//   POST /admin/scale-in   {"worker": NAME} or {"role": "prefill" | "decode"} or nothing
//
// It drains and ends a worker: the one named, else the least loaded of the role, else of the idler
// side. The answer names it: {"worker", "role"}. 404: no such worker; 409: its side would have none
// left.
//
// Thread: the loop's.
#pragma once
#include "http/server.h"
#include "serve/conductor/conductor.h"

namespace mc::serve {

void scale_in(const http::Exchange& x, Conductor& conductor);

}  // namespace mc::serve
