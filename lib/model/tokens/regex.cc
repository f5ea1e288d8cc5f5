#include "model/tokens/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cctype>
#include <optional>
#include <vector>

#include "base/units.h"

namespace mc::model {
namespace {

constexpr size_t kPatternMax = 1u << 16, kStackMax = 4u << 20, kStackAtFirst = 32u << 10,
                 kProbe = 256;
constexpr uint32_t kHeapMaxKiB = 64u << 10;

// White_Space; what a word is made of; both for use within brackets.
constexpr const char* kSpaces =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kWord = R"(\p{L}\p{M}\p{Nd}\p{Pc})";

struct LongName {
  std::string_view name, category;
};
constexpr std::array<LongName, 14> kLongNames = {{{"letter", "L"},
                                                  {"mark", "M"},
                                                  {"number", "N"},
                                                  {"punctuation", "P"},
                                                  {"symbol", "S"},
                                                  {"separator", "Z"},
                                                  {"other", "C"},
                                                  {"uppercaseletter", "Lu"},
                                                  {"lowercaseletter", "Ll"},
                                                  {"decimalnumber", "Nd"},
                                                  {"letternumber", "Nl"},
                                                  {"othernumber", "No"},
                                                  {"nonspacingmark", "Mn"},
                                                  {"spaceseparator", "Zs"}}};

// Writes Oniguruma's pattern in PCRE2's syntax.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (at_ < in_.size()) MC_TRY_(step());
    return std::move(out_);
  }

 private:
  Result<> refuse(const char* what) const {
    return fail(Code::kInvalid, "%s at byte %zu of the pattern '%s'", what, at_,
                escape(in_.substr(0, 200)).c_str());
  }
  bool starts(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  void copy(size_t bytes) {
    out_ += in_.substr(at_, bytes);
    at_ += bytes;
  }

  Result<> step() {
    const char c = in_[at_];
    if (c == '\\') {
      atom_ = out_.size();
      return escaped(false);
    }
    if (c == '[') {
      atom_ = out_.size();
      return brackets();
    }
    if (c == '(') {
      groups_.push_back(out_.size());
      copy(1);
      return {};
    }
    if (c == ')') {
      if (groups_.empty()) return refuse("an unexpected ')'");
      atom_ = groups_.back();
      groups_.pop_back();
      copy(1);
      return {};
    }
    if (c == '{' && counts()) return {};
    if (c != '*' && c != '+' && c != '?') atom_ = out_.size();
    copy(1);
    return {};
  }

  // `{n,m}`; followed by a + it is repeated, where PCRE2 would take it for possessive.
  bool counts() {
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos || end == at_ + 1) return false;
    std::string count(in_.substr(at_, end - at_ + 1));
    for (const char c : std::string_view(count).substr(1, count.size() - 2))
      if (std::isdigit(static_cast<unsigned char>(c)) == 0 && c != ',') return false;
    if (count[1] == ',') count.insert(1, "0");  // {,m}
    out_ += count;
    at_ = end + 1;
    if (starts("+")) {
      out_.insert(atom_, "(?:");
      out_ += ")";
    }
    return true;
  }

  Result<> escaped(bool in_set) {
    if (at_ + 1 >= in_.size()) return refuse("a '\\' that escapes nothing");
    const char c = in_[at_ + 1];
    const char* set = c == 's'   ? kSpaces
                      : c == 'w' ? kWord
                      : c == 'd' ? R"(\p{Nd})"
                      : c == 'h' ? "0-9A-Fa-f"
                                 : nullptr;
    const char* without = c == 'S' ? kSpaces : c == 'W' ? kWord : c == 'H' ? "0-9A-Fa-f" : nullptr;
    if (set != nullptr)
      out_ += in_set ? std::string(set) : "[" + std::string(set) + "]";
    else if (without != nullptr && !in_set)
      out_ += "[^" + std::string(without) + "]";
    else if (c == 'D')
      out_ += R"(\P{Nd})";
    else if ((c == 'p' || c == 'P') && at_ + 2 < in_.size() && in_[at_ + 2] == '{')
      return property();
    else {
      copy(2);
      return {};
    }
    at_ += 2;
    return {};
  }

