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
  wire::Blob sent{};   // `text` on its way, where it is too long for a text of a message
  static void fields(auto& a, auto& m) { a(m.form, m.text, m.sent); }
  Constraint to_send() const {
    if (text.size() <= wire::kStringBytesMax) return *this;
    return {form, {}, {text}};
  }
  Constraint received() const { return sent.bytes.empty() ? *this : Constraint{form, sent.bytes}; }

  bool none() const { return form == 0; }
  model::grammar::Form kind() const {  // kNone for a form that this release does not know
    return form <= static_cast<uint32_t>(model::grammar::Form::kGbnf)
               ? static_cast<model::grammar::Form>(form)
               : model::grammar::Form::kNone;
  }
};

}  // namespace mc::serve
