#include "topo/model/numbers.h"

#include <algorithm>
#include <charconv>

namespace mc::topo {

std::optional<uint64_t> parse_number(std::string_view s, int base) {
  if (base == 16 && s.starts_with("0x")) s.remove_prefix(2);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value, base);
  if (s.empty() || error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

Result<std::vector<int>> parse_cpu_list(const std::string& list, const std::string& where) {
  std::vector<int> cpus;
  for (size_t at = 0; at < list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    const std::string_view part = std::string_view(list).substr(at, comma - at);
    const size_t dash = part.find('-');
    const auto first = parse_number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number(part.substr(dash + 1));
    if (!first || !last || *last < *first || *last > kNumbersMax) {
      return fail(Code::kInvalid, "%s: '%s' is not a CPU list such as 0-3,8 (0..%d)", where.c_str(),
                  list.substr(0, 80).c_str(), kNumbersMax);
    }
    for (uint64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
    if (cpus.size() > 1u << 20) {  // the same range again and again
      return fail(Code::kInvalid, "%s: a CPU list of more than a million entries", where.c_str());
    }
    at = comma + 1;
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

Result<std::vector<int>> parse_mask(const std::string& mask, const std::string& where) {
  std::vector<int> out;
  size_t end = mask.size();
  for (int base = 0; !mask.empty() && base <= kNumbersMax; base += 32) {
    const size_t comma = end == 0 ? std::string::npos : mask.rfind(',', end - 1);
    const size_t first = comma == std::string::npos ? 0 : comma + 1;
    const std::string_view group = std::string_view(mask).substr(first, end - first);
    const auto bits = group.empty() ? 0 : parse_number(group, 16);
    if (!bits || *bits > 0xffffffff) {
      return fail(Code::kInvalid, "%s: '%s' is not a mask such as 0x00ff,0xffffffff", where.c_str(),
                  mask.substr(0, 80).c_str());
    }
    for (int bit = 0; bit < 32; ++bit) {
      if ((*bits >> bit) & 1) out.push_back(base + bit);
    }
    if (comma == std::string::npos) return out;
    end = comma;
  }
  return out;
}

std::string ranges(const std::vector<int>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!out.empty()) out += ",";
    out += std::to_string(numbers[i]);
    if (last > i) out += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return out;
}

bool in_natural_order(std::string_view a, std::string_view b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto stretch = [&](std::string_view s) {
    size_t n = 0;
    while (n < s.size() && digit(s[n])) ++n;
    return s.substr(0, n);
  };
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (digit(a[0]) && digit(b[0])) {
      std::string_view x = stretch(a), y = stretch(b);
      a.remove_prefix(x.size());
      b.remove_prefix(y.size());
      x.remove_prefix(std::min(x.find_first_not_of('0'), x.size()));
      y.remove_prefix(std::min(y.find_first_not_of('0'), y.size()));
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0];
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // only zeros in front differ, if anything
}

}  // namespace mc::topo
