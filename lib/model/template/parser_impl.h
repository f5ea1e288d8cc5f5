// The parser's state, and its two halves. Private to parser*.cc.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/template/lexer.h"
#include "model/template/parser.h"

namespace mc::model::jinja {

// Where the parser is in the tokens.
class TokenCursor {
 protected:
  using Kind = Token::Kind;
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is(std::string_view sign) const { return now().kind == Kind::kSign && now().text == sign; }
  bool is_word(std::string_view word) const {
    return now().kind == Kind::kName && now().text == word;
  }
  void step() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool take(std::string_view sign) {
    if (!is(sign)) return false;
    step();
    return true;
  }
  bool take_word(std::string_view word) {
    if (!is_word(word)) return false;
    step();
    return true;
  }
  Result<> want(std::string_view sign);
  Failure wrong(const char* want) const;

  const std::vector<Token> tokens_;
  size_t at_ = 0;
};

class Parser : private TokenCursor {
 public:
  explicit Parser(std::vector<Token> tokens) : TokenCursor(std::move(tokens)) {}
  // Up to one of these tags, whose name is left in `ended`; "": to the end.
  Result<Block> block(std::initializer_list<std::string_view> ends, std::string& ended);

 private:
  // parser.cc
  Result<StatementPtr> tag(const std::string& name);
  Result<StatementPtr> if_tag();
  Result<StatementPtr> for_tag();
  Result<StatementPtr> set_tag();
  Result<StatementPtr> macro_tag();
  Result<StatementPtr> filter_tag();
  Result<StatementPtr> with_tag();
  Result<> body_to(Block& body, std::string_view end);
  Result<std::vector<std::string>> names(std::string_view what);
  Result<> end_tag();

  // parser_expressions.cc
  Result<ExpressionPtr> expression(bool with_if = true);  // also a tuple without brackets: tuple()
  Result<ExpressionPtr> tuple(bool with_if = true);
  Result<ExpressionPtr> chain_or();
  Result<ExpressionPtr> chain_and();
  Result<ExpressionPtr> negation();
  Result<ExpressionPtr> comparison();
  Result<ExpressionPtr> sum();
  Result<ExpressionPtr> join();
  Result<ExpressionPtr> product();
  Result<ExpressionPtr> power();
  Result<ExpressionPtr> unary(bool with_filters = true);
  Result<ExpressionPtr> primary();
  Result<ExpressionPtr> brackets();
  Result<ExpressionPtr> list();
  Result<ExpressionPtr> dict();
  Result<ExpressionPtr> postfix(ExpressionPtr e);
  Result<ExpressionPtr> filters(ExpressionPtr e);
  Result<ExpressionPtr> one_filter(ExpressionPtr e);
  Result<ExpressionPtr> test(ExpressionPtr e);
  Result<ExpressionPtr> item(ExpressionPtr e);
  Result<> arguments(Expression& call);

  ExpressionPtr make(Expression::Kind kind) const {
    auto e = std::make_unique<Expression>();
    e->kind = kind;
    e->line = now().line;
    return e;
  }
  StatementPtr make(Statement::Kind kind) const {
    auto s = std::make_unique<Statement>();
    s->kind = kind;
    s->line = now().line;
    return s;
  }
  // Counts how deep the parser is.
  struct Deeper {
    explicit Deeper(Parser& p) : p_(p) { ++p_.depth_; }
    ~Deeper() { --p_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Parser& p_;
  };
  Result<> not_too_deep() const {
    if (depth_ <= kNestingMax) return {};
    return fail(Code::kInvalid, "line %u: nested more than %u deep", now().line, kNestingMax);
  }

  // Chains of operators are trees as deep as the chain is long.
  Result<> longer() {
    if (++links_ <= kChainMax) return {};
    return fail(Code::kInvalid, "line %u: a chain of more than %u operators", now().line,
                kChainMax);
  }

  unsigned depth_ = 0, loops_ = 0, links_ = 0;
};

}  // namespace mc::model::jinja
