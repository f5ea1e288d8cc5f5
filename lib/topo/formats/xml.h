// Parses the small part of XML that topology files use, as a tree. The tree has elements and their
// attributes; text, comments, processing instructions and the document type are skipped.
//
// Files are untrusted: size, depth, element count and value lengths are bounded, and entity
// definitions (which let a small file expand without end) are refused.
//
// Errors: kInvalid with "where:line". Thread: values. Pure.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace mc::topo {

struct XmlElement {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;
  std::vector<XmlElement> children;

  const std::string* find(std::string_view attribute) const;  // nullptr: absent
  std::string get(std::string_view attribute) const;          // "" when absent
};

inline constexpr size_t kXmlBytesMax = 64u << 20;
inline constexpr size_t kXmlDepthMax = 96;
inline constexpr size_t kXmlElementsMax = 500'000;
inline constexpr size_t kXmlValueMax = 64u << 10;

// The root element. `where` names the file in errors.
Result<XmlElement> parse_xml(std::string_view text, const std::string& where);

// `value` between quotes: special and control characters as references.
std::string xml_escaped(std::string_view value);

}  // namespace mc::topo
