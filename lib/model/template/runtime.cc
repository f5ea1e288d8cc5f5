#include "model/template/runtime.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/units.h"
#include "model/template/characters.h"

namespace mc::model::jinja {

namespace {

constexpr size_t kBytesAStep = 64, kReadAStep = 128;
constexpr size_t kTextBytes = 64;  // of a string beside its characters

}  // namespace

Result<> Budget::steps(uint64_t n) {
  steps_ += n;
  if (steps_ <= limits_.steps) return {};
  return fail(Code::kNoSpace, "more than %llu steps",
              static_cast<unsigned long long>(limits_.steps));
}

Result<> Budget::bytes(uint64_t n) {
  MC_TRY_(steps(n / kBytesAStep));
  if (n > bytes_) return fail(Code::kNoSpace, "too many bytes of text were made");
  bytes_ -= n;
  return {};
}

Result<Value> Budget::text(std::string made) {
  MC_TRY_(bytes(made.size() + kTextBytes));
  return Value(std::move(made));
}

uint64_t steps_to_read(const Value& v) {
  if (const std::string* t = v.text()) return t->size() / kReadAStep;
  if (const DictBox* d = v.dict()) return d->items.size() / kNamesAStep;
  const auto* space = v.as<Value::Space>();
  return space == nullptr ? 0 : (*space)->items.size() / kNamesAStep;
}

const Value* Arguments::find(size_t place, std::string_view name) const {
  if (place < args.size()) return &args[place];
  for (const auto& [known, v] : named)
    if (known == name) return &v;
  return nullptr;
}

Result<std::optional<std::string>> Arguments::text(size_t place, std::string_view name) const {
  const Value* v = find(place, name);
  if (v == nullptr || v->is_none()) return std::optional<std::string>();
  if (v->text() == nullptr)
    return fail(Code::kInvalid, "the argument '%s' is a %s, want a string",
                std::string(name).c_str(), type_name(*v));
  return std::optional(*v->text());
}

Result<int64_t> Arguments::integer(size_t place, std::string_view name, int64_t fallback) const {
  const Value* v = find(place, name);
  if (v == nullptr || v->is_none()) return fallback;
  return to_integer(*v, std::string(name).c_str());
}

bool Arguments::flag(size_t place, std::string_view name, bool fallback) const {
  const Value* v = find(place, name);
  return v == nullptr ? fallback : v->truthy();
}

Result<> Arguments::only(size_t most, std::initializer_list<std::string_view> names) const {
  if (args.size() > most)
    return fail(Code::kInvalid, "%zu arguments, want %zu at most", args.size(), most);
  for (const auto& [name, v] : named)
    if (std::find(names.begin(), names.end(), name) == names.end())
      return fail(Code::kInvalid, "no argument is called '%s'", name.c_str());
  return {};
}

Result<int64_t> to_integer(const Value& v, const char* what) {
  if (const int64_t* i = v.as<int64_t>()) return *i;
  if (const bool* b = v.as<bool>()) return *b ? 1 : 0;
  return fail(Code::kInvalid, "'%s' is a %s, want an integer", what, type_name(v));
}

namespace {

Value method(const Value& of, const std::string& name) {
  auto f = std::make_shared<FunctionBox>();
  f->kind = FunctionBox::Kind::kMethod;
  f->name = name;
  f->self = of;
  return Value(Value::Function(std::move(f)));
}

Value of_loop(const LoopBox& loop, const std::string& name) {
  const List& items = loop.items->items;
  const auto length = static_cast<int64_t>(items.size());
  const int64_t i = loop.index0;
  if (name == "index") return i + 1;
  if (name == "index0") return i;
  if (name == "revindex") return length - i;
  if (name == "revindex0") return length - i - 1;
  if (name == "first") return i == 0;
  if (name == "last") return i == length - 1;
  if (name == "length") return length;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem" && i > 0) return items[static_cast<size_t>(i - 1)];
  if (name == "nextitem" && i + 1 < length) return items[static_cast<size_t>(i + 1)];
  return Value::undefined("loop." + name);
}

// Where an index of Python lies; none: outside.
std::optional<size_t> place(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

}  // namespace

Value attribute(const Value& of, const std::string& name) {
  if (const auto* space = of.as<Value::Space>()) {
    for (const auto& [known, v] : (*space)->items)
      if (known == name) return v;
    return Value::undefined(name);
  }
  if (const auto* loop = of.as<Value::Loop>()) {
    if (name == "cycle") return method(of, name);
    return of_loop(**loop, name);
  }
  bool changes = false;
  if (has_method(of, name, changes))
    return changes ? Value::undefined(name + " (it would change the value)") : method(of, name);
  if (const DictBox* d = of.dict())
    if (const Value* v = d->find(std::string_view(name))) return *v;
  return Value::undefined(name);
}

Value item(const Value& of, const Value& key) {
  const bool index = key.is_number() && key.as<double>() == nullptr;
  const int64_t i = index ? to_integer(key, "").value_or(0) : 0;
  if (const DictBox* d = of.dict()) {
    if (const Value* v = d->find(key)) return *v;
  } else if (const ListBox* l = of.list(); l != nullptr && index) {
    const auto at = place(i, l->items.size());
    if (at && l->kind != ListBox::Kind::kOnce) return l->items[*at];
  } else if (const std::string* t = of.text(); t != nullptr && index) {
    size_t at = 0;
    if (auto before = place(i, characters(*t))) {
      for (; *before > 0; --*before) at += character_bytes(*t, at);
      return Value(t->substr(at, character_bytes(*t, at)));
    }
  }
  const std::string* name = key.text();
  if (name == nullptr) return Value::undefined("an item");
  if (of.dict() == nullptr) return attribute(of, *name);
  bool changes = false;
  if (has_method(of, *name, changes) && !changes) return method(of, *name);
  return Value::undefined(*name);
}

Result<Value> at_path(const Value& of, std::string_view path, Budget& budget) {
  Value v = of;
  while (!path.empty()) {
    const size_t dot = path.find('.');
    const std::string part(path.substr(0, dot));
    path.remove_prefix(dot == std::string_view::npos ? path.size() : dot + 1);
    int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = read.ec == std::errc() && read.ptr == part.data() + part.size();
    if (v.is_undefined()) return v;
    MC_TRY_(budget.steps(1 + steps_to_read(v)));
    v = item(v, number ? Value(index) : Value(part));
  }
  return v;
}

Result<Value::Items> items_of(const Value& v, Budget& budget) {
  static const auto kEmpty = std::make_shared<const ListBox>();
  if (const auto* list = v.as<Value::Items>()) {
    if ((*list)->kind == ListBox::Kind::kOnce && std::exchange((*list)->read, true)) return kEmpty;
    MC_TRY_(budget.steps((*list)->items.size() / 8));
    return *list;
  }
  if (v.is_undefined()) return kEmpty;
  auto out = std::make_shared<ListBox>();
  if (const DictBox* d = v.dict()) {
    MC_TRY_(budget.steps(d->items.size()));
    for (const Member& m : d->items) out->items.push_back(m.first);
  } else if (const std::string* t = v.text()) {
    MC_TRY_(budget.bytes(t->size() * 8));
    for (const std::string_view c : split_characters(*t)) out->items.emplace_back(std::string(c));
  } else {
    return fail(Code::kInvalid, "a %s cannot be gone through", type_name(v));
  }
  return Value::Items(std::move(out));
}

namespace {

constexpr size_t kComparedAStep = 256;  // bytes

uint64_t steps_to_compare(const std::string& a, const std::string& b) {
  return std::min(a.size(), b.size()) / kComparedAStep;
}

bool equal_lists(const ListBox& a, const ListBox& b, Budget& budget) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i)
    if (!equal(a.items[i], b.items[i], budget)) return false;
  return true;
}

bool equal_dicts(const DictBox& a, const DictBox& b, Budget& budget) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const Member& m) {
    if (!budget.spend(b.items.size() / kNamesAStep)) return false;
    const Value* other = b.find(m.first);
    return other != nullptr && equal(m.second, *other, budget);
  });
}

}  // namespace

