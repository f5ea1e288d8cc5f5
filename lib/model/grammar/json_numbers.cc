// Numbers within bounds: JsonText's part of it. A number is cut at its point; digits are compared
// from the first on.
#include <algorithm>
#include <string>

#include "base/json.h"
#include "model/grammar/json_text.h"

namespace mc::model::grammar {
namespace {

constexpr size_t kSaidMax = 40;    // bytes of a number in an error, without an exponent
constexpr size_t kDigitsMax = 15;  // that a double keeps, and so every reader

std::string next_after(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '9') {
      ++digits[i];
      return digits;
    }
    digits[i] = '0';
  }
  digits.insert(digits.begin(), '1');
  return digits;
}
// Of a number over 0.
std::string before(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '0') {
      --digits[i];
      break;
    }
    digits[i] = '9';
  }
  const size_t first = digits.find_first_not_of('0');
  return first == std::string::npos ? "0" : digits.substr(first);
}
bool less_whole(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}
bool less_size(const Decimal& a, const Decimal& b) {
  return a.whole != b.whole ? less_whole(a.whole, b.whole) : a.part < b.part;
}
Decimal size_of(Decimal d) {
  d.negative = false;
  return d;
}

// "1e+15" as its digits: a number may be written without the exponent, and is read with it.
std::string without_exponent(const std::string& text) {
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;
  const bool negative = text.starts_with('-');
  std::string digits = text.substr(negative, e - negative);
  int point = std::stoi(text.substr(e + 1));
  const size_t at = digits.find('.');
  point += static_cast<int>(at == std::string::npos ? digits.size() : at);
  if (at != std::string::npos) digits.erase(at, 1);
  if (point <= 0) {
    digits.insert(0, static_cast<size_t>(1 - point), '0');
    point = 1;
  }
  const auto whole = static_cast<size_t>(point);
  if (digits.size() < whole) digits.resize(whole, '0');
  if (digits.size() > whole) digits.insert(whole, ".");
  return (negative ? "-" : "") + digits;
}

}  // namespace

bool less(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative;
  return a.negative ? less_size(b, a) : less_size(a, b);
}

Result<Decimal> decimal_of(const Json& number) {
  const std::string said = without_exponent(dump_json(number));
  std::string text = said;
  Decimal d;
  d.negative = text.starts_with('-');
  if (d.negative) text.erase(0, 1);
  const size_t point = text.find('.');
  d.whole = text.substr(0, point);
  if (point != std::string::npos) d.part = text.substr(point + 1);
  d.part.erase(d.part.find_last_not_of('0') + 1);
  if (d.whole.size() + d.part.size() > kDigitsMax)
    return fail(Code::kUnsupported, "%s is no bound that is supported: want %zu digits at most",
                said.size() > kSaidMax ? dump_json(number).c_str() : said.c_str(), kDigitsMax);
  if (d.zero()) d.negative = false;
  return d;
}

Rules::Node JsonText::digit(char from, char to) {
  ByteSet s;
  for (char c = from; c <= to; ++c) s.set(static_cast<uint8_t>(c));
  return rules_.set(s);
}

Rules::Node JsonText::at_least(std::string_view low) {
  if (low.empty()) return rules_.empty();
  const auto n = static_cast<uint32_t>(low.size() - 1);
  const Rules::Node same = rules_.sequence({digit(low[0], low[0]), at_least(low.substr(1))});
  if (low[0] == '9') return same;
  return rules_.either(
      {same, rules_.sequence({digit(static_cast<char>(low[0] + 1), '9'), digits(n, n)})});
}
Rules::Node JsonText::at_most(std::string_view high) {
  if (high.empty()) return rules_.empty();
  const auto n = static_cast<uint32_t>(high.size() - 1);
  const Rules::Node same = rules_.sequence({digit(high[0], high[0]), at_most(high.substr(1))});
  if (high[0] == '0') return same;
  return rules_.either(
      {same, rules_.sequence({digit('0', static_cast<char>(high[0] - 1)), digits(n, n)})});
}
// Digits of one length, from `low` to `high`.
Rules::Node JsonText::same_length(std::string_view low, std::string_view high) {
  if (low.empty()) return rules_.empty();
  const auto n = static_cast<uint32_t>(low.size() - 1);
  if (low[0] == high[0])
    return rules_.sequence({digit(low[0], low[0]), same_length(low.substr(1), high.substr(1))});
  std::vector<Rules::Node> all = {
      rules_.sequence({digit(low[0], low[0]), at_least(low.substr(1))}),
      rules_.sequence({digit(high[0], high[0]), at_most(high.substr(1))})};
  if (high[0] - low[0] > 1)
    all.push_back(rules_.sequence(
        {digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)), digits(n, n)}));
  return rules_.either(all);
}
// Whole numbers from `low` to `high`, both of them 0 or more.
Rules::Node JsonText::whole_range(const std::string& low, const std::string& high) {
  if (less_whole(high, low)) return rules_.never();
  if (low.size() == high.size()) return same_length(low, high);
  std::string least(high.size(), '0');  // of as many digits
  least[0] = '1';
  std::vector<Rules::Node> all = {same_length(low, std::string(low.size(), '9')),
                                  same_length(least, high)};
  if (high.size() - low.size() > 1)
    all.push_back(
        rules_.sequence({digit('1', '9'), digits(static_cast<uint32_t>(low.size()),
                                                 static_cast<uint32_t>(high.size() - 2))}));
  return rules_.either(all);
}

