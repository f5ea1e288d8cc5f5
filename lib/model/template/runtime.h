// What filters, tests, methods and functions of templates share: their arguments, and how much a
// rendering may still do.
//
// Errors: kInvalid for arguments of a wrong type, kUnsupported for what is not done here, kNoSpace
// when the rendering went over its limits. Pure. Thread: values.
#pragma once
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/template/limits.h"
#include "model/template/value.h"

namespace mc::model::jinja {

// Entries of a dict, a namespace or a scope that are looked at in a step.
inline constexpr size_t kNamesAStep = 16;

// Counts down what a rendering may do.
class Budget {
 public:
  Budget(const TemplateLimits& limits, uint64_t input_bytes)
      : limits_(limits), bytes_(limits.bytes + 32 * input_bytes) {}
  Result<> steps(uint64_t n = 1);
  // The same for work that cannot fail by itself. False: it is too much, and steps() fails next.
  bool spend(uint64_t n) {
    steps_ += n;
    return steps_ <= limits_.steps;
  }
  // Text that is made, kept or not; of each the place that it takes, too.
  Result<Value> text(std::string made);
  Result<> bytes(uint64_t n);
  // Elements that a new list or dict has, each with the place that it takes: a step each.
  Result<> items(uint64_t n) { return steps(n); }
  Result<> members(uint64_t n) {
    return steps(n + n * n / kNamesAStep);
  }  // a dict looks for each name
  size_t bytes_left() const { return bytes_; }
  size_t output_max() const { return limits_.output; }
  unsigned depth_max() const { return limits_.depth; }

 private:
  const TemplateLimits limits_;
  uint64_t steps_ = 0, bytes_ = 0;
};

struct Arguments {
  std::vector<Value> args;
  std::vector<std::pair<std::string, Value>> named;

  // By place or by name; null: not given.
  const Value* find(size_t place, std::string_view name) const;
  // Errors: kInvalid when it is given and of another type.
  Result<std::optional<std::string>> text(size_t place, std::string_view name) const;
  Result<int64_t> integer(size_t place, std::string_view name, int64_t fallback) const;
  bool flag(size_t place, std::string_view name, bool fallback) const;
  // Fails when there are more, or other names.
  Result<> only(size_t most, std::initializer_list<std::string_view> names) const;
};

struct Runtime {
  Budget& budget;
  const std::tm& now;
};

// x.name and x[key], as the sandbox of Jinja finds them: undefined when there is none.
Value attribute(const Value& of, const std::string& name);
Value item(const Value& of, const Value& key);
Result<Value> slice(const Value& of, const Value* from, const Value* to, const Value* by,
                    Budget& budget);
// "a.b.0" from inside.
Result<Value> at_path(const Value& of, std::string_view path, Budget& budget);
uint64_t steps_to_read(const Value& v);  // all of a text, or the names of a dict or a namespace

// What a loop goes through. A generator is empty the second time.
Result<Value::Items> items_of(const Value& v, Budget& budget);
// As Python's ==. Each pair that is looked at is a step: small lists that have others twice take
// for ever. False when there are no more steps.
bool equal(const Value& a, const Value& b, Budget& budget);
// As Python's <. Errors: kInvalid when these two have no order; kNoSpace.
Result<bool> less(const Value& a, const Value& b, Budget& budget);
// `x in v`.
Result<bool> contains(const Value& v, const Value& x, Budget& budget);
Result<int64_t> to_integer(const Value& v, const char* what);

Result<Value> arithmetic(const std::string& op, const Value& a, const Value& b, Budget& budget);
// "%s".
Result<Value> formatted(const std::string& format, const Value& with, Budget& budget);
Result<bool> compare(const std::string& op, const Value& a, const Value& b, Budget& budget);

Result<Value> call_filter(const std::string& name, const Value& in, const Arguments& with,
                          Runtime& runtime);
Result<bool> call_test(const std::string& name, const Value& of, const std::vector<Value>& with,
                       Budget& budget);
Result<Value> call_method(const std::string& name, const Value& self, const Arguments& with,
                          Runtime& runtime);
Result<Value> call_global(const std::string& name, const Arguments& with, Runtime& runtime);
bool is_global(std::string_view name);
// Has Python a method of that name on such a value? `changes`: it would change the value.
bool has_method(const Value& of, std::string_view name, bool& changes);

}  // namespace mc::model::jinja
