// Filters on one value: x | NAME. filters_lists.cc has those of lists.
#include <charconv>
#include <cmath>
#include <map>

#include "base/units.h"
#include "model/template/characters.h"
#include "model/template/filters_impl.h"

namespace mc::model::jinja {
namespace {

using Use = const FilterUse&;

Result<std::string> soft_text(Use u) { return to_text(u.in, u.runtime.budget.bytes_left()); }

template <std::string (*to)(std::string_view)>
Result<Value> cased_text(Use u) {
  MC_TRY(const std::string text, soft_text(u));
  return u.runtime.budget.text(to(text));
}

Result<Value> trim(Use u) {
  MC_TRY(const std::string text, soft_text(u));
  MC_TRY(const auto of, u.with.text(0, "chars"));
  return u.runtime.budget.text(std::string(stripped(text, of)));
}

// Jinja's: words begin after spaces and some brackets.
std::string title_words(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    const std::string one(1, c);
    out += begins ? upper(one) : lower(one);
    begins = std::string_view(" \t\n\v\f\r-({[<").find(c) != std::string_view::npos;
  }
  return out;
}

Result<Value> string(Use u) {
  if (u.in.safe()) return u.in;
  MC_TRY(std::string text, soft_text(u));
  return u.runtime.budget.text(std::move(text));
}

Result<Value> safe(Use u) {
  MC_TRY(std::string text, soft_text(u));
  MC_TRY_(u.runtime.budget.bytes(text.size()));
  return Value::safe_text(std::move(text));
}

Result<Value> escape_html(Use u) {
  if (u.in.safe()) return u.in;
  MC_TRY(std::string text, soft_text(u));
  // By the + of such texts.
  return arithmetic("+", Value::safe_text(""), Value(std::move(text)), u.runtime.budget);
}

Result<Value> fallback(Use u) {
  const bool also_false = u.with.flag(1, "boolean", false);
  if (!u.in.is_undefined() && (!also_false || u.in.truthy())) return u.in;
  const Value* v = u.with.find(0, "default_value");
  return v == nullptr ? Value(std::string()) : *v;
}

Result<Value> replace(Use u) {
  Arguments with;
  MC_TRY(const std::string text, soft_text(u));
  for (size_t i = 0; i < 2; ++i) {
    const Value* part = u.with.find(i, i == 0 ? "old" : "new");
    if (part == nullptr) return fail(Code::kInvalid, "replace wants two texts");
    MC_TRY(std::string written, to_text(*part, u.runtime.budget.bytes_left()));
    with.args.emplace_back(std::move(written));
  }
  if (const Value* count = u.with.find(2, "count")) with.args.push_back(*count);
  return call_method("replace", Value(text), with, u.runtime);
}

Result<Value> indent(Use u) {
  MC_TRY(std::string text, soft_text(u));
  std::string by(4, ' ');
  if (const Value* width = u.with.find(0, "width")) {
    if (width->text() != nullptr) {
      by = *width->text();
    } else {
      MC_TRY(const int64_t n, to_integer(*width, "width"));
      if (n > 1000) return fail(Code::kInvalid, "an indent of more than 1000");
      by.assign(static_cast<size_t>(std::max<int64_t>(n, 0)), ' ');
    }
  }
  const bool blank = u.with.flag(2, "blank", false);
  const auto all = lines(text + "\n");
  std::string out = u.with.flag(1, "first", false) ? by : "";
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !all[i].empty())) out += by;
    out += all[i];
    if (out.size() > u.runtime.budget.bytes_left()) break;
  }
  return u.runtime.budget.text(std::move(out));
}

