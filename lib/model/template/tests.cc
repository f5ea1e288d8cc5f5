// Tests: x is NAME.
#include <array>
#include <functional>
#include <map>

#include "base/units.h"
#include "model/template/characters.h"
#include "model/template/runtime.h"

namespace mc::model::jinja {
namespace {

using Test = bool (*)(const Value&);

bool goes_through(const Value& v) {
  return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.is_undefined();
}
bool in_order(const Value& v) {
  return goes_through(v) && (v.list() == nullptr || v.list()->kind != ListBox::Kind::kOnce);
}
bool truth(const Value& v, bool want) {
  const bool* b = v.as<bool>();
  return b != nullptr && *b == want;
}
bool odd(const Value& v) {
  const int64_t* i = v.as<int64_t>();
  return i != nullptr && *i % 2 != 0;
}
bool even(const Value& v) {
  const int64_t* i = v.as<int64_t>();
  return i != nullptr && *i % 2 == 0;
}
bool cased(const Value& v, std::string (*to)(std::string_view)) {
  const std::string* t = v.text();
  return t != nullptr && *t == to(*t) && upper(*t) != lower(*t);
}

const std::map<std::string_view, Test>& plain_tests() {
  static const std::map<std::string_view, Test> all = {
      {"defined", [](const Value& v) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v) { return v.is_undefined(); }},
      {"none", [](const Value& v) { return v.is_none(); }},
      {"string", [](const Value& v) { return v.text() != nullptr; }},
      {"number", [](const Value& v) { return v.is_number(); }},
      {"integer", [](const Value& v) { return v.as<int64_t>() != nullptr; }},
      {"float", [](const Value& v) { return v.as<double>() != nullptr; }},
      {"boolean", [](const Value& v) { return v.as<bool>() != nullptr; }},
      {"true", [](const Value& v) { return truth(v, true); }},
      {"false", [](const Value& v) { return truth(v, false); }},
      {"mapping", [](const Value& v) { return v.dict() != nullptr; }},
      {"iterable", goes_through},
      {"sequence", in_order},
      {"callable", [](const Value& v) { return v.as<Value::Function>() != nullptr; }},
      {"odd", odd},
      {"even", even},
      {"lower", [](const Value& v) { return cased(v, lower); }},
      {"upper", [](const Value& v) { return cased(v, upper); }},
      {"escaped", [](const Value& v) { return v.safe(); }},
  };
  return all;
}

const std::map<std::string_view, const char*>& comparing_tests() {
  static const std::map<std::string_view, const char*> all = {
      {"eq", "=="}, {"equalto", "=="},    {"ne", "!="}, {"lt", "<"},  {"lessthan", "<"},
      {"gt", ">"},  {"greaterthan", ">"}, {"le", "<="}, {"ge", ">="}, {"in", "in"},
  };
  return all;
}

}  // namespace

Result<bool> call_test(const std::string& name, const Value& of, const std::vector<Value>& with,
                       Budget& budget) {
  MC_TRY_(budget.steps(steps_to_read(of)));
  if (const auto it = plain_tests().find(name); it != plain_tests().end()) return it->second(of);
  const auto it = comparing_tests().find(name);
  const bool known = it != comparing_tests().end() || name == "divisibleby" || name == "sameas";
  if (!known)
    return fail(Code::kUnsupported, "the test '%s' is not known here", escape(name).c_str());
  if (with.size() != 1)
    return fail(Code::kInvalid, "the test '%s' wants one argument", name.c_str());
  if (it != comparing_tests().end()) return compare(it->second, of, with[0], budget);
  if (name == "sameas")
    return std::string_view(type_name(of)) == type_name(with[0]) && equal(of, with[0], budget);
  MC_TRY(const int64_t a, to_integer(of, "divisibleby"));
  MC_TRY(const int64_t b, to_integer(with[0], "divisibleby"));
  if (b == 0) return fail(Code::kInvalid, "a division by 0");
  return b == -1 || a % b == 0;
}

}  // namespace mc::model::jinja
