// The tree of a parsed template.
//
// Thread: values; const after parsing.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/template/value.h"

namespace mc::model::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : uint8_t {
    kConstant,    // value
    kName,        // name
    kList,        // args
    kTuple,       // args
    kDict,        // args: key, value, key, value
    kMember,      // args[0] . name
    kItem,        // args[0] [ args[1] ]
    kSlice,       // args[0] [ args[1] : args[2] : args[3] ], each may be null
    kCall,        // args[0] ( the others, named )
    kFilter,      // args[0] | name ( the others, named )
    kTest,        // args[0] is name ( the others )
    kNot,         // args[0]
    kMinus,       // args[0]
    kPlus,        // args[0]
    kAnd,         // args[0], args[1]
    kOr,          // args[0], args[1]
    kCompare,     // args[0] names[0] args[1] names[1] args[2] ..
    kArithmetic,  // args[0] name args[1]
    kJoin,        // args[0] ~ args[1] ~ ..
    kIf,          // args[0] if args[1] else args[2], which may be null
  };
  Kind kind = Kind::kConstant;
  unsigned line = 1;
  Value value;
  std::string name;
  std::vector<std::string> names;
  std::vector<ExpressionPtr> args;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Block = std::vector<StatementPtr>;

struct Statement {
  enum class Kind : uint8_t {
    kText,    // text
    kPrint,   // value
    kIf,      // value; body, other
    kFor,     // targets in value, if condition; body, other
    kSet,     // targets = value, or targets[0] = body
    kMacro,   // name, targets with named defaults; body
    kFilter,  // value: a filter expression whose innermost operand is the body's text
    kWith,    // targets, values; body
    kGroup,   // body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  unsigned line = 1;
  std::string text, name;
  // Of kSet: "x", or "x" and "y" in members for x.y.
  std::vector<std::string> targets, members;
  std::vector<ExpressionPtr> values;  // of kMacro: defaults, null where there is none
  ExpressionPtr value, condition;
  Block body, other;
};

}  // namespace mc::model::jinja
