// Bounds how long the steps of a tokenizer.json may make a text, so that a file is refused before
// any text goes through it: steps that each double a text make gigabytes of one letter.
//
// Counted is the worst case of a text of one byte; a text of n bytes becomes at most n times as
// long. Thread: a value.
#pragma once
#include <algorithm>
#include <cstddef>

#include "base/result.h"

namespace mc::model {

class Growth {
 public:
  static constexpr size_t kMost = 1024;
  // Normal forms in UTF-8: of U+0390 canonical ones make three times the bytes, of U+FDFA
  // compatible ones 11 times. Lower case makes 3 bytes of the 2 of U+023A.
  static constexpr double kCanonical = 3, kCompatible = 11, kLower = 1.5;

  // A step that may make `times` bytes of each, and add `more` to a text. Errors: kUnsupported.
  Result<> by(double times, size_t more = 0) {
    formed_ = 1;
    return grow(std::max(times, 1.0), more);
  }
  // A normal form or lower case. What is in one already grows no more, until it is rewritten.
  Result<> form(double times) {
    const double again = std::max(times / formed_, 1.0);
    formed_ = std::max(formed_, times);
    return grow(again, 0);
  }

 private:
  Result<> grow(double times, size_t more) {
    bytes_ = bytes_ * times + static_cast<double>(more);
    if (bytes_ <= static_cast<double>(kMost)) return {};
    return fail(Code::kUnsupported,
                "with the steps before it, it may make a text more than %zu times as long", kMost);
  }

  double bytes_ = 1;   // what one may become
  double formed_ = 1;  // by forms, since a step rewrote it
};

// Of each occurrence of a text that is not empty, another.
inline double growth_of(size_t what, size_t by) {
  return static_cast<double>(by) / static_cast<double>(what);
}

}  // namespace mc::model
