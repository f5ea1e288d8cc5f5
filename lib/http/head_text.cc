#include "http/head_text.h"

#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/util.h>

#include <cstdlib>
#include <memory>

#include "base/units.h"
#include "http/parser.h"

namespace mc::http {
namespace {

struct Free {
  void operator()(char* p) const { std::free(p); }
};
}  // namespace

std::string decoded_path(const std::string& text) {
  size_t n = 0;
  const std::unique_ptr<char, Free> out(evhttp_uridecode(text.c_str(), 0, &n));
  return out ? std::string(out.get(), n) : text;
}
std::map<std::string, std::string> decoded_query(const std::string& text) {
  std::map<std::string, std::string> query;
  evkeyvalq pairs;
  if (evhttp_parse_query_str(text.c_str(), &pairs) != 0) return query;
  for (evkeyval* p = pairs.tqh_first; p != nullptr; p = p->next.tqe_next) query[p->key] = p->value;
  evhttp_clear_headers(&pairs);
  return query;
}

std::string answer_head(int status, std::string_view content_type,
                        const std::vector<std::pair<std::string, std::string>>& extra,
                        const size_t* length, bool http10, bool keep_alive) {
  std::string head = strf("HTTP/1.1 %d %s\r\n", status, reason_phrase(status));
  char date[64];
  if (evutil_date_rfc1123(date, sizeof date, nullptr) > 0) head += strf("Date: %s\r\n", date);
  if (!content_type.empty()) head += "Content-Type: " + header_safe(content_type) + "\r\n";
  for (const auto& [name, value] : extra)
    head += header_safe(name) + ": " + header_safe(value) + "\r\n";
  const bool body = !bodyless(status);
  if (body && length) head += strf("Content-Length: %zu\r\n", *length);
  if (body && !length && !http10) head += "Transfer-Encoding: chunked\r\n";
  if (!keep_alive) head += "Connection: close\r\n";
  if (keep_alive && http10) head += "Connection: keep-alive\r\n";
  return head + "\r\n";
}

}  // namespace mc::http
