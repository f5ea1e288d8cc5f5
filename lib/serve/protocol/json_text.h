// Members of a JSON object found in its text, and replaced there.
//
// All bytes but those replaced stay as they are: numbers, the order of members, spaces. Values are
// passed over: strings and brackets have to match, and nothing else is looked at, so that what is
// taken here may be no JSON to a stricter reader.
//
// Thread: values.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::serve {

class JsonText {
 public:
  JsonText() = default;  // no text, no members
  // Errors: kInvalid for what is no object, has a member twice, over 1,024 members or 128 levels.
  static Result<JsonText> parse(std::string text);

  const std::string& text() const { return text_; }
  // The text of a member's value; nothing when the object has none of that name, or null.
  std::optional<std::string_view> find(std::string_view name) const;
  // The member if it is a string, decoded.
  std::optional<std::string> find_string(std::string_view name) const;

  struct Change {
    std::string name;
    std::optional<std::string> value;  // JSON; nothing: the member goes
  };
  // The text after these changes; members that it does not have are appended.
  std::string with(std::span<const Change> changes) const;

 private:
  struct Member {
    std::string name;
    size_t begin, value, end;  // of the name, of the value; after the value
  };
  std::string text_;
  std::vector<Member> members_;
};

// A list of whole numbers below `end`, and nothing else: "[1, 2]". Nothing where the text is
// another. A tree of values takes ten times as long, and a prompt of 128k ids is such a list.
std::optional<std::vector<int32_t>> parse_ids(std::string_view text, uint32_t end);

}  // namespace mc::serve
