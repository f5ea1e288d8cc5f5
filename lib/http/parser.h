// Parses HTTP/1.1 messages from a byte stream, one at a time, with Boost.Beast: the server its
// requests, the client its answers. A head that RFC 9112 forbids is refused before Beast reads it
// (http/strict.h). Limits: `header_max` bytes up to the blank line, and for a chunk's first line or
// the trailers.
//
// Thread: one owner (an event thread).
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace mc::http {

struct Head {
  std::string method, target;  // of a request; of a target that is a URL its path and query
  int status = 0;              // of an answer
  std::map<std::string, std::string> headers;  // names in lower case; repeats joined by ", "
  std::optional<uint64_t> content_length;
  bool http10 = false;
  bool keep_alive = false;
};

class Parser {
 public:
  enum class Role { kRequest, kResponse };
  // Callbacks of the owner. One that returns false stops the parser permanently.
  class Events {
   public:
    virtual ~Events() = default;
    virtual bool on_head(const Head& head) = 0;
    virtual bool on_body(std::string_view piece) = 0;
    virtual bool on_chunk(uint64_t) { return true; }  // of so many bytes, which come next
  };
  enum class Outcome { kMore, kComplete, kStopped, kHeaderTooLarge, kBad };

  Parser(Role role, size_t header_max, Events& events);
  ~Parser();
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  // Consumes up to the end of the message; the next feed() starts the next one.
  Outcome feed(std::string_view bytes, size_t& consumed);
  // Call it when the peer closed. Returns: kComplete when that ends the message, kMore between
  // messages, else kBad.
  Outcome feed_end();
  bool started() const;            // it has read a part of a message
  const char* what() const;        // of kBad
  const Head& head() const;        // valid from on_head() to the next message
  void expect_no_body(bool none);  // whether the next answer is to HEAD

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

const char* reason_phrase(int status);           // "Not Found"
std::string header_safe(std::string_view text);  // no line breaks: a value is one line

}  // namespace mc::http
