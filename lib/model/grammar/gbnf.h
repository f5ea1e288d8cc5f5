// Reads grammars in GBNF: rules `name ::= ...` of texts, classes, groups, alternatives and
// repetitions; the one named root is the whole text. `%json {..}` stands for the JSON texts that
// this schema takes, as in llguidance's grammars. `<[N]>` is token N, one that is no text.
//
// Errors: kInvalid with the line; what refers to no rule.
// Thread: values. Pure.
#pragma once
#include <string_view>

#include "base/result.h"
#include "model/grammar/rules.h"

namespace mc::model::grammar {

Result<Rules::Rule> read_gbnf(Rules& rules, std::string_view text);

}  // namespace mc::model::grammar
