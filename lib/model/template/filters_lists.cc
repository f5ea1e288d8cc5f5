// Filters on lists and dicts.
#include <algorithm>

#include "base/units.h"
#include "model/template/characters.h"
#include "model/template/filters_impl.h"

namespace mc::model::jinja {
namespace {

using Use = const FilterUse&;

Result<List> in_items(Use u) {
  MC_TRY(const Value::Items items, items_of(u.in, u.runtime.budget));
  MC_TRY_(u.runtime.budget.items(items->items.size()));
  return items->items;
}

// Of select and map: nothing of what counts as false.
Result<List> items_if_any(Use u) {
  if (!u.in.truthy()) return List();
  return in_items(u);
}

Result<Value> list(Use u) {
  MC_TRY(List items, in_items(u));
  return make_list(std::move(items));
}

Result<Value> first(Use u) {
  MC_TRY(const Value::Items items, items_of(u.in, u.runtime.budget));
  return items->items.empty() ? Value::undefined("the first of nothing") : items->items.front();
}

Result<Value> last(Use u) {
  if (u.in.list() != nullptr && u.in.list()->kind == ListBox::Kind::kOnce)
    return fail(Code::kInvalid, "the last of a generator");
  MC_TRY(const Value::Items items, items_of(u.in, u.runtime.budget));
  return items->items.empty() ? Value::undefined("the last of nothing") : items->items.back();
}

Result<Value> join(Use u) {
  MC_TRY(const List items, in_items(u));
  const size_t most = u.runtime.budget.bytes_left();
  std::string by, out;
  if (const Value* given = u.with.find(0, "d")) {
    MC_TRY(by, to_text(*given, most));
  }
  MC_TRY(const auto path, u.with.text(1, "attribute"));
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += by;
    Value v = items[i];
    if (path) {
      MC_TRY(v, at_path(v, *path, u.runtime.budget));
    }
    MC_TRY(const std::string part, to_text(v, most));
    out += part;
    if (out.size() > most) return fail(Code::kNoSpace, "too many bytes of text were made");
  }
  return u.runtime.budget.text(std::move(out));
}

Result<Value> items(Use u) {
  if (u.in.is_undefined()) return make_list({}, ListBox::Kind::kOnce);
  if (u.in.dict() == nullptr)
    return fail(Code::kInvalid, "items of a %s, want a dict", type_name(u.in));
  MC_TRY(const Value pairs, call_method("items", u.in, {}, u.runtime));
  return make_list(pairs.list()->items, ListBox::Kind::kOnce);
}

Result<Value> reverse(Use u) {
  if (const std::string* t = u.in.text()) {
    MC_TRY_(u.runtime.budget.bytes(t->size()));
    std::string out;
    auto all = split_characters(*t);
    for (auto it = all.rbegin(); it != all.rend(); ++it) out += *it;
    return Value(std::move(out));
  }
  MC_TRY(List items, in_items(u));
  std::reverse(items.begin(), items.end());
  return make_list(std::move(items), ListBox::Kind::kOnce);
}

// What is compared: an attribute, and letters without their case.
Result<Value> key_of(const Value& v, const std::optional<std::string>& path, bool cased,
                     Budget& budget) {
  Value key = v;
  if (path) {
    MC_TRY(key, at_path(v, *path, budget));
  }
  if (cased || key.text() == nullptr) return key;
  return budget.text(lower(*key.text()));
}

Result<List> sorted(List items, const std::optional<std::string>& path, bool cased, bool down,
                    Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& v : items) {
    MC_TRY(Value key, key_of(v, path, cased, budget));
    keyed.emplace_back(std::move(key), v);
  }
  MC_TRY_(budget.steps(4 * keyed.size()));
  for (size_t i = 1; i < keyed.size(); ++i) MC_TRY_(less(keyed[0].first, keyed[i].first, budget));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return (down ? less(b.first, a.first, budget) : less(a.first, b.first, budget)).value_or(false);
  });
  List out;
  for (auto& [key, v] : keyed) out.push_back(std::move(v));
  return out;
}

Result<Value> sort(Use u) {
  MC_TRY(List items, in_items(u));
  MC_TRY(const auto path, u.with.text(2, "attribute"));
  MC_TRY(items, sorted(std::move(items), path, u.with.flag(1, "case_sensitive", false),
                       u.with.flag(0, "reverse", false), u.runtime.budget));
  return make_list(std::move(items));
}

Result<Value> dictsort(Use u) {
  if (u.in.dict() == nullptr) return fail(Code::kInvalid, "dictsort of a %s", type_name(u.in));
  MC_TRY(const Value pairs, call_method("items", u.in, {}, u.runtime));
  MC_TRY(const auto by, u.with.text(1, "by"));
  const std::optional<std::string> path = by == "value" ? "1" : "0";
  MC_TRY(List items, sorted(pairs.list()->items, path, u.with.flag(0, "case_sensitive", false),
                            u.with.flag(2, "reverse", false), u.runtime.budget));
  return make_list(std::move(items));
}

Result<Value> unique(Use u) {
  MC_TRY(const List items, in_items(u));
  MC_TRY(const auto path, u.with.text(1, "attribute"));
  const bool cased = u.with.flag(0, "case_sensitive", false);
  List out, seen;
  for (const Value& v : items) {
    MC_TRY(Value key, key_of(v, path, cased, u.runtime.budget));
    MC_TRY_(u.runtime.budget.steps());
    const auto same = [&](const Value& k) { return equal(k, key, u.runtime.budget); };
    if (std::any_of(seen.begin(), seen.end(), same)) continue;
    seen.push_back(std::move(key));
    out.push_back(v);
  }
  return make_list(std::move(out), ListBox::Kind::kOnce);
}

