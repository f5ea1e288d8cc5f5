// Refuses requests that another site's page makes a browser send: the browser can reach the server,
// and the page's owner cannot. A page may send forms and plain text without asking, and
// read answers where a name of its own leads to our address (DNS rebinding).
//
// Thread: any.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/parser.h"

namespace mc::http {

struct WebRules {
  // Hosts that requests may name. On loopback these are its names and addresses and `names`. Beyond
  // loopback any may: a server there has keys, or its owner said that it needs none.
  bool loopback = true;
  std::vector<std::string> names{};
  std::vector<std::string> origins{};  // other sites whose pages may ask
  bool json_only = false;              // bodies are JSON and say so
  // Paths whose bodies may be forms too (multipart/form-data).
  std::function<bool(std::string_view path)> forms{};
};

struct WebRefusal {
  int status;
  std::string why;
};

// 403 for another site's page, 421 for a Host that is not ours, 415 for a body that is not JSON.
std::optional<WebRefusal> check_web(const Head& head, const WebRules& rules);

}  // namespace mc::http
