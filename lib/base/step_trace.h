// The steps of the work that a thread does for a traced request.
//
// A scope says which trace the thread works for. Code below it, which knows of no request, names
// its steps: calls to other processes, transfers of bytes. A step holds those begun within it.
// Without a trace a step costs one look at a variable of the thread.
//
//   const StepScope scope(trace);  // nullptr: no trace
//   ...
//   Step step("get-replicas", StepKind::kCall);
//   auto reply = call(message, step.wire());
//   if (step && !reply) step.facts.error = reply.error().what;
//
// Thread: StepTrace any, one call of end(); the others the one that made them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace mc {

enum class StepKind : uint8_t { kWork, kCall, kAnswer };  // kAnswer: of another process's call

struct StepFacts {
  std::string error;  // "": it went well
  std::string where;  // nodes or an address; "": here
  uint64_t items = 0, bytes = 0;
};

// A step that is under way, or the request itself.
class StepTrace : public std::enable_shared_from_this<StepTrace> {
 public:
  StepTrace() = default;
  virtual ~StepTrace() = default;
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  virtual std::shared_ptr<StepTrace> begin(StepKind kind) = 0;  // a step of this one
  virtual std::string wire() const = 0;  // goes along with a call: Envelope::trace_id
  virtual void end(const char* name, const StepFacts& facts) = 0;

  // That of the calling thread; nullptr: it has none.
  static std::shared_ptr<StepTrace> current() {
    return current_ == nullptr ? nullptr : current_->shared_from_this();
  }

 private:
  friend class StepScope;
  friend class Step;
  static inline constinit thread_local StepTrace* current_ = nullptr;
};

class StepScope {
 public:
  explicit StepScope(std::shared_ptr<StepTrace> trace)
      : trace_(std::move(trace)), before_(std::exchange(StepTrace::current_, trace_.get())) {}
  ~StepScope() { StepTrace::current_ = before_; }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  const std::shared_ptr<StepTrace> trace_;
  StepTrace* const before_;
};

class Step {
 public:
  // `name` outlives it.
  explicit Step(const char* name, StepKind kind = StepKind::kWork)
      : name_(name),
        before_(StepTrace::current_),
        own_(before_ == nullptr ? nullptr : before_->begin(kind)) {
    if (own_ != nullptr) StepTrace::current_ = own_.get();
  }
  ~Step() {
    if (own_ == nullptr) return;
    StepTrace::current_ = before_;
    own_->end(name_, facts);
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  explicit operator bool() const { return own_ != nullptr; }  // someone will read the facts
  std::string wire() const { return own_ == nullptr ? std::string() : own_->wire(); }
  StepFacts facts;

 private:
  const char* const name_;
  StepTrace* const before_;
  const std::shared_ptr<StepTrace> own_;
};

}  // namespace mc
