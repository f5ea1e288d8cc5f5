// Operators between values, as Python has them.
#include <cmath>

#include "base/units.h"
#include "model/template/characters.h"
#include "model/template/runtime.h"

namespace mc::model::jinja {
namespace {

Failure wrong_types(const std::string& op, const Value& a, const Value& b) {
  return fail(Code::kInvalid, "%s %s %s", type_name(a), op.c_str(), type_name(b));
}

std::string html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

Result<Value> add_texts(const Value& a, const Value& b, Budget& budget) {
  MC_TRY_(budget.bytes(a.text()->size() + b.text()->size()));
  if (!a.safe() && !b.safe()) return Value(*a.text() + *b.text());
  return Value::safe_text((a.safe() ? *a.text() : html(*a.text())) +
                          (b.safe() ? *b.text() : html(*b.text())));
}

Result<Value> repeated(const Value& what, int64_t times, Budget& budget) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (const std::string* t = what.text()) {
    if (!t->empty() && n > budget.bytes_left() / t->size()) MC_TRY_(budget.bytes(UINT64_MAX));
    MC_TRY_(budget.bytes(n * t->size()));
    std::string out;
    for (uint64_t i = 0; i < n && !t->empty(); ++i) out += *t;
    return Value(std::move(out));
  }
  const List& items = what.list()->items;
  if (n > INT32_MAX || items.size() > INT32_MAX) MC_TRY_(budget.steps(INT64_MAX));
  MC_TRY_(budget.items(n * items.size()));
  List out;
  out.reserve(n * items.size());
  for (uint64_t i = 0; i < n && !items.empty(); ++i)
    out.insert(out.end(), items.begin(), items.end());
  return make_list(std::move(out), what.list()->kind);
}

Result<Value> of_integers(const std::string& op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool over = false;
  if (op == "+") {
    over = __builtin_add_overflow(a, b, &out);
  } else if (op == "-") {
    over = __builtin_sub_overflow(a, b, &out);
  } else if (op == "*") {
    over = __builtin_mul_overflow(a, b, &out);
  } else if (op == "/") {
    if (b == 0) return fail(Code::kInvalid, "a division by 0");
    return Value(static_cast<double>(a) / static_cast<double>(b));
  } else if (op == "//" || op == "%") {
    if (b == 0) return fail(Code::kInvalid, "a division by 0");
    if (b == -1) {
      over = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &out);
    } else {
      const bool down = a % b != 0 && (a % b < 0) != (b < 0);
      out = op == "//" ? a / b - (down ? 1 : 0) : a % b + (down ? b : 0);
    }
  } else {
    if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
    out = 1;
    if (b > 64 && (a < -1 || a > 1)) over = true;
    const int64_t times = a >= -1 && a <= 1 ? std::min<int64_t>(b, 2 + (b & 1)) : b;
    for (int64_t i = 0; i < times && !over; ++i) over = __builtin_mul_overflow(out, a, &out);
  }
  if (over) return fail(Code::kUnsupported, "a number beyond 64 bits");
  return Value(out);
}

Result<Value> of_numbers(const std::string& op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0) return fail(Code::kInvalid, "a division by 0");
  if (op == "/") return Value(a / b);
  const double down = std::floor(a / b);
  return Value(op == "//" ? down : a - down * b);
}

std::optional<int64_t> whole(const Value& v) {
  if (v.as<double>() != nullptr || !v.is_number()) return std::nullopt;
  return to_integer(v, "").value_or(0);
}

}  // namespace

Result<Value> arithmetic(const std::string& op, const Value& a, const Value& b, Budget& budget) {
  const auto i = whole(a), j = whole(b);
  if (i && j) return of_integers(op, *i, *j);
  if (a.is_number() && b.is_number()) return of_numbers(op, a.number(), b.number());
  const bool a_many = a.text() != nullptr || a.list() != nullptr,
             b_many = b.text() != nullptr || b.list() != nullptr;
  if (op == "*" && a_many && j) return repeated(a, *j, budget);
  if (op == "*" && b_many && i) return repeated(b, *i, budget);
  if (op == "%" && a.text() != nullptr) return formatted(*a.text(), b, budget);
  if (op != "+") return wrong_types(op, a, b);
  if (a.text() != nullptr && b.text() != nullptr) return add_texts(a, b, budget);
  const ListBox *x = a.list(), *y = b.list();
  if (x == nullptr || y == nullptr || x->kind != y->kind || x->kind == ListBox::Kind::kOnce)
    return wrong_types(op, a, b);
  MC_TRY_(budget.items(x->items.size() + y->items.size()));
  List all;
  all.reserve(x->items.size() + y->items.size());
  all.insert(all.end(), x->items.begin(), x->items.end());
  all.insert(all.end(), y->items.begin(), y->items.end());
  return make_list(std::move(all), x->kind);
}

Result<Value> formatted(const std::string& format, const Value& with, Budget& budget) {
  const ListBox* tuple = with.list();
  const bool several = tuple != nullptr && tuple->kind == ListBox::Kind::kTuple;
  const List args = several ? tuple->items : List{with};
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const char kind = ++i < format.size() ? format[i] : '\0';
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (std::string_view("srdi").find(kind) == std::string_view::npos)
      return fail(Code::kUnsupported, "of formats %%s, %%r, %%d and %%i are done here");
    if (next >= args.size()) return fail(Code::kInvalid, "too few arguments for the format");
    const Value& v = args[next++];
    if ((kind == 'd' || kind == 'i') && !whole(v))
      return fail(Code::kInvalid, "%%d of a %s", type_name(v));
    MC_TRY(const std::string text,
           kind == 'r' ? to_repr(v, budget.bytes_left()) : to_text(v, budget.bytes_left()));
    out += text;
  }
  if (several && next < args.size())
    return fail(Code::kInvalid, "too many arguments for the format");
  return budget.text(std::move(out));
}

Result<bool> compare(const std::string& op, const Value& a, const Value& b, Budget& budget) {
  if (op == "==") return equal(a, b, budget);
  if (op == "!=") return !equal(a, b, budget);
  if (op == "in") return contains(b, a, budget);
  if (op == "not in") {
    MC_TRY(const bool is, contains(b, a, budget));
    return !is;
  }
  if (op == "<") return less(a, b, budget);
  if (op == ">") return less(b, a, budget);
  MC_TRY(const bool other, op == "<=" ? less(b, a, budget) : less(a, b, budget));
  return !other;
}

}  // namespace mc::model::jinja
