// The page at `/` of a conductor: the cluster as it is now and since the page was opened, drawn by
// the browser from /cluster and /metrics. One self-contained document: inline style and script, no
// other address is asked for anything (its policy header forbids it).
//
// Thread: any.
#pragma once
#include <string_view>

#include "http/server.h"

namespace mc::serve {

std::string_view dashboard_html();
http::Headers dashboard_headers();

}  // namespace mc::serve
