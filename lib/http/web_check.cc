#include "http/web_check.h"

#include <algorithm>

#include "base/units.h"
#include "http/cross_origin.h"
#include "http/strict.h"
#include "io/address.h"

namespace mc::http {
namespace {

std::string_view header_of(const Head& head, const char* name) {
  const auto found = head.headers.find(name);
  return found == head.headers.end() ? std::string_view() : std::string_view(found->second);
}

// "name:80" without its port; "[::1]:80" without its brackets too.
std::string_view host_of(std::string_view authority) {
  if (authority.starts_with('[')) return authority.substr(1, authority.find(']') - 1);
  return authority.substr(0, authority.find(':'));
}

bool listed(std::string_view host, const WebRules& rules) {
  return std::any_of(rules.names.begin(), rules.names.end(),
                     [host](const std::string& name) { return same_text(name, host); });
}

bool is_ours(std::string_view authority, const WebRules& rules) {
  const std::string_view host = host_of(authority);
  return !rules.loopback || same_text(host, "localhost") || io::is_loopback(host) ||
         listed(host, rules);
}

// A page of the server itself: its origin names the host that the request names.
bool is_own_page(std::string_view origin, std::string_view host, const WebRules& rules) {
  const size_t scheme = origin.find("://");
  if (scheme == origin.npos) return false;  // "null": a page without an origin
  const std::string_view from = origin.substr(scheme + 3);
  const char* const port = origin.starts_with("https") ? ":443" : ":80";
  return same_text(from, host) || same_text(std::string(from) + port, host) ||
         listed(host_of(from), rules);
}

bool is_type(std::string_view type, std::string_view wanted) {
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  return same_text(type, wanted);
}

// A body of a type that the server takes at that path.
bool is_taken(const Head& head, const WebRules& rules) {
  const std::string_view type = header_of(head, "content-type");
  if (is_type(type, "application/json")) return true;
  const std::string_view target = head.target;
  return rules.forms && is_type(type, "multipart/form-data") &&
         rules.forms(target.substr(0, target.find('?')));
}

}  // namespace

std::optional<WebRefusal> check_web(const Head& head, const WebRules& rules) {
  const std::string_view host = header_of(head, "host");
  const bool ours = !head.headers.contains("host") || is_ours(host, rules);
  const bool reads = head.method == "GET" || head.method == "HEAD";
  const bool follows_link = reads && header_of(head, "sec-fetch-mode") == "navigate";
  const std::string_view origin = header_of(head, "origin");
  const bool invited = allows_origin(origin, rules.origins);
  const bool other_site =
      head.headers.contains("origin") && !(ours && is_own_page(origin, host, rules));
  const bool crosses = header_of(head, "sec-fetch-site") == "cross-site" && !follows_link;
  if (!invited && (other_site || crosses))
    return WebRefusal{403, "a page of another site may not ask this server"};
  if (!ours)
    return WebRefusal{421, "this server is not '" + escape(host) +
                               "': ask it by its address, or name that host with --http-names"};
  const bool has_body =
      head.content_length.value_or(0) > 0 || head.headers.contains("transfer-encoding");
  if (rules.json_only && has_body && !is_taken(head, rules))
    return WebRefusal{415, "send JSON, and say so: 'Content-Type: application/json'"};
  return std::nullopt;
}

}  // namespace mc::http
