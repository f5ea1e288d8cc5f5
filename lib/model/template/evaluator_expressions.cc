// Expressions and calls.
#include <algorithm>

#include "base/units.h"
#include "model/template/evaluator.h"

namespace mc::model::jinja {

using Op = Expression::Kind;

Result<Value> Evaluator::eval(const Expression& e, Scope& scope) {
  MC_TRY_(budget_.steps());
  MC_TRY_(deeper());
  auto v = eval_kind(e, scope);
  --depth_;
  return v;
}

Result<Value> Evaluator::eval_kind(const Expression& e, Scope& scope) {
  switch (e.kind) {
    case Op::kConstant:
      // What a filter block, or a set block with filters, works on.
      if (e.value.is_undefined()) return *scope.find("");
      return e.value;
    case Op::kName: return name(e, scope);
    case Op::kList:
    case Op::kTuple: return list(e, scope);
    case Op::kDict: return dict(e, scope);
    case Op::kMember:
    case Op::kItem: return item_of(e, scope);
    case Op::kSlice: return slice_of(e, scope);
    case Op::kCall: return call(e, scope);
    case Op::kFilter: return filtered(e, scope);
    case Op::kTest: return tested(e, scope);
    case Op::kMinus:
    case Op::kPlus: return signed_of(e, scope);
    case Op::kCompare: return compared(e, scope);
    case Op::kJoin: return joined(e, scope);
    case Op::kNot: {
      MC_TRY(const Value v, eval(*e.args[0], scope));
      return Value(!v.truthy());
    }
    case Op::kAnd:
    case Op::kOr: {
      MC_TRY(Value v, eval(*e.args[0], scope));
      if (v.truthy() == (e.kind == Op::kOr)) return v;
      return eval(*e.args[1], scope);
    }
    case Op::kArithmetic: {
      MC_TRY(const Value a, eval(*e.args[0], scope));
      MC_TRY(const Value b, eval(*e.args[1], scope));
      return arithmetic(e.name, a, b, budget_);
    }
    case Op::kIf: {
      MC_TRY(const Value condition, eval(*e.args[1], scope));
      if (condition.truthy()) return eval(*e.args[0], scope);
      if (e.args[2]) return eval(*e.args[2], scope);
      return Value::undefined("the other side of an inline if");
    }
  }
  return fail(Code::kInternal, "an expression of no kind");
}

Result<Value> Evaluator::name(const Expression& e, Scope& scope) {
  MC_TRY_(budget_.steps(scope.width() / kNamesAStep));
  if (const Value* v = scope.find(e.name)) return *v;
  if (!is_global(e.name)) return Value::undefined(e.name);
  auto f = std::make_shared<FunctionBox>();
  f->name = e.name;
  return Value(Value::Function(std::move(f)));
}

Result<Value> Evaluator::list(const Expression& e, Scope& scope) {
  List items;
  for (const ExpressionPtr& arg : e.args) {
    MC_TRY(Value v, eval(*arg, scope));
    items.push_back(std::move(v));
  }
  return make_list(std::move(items),
                   e.kind == Op::kTuple ? ListBox::Kind::kTuple : ListBox::Kind::kList);
}

Result<Value> Evaluator::dict(const Expression& e, Scope& scope) {
  std::vector<Member> members;
  for (size_t i = 0; i < e.args.size(); i += 2) {
    MC_TRY(Value key, eval(*e.args[i], scope));
    if (key.text() == nullptr && !key.is_number() && !key.is_none())
      return fail(Code::kUnsupported, "a key of a dict that is of type %s", type_name(key));
    MC_TRY(Value v, eval(*e.args[i + 1], scope));
    members.emplace_back(std::move(key), std::move(v));
    MC_TRY_(budget_.steps(members.size() / 8));
  }
  return make_dict(std::move(members));
}

namespace {

Failure no_such(const Value& v, const char* what) {
  const Undefined* u = v.as<Undefined>();
  return fail(Code::kInvalid, "%s of '%s', which is undefined", what,
              u == nullptr || !u->what ? "a value" : escape(*u->what).c_str());
}

}  // namespace

Result<Value> Evaluator::item_of(const Expression& e, Scope& scope) {
  MC_TRY(const Value of, eval(*e.args[0], scope));
  if (of.is_undefined()) return no_such(of, "a member");
  MC_TRY_(budget_.steps(steps_to_read(of)));
  if (e.kind == Op::kMember) return attribute(of, e.name);
  MC_TRY(const Value key, eval(*e.args[1], scope));
  return item(of, key);
}

Result<Value> Evaluator::slice_of(const Expression& e, Scope& scope) {
  MC_TRY(const Value of, eval(*e.args[0], scope));
  Value bounds[3];
  const Value* given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (!e.args[i + 1]) continue;
    MC_TRY(bounds[i], eval(*e.args[i + 1], scope));
    if (!bounds[i].is_none()) given[i] = &bounds[i];
  }
  return slice(of, given[0], given[1], given[2], budget_);
}

