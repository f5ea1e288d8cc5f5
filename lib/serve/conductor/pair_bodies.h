// What a request says to each half of a pair of external engines.
//
// Thread: values. Pure. Source: the examples of proxies that vLLM and SGLang publish.
#pragma once
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "serve/external/pairs.h"
#include "serve/protocol/json_text.h"
#include "serve/protocol/proxied_request.h"

namespace mc::serve {

// Prompts of a request: a list of texts or of lists of ids has several.
size_t prompts_of(const JsonText& body);
// Whether it asks for one answer to one prompt.
bool one_answer(const JsonText& body);
// Who of a pair a request is for.
enum class PairUse : uint8_t { kNone, kBoth, kSecondAlone };
// A pair answers a POST of JSON that asks for tokens, of few prompts. Several answers or prompts
// are the second half's alone where KV is handed over for one: a concurrent transfer's name stands
// for that, and so do blocks that a sequential first half names (`names_blocks`). The first would
// compute them for nobody, and hold their blocks until its lease ends.
PairUse use_of(PairKind kind, const ProxiedRequest& request, bool names_blocks);

// No client says where KV comes from: these go out of its body.
void drop_pair_members(std::vector<JsonText::Change>& changes);
// What the body says to a half, after drop_pair_members(). The first computes one token of one
// answer, but for SGLang, whose halves get the same. `request`: as the client sent it.
void change_for_first(PairKind kind, const PairMeeting& meeting, const PairFirst& first,
                      const ProxiedRequest& request, std::vector<JsonText::Change>& changes);
// `answered`: by the first half of a sequential pair. Blocks that it names are those of one prompt,
// and are freed once they were read (vLLM's NixlConnector): several answers or prompts do not get
// them, and the second half computes these.
void change_for_second(PairKind kind, const PairMeeting& meeting, const PairFirst& first,
                       const ProxiedRequest& request, const std::string& answered,
                       std::vector<JsonText::Change>& changes);

// What the first half of a sequential pair hands over. Errors: kUnsupported: nothing.
Result<Json> handed_over(const Json& answer);
// Whether that is blocks by name: others find KV by the prompt's tokens.
bool names_blocks(const Json& handed);

}  // namespace mc::serve
