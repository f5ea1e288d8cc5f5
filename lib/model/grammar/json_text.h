// The parts that JSON texts are made of, as expressions: spaces, strings, numbers, any value.
//
// What is written is a subset of what JSON allows, so that every reader takes it: numbers of up to
// 15 digits and exponents of two, characters that are Unicode, a line's end and up to 32 spaces
// between values.
//
// Thread: one owner. Pure. Source: RFC 8259.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/result.h"
#include "model/grammar/rules.h"

namespace mc::model::grammar {

// A bound of a number, as decimal digits.
struct Decimal {
  bool negative = false;
  std::string whole = "0", part;  // before and behind the point, without zeros at their ends
  bool zero() const { return whole == "0" && part.empty(); }
  bool operator==(const Decimal&) const = default;
};
// Errors: kUnsupported for a number of over 15 digits.
Result<Decimal> decimal_of(const Json& number);
bool less(const Decimal& a, const Decimal& b);

struct Bounds {
  std::optional<Decimal> low, high;
  bool above_low = false, below_high = false;  // exclusive
};

class JsonText {
 public:
  explicit JsonText(Rules& rules);

  Rules::Node spaces() { return rules_.call(spaces_); }
  Rules::Node any() { return rules_.call(any_); }
  Rules::Node any_object() { return rules_.call(object_); }
  Rules::Node any_array() { return rules_.call(array_); }
  Rules::Node any_string() { return rules_.call(string_); }
  Rules::Node string(uint32_t least, uint32_t most);  // of so many characters
  Rules::Node any_number() { return rules_.call(number_); }
  Rules::Node any_integer() { return rules_.call(integer_); }
  // Whole numbers, or all, within bounds. No number at all is never().
  Rules::Node integer(const Bounds& bounds);
  Rules::Node number(const Bounds& bounds);
  // Multiples of a number, of up to 12 digits where there are no bounds. Errors go behind its path.
  Result<Rules::Node> multiples_of(const Json& of, const Bounds& bounds);
  // A string that matches a regular expression somewhere, or all of it.
  Result<Rules::Node> pattern(std::string_view regex, bool anywhere);
  // A string of a format by its name; kUnsupported for others than formats().
  Result<Rules::Node> format(const std::string& name);
  static std::string formats();
  // "name": and spaces.
  Rules::Node key(const std::string& name);
  // The same of any name that matches a regular expression somewhere.
  Result<Rules::Node> key_like(std::string_view regex);
  // A key that is none of these, without escapes.
  Rules::Node other_key(const std::vector<std::string>& names);
  // `[`, members with commas, `]`.
  Rules::Node comma() { return rules_.call(comma_); }
  Rules::Node object_of(Rules::Node members);
  Rules::Node array_of(Rules::Node elements);

 private:
  Rules::Node digit(char from, char to);
  Rules::Node digits(uint32_t least, uint32_t most) {
    return rules_.repeat(digit('0', '9'), least, most);
  }
  Rules::Node whole_range(const std::string& low, const std::string& high);
  Rules::Node same_length(std::string_view low, std::string_view high);
  Rules::Node at_least(std::string_view low);
  Rules::Node at_most(std::string_view high);
  Rules::Node part_any(uint32_t most);
  Rules::Node part_not_zero(uint32_t most);
  Rules::Node part_from(std::string_view low, bool above, uint32_t most);
  Rules::Node part_to(std::string_view high, bool below, uint32_t most);
  Rules::Node part_between(std::string low, std::string high, const Bounds& b, uint32_t most);
  Rules::Node size_range(const Bounds& bounds);
  Rules::Node multiples(uint32_t of, bool negative, bool zero);
  Rules::Node quoted(Rules& rules, const Characters& set);
  Rules::Node other_text(const std::vector<std::string>& names, size_t from);

  Rules& rules_;
  Rules::Rule spaces_, comma_, character_, string_, number_, integer_, object_, array_, any_,
      beyond_ascii_, raw_;
};

}  // namespace mc::model::grammar
