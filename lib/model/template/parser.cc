#include "model/template/parser.h"

#include <algorithm>
#include <array>

#include "base/units.h"
#include "model/template/parser_impl.h"

namespace mc::model::jinja {

using Do = Statement::Kind;

Result<Block> Parser::block(std::initializer_list<std::string_view> ends, std::string& ended) {
  const Deeper deeper(*this);
  MC_TRY_(not_too_deep());
  Block out;
  ended.clear();
  for (;;) {
    links_ = 0;
    if (now().kind == Kind::kText) {
      StatementPtr s = make(Do::kText);
      s->text = now().text;
      step();
      out.push_back(std::move(s));
    } else if (now().kind == Kind::kPrintBegin) {
      StatementPtr s = make(Do::kPrint);
      step();
      MC_TRY(s->value, tuple());
      if (now().kind != Kind::kPrintEnd) return wrong("'}}'");
      step();
      out.push_back(std::move(s));
    } else if (now().kind == Kind::kTagBegin) {
      step();
      if (now().kind != Kind::kName) return wrong("the name of a tag");
      const std::string name = now().text;
      if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
        ended = name;
        step();
        return out;
      }
      MC_TRY(StatementPtr s, tag(name));
      out.push_back(std::move(s));
    } else if (now().kind != Kind::kEnd) {
      return wrong("text or a tag");
    } else if (ends.size() > 0) {
      return wrong(("{% " + std::string(*(ends.end() - 1)) + " %}").c_str());
    } else {
      return out;
    }
  }
}

Result<StatementPtr> Parser::tag(const std::string& name) {
  if (name == "if") return if_tag();
  if (name == "for") return for_tag();
  if (name == "set") return set_tag();
  if (name == "macro") return macro_tag();
  if (name == "filter") return filter_tag();
  if (name == "with") return with_tag();
  if (name == "generation") {
    StatementPtr s = make(Do::kGroup);
    step();
    MC_TRY_(end_tag());
    MC_TRY_(body_to(s->body, "endgeneration"));
    return s;
  }
  if (name == "break" || name == "continue") {
    if (loops_ == 0) return wrong("this tag inside a loop");
    StatementPtr s = make(name == "break" ? Do::kBreak : Do::kContinue);
    step();
    MC_TRY_(end_tag());
    return s;
  }
  constexpr std::array<std::string_view, 8> kOthers = {"block", "extends", "include", "import",
                                                       "from",  "call",    "do",      "autoescape"};
  if (std::find(kOthers.begin(), kOthers.end(), name) != kOthers.end())
    return fail(Code::kUnsupported, "line %u: the tag '%s' is not done here", now().line,
                name.c_str());
  return wrong("a known tag");
}

Result<> Parser::end_tag() {
  if (now().kind != Kind::kTagEnd) return wrong("'%}'");
  step();
  return {};
}

Result<> Parser::body_to(Block& body, std::string_view end) {
  std::string ended;
  MC_TRY(body, block({end}, ended));
  if (end == "endmacro" && now().kind == Kind::kName) step();
  return end_tag();
}

Result<std::vector<std::string>> Parser::names(std::string_view what) {
  std::vector<std::string> out;
  const bool bracket = take("(");
  do {
    if (now().kind != Kind::kName) return wrong(std::string(what).c_str());
    out.push_back(now().text);
    step();
  } while (take(",") && now().kind == Kind::kName);
  if (bracket) MC_TRY_(want(")"));
  return out;
}

Result<StatementPtr> Parser::if_tag() {
  StatementPtr s = make(Do::kIf);
  Statement* last = s.get();
  for (unsigned elifs = 0;; ++elifs) {
    links_ = elifs;
    MC_TRY_(longer());
    step();  // if, elif
    MC_TRY(last->value, tuple(false));
    MC_TRY_(end_tag());
    std::string ended;
    MC_TRY(last->body, block({"elif", "else", "endif"}, ended));
    if (ended == "elif") {
      --at_;
      last->other.push_back(make(Do::kIf));
      last = last->other.back().get();
      continue;
    }
    MC_TRY_(end_tag());
    if (ended == "else") MC_TRY_(body_to(last->other, "endif"));
    return s;
  }
}

Result<StatementPtr> Parser::for_tag() {
  StatementPtr s = make(Do::kFor);
  step();
  MC_TRY(s->targets, names("the name of a loop's variable"));
  if (!take_word("in")) return wrong("'in'");
  MC_TRY(s->value, tuple(false));
  if (take_word("if")) {
    MC_TRY(s->condition, expression());
  }
  if (is_word("recursive"))
    return fail(Code::kUnsupported, "line %u: recursive loops are not done here", now().line);
  MC_TRY_(end_tag());
  ++loops_;
  std::string ended;
  MC_TRY(s->body, block({"else", "endfor"}, ended));
  --loops_;
  MC_TRY_(end_tag());
  if (ended == "else") MC_TRY_(body_to(s->other, "endfor"));
  return s;
}

Result<StatementPtr> Parser::set_tag() {
  StatementPtr s = make(Do::kSet);
  step();
  MC_TRY(s->targets, names("a name"));
  if (s->targets.size() == 1 && take(".")) {
    if (now().kind != Kind::kName) return wrong("a name");
    s->members.push_back(now().text);
    step();
  }
  if (take("=")) {
    MC_TRY(s->value, tuple());
    MC_TRY_(end_tag());
    return s;
  }
  if (s->targets.size() != 1) return wrong("'='");
  // {% set x | trim %} .. {% endset %}
  if (is("|")) {
    MC_TRY(s->condition, filters(make(Expression::Kind::kConstant)));
  }
  MC_TRY_(end_tag());
  MC_TRY_(body_to(s->body, "endset"));
  return s;
}

Result<StatementPtr> Parser::macro_tag() {
  StatementPtr s = make(Do::kMacro);
  step();
  if (now().kind != Kind::kName) return wrong("the name of a macro");
  s->name = now().text;
  step();
  MC_TRY_(want("("));
  while (!is(")")) {
    if (now().kind != Kind::kName) return wrong("the name of a parameter");
    s->targets.push_back(now().text);
    step();
    ExpressionPtr fallback;
    if (take("=")) {
      MC_TRY(fallback, expression());
    }
    s->values.push_back(std::move(fallback));
    if (!take(",")) break;
  }
  MC_TRY_(want(")"));
  MC_TRY_(end_tag());
  const unsigned loops = std::exchange(loops_, 0);
  MC_TRY_(body_to(s->body, "endmacro"));
  loops_ = loops;
  return s;
}

Result<StatementPtr> Parser::filter_tag() {
  StatementPtr s = make(Do::kFilter);
  step();
  MC_TRY(ExpressionPtr first, one_filter(make(Expression::Kind::kConstant)));
  MC_TRY(s->value, filters(std::move(first)));
  MC_TRY_(end_tag());
  MC_TRY_(body_to(s->body, "endfilter"));
  return s;
}

Result<StatementPtr> Parser::with_tag() {
  StatementPtr s = make(Do::kWith);
  step();
  while (now().kind == Kind::kName) {
    s->targets.push_back(now().text);
    step();
    MC_TRY_(want("="));
    MC_TRY(ExpressionPtr value, expression());
    s->values.push_back(std::move(value));
    if (!take(",")) break;
  }
  MC_TRY_(end_tag());
  MC_TRY_(body_to(s->body, "endwith"));
  return s;
}

Result<Block> parse(std::string_view source) {
  MC_TRY(std::vector<Token> tokens, tokens_of(source));
  std::string ended;
  return Parser(std::move(tokens)).block({}, ended);
}

}  // namespace mc::model::jinja
