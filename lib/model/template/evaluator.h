// Runs a parsed template.
//
// Pure. Thread: values; one rendering each.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/template/runtime.h"
#include "model/template/syntax.h"

namespace mc::model::jinja {

// Variables of a loop, a macro, or the template.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> variables;
  bool kept = false;  // a macro was defined in it

  const Value* find(std::string_view name) const;  // here and in those around
  void set(const std::string& name, Value v);
  size_t width() const;  // variables here and around: find() looks at them all
};

class Evaluator {
 public:
  explicit Evaluator(Runtime runtime) : runtime_(runtime), budget_(runtime.budget) {}
  Result<std::string> render(const Block& program, const Json& variables);

 private:
  enum class Flow : uint8_t { kOn, kBreak, kContinue };

  // evaluator.cc
  Result<> deeper();
  Result<Flow> run(const Block& block, Scope& scope, std::string& out);
  Result<Flow> run_one(const Statement& s, Scope& scope, std::string& out);
  Result<> print(const Value& v, std::string& out);
  Result<> append(std::string_view text, std::string& out);
  Result<Flow> loop(const Statement& s, Scope& scope, std::string& out);
  Result<Flow> loop_body(const Statement& s, Scope& scope, const Value::Items& items,
                         std::string& out);
  Result<Value::Items> chosen(const Statement& s, Scope& scope, Value::Items items);
  Result<> assign(const std::vector<std::string>& targets, const Value& v, Scope& scope);
  Result<> set(const Statement& s, Scope& scope);
  Result<> set_member(const Statement& s, Scope& scope, Value v);
  Result<> define(const Statement& s, Scope& scope);
  Result<Flow> with(const Statement& s, Scope& scope, std::string& out);
  void keep(std::unique_ptr<Scope> scope);

  // evaluator_expressions.cc
  Result<Value> eval(const Expression& e, Scope& scope);
  Result<Value> eval_kind(const Expression& e, Scope& scope);
  Result<Value> name(const Expression& e, Scope& scope);
  Result<Value> list(const Expression& e, Scope& scope);
  Result<Value> dict(const Expression& e, Scope& scope);
  Result<Value> item_of(const Expression& e, Scope& scope);
  Result<Value> slice_of(const Expression& e, Scope& scope);
  Result<Value> compared(const Expression& e, Scope& scope);
  Result<Value> joined(const Expression& e, Scope& scope);
  Result<Value> signed_of(const Expression& e, Scope& scope);
  Result<Value> filtered(const Expression& e, Scope& scope);
  Result<Value> tested(const Expression& e, Scope& scope);
  Result<Value> call(const Expression& e, Scope& scope);
  Result<Value> call_macro(const FunctionBox& f, const Arguments& with);
  Result<Arguments> arguments(const Expression& e, Scope& scope);

  Runtime runtime_;
  Budget& budget_;
  unsigned depth_ = 0;
  std::vector<std::unique_ptr<Scope>> kept_;
};

}  // namespace mc::model::jinja
