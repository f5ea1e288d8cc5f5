// The functions that templates have: Jinja's, and those of transformers.
#include <algorithm>
#include <array>

#include "base/units.h"
#include "model/template/runtime.h"

namespace mc::model::jinja {
namespace {

constexpr int64_t kRangeMax = 100'000;  // as the sandbox of Jinja
constexpr size_t kStrftimeGrows = 256;

Result<Value> range(const Arguments& with, Budget& budget) {
  MC_TRY_(with.only(3, {}));
  if (with.args.empty()) return fail(Code::kInvalid, "range() without an end");
  std::array<int64_t, 3> n = {0, 0, 1};
  for (size_t i = 0; i < with.args.size(); ++i) {
    MC_TRY(n[i], to_integer(with.args[i], "range"));
  }
  if (with.args.size() == 1) std::swap(n[0], n[1]);
  if (n[2] == 0) return fail(Code::kInvalid, "range() whose step is 0");
  List items;
  for (int64_t i = n[0]; n[2] > 0 ? i < n[1] : i > n[1];) {
    if (static_cast<int64_t>(items.size()) >= kRangeMax)
      return fail(Code::kNoSpace, "range() of more than %d numbers", static_cast<int>(kRangeMax));
    items.emplace_back(i);
    if (__builtin_add_overflow(i, n[2], &i)) break;
  }
  MC_TRY_(budget.steps(items.size()));
  return make_list(std::move(items));
}

// Of a dict, and of names.
Result<std::vector<Member>> members(const Arguments& with, Budget& budget) {
  std::vector<Member> out;
  if (with.args.size() > 1) return fail(Code::kInvalid, "want one dict, and names");
  if (with.args.size() == 1) {
    const DictBox* d = with.args[0].dict();
    if (d == nullptr)
      return fail(Code::kUnsupported, "made of a %s, want a dict", type_name(with.args[0]));
    MC_TRY_(budget.members(d->items.size()));
    out = d->items;
  }
  for (const auto& [name, v] : with.named) out.emplace_back(Value(name), v);
  return out;
}

Result<Value> make_namespace(const Arguments& with, Budget& budget) {
  MC_TRY(const std::vector<Member> given, members(with, budget));
  MC_TRY(const Value checked, make_dict(given));
  auto space = std::make_shared<NamespaceBox>();
  for (const auto& [name, v] : checked.dict()->items)
    if (name.text() != nullptr) space->items.emplace_back(*name.text(), v);
  return Value(Value::Space(std::move(space)));
}

Result<Value> raise(const Arguments& with, Budget& budget) {
  if (with.args.empty()) return fail(Code::kInvalid, "the template refuses this conversation");
  MC_TRY(const std::string why, to_text(with.args[0], budget.bytes_left()));
  return fail(Code::kInvalid, "%s", escape(why.substr(0, 1000)).c_str());
}

Result<Value> strftime_now(const Arguments& with, const std::tm& now, Budget& budget) {
  MC_TRY(const auto format, with.text(0, "format"));
  if (!format || format->empty()) return Value(std::string());
  // What is written first tells an empty text from one without room. As Python's, it is empty
  // where it would be over 256 times as long as the format.
  const std::string marked = "." + *format;
  std::string room;
  for (size_t want = 1024;; want *= 2) {
    MC_TRY_(budget.bytes(want));
    room.resize(want);
    const size_t size = std::strftime(room.data(), room.size(), marked.c_str(), &now);
    if (size > 0 || want >= kStrftimeGrows * format->size())
      return Value(room.substr(std::min<size_t>(1, size), size > 0 ? size - 1 : 0));
  }
}

}  // namespace

bool is_global(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames = {"range", "namespace", "dict",
                                                      "raise_exception", "strftime_now"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Result<Value> call_global(const std::string& name, const Arguments& with, Runtime& runtime) {
  if (name == "range") return range(with, runtime.budget);
  if (name == "namespace") return make_namespace(with, runtime.budget);
  if (name == "raise_exception") return raise(with, runtime.budget);
  if (name == "strftime_now") return strftime_now(with, runtime.now, runtime.budget);
  MC_TRY(std::vector<Member> given, members(with, runtime.budget));
  return make_dict(std::move(given));
}

}  // namespace mc::model::jinja
