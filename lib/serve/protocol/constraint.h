// What an answer must look like, as a request and Reserve carry it.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <string>

#include "model/grammar/compile.h"
#include "wire/codec.h"

namespace mc::serve {

struct Constraint {
  uint32_t form = 0;   // model::grammar::Form; 0: none
  std::string text{};  // up to model::grammar::kTextMax bytes
  static void fields(auto& a, auto& m) { a(m.form, m.text); }

  bool none() const { return form == 0; }
  model::grammar::Form kind() const {  // kNone for a form that this release does not know
    return form <= static_cast<uint32_t>(model::grammar::Form::kGbnf)
               ? static_cast<model::grammar::Form>(form)
               : model::grammar::Form::kNone;
  }
};

}  // namespace mc::serve