bool equal(const Value& a, const Value& b, Budget& budget) {
  const bool texts = a.text() != nullptr && b.text() != nullptr;
  if (!budget.spend(1 + (texts ? steps_to_compare(*a.text(), *b.text()) : 0))) return false;
  if (a.list() != nullptr && b.list() != nullptr) return equal_lists(*a.list(), *b.list(), budget);
  if (a.dict() != nullptr && b.dict() != nullptr) return equal_dicts(*a.dict(), *b.dict(), budget);
  return equal_atoms(a, b);
}

Result<bool> less(const Value& a, const Value& b, Budget& budget) {
  const bool texts = a.text() != nullptr && b.text() != nullptr;
  MC_TRY_(budget.steps(1 + (texts ? steps_to_compare(*a.text(), *b.text()) : 0)));
  if (const auto before = less_atoms(a, b)) return *before;
  if (a.list() != nullptr && b.list() != nullptr) {
    const List &x = a.list()->items, &y = b.list()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i], budget)) return less(x[i], y[i], budget);
    return x.size() < y.size();
  }
  return fail(Code::kInvalid, "%s and %s have no order", type_name(a), type_name(b));
}

Result<bool> contains(const Value& v, const Value& x, Budget& budget) {
  MC_TRY_(budget.steps(steps_to_read(v)));
  if (const std::string* t = v.text()) {
    if (x.text() == nullptr)
      return fail(Code::kInvalid, "'in' a string wants a string, not a %s", type_name(x));
    return t->find(*x.text()) != std::string::npos;
  }
  if (const DictBox* d = v.dict()) return d->find(x) != nullptr;
  if (const ListBox* l = v.list()) {
    const bool gone = l->kind == ListBox::Kind::kOnce && std::exchange(l->read, true);
    return !gone && std::any_of(l->items.begin(), l->items.end(),
                                [&](const Value& known) { return equal(known, x, budget); });
  }
  if (v.is_undefined()) return false;
  return fail(Code::kInvalid, "'in' a %s", type_name(v));
}