Result<Value> Evaluator::compared(const Expression& e, Scope& scope) {
  MC_TRY(Value left, eval(*e.args[0], scope));
  for (size_t i = 0; i < e.names.size(); ++i) {
    MC_TRY(Value right, eval(*e.args[i + 1], scope));
    MC_TRY(const bool holds, compare(e.names[i], left, right, budget_));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::joined(const Expression& e, Scope& scope) {
  std::string out;
  for (const ExpressionPtr& arg : e.args) {
    MC_TRY(const Value v, eval(*arg, scope));
    MC_TRY_(print(v, out));
  }
  MC_TRY_(budget_.text({}));  // what a string takes beside the characters
  return Value(std::move(out));
}

Result<Value> Evaluator::signed_of(const Expression& e, Scope& scope) {
  MC_TRY(const Value v, eval(*e.args[0], scope));
  if (!v.is_number()) return fail(Code::kInvalid, "a sign before a %s", type_name(v));
  if (const double* d = v.as<double>()) return Value(e.kind == Op::kMinus ? -*d : *d);
  const Value zero(int64_t{0});
  return arithmetic(e.kind == Op::kMinus ? "-" : "+", zero, v, budget_);
}

Result<Arguments> Evaluator::arguments(const Expression& e, Scope& scope) {
  Arguments with;
  for (size_t i = 1; i < e.args.size(); ++i) {
    MC_TRY(Value v, eval(*e.args[i], scope));
    with.args.push_back(std::move(v));
  }
  for (const auto& [name, arg] : e.named) {
    MC_TRY(Value v, eval(*arg, scope));
    with.named.emplace_back(name, std::move(v));
  }
  return with;
}

Result<Value> Evaluator::filtered(const Expression& e, Scope& scope) {
  MC_TRY(const Value in, eval(*e.args[0], scope));
  MC_TRY(const Arguments with, arguments(e, scope));
  return call_filter(e.name, in, with, runtime_);
}

Result<Value> Evaluator::tested(const Expression& e, Scope& scope) {
  MC_TRY(const Value of, eval(*e.args[0], scope));
  MC_TRY(const Arguments with, arguments(e, scope));
  MC_TRY(const bool holds, call_test(e.name, of, with.args, budget_));
  return Value(holds);
}

Result<Value> Evaluator::call(const Expression& e, Scope& scope) {
  MC_TRY(const Value what, eval(*e.args[0], scope));
  const auto* f = what.as<Value::Function>();
  if (f == nullptr) {
    if (what.is_undefined()) return no_such(what, "a call");
    return fail(Code::kInvalid, "a call of a %s", type_name(what));
  }
  MC_TRY(const Arguments with, arguments(e, scope));
  switch ((*f)->kind) {
    case FunctionBox::Kind::kGlobal: return call_global((*f)->name, with, runtime_);
    case FunctionBox::Kind::kMethod: return call_method((*f)->name, (*f)->self, with, runtime_);
    case FunctionBox::Kind::kMacro: return call_macro(**f, with);
  }
  return fail(Code::kInternal, "a function of no kind");
}

Result<Value> Evaluator::call_macro(const FunctionBox& f, const Arguments& with) {
  const Statement& macro = *f.macro;
  if (with.args.size() > macro.targets.size())
    return fail(Code::kInvalid, "the macro '%s' takes %zu arguments, not %zu", f.name.c_str(),
                macro.targets.size(), with.args.size());
  auto inner = std::make_unique<Scope>(Scope{f.scope, {}, false});
  for (const auto& [name, v] : with.named)
    if (std::find(macro.targets.begin(), macro.targets.end(), name) == macro.targets.end())
      return fail(Code::kInvalid, "the macro '%s' has no argument '%s'", f.name.c_str(),
                  name.c_str());
  for (size_t i = 0; i < macro.targets.size(); ++i) {
    const std::string& target = macro.targets[i];
    const Value* given = with.find(i, target);
    Value v = Value::undefined(target);
    if (given != nullptr) {
      v = *given;
    } else if (macro.values[i]) {
      MC_TRY(v, eval(*macro.values[i], *inner));
    }
    inner->set(target, std::move(v));
  }
  std::string out;
  MC_TRY_(run(macro.body, *inner, out));
  keep(std::move(inner));
  return Value(std::move(out));
}

}  // namespace mc::model::jinja
