// Checks the heads of HTTP/1.1 messages by the letter of RFC 9112, where parsers are lenient and
// proxies read one message differently: line ends, folded lines, Host, Content-Length and
// Transfer-Encoding. The parser (http/parser.h) reads only heads that pass.
//
// Thread: any. Pure.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace mc::http {

// Finds the end of a head in a stream of bytes, and refuses bytes that no head has.
class HeadScanner {
 public:
  enum class Found { kMore, kEnd, kBad };
  // Reads up to the end of the head: `used` bytes. Empty lines before a head are a part of it.
  Found take(std::string_view bytes, size_t& used);
  bool begun() const { return begun_; }       // it has read a byte that is no empty line
  const char* what() const { return what_; }  // of kBad

 private:
  Found bad(const char* what);
  size_t line_ = 0;  // bytes of the line being read
  char last_ = 0;
  bool begun_ = false;
  const char* what_ = "";
};

// What is wrong with a head that HeadScanner found, empty lines before it left out; "" when nothing
// is.
std::string head_fault(std::string_view head, bool request);
// A target that is a whole URL, "http://host:80/path?query", in its parts; nothing: it is none.
struct AbsoluteTarget {
  std::string_view authority;
  std::string path;  // with the query
};
std::optional<AbsoluteTarget> absolute_target(std::string_view target);
// What is wrong with what follows a chunk's size, up to the line's end; "" when nothing is.
std::string chunk_extension_fault(std::string_view extension);

// Equal but for the case of ASCII letters.
bool same_text(std::string_view a, std::string_view b);
// Whether a Content-Type names that type, in whatever case, with parameters or without.
bool is_type(std::string_view header, std::string_view type);

}  // namespace mc::http
