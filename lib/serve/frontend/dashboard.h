// The dashboard at `/`: the cluster now and since the page was opened.
//
// The browser draws it from /cluster and /metrics. The document is self-contained: style and script
// are inline, and its policy header forbids requests to other addresses.
//
// Thread: any.
#pragma once
#include <string_view>

#include "http/server.h"

namespace mc::serve {

std::string_view dashboard_html();
http::Headers dashboard_headers();

}  // namespace mc::serve
