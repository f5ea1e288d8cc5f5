// Renders chat templates: programs in Jinja, as transformers runs them (trim_blocks, lstrip_blocks,
// loop controls, the sandbox in which nothing changes but namespaces).
//
// It has what the templates of published models use, not all of Jinja: no blocks, includes,
// imports, recursive loops or callers; filters and methods by name in docs/engine.md. Upper and
// lower case is ASCII's. What is missing fails by its name when it is reached.
//
// A hostile template neither hangs nor bloats: steps, text, output and depth are bounded. Errors
// name the template and the line: kInvalid (syntax, types, raise_exception), kUnsupported, kNoSpace
// over a limit. Pure. Thread: values; render() any, at once too.
// Source: Jinja 3.1's documentation; transformers, "Chat templates".
#pragma once
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/result.h"
#include "model/template/limits.h"

namespace mc::model {

inline constexpr size_t kTemplateBytesMax = 1u << 20;

class JinjaTemplate {
 public:
  // `name`: what errors call it.
  static Result<JinjaTemplate> parse(std::string_view source, std::string name);
  JinjaTemplate(JinjaTemplate&&) noexcept;
  JinjaTemplate& operator=(JinjaTemplate&&) noexcept;
  ~JinjaTemplate();

  // `variables`: an object. `now`: what strftime_now() writes.
  Result<std::string> render(const Json& variables, const std::tm& now,
                             const TemplateLimits& limits = {}) const;
  // Does a loop go through the parts of a message's content? Others want it as text.
  bool reads_content_parts() const;
  // Does it read a variable of that name?
  bool reads(std::string_view variable) const;

 private:
  struct Program;
  explicit JinjaTemplate(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

}  // namespace mc::model
