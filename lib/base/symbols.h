// Loads an optional shared library at run time and looks up its functions by name. A loaded library
// stays loaded unless close() is called.
//
// Thread: values.
#pragma once
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "base/result.h"

namespace mc {

class Symbols {
 public:
  // Errors: kUnsupported with the loader's text, after "no WHAT: " if `what` is given.
  static Result<Symbols> open(const char* library, const char* what = nullptr) {
    void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (loaded != nullptr) return Symbols(loaded);
    const char* const said = ::dlerror();
    const char* const why = said == nullptr ? library : said;
    return what == nullptr ? fail(Code::kUnsupported, "%s", why)
                           : fail(Code::kUnsupported, "no %s: %s", what, why);
  }
  void close() { ::dlclose(library_); }

  // Null when the library has no such function.
  template <class F>
  void optional(F& function, const char* name) const {
    void* const symbol = ::dlsym(library_, name);
    static_assert(sizeof symbol == sizeof function);
    std::memcpy(&function, &symbol, sizeof symbol);
  }
  template <class F>
  void need(F& function, const char* name) {
    optional(function, name);
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }  // the first; empty: none

 private:
  explicit Symbols(void* library) : library_(library) {}
  void* library_;
  std::string missing_;
};

}  // namespace mc
