#include "model/template/evaluator.h"

#include <algorithm>

#include "base/json.h"
#include "base/units.h"

namespace mc::model::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const Scope* s = this; s != nullptr; s = s->parent)
    for (const auto& [known, v] : s->variables)
      if (known == name) return &v;
  return nullptr;
}

size_t Scope::width() const {
  size_t n = 0;
  for (const Scope* s = this; s != nullptr; s = s->parent) n += s->variables.size();
  return n;
}

void Scope::set(const std::string& name, Value v) {
  for (auto& [known, old] : variables)
    if (known == name) {
      old = std::move(v);
      return;
    }
  variables.emplace_back(name, std::move(v));
}

Result<std::string> Evaluator::render(const Block& program, const Json& variables) {
  Scope given, top;
  top.parent = &given;
  for (const auto& [name, v] : variables.get_ref<const Json::object_t&>())
    given.set(name, from_json(v));
  std::string out;
  MC_TRY_(run(program, top, out));
  MC_TRY_(budget_.steps());  // what the last comparison said counts only then
  return out;
}

Result<Evaluator::Flow> Evaluator::run(const Block& block, Scope& scope, std::string& out) {
  for (const StatementPtr& s : block) {
    MC_TRY_(budget_.steps());
    MC_TRY_(deeper());
    auto flow = run_one(*s, scope, out);
    --depth_;
    if (!flow) {
      Error e = std::move(flow).error();
      if (!e.what.starts_with("line ")) e.what = strf("line %u: %s", s->line, e.what.c_str());
      return fail(std::move(e));
    }
    if (*flow != Flow::kOn) return *flow;
  }
  return Flow::kOn;
}

