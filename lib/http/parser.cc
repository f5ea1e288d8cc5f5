// The server counts on input that it refuses, not on assertions about it.
#define BOOST_DISABLE_ASSERTS
#include "http/parser.h"

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/status.hpp>
#include <cstdlib>
#include <limits>
#include <variant>

#include "base/result.h"
#include "http/strict.h"

namespace mc::http {
namespace reading {

namespace beast = boost::beast;
using ErrorCode = boost::system::error_code;

// What a reader reports of one message.
struct Message {
  Parser::Events& events;
  Head head{};
  bool in_head = true, stopped = false;
  std::string what{};

  void field(std::string_view name, std::string_view value) {
    if (!in_head) return;  // trailers are read and dropped
    std::string key(name);
    for (char& c : key) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    auto [it, fresh] = head.headers.emplace(std::move(key), value);
    if (!fresh) it->second.append(", ").append(value);
  }
};

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

template <bool kRequest>
class Reader final : public beast::http::basic_parser<kRequest> {
 public:
  Reader(Message& message, bool no_body) : message_(message) {
    this->header_limit(std::numeric_limits<uint32_t>::max());  // whole heads come, already counted
    this->body_limit(std::numeric_limits<uint64_t>::max());    // the owner counts
    if (no_body) this->skip(true);
  }

 private:
  void stop(ErrorCode& ec) { ec = beast::http::error::end_of_stream; }

  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view target,
                       int version, ErrorCode&) override {
    message_.head.method = view(method);
    message_.head.target = view(target);
    message_.head.http10 = version == 10;
  }
  void on_response_impl(int status, beast::string_view, int version, ErrorCode&) override {
    message_.head.status = status;
    message_.head.http10 = version == 10;
  }
  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value,
                     ErrorCode&) override {
    message_.field(view(name), view(value));
  }
  void on_header_impl(ErrorCode&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, ErrorCode&) override {}
  std::size_t on_body_impl(beast::string_view piece, ErrorCode& ec) override {
    message_.stopped = !message_.events.on_body(view(piece));
    if (message_.stopped) stop(ec);
    return piece.size();
  }
  void on_chunk_header_impl(std::uint64_t size, beast::string_view extension,
                            ErrorCode& ec) override {
    message_.what = chunk_extension_fault(view(extension));
    if (message_.what.empty()) message_.stopped = !message_.events.on_chunk(size);
    if (!message_.what.empty() || message_.stopped) stop(ec);
  }
  std::size_t on_chunk_body_impl(std::uint64_t, beast::string_view piece, ErrorCode& ec) override {
    return on_body_impl(piece, ec);
  }
  void on_finish_impl(ErrorCode&) override {}

  Message& message_;
};

}  // namespace reading

struct Parser::Impl {
  using ErrorCode = reading::ErrorCode;
  const bool request;
  const size_t header_max;
  enum class Stage { kHead, kBody, kComplete } stage = Stage::kHead;
  reading::Message message;
  std::variant<std::monostate, reading::Reader<true>, reading::Reader<false>> reader{};
  HeadScanner scanner{};
  std::string kept{};  // of the head, or of a chunk's first line: bytes that wait for more
  size_t header_bytes = 0;
  bool no_body = false;

