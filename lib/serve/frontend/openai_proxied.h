// Reads requests for completions and the like: for own workers all of them, and for external
// engines what routing needs, and no more: the engine judges the rest.
//
// Thread: values.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "serve/frontend/engine_tokens.h"
#include "serve/protocol/generate.h"
#include "serve/request/openai.h"

namespace mc::serve {

// Errors: 400 for a body that is no object or a model that is no text; 404 for a model that this
// server does not have.
tl::expected<ProxiedRequest, ApiError> parse_proxied(std::string path, std::string body,
                                                     const ApiLimits& limits);

// How a request came to a path of --pass, where that is no POST of JSON.
struct PassedForm {
  std::string method, type;  // of HTTP; of the body
  std::string model;         // that its query names; empty: none
};
// The same for these: a form names its model in a field. Errors: 400 too for a form that names what
// no client may say.
tl::expected<ProxiedRequest, ApiError> parse_passed(std::string path, std::string body,
                                                    const PassedForm& form,
                                                    const ApiLimits& limits);

// The prompt's tokens by our own tokenizer and chat template; none where it is not one text, one
// list of ids or a chat of texts, or is more than the context can hold.
std::vector<int32_t> own_tokens(const ProxiedRequest& request, const ApiLimits& limits);

// A request that was read. What own workers cannot do is an error only where no external engine can
// have it.
struct ParsedRequest {
  tl::expected<CompletionRequest, ApiError> own = tl::unexpected(ApiError());
  std::shared_ptr<ProxiedRequest> proxied;  // none: there are no external engines
  std::optional<TokenQuestion> question;    // where an engine knows the tokens better than we do
};
// `engines`: there are external ones.
tl::expected<ParsedRequest, ApiError> parse_asked(const std::string& path, const std::string& body,
                                                  bool engines, const ApiLimits& limits);
// The same for the conductor, which takes the prompt out of it. `salt`: what counts instead of what
// the client asked for; `seed`: where it asked for none.
GenerateRequest generate_request(ParsedRequest& asked, std::string id, uint64_t seed,
                                 const std::function<std::string(const std::string&)>& salt);

// Of a client's headers those that an engine gets: not those of the connection, nor of a browser.
// `keyed`: our clients' keys are our own business.
std::vector<std::pair<std::string, std::string>> headers_to_pass(
    const std::map<std::string, std::string>& headers, bool keyed);

}  // namespace mc::serve
