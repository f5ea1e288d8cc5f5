// Fields of a form (multipart/form-data) found in its text, and replaced there.
//
// All bytes but those replaced, or added, stay as they are: files, boundaries, headers of parts.
//
// Thread: values. Source: RFC 7578, RFC 2046 section 5.1.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::serve {

class FormText {
 public:
  // Errors: kInvalid for another content type, a boundary that is none or does not end the text,
  // over 256 parts, a part without a name, or a part whose headers have over 4 KiB.
  static Result<FormText> parse(std::string text, std::string_view content_type);

  const std::string& text() const { return text_; }
  bool has(std::string_view name) const;
  // The value of the only field of that name. A file is no field.
  std::optional<std::string_view> find(std::string_view name) const;
  struct Field {
    std::string_view name, value;  // neither has a line break, nor the name a quote
  };
  // The text with these values: of the only field of that name, or, where there is none, of one
  // that is added in front. What stands twice, or is a file, stays.
  std::string with(std::span<const Field> fields) const;

 private:
  struct Part {
    std::string name;
    bool file = false;
    size_t begin = 0, end = 0;  // of the value
  };
  const Part* only(std::string_view name) const;
  std::string text_, boundary_;
  std::vector<Part> parts_;
};

// Whether a content type says that a body is such a form.
bool is_form(std::string_view content_type);

}  // namespace mc::serve
