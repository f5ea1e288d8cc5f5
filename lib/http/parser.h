// HTTP/1.1 messages out of a byte stream, one at a time: libhttp-parser behind a small face. Used
// by the server for requests and by the client for answers.
//
// Thread: one owner (an event thread). Limits: `header_max` bytes up to the blank line (the library
// itself stops at 80 KiB). A message with both Content-Length and chunks is refused.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace mc::http {

struct Head {
  std::string method, target;                  // of a request
  int status = 0;                              // of an answer
  std::map<std::string, std::string> headers;  // names in lower case; repeats joined by ", "
  std::optional<uint64_t> content_length;
  bool http10 = false;
  bool keep_alive = false;
};

class Parser {
 public:
  enum class Role { kRequest, kResponse };
  // What the owner does with a message. False stops the parser for good.
  class Events {
   public:
    virtual ~Events() = default;
    virtual bool on_head(const Head& head) = 0;
    virtual bool on_body(std::string_view piece) = 0;
  };
  enum class Outcome { kMore, kComplete, kStopped, kHeaderTooLarge, kBad };

  Parser(Role role, size_t header_max, Events& events);
  ~Parser();
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  // Consumes up to the end of the message; the next feed() starts the next one.
  Outcome feed(std::string_view bytes, size_t& consumed);
  // The peer closed: kComplete when that ends the message, kMore between messages, else kBad.
  Outcome feed_end();
  bool started() const;            // some bytes of a message were seen, not yet all
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
