// Expressions, from the weakest operator to the strongest.
#include <algorithm>
#include <array>

#include "base/units.h"
#include "model/template/parser_impl.h"

namespace mc::model::jinja {

using Op = Expression::Kind;

Failure TokenCursor::wrong(const char* want) const {
  const Token& t = now();
  const bool end = t.kind == Kind::kEnd || t.kind == Kind::kPrintEnd || t.kind == Kind::kTagEnd;
  return fail(Code::kInvalid, "line %u: want %s, found %s", t.line, want,
              end ? "the end" : ("'" + escape(t.text.substr(0, 40)) + "'").c_str());
}

Result<> TokenCursor::want(std::string_view sign) {
  if (take(sign)) return {};
  return wrong(("'" + std::string(sign) + "'").c_str());
}

namespace {

ExpressionPtr pair_of(ExpressionPtr op, ExpressionPtr left, ExpressionPtr right) {
  op->args.push_back(std::move(left));
  op->args.push_back(std::move(right));
  return op;
}

}  // namespace

Result<ExpressionPtr> Parser::tuple(bool with_if) {
  MC_TRY(ExpressionPtr first, expression(with_if));
  if (!is(",")) return first;
  ExpressionPtr list = make(Op::kTuple);
  list->args.push_back(std::move(first));
  while (take(",")) {
    if (now().kind == Kind::kPrintEnd || now().kind == Kind::kTagEnd || is(")")) break;
    MC_TRY(ExpressionPtr next, expression(with_if));
    list->args.push_back(std::move(next));
  }
  return list;
}

Result<ExpressionPtr> Parser::expression(bool with_if) {
  const Deeper deeper(*this);
  MC_TRY_(not_too_deep());
  MC_TRY(ExpressionPtr e, chain_or());
  while (with_if && is_word("if")) {
    MC_TRY_(longer());
    ExpressionPtr choice = make(Op::kIf);
    step();
    MC_TRY(ExpressionPtr condition, chain_or());
    ExpressionPtr other;
    if (take_word("else")) {
      MC_TRY(other, expression());
    }
    choice = pair_of(std::move(choice), std::move(e), std::move(condition));
    choice->args.push_back(std::move(other));
    e = std::move(choice);
  }
  return e;
}

Result<ExpressionPtr> Parser::chain_or() {
  MC_TRY(ExpressionPtr e, chain_and());
  while (is_word("or")) {
    MC_TRY_(longer());
    ExpressionPtr op = make(Op::kOr);
    step();
    MC_TRY(ExpressionPtr right, chain_and());
    e = pair_of(std::move(op), std::move(e), std::move(right));
  }
  return e;
}

Result<ExpressionPtr> Parser::chain_and() {
  MC_TRY(ExpressionPtr e, negation());
  while (is_word("and")) {
    MC_TRY_(longer());
    ExpressionPtr op = make(Op::kAnd);
    step();
    MC_TRY(ExpressionPtr right, negation());
    e = pair_of(std::move(op), std::move(e), std::move(right));
  }
  return e;
}

Result<ExpressionPtr> Parser::negation() {
  if (!is_word("not")) return comparison();
  const Deeper deeper(*this);
  MC_TRY_(not_too_deep());
  ExpressionPtr op = make(Op::kNot);
  step();
  MC_TRY(ExpressionPtr e, negation());
  op->args.push_back(std::move(e));
  return op;
}

Result<ExpressionPtr> Parser::comparison() {
  MC_TRY(ExpressionPtr e, sum());
  ExpressionPtr all;
  for (;;) {
    std::string op;
    constexpr std::array<std::string_view, 6> kSigns = {"==", "!=", "<", ">", "<=", ">="};
    if (now().kind == Kind::kSign && std::ranges::find(kSigns, now().text) != kSigns.end())
      op = now().text;
    else if (is_word("in"))
      op = "in";
    else if (is_word("not") && after().kind == Kind::kName && after().text == "in")
      op = "not in";
    if (op.empty()) break;
    if (!all) {
      all = make(Op::kCompare);
      all->args.push_back(std::move(e));
    }
    if (op == "not in") step();
    step();
    all->names.push_back(std::move(op));
    MC_TRY(ExpressionPtr next, sum());
    all->args.push_back(std::move(next));
  }
  return all ? std::move(all) : std::move(e);
}

Result<ExpressionPtr> Parser::sum() {
  MC_TRY(ExpressionPtr e, join());
  while (is("+") || is("-")) {
    MC_TRY_(longer());
    ExpressionPtr op = make(Op::kArithmetic);
    op->name = now().text;
    step();
    MC_TRY(ExpressionPtr right, join());
    e = pair_of(std::move(op), std::move(e), std::move(right));
  }
  return e;
}

Result<ExpressionPtr> Parser::join() {
  MC_TRY(ExpressionPtr e, product());
  if (!is("~")) return e;
  ExpressionPtr all = make(Op::kJoin);
  all->args.push_back(std::move(e));
  while (take("~")) {
    MC_TRY(ExpressionPtr next, product());
    all->args.push_back(std::move(next));
  }
  return all;
}

Result<ExpressionPtr> Parser::product() {
  MC_TRY(ExpressionPtr e, power());
  while (is("*") || is("/") || is("//") || is("%")) {
    MC_TRY_(longer());
    ExpressionPtr op = make(Op::kArithmetic);
    op->name = now().text;
    step();
    MC_TRY(ExpressionPtr right, power());
    e = pair_of(std::move(op), std::move(e), std::move(right));
  }
  return e;
}

Result<ExpressionPtr> Parser::power() {
  MC_TRY(ExpressionPtr e, unary());
  while (is("**")) {
    MC_TRY_(longer());
    ExpressionPtr op = make(Op::kArithmetic);
    op->name = now().text;
    step();
    MC_TRY(ExpressionPtr right, unary());
    e = pair_of(std::move(op), std::move(e), std::move(right));
  }
  return e;
}

Result<ExpressionPtr> Parser::unary(bool with_filters) {
  const Deeper deeper(*this);
  MC_TRY_(not_too_deep());
  ExpressionPtr e;
  if (is("-") || is("+")) {
    e = make(is("-") ? Op::kMinus : Op::kPlus);
    step();
    MC_TRY(ExpressionPtr of, unary(false));
    e->args.push_back(std::move(of));
  } else {
    MC_TRY(e, primary());
  }
  MC_TRY(e, postfix(std::move(e)));
  if (!with_filters) return e;
  return filters(std::move(e));
}

Result<ExpressionPtr> Parser::primary() {
  const Token& t = now();
  ExpressionPtr e = make(Op::kConstant);
  switch (t.kind) {
    case Kind::kName:
      if (t.text == "true" || t.text == "True" || t.text == "false" || t.text == "False") {
        e->value = Value(t.text == "true" || t.text == "True");
      } else if (t.text == "none" || t.text == "None") {
        e->value = Value(None{});
      } else {
        e->kind = Op::kName;
        e->name = t.text;
      }
      break;
    case Kind::kString: e->value = Value(t.text); break;
    case Kind::kInteger: e->value = Value(t.integer); break;
    case Kind::kFloat: e->value = Value(t.number); break;
    default:
      if (is("(")) return brackets();
      if (is("[")) return list();
      if (is("{")) return dict();
      return wrong("an expression");
  }
  step();
  return e;
}

Result<ExpressionPtr> Parser::brackets() {
  ExpressionPtr empty = make(Op::kTuple);
  step();
  if (take(")")) return empty;
  MC_TRY(ExpressionPtr e, tuple());
  MC_TRY_(want(")"));
  return e;
}

Result<ExpressionPtr> Parser::list() {
  ExpressionPtr all = make(Op::kList);
  step();
  while (!is("]")) {
    MC_TRY(ExpressionPtr e, expression());
    all->args.push_back(std::move(e));
    if (!take(",")) break;
  }
  MC_TRY_(want("]"));
  return all;
}

Result<ExpressionPtr> Parser::dict() {
  ExpressionPtr all = make(Op::kDict);
  step();
  while (!is("}")) {
    MC_TRY(ExpressionPtr key, expression());
    MC_TRY_(want(":"));
    MC_TRY(ExpressionPtr value, expression());
    all = pair_of(std::move(all), std::move(key), std::move(value));
    if (!take(",")) break;
  }
  MC_TRY_(want("}"));
  return all;
}

Result<ExpressionPtr> Parser::postfix(ExpressionPtr e) {
  for (;;) {
    if (is(".") || is("[") || is("(")) MC_TRY_(longer());
    if (is(".")) {
      ExpressionPtr member = make(Op::kMember);
      step();
      if (now().kind == Kind::kInteger) {
        member->kind = Op::kItem;
        ExpressionPtr index = make(Op::kConstant);
        index->value = Value(now().integer);
        member = pair_of(std::move(member), std::move(e), std::move(index));
      } else if (now().kind == Kind::kName) {
        member->name = now().text;
        member->args.push_back(std::move(e));
      } else {
        return wrong("a name");
      }
      step();
      e = std::move(member);
    } else if (is("[")) {
      MC_TRY(e, item(std::move(e)));
    } else if (is("(")) {
      ExpressionPtr call = make(Op::kCall);
      call->args.push_back(std::move(e));
      MC_TRY_(arguments(*call));
      e = std::move(call);
    } else {
      return e;
    }
  }
}

Result<ExpressionPtr> Parser::item(ExpressionPtr e) {
  ExpressionPtr slice = make(Op::kSlice);
  step();
  slice->args.push_back(std::move(e));
  for (int part = 0; part < 3; ++part) {
    ExpressionPtr bound;
    if (!is(":") && !is("]")) {
      MC_TRY(bound, tuple());
    }
    slice->args.push_back(std::move(bound));
    if (part == 0 && is("]")) break;
    if (part < 2 && !take(":")) break;
  }
  if (slice->args.size() == 2) {
    if (!slice->args[1]) return wrong("an index");
    slice->kind = Op::kItem;
  } else {
    slice->args.resize(4);
  }
  MC_TRY_(want("]"));
  return slice;
}

Result<> Parser::arguments(Expression& call) {
  MC_TRY_(want("("));
  while (!is(")")) {
    if (is("*") || is("**"))
      return fail(Code::kUnsupported, "line %u: arguments by * and ** are not done here",
                  now().line);
    const bool is_named =
        now().kind == Kind::kName && after().kind == Kind::kSign && after().text == "=";
    const std::string name = is_named ? now().text : "";
    if (is_named) {
      step();
      step();
    }
    MC_TRY(ExpressionPtr e, expression());
    if (is_named)
      call.named.emplace_back(name, std::move(e));
    else if (!call.named.empty())
      return wrong("a name for each argument after the first that has one");
    else
      call.args.push_back(std::move(e));
    if (!take(",")) break;
  }
  return want(")");
}

Result<ExpressionPtr> Parser::filters(ExpressionPtr e) {
  for (;;) {
    if (is("|") || is_word("is") || is("(")) MC_TRY_(longer());
    if (take("|")) {
      MC_TRY(e, one_filter(std::move(e)));
    } else if (is_word("is")) {
      MC_TRY(e, test(std::move(e)));
    } else if (is("(")) {
      ExpressionPtr call = make(Op::kCall);
      call->args.push_back(std::move(e));
      MC_TRY_(arguments(*call));
      e = std::move(call);
    } else {
      return e;
    }
  }
}

Result<ExpressionPtr> Parser::one_filter(ExpressionPtr e) {
  if (now().kind != Kind::kName) return wrong("the name of a filter");
  ExpressionPtr filter = make(Op::kFilter);
  filter->name = now().text;
  filter->args.push_back(std::move(e));
  step();
  if (is("(")) MC_TRY_(arguments(*filter));
  return filter;
}

Result<ExpressionPtr> Parser::test(ExpressionPtr e) {
  step();
  const bool negated = take_word("not");
  if (now().kind != Kind::kName) return wrong("the name of a test");
  ExpressionPtr test = make(Op::kTest);
  test->name = now().text;
  test->args.push_back(std::move(e));
  step();
  constexpr std::array<std::string_view, 8> kNoOperand = {"else", "or", "and", "if",
                                                          "is",   "in", "not", "recursive"};
  const bool word =
      now().kind == Kind::kName && std::ranges::find(kNoOperand, now().text) == kNoOperand.end();
  const bool constant =
      now().kind == Kind::kString || now().kind == Kind::kInteger || now().kind == Kind::kFloat;
  if (is("(")) {
    MC_TRY_(arguments(*test));
  } else if (word || constant || is("[") || is("{")) {
    MC_TRY(ExpressionPtr operand, primary());
    MC_TRY(operand, postfix(std::move(operand)));
    test->args.push_back(std::move(operand));
  }
  if (!negated) return test;
  ExpressionPtr not_it = make(Op::kNot);
  not_it->args.push_back(std::move(test));
  return not_it;
}

}  // namespace mc::model::jinja