template <bool kMost>
Result<Value> extreme(Use u) {
  MC_TRY(const List items, in_items(u));
  if (items.empty()) return Value::undefined("an extreme of nothing");
  const bool cased = u.with.flag(0, "case_sensitive", false);
  MC_TRY(const auto path, u.with.text(1, "attribute"));
  const Value* best = &items[0];
  for (const Value& v : items) {
    Budget& budget = u.runtime.budget;
    MC_TRY(const Value a, key_of(v, path, cased, budget));
    MC_TRY(const Value b, key_of(*best, path, cased, budget));
    MC_TRY(const bool better, kMost ? less(b, a, budget) : less(a, b, budget));
    if (better) best = &v;
  }
  return *best;
}

Result<Value> sum(Use u) {
  MC_TRY(const List items, in_items(u));
  MC_TRY(const auto path, u.with.text(0, "attribute"));
  const Value* start = u.with.find(1, "start");
  Value total = start == nullptr ? Value(int64_t{0}) : *start;
  for (const Value& v : items) {
    Value one = v;
    if (path) {
      MC_TRY(one, at_path(v, *path, u.runtime.budget));
    }
    MC_TRY(total, arithmetic("+", total, one, u.runtime.budget));
  }
  return total;
}

Result<Value> map(Use u) {
  MC_TRY(const List items, items_if_any(u));
  List out;
  MC_TRY(const auto path, u.with.text(SIZE_MAX, "attribute"));
  const Value* fallback = u.with.find(SIZE_MAX, "default");
  const std::string* name = u.with.args.empty() ? nullptr : u.with.args[0].text();
  if (!path && name == nullptr)
    return fail(Code::kInvalid, "map wants an attribute or the name of a filter");
  Arguments rest;
  if (!u.with.args.empty()) rest.args.assign(u.with.args.begin() + 1, u.with.args.end());
  rest.named = u.with.named;
  for (const Value& v : items) {
    MC_TRY_(u.runtime.budget.steps());
    if (path) {
      MC_TRY(Value part, at_path(v, *path, u.runtime.budget));
      out.push_back(std::move(part));
      if (out.back().is_undefined() && fallback != nullptr) out.back() = *fallback;
    } else {
      MC_TRY(Value made, call_filter(*name, v, rest, u.runtime));
      out.push_back(std::move(made));
    }
  }
  return make_list(std::move(out), ListBox::Kind::kOnce);
}

// select, reject, and those by an attribute. Without a test: what is true.
template <bool kWanted, bool kAttribute>
Result<Value> chosen(Use u) {
  MC_TRY(const List items, items_if_any(u));
  const std::vector<Value>& args = u.with.args;
  constexpr size_t kTest = kAttribute ? 1 : 0;
  for (size_t i = 0; i <= kTest && i < args.size(); ++i)
    if (args[i].text() == nullptr)
      return fail(Code::kUnsupported, "the name of an attribute or a test that is a %s",
                  type_name(args[i]));
  if (kAttribute && args.empty()) return fail(Code::kInvalid, "an attribute is missing");
  List out;
  for (const Value& v : items) {
    MC_TRY_(u.runtime.budget.steps());
    Value looked = v;
    if (kAttribute) {
      MC_TRY(looked, at_path(v, *args[0].text(), u.runtime.budget));
    }
    bool holds = looked.truthy();
    if (args.size() > kTest) {
      const std::vector<Value> rest(args.begin() + kTest + 1, args.end());
      MC_TRY(holds, call_test(*args[kTest].text(), looked, rest, u.runtime.budget));
    }
    if (holds == kWanted) out.push_back(v);
  }
  return make_list(std::move(out), ListBox::Kind::kOnce);
}

Result<Value> batch(Use u) {
  MC_TRY(const List items, in_items(u));
  MC_TRY(const int64_t size, u.with.integer(0, "linecount", 0));
  if (size < 1) return fail(Code::kInvalid, "batch of less than 1");
  const Value* fill = u.with.find(1, "fill_with");
  List out, row;
  for (const Value& v : items) {
    row.push_back(v);
    if (static_cast<int64_t>(row.size()) < size && (&v != &items.back())) continue;
    if (fill != nullptr) {
      MC_TRY_(u.runtime.budget.steps(static_cast<uint64_t>(size)));
      while (static_cast<int64_t>(row.size()) < size) row.push_back(*fill);
    }
    MC_TRY(Value made, make_list(std::exchange(row, {})));
    out.push_back(std::move(made));
  }
  return make_list(std::move(out), ListBox::Kind::kOnce);
}

}  // namespace

const std::map<std::string_view, Filter>& list_filters() {
  static const std::map<std::string_view, Filter> all = {
      {"batch", batch},
      {"dictsort", dictsort},
      {"first", first},
      {"items", items},
      {"join", join},
      {"last", last},
      {"list", list},
      {"map", map},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"reject", chosen<false, false>},
      {"rejectattr", chosen<false, true>},
      {"reverse", reverse},
      {"select", chosen<true, false>},
      {"selectattr", chosen<true, true>},
      {"sort", sort},
      {"sum", sum},
      {"unique", unique},
  };
  return all;
}

}  // namespace mc::model::jinja
