#include "model/template/jinja_template.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "base/json.h"
#include "base/units.h"
#include "model/template/evaluator.h"
#include "model/template/parser.h"

namespace mc::model {

using jinja::Block;
using jinja::Expression;
using jinja::Statement;

struct JinjaTemplate::Program {
  std::string name;
  Block block;
  bool content_parts = false;  // a loop goes through the parts of a message's content
  std::set<std::string, std::less<>> variables;  // that it reads
};

namespace {

Failure named(const std::string& name, Error e) {
  return fail(e.code, "%s, %s", name.c_str(), e.what.c_str());
}

// Calls `on` for each expression of an expression, itself first.
void each_inside(const Expression* e, const std::function<void(const Expression&)>& on) {
  if (e == nullptr) return;
  on(*e);
  for (const auto& arg : e->args) each_inside(arg.get(), on);
  for (const auto& [name, arg] : e->named) each_inside(arg.get(), on);
}

void each_statement(const Block& block, const std::function<void(const Statement&)>& on) {
  for (const auto& s : block) {
    on(*s);
    each_statement(s->body, on);
    each_statement(s->other, on);
  }
}

bool is_content(const Expression& e) {
  if (e.kind == Expression::Kind::kMember) return e.name == "content";
  const std::string* key = e.kind == Expression::Kind::kItem ? e.args[1]->value.text() : nullptr;
  return key != nullptr && *key == "content";
}

// Its value, as far as it stays the same list.
const Expression& bare(const Expression& e) {
  return e.kind == Expression::Kind::kFilter ? bare(*e.args[0]) : e;
}

uint64_t text_bytes(const Json& j) {
  if (j.is_string()) return j.get_ref<const std::string&>().size();
  uint64_t bytes = 0;
  if (j.is_structured())
    for (const Json& inside : j) bytes += 8 + text_bytes(inside);
  return bytes;
}

bool goes_through_content(const Block& block) {
  std::set<std::string> names;  // variables that are a message's content
  bool found = false;
  each_statement(block, [&](const Statement& s) {
    if (!s.value) return;
    const Expression& v = bare(*s.value);
    const bool content =
        is_content(v) || (v.kind == Expression::Kind::kName && names.contains(v.name));
    if (!content && s.kind == Statement::Kind::kSet && s.targets.size() == 1)
      names.erase(s.targets[0]);
    if (!content) return;
    if (s.kind == Statement::Kind::kSet && s.targets.size() == 1) names.insert(s.targets[0]);
    if (s.kind == Statement::Kind::kFor) found = true;
  });
  return found;
}

std::set<std::string, std::less<>> variables_of(const Block& block) {
  std::set<std::string, std::less<>> all;
  const auto look = [&](const Expression& e) {
    if (e.kind == Expression::Kind::kName) all.insert(e.name);
  };
  each_statement(block, [&](const Statement& s) {
    each_inside(s.value.get(), look);
    each_inside(s.condition.get(), look);
    for (const auto& v : s.values) each_inside(v.get(), look);
  });
  return all;
}

}  // namespace

JinjaTemplate::JinjaTemplate(std::unique_ptr<const Program> program)
    : program_(std::move(program)) {}
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;
JinjaTemplate::~JinjaTemplate() = default;

Result<JinjaTemplate> JinjaTemplate::parse(std::string_view source, std::string name) {
  if (source.size() > kTemplateBytesMax)
    return fail(Code::kInvalid, "%s has %zu bytes, want %zu at most", name.c_str(), source.size(),
                kTemplateBytesMax);
  auto block = jinja::parse(source);
  if (!block) return named(name, std::move(block).error());
  auto program = std::make_unique<Program>();
  program->name = std::move(name);
  program->block = std::move(*block);
  program->content_parts = goes_through_content(program->block);
  program->variables = variables_of(program->block);
  return JinjaTemplate(std::move(program));
}

Result<std::string> JinjaTemplate::render(const Json& variables, const std::tm& now,
                                          const TemplateLimits& limits) const {
  if (!variables.is_object())
    return fail(Code::kInternal, "the variables of a template are no object");
  jinja::Budget budget(limits, text_bytes(variables));
  auto text = jinja::Evaluator({budget, now}).render(program_->block, variables);
  if (!text) return named(program_->name, std::move(text).error());
  return text;
}

bool JinjaTemplate::reads_content_parts() const { return program_->content_parts; }

bool JinjaTemplate::reads(std::string_view variable) const {
  return program_->variables.contains(variable);
}

}  // namespace mc::model