Result<Evaluator::Flow> Evaluator::run_one(const Statement& s, Scope& scope, std::string& out) {
  using Kind = Statement::Kind;
  switch (s.kind) {
    case Kind::kText: MC_TRY_(append(s.text, out)); break;
    case Kind::kPrint: {
      MC_TRY(const Value v, eval(*s.value, scope));
      MC_TRY_(print(v, out));
      break;
    }
    case Kind::kIf: {
      const Statement* choice = &s;
      for (;;) {
        MC_TRY(const Value v, eval(*choice->value, scope));
        if (v.truthy()) return run(choice->body, scope, out);
        const bool elif = choice->other.size() == 1 && choice->other[0]->kind == Kind::kIf;
        if (!elif) return run(choice->other, scope, out);
        choice = choice->other[0].get();
      }
    }
    case Kind::kFor: return loop(s, scope, out);
    case Kind::kSet: MC_TRY_(set(s, scope)); break;
    case Kind::kMacro: MC_TRY_(define(s, scope)); break;
    case Kind::kFilter: {
      std::string body;
      MC_TRY_(run(s.body, scope, body));
      Scope inner{&scope, {}, false};
      MC_TRY(Value text, budget_.text(std::move(body)));
      inner.set("", std::move(text));
      MC_TRY(const Value v, eval(*s.value, inner));
      MC_TRY_(print(v, out));
      break;
    }
    case Kind::kWith: return with(s, scope, out);
    case Kind::kGroup: return run(s.body, scope, out);
    case Kind::kBreak: return Flow::kBreak;
    case Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kOn;
}

Result<> Evaluator::deeper() {
  if (++depth_ <= budget_.depth_max()) return {};
  return fail(Code::kNoSpace, "tags, expressions and macros more than %u deep",
              budget_.depth_max());
}

Result<> Evaluator::append(std::string_view text, std::string& out) {
  MC_TRY_(budget_.bytes(text.size()));
  if (out.size() + text.size() > budget_.output_max())
    return fail(Code::kNoSpace, "more than %zu bytes of output", budget_.output_max());
  out += text;
  return {};
}

Result<> Evaluator::print(const Value& v, std::string& out) {
  if (const std::string* t = v.text()) return append(*t, out);
  MC_TRY(const std::string text, to_text(v, budget_.bytes_left()));
  return append(text, out);
}

Result<Value::Items> Evaluator::chosen(const Statement& s, Scope& scope, Value::Items items) {
  if (!s.condition) return items;
  List out;
  Scope each{&scope, {}, false};
  for (const Value& v : items->items) {
    MC_TRY_(budget_.steps());
    MC_TRY_(assign(s.targets, v, each));
    MC_TRY(const Value wanted, eval(*s.condition, each));
    if (wanted.truthy()) out.push_back(v);
  }
  MC_TRY(const Value list, make_list(std::move(out)));
  return *list.as<Value::Items>();
}

Result<Evaluator::Flow> Evaluator::loop(const Statement& s, Scope& scope, std::string& out) {
  MC_TRY(const Value over, eval(*s.value, scope));
  MC_TRY(Value::Items items, items_of(over, budget_));
  MC_TRY(items, chosen(s, scope, std::move(items)));
  if (items->items.empty()) {
    auto inner = std::make_unique<Scope>(Scope{&scope, {}, false});
    auto flow = run(s.other, *inner, out);
    keep(std::move(inner));
    return flow;
  }
  return loop_body(s, scope, items, out);
}

Result<Evaluator::Flow> Evaluator::loop_body(const Statement& s, Scope& scope,
                                             const Value::Items& items, std::string& out) {
  const auto state = std::make_shared<LoopBox>();
  state->items = items;
  if (const Value* outer = scope.find("loop"); outer != nullptr)
    if (const auto* around = outer->as<Value::Loop>()) state->depth = (*around)->depth + 1;
  auto inner = std::make_unique<Scope>(Scope{&scope, {}, false});
  for (size_t i = 0; i < items->items.size(); ++i) {
    MC_TRY_(budget_.steps());
    if (inner->kept) {
      keep(std::move(inner));
      inner = std::make_unique<Scope>(Scope{&scope, {}, false});
    }
    inner->variables.clear();
    state->index0 = static_cast<int64_t>(i);
    inner->set("loop", Value(Value::Loop(state)));
    MC_TRY_(assign(s.targets, items->items[i], *inner));
    MC_TRY(const Flow flow, run(s.body, *inner, out));
    if (flow == Flow::kBreak) break;
  }
  keep(std::move(inner));
  return Flow::kOn;
}

void Evaluator::keep(std::unique_ptr<Scope> scope) {
  constexpr uint64_t kSteps = 16;  // for the place that it takes
  if (!scope->kept) return;
  (void)budget_.spend(kSteps);
  kept_.push_back(std::move(scope));
}

Result<> Evaluator::assign(const std::vector<std::string>& targets, const Value& v, Scope& scope) {
  MC_TRY_(budget_.steps(scope.variables.size() / kNamesAStep * targets.size()));
  if (targets.size() == 1) {
    scope.set(targets[0], v);
    return {};
  }
  MC_TRY(const Value::Items parts, items_of(v, budget_));
  if (parts->items.size() != targets.size())
    return fail(Code::kInvalid, "%zu values for %zu names", parts->items.size(), targets.size());
  for (size_t i = 0; i < targets.size(); ++i) scope.set(targets[i], parts->items[i]);
  return {};
}

Result<> Evaluator::set(const Statement& s, Scope& scope) {
  Value v;
  if (s.value) {
    MC_TRY(v, eval(*s.value, scope));
  } else {
    auto inner = std::make_unique<Scope>(Scope{&scope, {}, false});
    std::string body;
    MC_TRY_(run(s.body, *inner, body));
    MC_TRY(v, budget_.text(std::move(body)));
    if (s.condition) {
      inner->set("", std::move(v));
      MC_TRY(v, eval(*s.condition, *inner));
    }
    keep(std::move(inner));
  }
  if (!s.members.empty()) return set_member(s, scope, std::move(v));
  return assign(s.targets, v, scope);
}

Result<> Evaluator::set_member(const Statement& s, Scope& scope, Value v) {
  const Value* found = scope.find(s.targets[0]);
  const auto* space = found == nullptr ? nullptr : found->as<Value::Space>();
  if (space == nullptr)
    return fail(Code::kInvalid, "'%s' is no namespace: only members of one can be set",
                s.targets[0].c_str());
  if (v.as<Value::Space>() != nullptr)
    return fail(Code::kUnsupported, "a namespace inside a namespace");
  MC_TRY_(budget_.steps(steps_to_read(*found)));
  for (auto& [known, old] : (*space)->items)
    if (known == s.members[0]) {
      old = std::move(v);
      return {};
    }
  (*space)->items.emplace_back(s.members[0], std::move(v));
  return {};
}

Result<> Evaluator::define(const Statement& s, Scope& scope) {
  for (Scope* around = &scope; around != nullptr; around = around->parent) around->kept = true;
  auto f = std::make_shared<FunctionBox>();
  f->kind = FunctionBox::Kind::kMacro;
  f->name = s.name;
  f->macro = &s;
  f->scope = &scope;
  scope.set(s.name, Value(Value::Function(std::move(f))));
  return {};
}

Result<Evaluator::Flow> Evaluator::with(const Statement& s, Scope& scope, std::string& out) {
  auto inner = std::make_unique<Scope>(Scope{&scope, {}, false});
  for (size_t i = 0; i < s.targets.size(); ++i) {
    MC_TRY(Value v, eval(*s.values[i], scope));
    inner->set(s.targets[i], std::move(v));
  }
  auto flow = run(s.body, *inner, out);
  keep(std::move(inner));
  return flow;
}

}  // namespace mc::model::jinja
