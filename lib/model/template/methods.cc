// Methods of strings, dicts and lists that change nothing.
#include <algorithm>
#include <array>
#include <map>

#include "base/units.h"
#include "model/template/characters.h"
#include "model/template/runtime.h"

namespace mc::model::jinja {
namespace {

using Texts = std::optional<std::string>;

Value of_texts(std::vector<std::string> texts) { return text_list(std::move(texts)); }

Result<bool> begins_or_ends(const std::string& text, const Arguments& with, bool begins) {
  MC_TRY_(with.only(1, {}));
  if (with.args.empty()) return fail(Code::kInvalid, "without what is looked for");
  const auto fits = [&](const std::string& part) {
    return begins ? text.starts_with(part) : text.ends_with(part);
  };
  if (const std::string* t = with.args[0].text()) return fits(*t);
  const ListBox* l = with.args[0].list();
  if (l == nullptr || l->kind != ListBox::Kind::kTuple)
    return fail(Code::kInvalid, "looks for a %s, want a string or a tuple of them",
                type_name(with.args[0]));
  for (const Value& v : l->items) {
    if (v.text() == nullptr) return fail(Code::kInvalid, "a tuple of other things than strings");
    if (fits(*v.text())) return true;
  }
  return false;
}

bool every(const std::string& text, bool (*holds)(uint32_t)) {
  if (text.empty()) return false;
  const auto all = split_characters(text);
  return std::all_of(all.begin(), all.end(), [&](std::string_view c) { return holds(code_of(c)); });
}
bool is_digit(uint32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= 0xC0 && !space(c));
}

Result<Value> found_at(const std::string& text, const Arguments& with, bool last, bool must) {
  MC_TRY(const Texts part, with.text(0, "sub"));
  if (!part || with.args.size() != 1)
    return fail(Code::kUnsupported, "find() with other arguments than one string");
  const size_t at = last ? text.rfind(*part) : text.find(*part);
  if (at == std::string::npos) {
    if (must) return fail(Code::kInvalid, "index() of what is not there");
    return Value(int64_t{-1});
  }
  return Value(static_cast<int64_t>(characters(std::string_view(text).substr(0, at))));
}

Result<Value> partition(const std::string& text, const Arguments& with, bool last) {
  MC_TRY(const Texts by, with.text(0, "sep"));
  if (!by || by->empty()) return fail(Code::kInvalid, "partition() without a separator");
  const size_t at = last ? text.rfind(*by) : text.find(*by);
  List parts;
  if (at == std::string::npos) {
    parts = {Value(last ? std::string() : text), Value(std::string()),
             Value(last ? text : std::string())};
  } else {
    parts = {Value(text.substr(0, at)), Value(*by), Value(text.substr(at + by->size()))};
  }
  return make_list(std::move(parts), ListBox::Kind::kTuple);
}

// "{} {0} {name}": no attributes, no formats.
Result<Value> format(const std::string& text, const Arguments& with, Budget& budget) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((text[i] == '{' || text[i] == '}') && i + 1 < text.size() && text[i + 1] == text[i]) {
      out += text[i++];
      continue;
    }
    if (text[i] != '{') {
      out += text[i];
      continue;
    }
    const size_t end = text.find('}', i);
    if (end == std::string::npos) return fail(Code::kInvalid, "a '{' that is not closed");
    const std::string field = text.substr(i + 1, end - i - 1);
    i = end;
    const bool number = every(field, is_digit) && field.size() < 4;
    if (field.find_first_of(".[]:!{") != std::string::npos)
      return fail(Code::kUnsupported, "format() of '{%s}': {}, {0} and {name} are done here",
                  escape(field).c_str());
    const size_t place = field.empty() ? next++ : number ? std::stoul(field) : SIZE_MAX;
    const Value* v = with.find(place, field);
    if (v == nullptr) return fail(Code::kInvalid, "format() without '%s'", escape(field).c_str());
    MC_TRY(const std::string written, to_text(*v, budget.bytes_left()));
    out += written;
  }
  return budget.text(std::move(out));
}

Result<Value> splitting(const std::string& name, const std::string& t, const Arguments& with,
                        Budget& budget) {
  MC_TRY_(budget.bytes(8 * t.size()));  // a part takes more than its characters
  if (name == "splitlines") return of_texts(lines(t, with.flag(0, "keepends", false)));
  MC_TRY(const Texts by, with.text(0, "sep"));
  MC_TRY(const int64_t most, with.integer(1, "maxsplit", -1));
  if (by && by->empty()) return fail(Code::kInvalid, "split() at an empty separator");
  return of_texts(name == "split" ? split(t, by, most) : split_right(t, by, most));
}