  void begin() {
    stage = Stage::kHead;
    message.head = {};
    message.in_head = true;
    message.stopped = false;
    message.what.clear();
    reader.emplace<std::monostate>();
    scanner = {};
    kept.clear();
    header_bytes = 0;
  }
  template <class Call>
  auto with_reader(Call call) {
    return request ? call(std::get<reading::Reader<true>>(reader))
                   : call(std::get<reading::Reader<false>>(reader));
  }
  bool done() {
    return with_reader([](auto& r) { return r.is_done(); });
  }
  size_t put(std::string_view bytes, ErrorCode& ec) {
    ec = {};
    return with_reader(
        [&](auto& r) { return r.put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec); });
  }
  Outcome bad(std::string what) {
    message.what = std::move(what);
    return Outcome::kBad;
  }

  Outcome feed_head(std::string_view bytes, size_t& consumed) {
    const auto found = scanner.take(bytes, consumed);
    header_bytes += consumed;
    if (found == HeadScanner::Found::kBad) return bad(scanner.what());
    if (header_bytes > header_max) return Outcome::kHeaderTooLarge;
    if (found == HeadScanner::Found::kMore) {
      kept.append(bytes);
      return Outcome::kMore;
    }
    std::string_view whole = bytes.substr(0, consumed);
    if (!kept.empty()) whole = kept.append(whole);
    whole.remove_prefix(whole.find_first_not_of("\r\n"));
    const Outcome outcome = read_head(whole);
    kept.clear();
    return outcome;
  }
  Outcome read_head(std::string_view whole) {
    if (auto fault = head_fault(whole, request); !fault.empty()) return bad(std::move(fault));
    if (request)
      reader.emplace<reading::Reader<true>>(message, no_body);
    else
      reader.emplace<reading::Reader<false>>(message, no_body);
    ErrorCode ec;
    while (!whole.empty()) {  // its first line, then the others
      const size_t used = put(whole, ec);
      if (ec || used == 0) return bad(ec ? ec.message() : "its head has no end");
      whole.remove_prefix(used);
    }
    message.in_head = false;
    if (request) take_absolute();
    message.head.keep_alive = with_reader([](auto& r) { return r.keep_alive(); });
    const auto length = message.head.headers.find("content-length");
    if (length != message.head.headers.end())
      message.head.content_length = std::strtoull(length->second.c_str(), nullptr, 10);
    stage = Stage::kBody;
    message.stopped = !message.events.on_head(message.head);
    if (message.stopped) return Outcome::kStopped;
    return finish();
  }
  // The host of a target that is a whole URL counts, and no other (RFC 9112, 3.2.2).
  void take_absolute() {
    Head& head = message.head;
    auto whole = absolute_target(head.target);
    if (!whole) return;
    head.headers["host"] = std::string(whole->authority);
    head.target = std::move(whole->path);
  }
  Outcome finish() {
    if (!done()) return Outcome::kMore;
    stage = Stage::kComplete;
    return Outcome::kComplete;
  }

  Outcome feed_body(std::string_view bytes, size_t& consumed) {
    std::string_view rest = bytes;
    if (!kept.empty()) rest = kept.append(bytes);
    Outcome outcome = Outcome::kMore;
    while (!rest.empty() && outcome == Outcome::kMore) {
      ErrorCode ec;
      const size_t used = put(rest, ec);
      rest.remove_prefix(used);
      // Beast itself refuses a chunk that makes the sum too large for a number.
      if (ec == reading::beast::http::error::body_limit)
        message.stopped = !message.events.on_chunk(std::numeric_limits<uint64_t>::max());
      if (message.stopped) return Outcome::kStopped;
      if (ec == reading::beast::http::error::need_more) break;
      if (ec) return message.what.empty() ? bad(ec.message()) : Outcome::kBad;
      outcome = finish();
    }
    // What follows a message came with its last bytes.
    consumed = bytes.size() - (outcome == Outcome::kComplete ? rest.size() : 0);
    if (outcome == Outcome::kComplete) rest = {};
    if (rest.size() > header_max) return Outcome::kHeaderTooLarge;
    kept = std::string(rest);
    return outcome;
  }
};

Parser::Parser(Role role, size_t header_max, Events& events)
    : impl_(new Impl{role == Role::kRequest, header_max, Impl::Stage::kHead,
                     reading::Message{.events = events}}) {}
Parser::~Parser() = default;

Parser::Outcome Parser::feed(std::string_view bytes, size_t& consumed) {
  Impl& i = *impl_;
  consumed = 0;
  if (i.stage == Impl::Stage::kComplete) i.begin();
  if (bytes.empty()) return Outcome::kMore;
  if (i.stage == Impl::Stage::kBody) return i.feed_body(bytes, consumed);
  const Outcome outcome = i.feed_head(bytes, consumed);
  if (outcome != Outcome::kMore || i.stage != Impl::Stage::kBody) return outcome;
  size_t more = 0;
  if (consumed == bytes.size()) return outcome;
  const Outcome next = i.feed_body(bytes.substr(consumed), more);
  consumed += more;
  return next;
}

Parser::Outcome Parser::feed_end() {
  Impl& i = *impl_;
  if (!started()) return Outcome::kMore;
  if (i.stage == Impl::Stage::kBody && i.kept.empty()) {
    reading::ErrorCode ec;
    i.with_reader([&](auto& r) {
      r.put_eof(ec);
      return 0;
    });
    if (!ec) {
      i.stage = Impl::Stage::kComplete;
      return Outcome::kComplete;
    }
  }
  return i.bad("the connection ended in the middle of a message");
}

bool Parser::started() const {
  return impl_->stage == Impl::Stage::kBody ||
         (impl_->stage == Impl::Stage::kHead && impl_->scanner.begun());
}
const char* Parser::what() const { return impl_->message.what.c_str(); }
const Head& Parser::head() const { return impl_->message.head; }
void Parser::expect_no_body(bool none) { impl_->no_body = none; }

const char* reason_phrase(int status) {
  return reading::beast::http::obsolete_reason(
             reading::beast::http::int_to_status(static_cast<unsigned>(status)))
      .data();
}

std::string header_safe(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return out;
}

}  // namespace mc::http
