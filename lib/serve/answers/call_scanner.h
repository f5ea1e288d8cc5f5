// Reads one call of a tool, a JSON object {"name":, "arguments": or "parameters":}, byte by byte.
//
// Members of other names are passed over. Arguments may be an object, a string that is one as JSON,
// null or missing. Calls in other forms: xml_call_scanner.h. Pure. Thread: values.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace mc::serve {

// One call, in whatever form.
class CallReader {
 public:
  enum class State : uint8_t { kGoing, kNo, kDone };
  using Names = std::set<std::string, std::less<>>;

  virtual ~CallReader() = default;
  // kNo: this byte cannot be of a call. Nothing may follow kNo and kDone.
  virtual State push(char c) = 0;
  // The text has ended within the call: what was held back of its arguments is among them.
  virtual void end() {}
  // After kNo of a call that counts: what was read behind its arguments, but for what came while
  // these were done.
  virtual std::string take_rest() { return {}; }
  bool counts() const { return counts_; }  // the name is known, and the arguments begin
  const std::string& name() const { return name_; }
  // What came of the arguments since it was asked last, as JSON text.
  std::string take_arguments() { return std::exchange(fresh_, {}); }
  bool arguments_done() const { return arguments_done_; }

 protected:
  bool counts_ = false, arguments_done_ = false;
  std::string name_, fresh_;
};

class CallScanner final : public CallReader {
 public:
  // Begins with the object's `{`. `name` not empty: the object is that tool's arguments.
  void begin(const Names& names, std::string_view name = {});
  State push(char c) override;

 private:
  enum class At : uint8_t {
    kOpen,
    kKey,
    kInKey,
    kColon,
    kValue,
    kNested,
    kString,
    kLiteral,
    kAfter
  };
  State value_begins(char c);
  State value_ends();
  State name_ends();
  State arguments_end();
  State finish();
  bool of_arguments() const { return key_ == "arguments" || key_ == "parameters"; }

  const Names* names_ = nullptr;
  At at_ = At::kOpen;
  bool only_arguments_ = false, streams_ = false;
  bool in_string_ = false, escaped_ = false;
  uint64_t depth_ = 0;  // of what is nested in a value
  std::string key_, value_;
  std::string waiting_;  // arguments that came before the name
};

}  // namespace mc::serve