Result<Value> joining(const std::string& t, const Arguments& with, Budget& budget) {
  if (with.args.size() != 1) return fail(Code::kInvalid, "join() wants one list");
  MC_TRY(const Value::Items items, items_of(with.args[0], budget));
  std::string out;
  for (size_t i = 0; i < items->items.size(); ++i) {
    const std::string* part = items->items[i].text();
    if (part == nullptr)
      return fail(Code::kInvalid, "join() of a %s, want strings", type_name(items->items[i]));
    if (i > 0) out += t;
    out += *part;
    if (out.size() > budget.bytes_left()) break;
  }
  return budget.text(std::move(out));
}

Result<Value> replacing(const std::string& t, const Arguments& with, Budget& budget) {
  MC_TRY(const Texts from, with.text(0, "old"));
  MC_TRY(const Texts to, with.text(1, "new"));
  MC_TRY(const int64_t most, with.integer(2, "count", -1));
  if (!from || !to) return fail(Code::kInvalid, "replace() wants two strings");
  MC_TRY_(budget.bytes((t.size() + 1) * (from->empty() ? to->size() + 1 : 1)));
  if (!from->empty() && to->size() > from->size())  // before it is made
    MC_TRY_(budget.bytes(t.size() / from->size() * to->size()));
  return Value(replaced(t, *from, *to, most));
}

Result<Value> simple(const std::string& name, const std::string& t, const Arguments& with) {
  if (name == "upper") return Value(upper(t));
  if (name == "lower" || name == "casefold") return Value(lower(t));
  if (name == "title") return Value(title(t));
  if (name == "capitalize") return Value(capitalized(t));
  if (name == "isdigit" || name == "isdecimal" || name == "isnumeric")
    return Value(every(t, is_digit));
  if (name == "isalpha") return Value(every(t, is_letter));
  if (name == "isalnum")
    return Value(every(t, [](uint32_t c) { return is_letter(c) || is_digit(c); }));
  if (name == "isspace") return Value(every(t, space));
  if (name == "isupper") return Value(t == upper(t) && t != lower(t));
  if (name == "islower") return Value(t == lower(t) && t != upper(t));
  MC_TRY(const Texts part, with.text(0, "part"));
  if (name == "removeprefix" || name == "removesuffix") {
    if (!part) return fail(Code::kInvalid, "%s() wants a string", name.c_str());
    if (name == "removeprefix") return Value(t.starts_with(*part) ? t.substr(part->size()) : t);
    return Value(t.ends_with(*part) ? t.substr(0, t.size() - part->size()) : t);
  }
  if (name == "count") {
    if (!part || part->empty()) return fail(Code::kInvalid, "count() wants a string");
    int64_t n = 0;
    for (size_t at = 0; (at = t.find(*part, at)) != std::string::npos; at += part->size()) ++n;
    return Value(n);
  }
  return fail(Code::kUnsupported, "the method '%s' of strings is not done here", name.c_str());
}

Result<Value> of_text(const std::string& name, const std::string& t, const Arguments& with,
                      Budget& budget) {
  MC_TRY_(budget.bytes(t.size() / 4));
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    MC_TRY(const Texts of, with.text(0, "chars"));
    return Value(std::string(stripped(t, of, name != "rstrip", name != "lstrip")));
  }
  if (name == "split" || name == "rsplit" || name == "splitlines")
    return splitting(name, t, with, budget);
  if (name == "startswith" || name == "endswith") {
    MC_TRY(const bool fits, begins_or_ends(t, with, name == "startswith"));
    return Value(fits);
  }
  if (name == "replace") return replacing(t, with, budget);
  if (name == "join") return joining(t, with, budget);
  if (name == "find" || name == "rfind") return found_at(t, with, name == "rfind", false);
  if (name == "index" || name == "rindex") return found_at(t, with, name == "rindex", true);
  if (name == "partition" || name == "rpartition") return partition(t, with, name[0] == 'r');
  if (name == "format") return format(t, with, budget);
  return simple(name, t, with);
}