namespace {

// Indices of a slice, as Python counts them.
std::vector<size_t> slice_places(const std::array<std::optional<int64_t>, 3>& bounds,
                                 int64_t length) {
  const int64_t by = bounds[2].value_or(1);
  const auto clamp = [&](std::optional<int64_t> given, int64_t fallback) {
    if (!given) return fallback;
    const int64_t i = *given < 0 ? *given + length : *given;
    return by > 0 ? std::clamp<int64_t>(i, 0, length) : std::clamp<int64_t>(i, -1, length - 1);
  };
  const int64_t from = clamp(bounds[0], by > 0 ? 0 : length - 1);
  const int64_t to = clamp(bounds[1], by > 0 ? length : -1);
  std::vector<size_t> out;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    out.push_back(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return out;
}

}  // namespace

Result<Value> slice(const Value& of, const Value* from, const Value* to, const Value* by,
                    Budget& budget) {
  std::array<std::optional<int64_t>, 3> bounds;
  const std::array<const Value*, 3> given = {from, to, by};
  for (size_t i = 0; i < 3; ++i)
    if (given[i] != nullptr) {
      MC_TRY(bounds[i], to_integer(*given[i], "bound of a slice"));
    }
  if (bounds[2] && *bounds[2] == 0) return fail(Code::kInvalid, "a slice whose step is 0");
  if (const std::string* t = of.text()) {
    MC_TRY_(budget.bytes(t->size()));
    const auto all = split_characters(*t);
    std::string out;
    for (const size_t i : slice_places(bounds, static_cast<int64_t>(all.size()))) out += all[i];
    return Value(std::move(out));
  }
  const ListBox* l = of.list();
  if (l == nullptr || l->kind == ListBox::Kind::kOnce)
    return fail(Code::kInvalid, "a slice of a %s", type_name(of));
  const auto places = slice_places(bounds, static_cast<int64_t>(l->items.size()));
  MC_TRY_(budget.items(places.size()));
  List out;
  out.reserve(places.size());
  for (const size_t i : places) out.push_back(l->items[i]);
  return make_list(std::move(out), l->kind);
}

}  // namespace mc::model::jinja