Result<Value> tojson(Use u) {
  MC_TRY_(u.with.only(4, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii = u.with.flag(0, "ensure_ascii", false);
  style.sorted = u.with.flag(3, "sort_keys", false);
  MC_TRY(style.indent, u.with.integer(1, "indent", -1));
  if (style.indent > 100) return fail(Code::kInvalid, "an indent of more than 100");
  if (style.indent >= 0) style.item.assign(1, ',');
  const Value* separators = u.with.find(2, "separators");
  if (separators != nullptr && !separators->is_none()) {
    const ListBox* two = separators->list();
    if (two == nullptr || two->items.size() != 2 || two->items[0].text() == nullptr ||
        two->items[1].text() == nullptr)
      return fail(Code::kInvalid, "separators of JSON that are not two strings");
    style.item = *two->items[0].text();
    style.key = *two->items[1].text();
  }
  MC_TRY(std::string text, to_json_text(u.in, style, u.runtime.budget.bytes_left()));
  return u.runtime.budget.text(std::move(text));
}

std::optional<double> number_of(std::string_view text) {
  text = stripped(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double d = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), d);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return d;
}

Result<Value> to_int(Use u) {
  const Value* given = u.with.find(0, "default");
  const Value other = given == nullptr ? Value(int64_t{0}) : *given;
  if (u.in.is_undefined()) return fail(Code::kInvalid, "int of what is undefined");
  if (u.in.is_number() && u.in.as<double>() == nullptr) return Value(*to_integer(u.in, ""));
  std::optional<double> d;
  if (const std::string* t = u.in.text()) {
    MC_TRY(const int64_t base, u.with.integer(1, "base", 10));
    if (base < 2 || base > 36) return other;
    std::string_view text = stripped(*t);
    if (text.starts_with('+')) text.remove_prefix(1);
    int64_t n = 0;
    const auto read =
        std::from_chars(text.data(), text.data() + text.size(), n, static_cast<int>(base));
    if (read.ec == std::errc() && read.ptr == text.data() + text.size()) return Value(n);
    d = number_of(*t);
  } else if (u.in.is_number()) {
    d = u.in.number();
  }
  if (!d || !(std::fabs(*d) < 9e18)) return other;
  return Value(static_cast<int64_t>(*d));
}

Result<Value> to_float(Use u) {
  const Value* given = u.with.find(0, "default");
  if (u.in.is_number()) return Value(u.in.number());
  if (const std::string* t = u.in.text())
    if (const auto d = number_of(*t)) return Value(*d);
  return given == nullptr ? Value(0.0) : *given;
}

Result<Value> absolute(Use u) {
  if (!u.in.is_number()) return fail(Code::kInvalid, "abs of a %s", type_name(u.in));
  if (u.in.as<double>() != nullptr) return Value(std::fabs(u.in.number()));
  MC_TRY(const int64_t i, to_integer(u.in, "abs"));
  return i < 0 ? arithmetic("-", Value(int64_t{0}), u.in, u.runtime.budget) : Value(i);
}

Result<Value> round_number(Use u) {
  if (!u.in.is_number()) return fail(Code::kInvalid, "round of a %s", type_name(u.in));
  MC_TRY(const int64_t digits, u.with.integer(0, "precision", 0));
  MC_TRY(const auto method, u.with.text(1, "method"));
  if (digits < 0 || digits > 15) return fail(Code::kUnsupported, "a precision that is not 0 to 15");
  const double by = std::pow(10.0, static_cast<double>(digits)), d = u.in.number();
  if (method == "ceil") return Value(std::ceil(d * by) / by);
  if (method == "floor") return Value(std::floor(d * by) / by);
  std::array<char, 400> room;
  std::snprintf(room.data(), room.size(), "%.*f", static_cast<int>(digits), d);
  return Value(number_of(room.data()).value_or(d));
}

Result<Value> length(Use u) {
  if (u.in.is_undefined()) return Value(int64_t{0});
  if (const std::string* t = u.in.text()) {
    MC_TRY_(u.runtime.budget.steps(t->size() / 64));
    return Value(static_cast<int64_t>(characters(*t)));
  }
  if (const DictBox* d = u.in.dict()) return Value(static_cast<int64_t>(d->items.size()));
  const ListBox* l = u.in.list();
  if (l == nullptr || l->kind == ListBox::Kind::kOnce)
    return fail(Code::kInvalid, "the length of a %s", type_name(u.in));
  return Value(static_cast<int64_t>(l->items.size()));
}

Result<Value> attr(Use u) {
  MC_TRY(const auto name, u.with.text(0, "name"));
  if (!name) return fail(Code::kInvalid, "attr without a name");
  bool changes = false;
  // Not the members of a dict.
  if (u.in.dict() != nullptr && !has_method(u.in, *name, changes)) return Value::undefined(*name);
  return attribute(u.in, *name);
}

Result<Value> percent(Use u) {
  MC_TRY(const std::string text, soft_text(u));
  MC_TRY(const Value with, make_list(u.with.args, ListBox::Kind::kTuple));
  return formatted(text, with, u.runtime.budget);
}

Result<Value> word_count(Use u) {
  MC_TRY(const std::string text, soft_text(u));
  MC_TRY_(u.runtime.budget.bytes(8 * text.size()));
  return Value(static_cast<int64_t>(split(text, {}).size()));
}

}  // namespace

const std::map<std::string_view, Filter>& value_filters() {
  static const std::map<std::string_view, Filter> all = {
      {"abs", absolute},
      {"attr", attr},
      {"capitalize", cased_text<capitalized>},
      {"count", length},
      {"d", fallback},
      {"default", fallback},
      {"e", escape_html},
      {"escape", escape_html},
      {"float", to_float},
      {"format", percent},
      {"indent", indent},
      {"int", to_int},
      {"length", length},
      {"lower", cased_text<lower>},
      {"replace", replace},
      {"round", round_number},
      {"safe", safe},
      {"string", string},
      {"title", cased_text<title_words>},
      {"tojson", tojson},
      {"trim", trim},
      {"upper", cased_text<upper>},
      {"wordcount", word_count},
  };
  return all;
}

Result<Value> call_filter(const std::string& name, const Value& in, const Arguments& with,
                          Runtime& runtime) {
  const FilterUse use{in, with, runtime};
  MC_TRY_(runtime.budget.steps(steps_to_read(in)));
  for (const auto* filters : {&value_filters(), &list_filters()})
    if (const auto it = filters->find(name); it != filters->end()) return it->second(use);
  return fail(Code::kUnsupported, "the filter '%s' is not known here", escape(name).c_str());
}

}  // namespace mc::model::jinja