Rules::Node JsonText::integer(const Bounds& b) {
  if (!b.low && !b.high) return any_integer();
  const std::string most(kDigitsMax, '9');
  // The least and greatest whole numbers, with their signs.
  const auto whole = [&](const Decimal& d, bool exclusive, bool up) {
    Decimal w{d.negative, d.whole, ""};
    const bool away = d.negative != up;  // from 0
    if (d.part.empty() ? !exclusive : !away) {
      if (w.zero()) w.negative = false;
      return w;
    }
    w.whole = away ? next_after(w.whole) : before(w.whole);
    if (w.zero()) w.negative = false;
    return w;
  };
  const auto first = [&]() -> Decimal {
    if (!b.low) return {true, most, ""};
    return whole(*b.low, b.above_low, true);
  }();
  const auto last = [&]() -> Decimal {
    if (!b.high) return {false, most, ""};
    if (b.high->zero() && b.below_high) return {true, "1", ""};
    return whole(*b.high, b.below_high, false);
  }();
  if (less(last, first)) return rules_.never();
  std::vector<Rules::Node> all;
  if (!last.negative) all.push_back(whole_range(first.negative ? "0" : first.whole, last.whole));
  if (first.negative)
    all.push_back(rules_.sequence(
        {rules_.text("-"), whole_range(last.negative ? last.whole : "1", first.whole)}));
  return rules_.either(all);
}

// ---- behind the point: an expression with the point, or nothing

Rules::Node JsonText::part_any(uint32_t most) {
  if (most == 0) return rules_.empty();
  return rules_.maybe(rules_.sequence({rules_.text("."), digits(1, most)}));
}
// Up to so many digits, one of them not 0.
Rules::Node JsonText::part_not_zero(uint32_t most) {
  std::vector<Rules::Node> all;
  for (uint32_t zeros = 0; zeros < most; ++zeros)
    all.push_back(rules_.sequence({rules_.repeat(rules_.text("0"), zeros, zeros), digit('1', '9'),
                                   digits(0, most - zeros - 1)}));
  return rules_.either(all);
}
// Digits that are `low` or more, as what is behind a point.
Rules::Node JsonText::part_from(std::string_view low, bool above, uint32_t most) {
  if (low.find_first_not_of('0') == std::string_view::npos)
    return above ? part_not_zero(most) : digits(0, most);
  if (most == 0) return rules_.never();
  const Rules::Node same =
      rules_.sequence({digit(low[0], low[0]), part_from(low.substr(1), above, most - 1)});
  if (low[0] == '9') return same;
  return rules_.either(
      {same, rules_.sequence({digit(static_cast<char>(low[0] + 1), '9'), digits(0, most - 1)})});
}
// Digits that are `high` or less; none at all are 0.
Rules::Node JsonText::part_to(std::string_view high, bool below, uint32_t most) {
  if (high.find_first_not_of('0') == std::string_view::npos)
    return below ? rules_.never() : rules_.repeat(rules_.text("0"), 0, std::min(most, 2u));
  if (most == 0) return rules_.empty();
  std::vector<Rules::Node> all = {
      rules_.empty(),
      rules_.sequence({digit(high[0], high[0]), part_to(high.substr(1), below, most - 1)})};
  if (high[0] != '0')
    all.push_back(
        rules_.sequence({digit('0', static_cast<char>(high[0] - 1)), digits(0, most - 1)}));
  return rules_.either(all);
}
// Between digits that are of one length.
Rules::Node JsonText::part_between(std::string low, std::string high, const Bounds& b,
                                   uint32_t most) {
  if (low.empty()) return b.above_low || b.below_high ? rules_.never() : rules_.empty();
  const std::string rest_low = low.substr(1), rest_high = high.substr(1);
  if (low[0] == high[0])
    return rules_.sequence({digit(low[0], low[0]), part_between(rest_low, rest_high, b, most - 1)});
  std::vector<Rules::Node> all = {
      rules_.sequence({digit(low[0], low[0]), part_from(rest_low, b.above_low, most - 1)}),
      rules_.sequence({digit(high[0], high[0]), part_to(rest_high, b.below_high, most - 1)})};
  if (high[0] - low[0] > 1)
    all.push_back(
        rules_.sequence({digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)),
                         digits(0, most - 1)}));
  return rules_.either(all);
}

