#include "model/template/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/json.h"

namespace mc::model::jinja {

Value::Value(std::string s) : v_(std::make_shared<const std::string>(std::move(s))) {}

Value Value::undefined(std::string what) {
  return Undefined{std::make_shared<const std::string>(std::move(what))};
}

Value Value::safe_text(std::string s) {
  Value v(std::move(s));
  v.safe_ = true;
  return v;
}

const std::string* Value::text() const {
  const Text* t = as<Text>();
  return t == nullptr ? nullptr : t->get();
}
const ListBox* Value::list() const {
  const Items* l = as<Items>();
  return l == nullptr ? nullptr : l->get();
}
const DictBox* Value::dict() const {
  const Members* d = as<Members>();
  return d == nullptr ? nullptr : d->get();
}

bool Value::is_number() const {
  return as<bool>() != nullptr || as<int64_t>() != nullptr || as<double>() != nullptr;
}

double Value::number() const {
  if (const bool* b = as<bool>()) return *b ? 1 : 0;
  if (const int64_t* i = as<int64_t>()) return static_cast<double>(*i);
  const double* d = as<double>();
  return d == nullptr ? 0 : *d;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (const std::string* t = text()) return !t->empty();
  if (const ListBox* l = list()) return l->kind == ListBox::Kind::kOnce || !l->items.empty();
  if (const DictBox* d = dict()) return !d->items.empty();
  return true;
}

unsigned Value::depth() const {
  if (const ListBox* l = list()) return l->depth;
  if (const DictBox* d = dict()) return d->depth;
  if (const Loop* loop = as<Loop>()) return (*loop)->items->depth + 1;
  if (const Function* f = as<Function>())
    return (*f)->kind == FunctionBox::Kind::kMethod ? (*f)->self.depth() + 1 : 1;
  return 0;
}

bool equal_atoms(const Value& a, const Value& b) {
  if (a.text() != nullptr || b.text() != nullptr)
    return a.text() != nullptr && b.text() != nullptr && *a.text() == *b.text();
  if (a.is_number() && b.is_number()) {
    const int64_t *i = a.as<int64_t>(), *j = b.as<int64_t>();
    return i != nullptr && j != nullptr ? *i == *j : a.number() == b.number();
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

std::optional<bool> less_atoms(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const int64_t *i = a.as<int64_t>(), *j = b.as<int64_t>();
    return i != nullptr && j != nullptr ? *i < *j : a.number() < b.number();
  }
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();
  return std::nullopt;
}

const Value* DictBox::find(const Value& key) const {
  for (const Member& m : items)
    if (equal_atoms(m.first, key)) return &m.second;
  return nullptr;
}

const Value* DictBox::find(std::string_view key) const {
  for (const Member& m : items)
    if (const std::string* t = m.first.text(); t != nullptr && *t == key) return &m.second;
  return nullptr;
}

namespace {

Result<unsigned> depth_with(unsigned depth, const Value& child) {
  if (child.as<Value::Space>() != nullptr)
    return fail(Code::kUnsupported, "a namespace inside a list, a dict or a namespace");
  depth = std::max(depth, child.depth() + 1);
  if (depth > kDepthMax)
    return fail(Code::kInvalid, "lists and dicts more than %u deep", kDepthMax);
  return depth;
}

}  // namespace

Result<Value> make_list(List items, ListBox::Kind kind) {
  auto box = std::make_shared<ListBox>();
  for (const Value& v : items) {
    MC_TRY(box->depth, depth_with(box->depth, v));
  }
  box->items = std::move(items);
  box->kind = kind;
  return Value(Value::Items(std::move(box)));
}

Result<Value> make_dict(std::vector<Member> items) {
  auto box = std::make_shared<DictBox>();
  for (Member& m : items) {
    MC_TRY(box->depth, depth_with(box->depth, m.second));
    const Value* known = box->find(m.first);
    if (known == nullptr)
      box->items.push_back(std::move(m));
    else
      *const_cast<Value*>(known) = std::move(m.second);
  }
  return Value(Value::Members(std::move(box)));
}

Value text_list(std::vector<std::string> texts) {
  auto box = std::make_shared<ListBox>();
  for (std::string& t : texts) box->items.emplace_back(std::move(t));
  return Value(Value::Items(std::move(box)));
}

Value from_json(const Json& j) {
  switch (j.type()) {
    case Json::value_t::boolean: return j.get<bool>();
    case Json::value_t::number_integer: return j.get<int64_t>();
    case Json::value_t::number_unsigned:
      if (j.get<uint64_t>() <= INT64_MAX) return static_cast<int64_t>(j.get<uint64_t>());
      return j.get<double>();
    case Json::value_t::number_float: return j.get<double>();
    case Json::value_t::string: return j.get<std::string>();
    case Json::value_t::array: {
      auto box = std::make_shared<ListBox>();
      for (const Json& item : j) {
        box->items.push_back(from_json(item));
        box->depth = std::max(box->depth, box->items.back().depth() + 1);
      }
      return Value(Value::Items(std::move(box)));
    }
    case Json::value_t::object: {
      auto box = std::make_shared<DictBox>();
      for (const auto& [key, item] : j.get_ref<const Json::object_t&>()) {
        box->items.emplace_back(Value(key), from_json(item));
        box->depth = std::max(box->depth, box->items.back().second.depth() + 1);
      }
      return Value(Value::Members(std::move(box)));
    }
    default: return None{};
  }
}

const char* type_name(const Value& v) {
  if (v.is_undefined()) return "undefined";
  if (v.is_none()) return "None";
  if (v.as<bool>() != nullptr) return "bool";
  if (v.as<int64_t>() != nullptr) return "int";
  if (v.as<double>() != nullptr) return "float";
  if (v.text() != nullptr) return "str";
  if (const ListBox* l = v.list())
    return l->kind == ListBox::Kind::kList    ? "list"
           : l->kind == ListBox::Kind::kTuple ? "tuple"
                                              : "generator";
  if (v.dict() != nullptr) return "dict";
  if (v.as<Value::Space>() != nullptr) return "namespace";
  return v.as<Value::Loop>() != nullptr ? "loop" : "function";
}

std::string float_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  std::array<char, 40> room;
  const double size = std::fabs(d);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(room.data(), room.data() + room.size(), d,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(room.data(), end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace mc::model::jinja
