#include "topo/formats/xml.h"

#include <algorithm>
#include <charconv>

namespace mc::topo {
namespace {

constexpr size_t kAttributesMax = 128;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == ':' || static_cast<unsigned char>(c) >= 0x80;
}

void put_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

class XmlReader {
 public:
  XmlReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Result<XmlElement> document() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
    if (text_.find('\0') != std::string_view::npos) {
      return fail(Code::kInvalid, "%s: not text in UTF-8: it holds NUL bytes", where_.c_str());
    }
    MC_TRY_(skip_to_tag());
    if (at_ == text_.size()) return wrong("there is no element: the file is empty or not XML");
    XmlElement root;
    MC_TRY_(tree(root));
    MC_TRY_(skip_to_tag());
    if (at_ < text_.size()) return wrong("something follows the root element");
    return root;
  }

 private:
  Failure wrong(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<long>(at_), '\n');
    return fail(Code::kInvalid, "%s:%ld: malformed XML: %s", where_.c_str(),
                static_cast<long>(line), what.c_str());
  }

  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  Result<> skip_past(std::string_view end, const char* what) {
    const size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) return wrong(std::string(what) + " has no end");
    at_ = found + end.size();
    return {};
  }
  std::string name() {
    const size_t start = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return std::string(text_.substr(start, at_ - start));
  }

  // Skips to the next tag or the end.
  Result<> skip_to_tag() {
    for (;;) {
      at_ = std::min(text_.find('<', at_), text_.size());
      if (take("<!--")) {
        MC_TRY_(skip_past("-->", "a comment"));
      } else if (take("<?")) {
        MC_TRY_(skip_past("?>", "a processing instruction"));
      } else if (take("<![CDATA[")) {
        MC_TRY_(skip_past("]]>", "a CDATA section"));
      } else if (take("<!")) {
        const size_t stop = text_.find_first_of("[>", at_);
        if (stop == std::string_view::npos) return wrong("the document type has no end");
        if (text_[stop] == '[') return wrong("definitions in the document type are refused");
        at_ = stop + 1;
      } else {
        return {};
      }
    }
  }

  Result<std::string> reference() {  // after the '&'
    const size_t end = text_.find(';', at_);
    if (end == std::string_view::npos || end - at_ > 10) return wrong("'&' starts no reference");
    const std::string_view word = text_.substr(at_, end - at_);
    std::string out;
    if (word == "lt") out = "<";
    if (word == "gt") out = ">";
    if (word == "amp") out = "&";
    if (word == "quot") out = "\"";
    if (word == "apos") out = "'";
    if (word.starts_with("#")) {
      const bool hex = word.starts_with("#x");
      uint32_t code = 0;
      const char* first = word.data() + (hex ? 2 : 1);
      const char* last = word.data() + word.size();
      const auto [stop, error] = std::from_chars(first, last, code, hex ? 16 : 10);
      if (error == std::errc() && stop == last && code > 0 && code <= 0x10ffff) put_utf8(code, out);
    }
    if (out.empty()) return wrong("unknown reference '&" + std::string(word) + ";'");
    at_ = end + 1;
    return out;
  }

  Result<std::string> value() {
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '"' && quote != '\'') return wrong("an attribute's value is not in quotes");
    ++at_;
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '<') return wrong("'<' inside an attribute's value");
      if (out.size() > kXmlValueMax) return wrong("an attribute's value is longer than 64 KiB");
      if (take("&")) {
        MC_TRY(const std::string piece, reference());
        out += piece;
      } else {
        out += text_[at_++];
      }
    }
    if (at_ == text_.size()) return wrong("an attribute's value has no end");
    ++at_;
    return out;
  }

  // From '<' on; true when the element has content (no "/>").
  Result<bool> start_tag(XmlElement& element) {
    ++at_;
    element.name = name();
    if (element.name.empty()) return wrong("'<' without a name");
    if (++elements_ > kXmlElementsMax) {
      return wrong("more than " + std::to_string(kXmlElementsMax) + " elements");
    }
    for (;;) {
      skip_space();
      if (take("/>")) return false;
      if (take(">")) return true;
      const std::string key = name();
      if (key.empty()) return wrong("<" + element.name + "> is not closed by '>'");
      if (element.find(key)) return wrong("<" + element.name + "> has '" + key + "' twice");
      if (element.attributes.size() == kAttributesMax) {
        return wrong("<" + element.name + "> has too many attributes");
      }
      skip_space();
      if (!take("=")) return wrong("attribute '" + key + "' has no value");
      skip_space();
      MC_TRY(std::string text, value());
      element.attributes.emplace_back(key, std::move(text));
    }
  }

  // An explicit stack: depth is bounded by the input's limit, not by ours.
  Result<> tree(XmlElement& root) {
    std::vector<XmlElement> open(1);
    MC_TRY(bool content, start_tag(open.back()));
    for (;;) {
      if (!content) {
        XmlElement done = std::move(open.back());
        open.pop_back();
        if (open.empty()) {
          root = std::move(done);
          return {};
        }
        open.back().children.push_back(std::move(done));
      }
      MC_TRY_(skip_to_tag());
      if (at_ == text_.size()) return wrong("<" + open.back().name + "> has no end: cut short?");
      if (take("</")) {
        const std::string closed = name();
        skip_space();
        if (closed != open.back().name || !take(">")) {
          return wrong("</" + closed + "> where </" + open.back().name + "> was due");
        }
        content = false;
        continue;
      }
      if (open.size() == kXmlDepthMax) {
        return wrong("elements nest deeper than " + std::to_string(kXmlDepthMax));
      }
      open.emplace_back();
      MC_TRY(content, start_tag(open.back()));
    }
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  size_t elements_ = 0;
};

}  // namespace

const std::string* XmlElement::find(std::string_view attribute) const {
  for (const auto& [key, text] : attributes) {
    if (key == attribute) return &text;
  }
  return nullptr;
}

std::string XmlElement::get(std::string_view attribute) const {
  const std::string* text = find(attribute);
  return text ? *text : std::string();
}

Result<XmlElement> parse_xml(std::string_view text, const std::string& where) {
  if (text.size() > kXmlBytesMax) {
    return fail(Code::kInvalid, "%s: %zu bytes of XML, more than the %zu that are read",
                where.c_str(), text.size(), kXmlBytesMax);
  }
  return XmlReader(text, where).document();
}

std::string xml_escaped(std::string_view value) {
  std::string out;
  for (const char c : value) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      case '\n': out += "&#10;"; break;
      case '\r': out += "&#13;"; break;
      case '\t': out += "&#9;"; break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

}  // namespace mc::topo
