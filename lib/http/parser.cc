#include "http/parser.h"

#include <http_parser.h>

#include "base/result.h"

namespace mc::http {

struct Parser::Impl {
  http_parser parser{};
  const http_parser_type type;
  const size_t header_max;
  Events& events;
  Head head;
  std::string field, value;  // the header line being read
  bool in_value = false, in_head = true;
  size_t header_bytes = 0;
  bool started = false, complete = false, stopped = false, too_large = false, no_body = false;
  const char* what = "";

  Impl(http_parser_type t, size_t max, Events& e) : type(t), header_max(max), events(e) { begin(); }

  void begin() {
    http_parser_init(&parser, type);
    parser.data = this;
    head = {};
    field.clear();
    value.clear();
    header_bytes = 0;
    in_value = started = complete = false;
    in_head = true;
  }
  // The library counts as well, but its limit is one for the whole process.
  int count(size_t n) {
    header_bytes += n;
    too_large = too_large || header_bytes > header_max;
    return too_large ? 1 : 0;
  }
  void end_line() {
    if (field.empty()) return;
    for (char& c : field) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    auto [it, fresh] = head.headers.emplace(field, value);
    if (!fresh) it->second += ", " + value;
    field.clear();
    value.clear();
    in_value = false;
  }

  static Impl& of(http_parser* p) { return *static_cast<Impl*>(p->data); }
  static int on_begin(http_parser* p) {
    of(p).started = true;
    return 0;
  }
  static int on_url(http_parser* p, const char* at, size_t n) {
    of(p).head.target.append(at, n);
    return of(p).count(n);
  }
  static int on_field(http_parser* p, const char* at, size_t n) {
    Impl& i = of(p);
    if (!i.in_head) return i.count(n);  // trailers are read and dropped
    if (i.in_value) i.end_line();
    i.field.append(at, n);
    return i.count(n + 4);  // plus ": " and CRLF
  }
  static int on_value(http_parser* p, const char* at, size_t n) {
    Impl& i = of(p);
    if (i.in_head) {
      i.in_value = true;
      i.value.append(at, n);
    }
    return i.count(n);
  }
  static int on_head(http_parser* p) {
    Impl& i = of(p);
    i.end_line();
    i.in_head = false;
    Head& head = i.head;
    if (p->http_major != 1) {
      i.what = "only HTTP/1.0 and HTTP/1.1 are spoken here";
      return -1;
    }
    head.http10 = p->http_minor == 0;
    if (i.type == HTTP_REQUEST)
      head.method = http_method_str(static_cast<http_method>(p->method));
    else
      head.status = static_cast<int>(p->status_code);
    if (head.headers.contains("content-length")) head.content_length = p->content_length;
    head.keep_alive = http_should_keep_alive(p) != 0;
    p->upgrade = 0;  // the server supports no other protocol: an upgrade is an ordinary request
    i.stopped = !i.events.on_head(head);
    return i.stopped ? -1 : i.no_body ? 1 : 0;
  }
  static int on_body(http_parser* p, const char* at, size_t n) {
    Impl& i = of(p);
    i.stopped = !i.events.on_body({at, n});
    return i.stopped ? 1 : 0;
  }
  static int on_complete(http_parser* p) {
    of(p).complete = true;
    http_parser_pause(p, 1);
    return 0;
  }
};

namespace {
template <class I>
const http_parser_settings& callbacks() {
  static const http_parser_settings settings = [] {
    http_parser_settings s;
    http_parser_settings_init(&s);
    s.on_message_begin = I::on_begin;
    s.on_url = I::on_url;
    s.on_header_field = I::on_field;
    s.on_header_value = I::on_value;
    s.on_headers_complete = I::on_head;
    s.on_body = I::on_body;
    s.on_message_complete = I::on_complete;
    return s;
  }();
  return settings;
}
}  // namespace

Parser::Parser(Role role, size_t header_max, Events& events)
    : impl_(std::make_unique<Impl>(role == Role::kRequest ? HTTP_REQUEST : HTTP_RESPONSE,
                                   header_max, events)) {}
Parser::~Parser() = default;

Parser::Outcome Parser::feed(std::string_view bytes, size_t& consumed) {
  Impl& i = *impl_;
  consumed = 0;
  if (i.complete) i.begin();
  if (bytes.empty()) return Outcome::kMore;
  consumed = http_parser_execute(&i.parser, &callbacks<Impl>(), bytes.data(), bytes.size());
  if (i.complete) return Outcome::kComplete;
  if (i.stopped) return Outcome::kStopped;
  const auto error = HTTP_PARSER_ERRNO(&i.parser);
  if (i.too_large || error == HPE_HEADER_OVERFLOW) return Outcome::kHeaderTooLarge;
  if (error == HPE_OK) return Outcome::kMore;
  if (*i.what == '\0') i.what = http_errno_description(error);
  return Outcome::kBad;
}

Parser::Outcome Parser::feed_end() {
  Impl& i = *impl_;
  if (i.complete || !i.started) return Outcome::kMore;
  http_parser_execute(&i.parser, &callbacks<Impl>(), nullptr, 0);
  if (i.complete) return Outcome::kComplete;
  i.what = "the connection ended in the middle of a message";
  return Outcome::kBad;
}

bool Parser::started() const { return impl_->started && !impl_->complete; }
const char* Parser::what() const { return impl_->what; }
const Head& Parser::head() const { return impl_->head; }
void Parser::expect_no_body(bool none) { impl_->no_body = none; }

const char* reason_phrase(int status) { return http_status_str(static_cast<http_status>(status)); }

std::string header_safe(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return out;
}

}  // namespace mc::http
