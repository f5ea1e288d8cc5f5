// Values of chat templates: Python's, as far as templates use them. Strings, lists and dicts are
// shared and never change, but namespaces.
//
// Strings are UTF-8 and count in characters. Containers are kDepthMax deep at most and hold no
// namespace, so there are no circles. Pure. Thread: values.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"

namespace mc::model::jinja {

struct Statement;
struct Scope;
class Value;

struct Undefined {
  std::shared_ptr<const std::string> what;  // how it was named; null: not known
};
struct None {};

using List = std::vector<Value>;
struct ListBox;
struct DictBox;
struct NamespaceBox;
struct LoopBox;
struct FunctionBox;

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using Items = std::shared_ptr<const ListBox>;
  using Members = std::shared_ptr<const DictBox>;
  using Space = std::shared_ptr<NamespaceBox>;
  using Loop = std::shared_ptr<LoopBox>;
  using Function = std::shared_ptr<const FunctionBox>;

  Value() : v_(Undefined{}) {}
  Value(None n) : v_(n) {}           // NOLINT
  Value(Undefined u) : v_(u) {}      // NOLINT
  Value(bool b) : v_(b) {}           // NOLINT
  Value(int64_t i) : v_(i) {}        // NOLINT
  Value(double d) : v_(d) {}         // NOLINT
  Value(std::string s);              // NOLINT
  Value(Items list) : v_(list) {}    // NOLINT
  Value(Members dict) : v_(dict) {}  // NOLINT
  Value(Space space) : v_(space) {}  // NOLINT
  Value(Loop loop) : v_(loop) {}     // NOLINT
  Value(Function f) : v_(f) {}       // NOLINT
  Value(const char*) = delete;
  static Value undefined(std::string what);
  // What the filter `safe` gives: text that is escaped for HTML when it is joined to such text by
  // +.
  static Value safe_text(std::string s);
  bool safe() const { return safe_; }

  template <class T>
  const T* as() const {
    return std::get_if<T>(&v_);
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  const std::string* text() const;  // null: not a string
  const ListBox* list() const;
  const DictBox* dict() const;
  bool is_number() const;  // true and false are numbers too
  double number() const;   // of a number
  bool truthy() const;
  unsigned depth() const;  // containers inside each other

 private:
  std::variant<Undefined, None, bool, int64_t, double, Text, Items, Members, Space, Loop, Function>
      v_;
  bool safe_ = false;
};

struct ListBox {
  enum class Kind : uint8_t { kList, kTuple, kOnce };  // kOnce: a generator, empty when read again
  List items;
  Kind kind = Kind::kList;
  unsigned depth = 1;
  mutable bool read = false;  // of kOnce
};

using Member = std::pair<Value, Value>;
struct DictBox {
  std::vector<Member> items;
  unsigned depth = 1;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

struct NamespaceBox {
  std::vector<std::pair<std::string, Value>> items;
};

struct LoopBox {
  Value::Items items;
  int64_t index0 = 0;
  int64_t depth = 1;
};

struct FunctionBox {
  enum class Kind : uint8_t { kGlobal, kMethod, kMacro };
  Kind kind = Kind::kGlobal;
  std::string name;
  Value self;                        // of a method
  const Statement* macro = nullptr;  // outlives it
  Scope* scope = nullptr;            // where the macro was defined
};

inline constexpr unsigned kDepthMax = 200;
// Errors: kInvalid when they would be too deep, or hold a namespace.
Result<Value> make_list(List items, ListBox::Kind kind = ListBox::Kind::kList);
Result<Value> make_dict(std::vector<Member> items);  // the last of equal keys counts
Value text_list(std::vector<std::string> texts);

Value from_json(const Json& json);

// As Python's == and <, with 1 == 1.0 == true, of what is no list and no dict. Nothing: these two
// have no order, or are one. runtime.h has those of all.
bool equal_atoms(const Value& a, const Value& b);
std::optional<bool> less_atoms(const Value& a, const Value& b);
const char* type_name(const Value& v);  // as Python names it

// str() and repr(). `bytes_max`: of the result. Errors: kNoSpace.
Result<std::string> to_text(const Value& v, size_t bytes_max);
Result<std::string> to_repr(const Value& v, size_t bytes_max);
std::string float_text(double d);

// As json.dumps(ensure_ascii=False). `indent` < 0: one line.
struct JsonStyle {
  int64_t indent = -1;
  bool sorted = false, ascii = false;
  std::string item = ", ", key = ": ";
};
Result<std::string> to_json_text(const Value& v, const JsonStyle& style, size_t bytes_max);

}  // namespace mc::model::jinja