Result<Value> of_dict(const std::string& name, const DictBox& d, const Arguments& with,
                      Budget& budget) {
  MC_TRY_(budget.steps(d.items.size() / 4));
  if (name == "get") {
    if (with.args.empty()) return fail(Code::kInvalid, "get() without a key");
    if (const Value* v = d.find(with.args[0])) return *v;
    const Value* fallback = with.find(1, "");
    return fallback == nullptr ? Value(None{}) : *fallback;
  }
  MC_TRY_(with.only(0, {}));
  MC_TRY_(budget.items((name == "items" ? 4 : 1) * d.items.size()));
  List out;
  for (const Member& m : d.items) {
    if (name == "keys")
      out.push_back(m.first);
    else if (name == "values")
      out.push_back(m.second);
    else if (name == "items") {
      MC_TRY(Value pair, make_list({m.first, m.second}, ListBox::Kind::kTuple));
      out.push_back(std::move(pair));
    }
  }
  if (name == "copy") {
    MC_TRY_(budget.members(d.items.size()));
    return make_dict(d.items);
  }
  if (name == "fromkeys") return fail(Code::kUnsupported, "fromkeys() is not done here");
  return make_list(std::move(out));
}

Result<Value> of_list(const std::string& name, const ListBox& l, const Arguments& with,
                      Budget& budget) {
  if (name == "copy") {
    MC_TRY_(budget.items(l.items.size()));
    return make_list(l.items, l.kind);
  }
  if (with.args.size() != 1) return fail(Code::kInvalid, "%s() wants one value", name.c_str());
  int64_t n = 0;
  for (size_t i = 0; i < l.items.size(); ++i) {
    if (!equal(l.items[i], with.args[0], budget)) continue;
    if (name == "index") return Value(static_cast<int64_t>(i));
    ++n;
  }
  MC_TRY_(budget.steps());
  if (name == "index") return fail(Code::kInvalid, "index() of what is not in the list");
  return Value(n);
}

constexpr std::array<std::string_view, 46> kOfText = {
    "capitalize", "casefold",  "center",     "count",      "encode",       "endswith",
    "expandtabs", "find",      "format",     "format_map", "index",        "isalnum",
    "isalpha",    "isascii",   "isdecimal",  "isdigit",    "isidentifier", "islower",
    "isnumeric",  "isspace",   "istitle",    "isupper",    "join",         "ljust",
    "lower",      "lstrip",    "maketrans",  "partition",  "removeprefix", "removesuffix",
    "replace",    "rfind",     "rindex",     "rjust",      "rpartition",   "rsplit",
    "rstrip",     "split",     "splitlines", "startswith", "strip",        "swapcase",
    "title",      "translate", "upper",      "zfill"};
constexpr std::array<std::string_view, 6> kOfDict = {"copy",  "fromkeys", "get",
                                                     "items", "keys",     "values"};
constexpr std::array<std::string_view, 5> kChangeDict = {"clear", "pop", "popitem", "setdefault",
                                                         "update"};
constexpr std::array<std::string_view, 3> kOfList = {"copy", "count", "index"};
constexpr std::array<std::string_view, 8> kChangeList = {"append", "clear",  "extend",  "insert",
                                                         "pop",    "remove", "reverse", "sort"};

template <class Names>
bool among_names(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool has_method(const Value& of, std::string_view name, bool& changes) {
  changes = (of.dict() != nullptr && among_names(kChangeDict, name)) ||
            (of.list() != nullptr && of.list()->kind == ListBox::Kind::kList &&
             among_names(kChangeList, name));
  if (changes) return true;
  if (of.text() != nullptr) return among_names(kOfText, name);
  if (of.dict() != nullptr) return among_names(kOfDict, name);
  return of.list() != nullptr && of.list()->kind != ListBox::Kind::kOnce &&
         among_names(kOfList, name);
}

Result<Value> call_method(const std::string& name, const Value& self, const Arguments& with,
                          Runtime& runtime) {
  if (const std::string* t = self.text()) return of_text(name, *t, with, runtime.budget);
  if (const DictBox* d = self.dict()) return of_dict(name, *d, with, runtime.budget);
  if (const ListBox* l = self.list()) return of_list(name, *l, with, runtime.budget);
  const auto* loop = self.as<Value::Loop>();
  if (loop == nullptr || with.args.empty())
    return fail(Code::kInvalid, "%s() is not there", name.c_str());
  return with.args[static_cast<size_t>((*loop)->index0) % with.args.size()];  // cycle()
}

}  // namespace mc::model::jinja
