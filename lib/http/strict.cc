#include "http/strict.h"

#include <algorithm>

#include "base/units.h"

namespace mc::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) { return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z'); }
bool is_token_char(char c) {
  return is_alnum(c) ||
         (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}
bool is_host_char(char c) {
  return is_alnum(c) ||
         (c != '\0' && std::string_view("-._~%!$&'()*+,;=:[]").find(c) != std::string_view::npos);
}
bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

std::string_view trimmed(std::string_view text) {
  const size_t from = text.find_first_not_of(" \t");
  if (from == text.npos) return {};
  return text.substr(from, text.find_last_not_of(" \t") - from + 1);
}

// The headers that decide where a message ends and whom it is for.
struct Framing {
  size_t hosts = 0, lengths = 0, encodings = 0;

  std::string add(std::string_view name, std::string_view value) {
    if (same_text(name, "host")) {
      ++hosts;
      if (!std::all_of(value.begin(), value.end(), is_host_char)) return "Host is no host's name";
    } else if (same_text(name, "content-length")) {
      if (++lengths > 1) return "a second Content-Length";
      if (value.empty() || !std::all_of(value.begin(), value.end(), is_digit))
        return "Content-Length is no number";
    } else if (same_text(name, "transfer-encoding")) {
      if (++encodings > 1) return "a second Transfer-Encoding";
      if (!same_text(value, "chunked")) return "a Transfer-Encoding other than chunked";
    }
    return {};
  }
  std::string fault(bool request, bool http10) const {
    if (lengths > 0 && encodings > 0) return "both Content-Length and Transfer-Encoding";
    if (encodings > 0 && http10) return "Transfer-Encoding in HTTP/1.0";
    if (!request) return {};
    if (hosts > 1) return "a second Host";
    if (hosts == 0 && !http10) return "no Host";
    return {};
  }
};

std::string line_fault(std::string_view line, Framing& framing) {
  if (line.front() == ' ' || line.front() == '\t') return "a header line that is folded";
  const size_t colon = line.find(':');
  if (colon == line.npos) return "a header line without a colon";
  const std::string_view name = line.substr(0, colon);
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_token_char))
    return "a header's name has '" + escape(std::string(name)) + "'";
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (std::any_of(value.begin(), value.end(), is_control))
    return "a control character in a header's value";
  return framing.add(name, value);
}

// "GET /path HTTP/1.1" has a path, or the whole URL, or is for the server as such.
std::string target_fault(std::string_view line) {
  const size_t from = line.find(' ');
  const std::string_view target =
      from == line.npos ? line : line.substr(from + 1, line.find(' ', from + 1) - from - 1);
  if (target.starts_with('/') || target == "*") return "";
  const auto whole = absolute_target(target);
  if (!whole) return "a target that is neither a path nor a URL";
  const std::string_view host = whole->authority;
  const bool named = !host.empty() && std::all_of(host.begin(), host.end(), is_host_char);
  return named ? "" : "a target whose host is no host's name";
}

}  // namespace

bool same_text(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

bool is_type(std::string_view header, std::string_view type) {
  header = header.substr(0, header.find(';'));
  return same_text(header.substr(0, header.find_last_not_of(" \t") + 1), type);
}

std::optional<AbsoluteTarget> absolute_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!same_text(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?#"), target.size());
    AbsoluteTarget whole{target.substr(0, end), std::string(target.substr(end))};
    if (!whole.path.starts_with('/')) whole.path.insert(0, "/");
    return whole;
  }
  return std::nullopt;
}

HeadScanner::Found HeadScanner::bad(const char* what) {
  what_ = what;
  return Found::kBad;
}

HeadScanner::Found HeadScanner::take(std::string_view bytes, size_t& used) {
  for (used = 0; used < bytes.size();) {
    const char c = bytes[used++];
    if (c == '\n') {
      if (last_ != '\r') return bad("a line that ends without a carriage return");
      const bool empty = line_ == 1;  // the carriage return alone
      line_ = 0;
      last_ = c;
      if (empty && begun_) return Found::kEnd;
      continue;
    }
    if (last_ == '\r') return bad("a carriage return within a line");
    if (c != '\r' && is_control(c)) return bad("a control character");
    begun_ = begun_ || c != '\r';
    ++line_;
    last_ = c;
  }
  return Found::kMore;
}

std::string head_fault(std::string_view head, bool request) {
  size_t end = head.find("\r\n");
  const std::string_view first = head.substr(0, end);
  const bool http10 = request ? first.ends_with(" HTTP/1.0") : first.starts_with("HTTP/1.0 ");
  Framing framing;
  while (end != head.npos) {
    head.remove_prefix(end + 2);
    end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    if (line.empty()) break;
    if (auto fault = line_fault(line, framing); !fault.empty()) return fault;
  }
  if (auto fault = framing.fault(request, http10); !fault.empty()) return fault;
  return request ? target_fault(first) : "";
}

std::string chunk_extension_fault(std::string_view extension) {
  if (extension.empty()) return {};
  if (extension.front() != ';') return "a chunk's size that is no number";
  const bool control = std::any_of(extension.begin(), extension.end(), is_control);
  return control ? "a control character in a chunk's extension" : "";
}

}  // namespace mc::http