  Result<> property() {
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) return refuse("a property without its '}'");
    std::string plain;
    for (const char c : in_.substr(at_ + 3, end - at_ - 3))
      if (c != '_' && c != ' ' && c != '-')
        plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const bool inverted = plain.starts_with('^');
    for (const LongName& known : kLongNames)
      if (std::string_view(plain).substr(inverted) == known.name) {
        out_ += in_.substr(at_, 3);
        out_ += inverted ? "^" : "";
        out_ += known.category;
        out_ += '}';
        at_ = end + 1;
        return {};
      }
    copy(end + 1 - at_);
    return {};
  }

  Result<> brackets() {
    copy(1);
    if (starts("^")) copy(1);
    if (starts("]")) {
      out_ += '\\';
      copy(1);
    }
    while (at_ < in_.size() && in_[at_] != ']') {
      if (starts("[:")) {
        const size_t end = in_.find(":]", at_);
        if (end == std::string_view::npos) return refuse("a class without its ':]'");
        copy(end + 2 - at_);
      } else if (in_[at_] == '[' || starts("&&")) {
        return refuse("a set within a set is not supported:");
      } else if (in_[at_] == '\\') {
        MC_TRY_(escaped(true));
      } else {
        copy(1);
      }
    }
    if (at_ == in_.size()) return refuse("a set without its ']'");
    copy(1);
    return {};
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;  // where in out_ the last thing that can be repeated begins
  std::vector<size_t> groups_;
};

// What a search writes to, of each thread.
struct Scratch {
  Scratch()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kStackAtFirst, kStackMax, nullptr)) {
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(context, Regex::kStepsMax);
    pcre2_set_heap_limit(context, kHeapMaxKiB);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

Scratch& scratch() {
  thread_local Scratch one;
  return one;
}

}  // namespace

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kPatternMax)
    return fail(Code::kInvalid, "a pattern of %zu bytes: want %zu at most", pattern.size(),
                kPatternMax);
  MC_TRY(const std::string native, Translation(pattern).run());
  auto made = compile_native(native);
  if (!made)
    return fail(Code::kInvalid, "the pattern '%s': %s", escape(pattern.substr(0, 200)).c_str(),
                made.error().what.c_str());
  // Patterns that backtrack without end do so on runs of one character. What follows the run has
  // what a match may need, so that the search is not over before it begins.
  std::string rest = "\x01";
  for (char c = ' '; c <= '~'; ++c) rest += c;
  for (const char c : std::string_view("a 1.\n"))
    if (made->find(std::string(kProbe, c) + rest, 0).failed)
      return fail(Code::kInvalid,
                  "the pattern '%s' backtracks without end: more than %u steps for %zu characters",
                  escape(pattern.substr(0, 200)).c_str(), kStepsMax, kProbe);
  return made;
}

Result<Regex> Regex::compile_native(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &place, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    return fail(Code::kInvalid, "%s (at byte %zu)", reinterpret_cast<const char*>(text.data()),
                static_cast<size_t>(place));
  }
  Regex made;
  uint32_t least = 0;
  // \K may make an empty match of any.
  if (pattern.find("\\K") == std::string_view::npos &&
      pcre2_pattern_info(code, PCRE2_INFO_MINLENGTH, &least) == 0)
    made.least_ = least;
  made.jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  made.code_ = std::shared_ptr<const pcre2_real_code_8>(
      code, [](const pcre2_code* c) { pcre2_code_free(const_cast<pcre2_code*>(c)); });
  return made;
}

Regex::Match Regex::find(std::string_view text, size_t from) const {
  Scratch& s = scratch();
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int rc = jit_ ? pcre2_jit_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                        s.data, s.context)
                      : pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                    s.data, s.context);
  Match match;
  if (rc >= 0) {
    const PCRE2_SIZE* const at = pcre2_get_ovector_pointer(s.data);
    match = {at[0], at[1], at[1] >= at[0], false};  // \K may end a match before its begin
  } else {
    match.failed = rc != PCRE2_ERROR_NOMATCH;
  }
  return match;
}

}  // namespace mc::model