// Numbers without a sign; `low` is there, and 0 or more.
Rules::Node JsonText::size_range(const Bounds& b) {
  const Decimal& low = *b.low;
  const size_t long_one = std::max(low.whole.size(), b.high ? b.high->whole.size() : 0);
  const auto room = static_cast<uint32_t>(kDigitsMax - std::min(kDigitsMax, long_one));
  const auto behind = [&](Rules::Node digits_there) {  // with the point
    return rules_.sequence({rules_.text("."), digits_there});
  };
  std::vector<Rules::Node> all;
  if (b.high && b.high->whole == low.whole) {
    if (low.part.empty() && !b.above_low && (!b.high->part.empty() || !b.below_high))
      all.push_back(rules_.text(low.whole));
    const size_t length = std::max(low.part.size(), b.high->part.size());
    std::string from = low.part, to = b.high->part;
    from.resize(length, '0');
    to.resize(length, '0');
    if (length > 0 && length <= room && from <= to)
      all.push_back(
          rules_.sequence({rules_.text(low.whole), behind(part_between(from, to, b, room))}));
    return rules_.either(all);
  }
  if (!b.above_low && low.part.empty()) {
    all.push_back(rules_.sequence({rules_.text(low.whole), part_any(room)}));
  } else if (room > 0) {
    all.push_back(
        rules_.sequence({rules_.text(low.whole), behind(part_from(low.part, b.above_low, room))}));
  }
  const std::string end = b.high ? before(b.high->whole) : std::string(kDigitsMax, '9');
  all.push_back(rules_.sequence({whole_range(next_after(low.whole), end), part_any(room)}));
  if (b.high) {
    const bool itself = !b.high->part.empty() || !b.below_high;
    if (itself) all.push_back(rules_.text(b.high->whole));
    if (!b.high->part.empty() && room > 0) {
      const char first = b.high->part[0];
      std::vector<Rules::Node> some = {
          rules_.sequence({digit(first, first), part_to(std::string_view(b.high->part).substr(1),
                                                        b.below_high, room - 1)})};
      if (first != '0')
        some.push_back(
            rules_.sequence({digit('0', static_cast<char>(first - 1)), digits(0, room - 1)}));
      all.push_back(rules_.sequence({rules_.text(b.high->whole), behind(rules_.either(some))}));
    }
  }
  return rules_.either(all);
}

Rules::Node JsonText::number(const Bounds& b) {
  if (!b.low && !b.high) return any_number();
  if (b.low && b.high && less(*b.high, *b.low)) return rules_.never();
  std::vector<Rules::Node> all;
  const Decimal zero;
  if (!b.high || !b.high->negative) {
    const bool from_zero = !b.low || b.low->negative;
    Bounds up{from_zero ? zero : *b.low, b.high, !from_zero && b.above_low, b.below_high};
    all.push_back(size_range(up));
  }
  if (!b.low || b.low->negative) {
    const bool to_zero = !b.high || !b.high->negative;
    Bounds down;
    down.low = to_zero ? zero : size_of(*b.high);
    down.above_low = to_zero || b.below_high;  // no -0
    if (b.low) down.high = size_of(*b.low);
    down.below_high = b.above_low;
    all.push_back(rules_.sequence({rules_.text("-"), size_range(down)}));
  }
  return rules_.either(all);
}

}  // namespace mc::model::grammar
