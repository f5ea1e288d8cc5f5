// A request as its client sent it, for an external engine, and what routing needs of it.
//
// Its bytes go through but for members that have to change: serve/conductor/conductor_external.cc.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/protocol/form_text.h"
#include "serve/protocol/json_text.h"

namespace mc::serve {

// Whether a POST of that path asks for an answer in tokens, as own workers and pairs give.
inline bool generates(std::string_view path) {
  return path == "/v1/completions" || path == "/v1/chat/completions" || path == "/v1/responses" ||
         path == "/v1/messages";
}

// A picture or the like in a prompt: its name in the hashes of an engine, and its tokens.
struct MediaItem {
  std::string name;
  uint64_t begin = 0, length = 0;
};

struct ProxiedRequest {
  std::string path;
  std::string target;  // the path and its query as the client sent them; empty: `path`
  std::string method = "POST";
  std::string type = "application/json";  // of the body
  JsonText body;
  std::optional<FormText> form;                              // instead of `body`
  std::vector<std::pair<std::string, std::string>> headers;  // of the client's, those that pass
  std::string model;    // as the client calls it; empty: it names none
  std::string base;     // the conductor's name for that model, or of the adapter's
  std::string adapter;  // `model`, where that is an adapter's name
  bool stream = false;
  bool may_be_empty = false;  // a good answer to it, as of a path of --pass
  // The prompt's tokens as the engine will see them; empty: not known, or the request's own.
  std::vector<int32_t> tokens;
  std::vector<MediaItem> media;   // among them, in their order
  uint64_t tokens_about = 1;      // estimated from the text, where no tokens are known
  std::vector<uint64_t> pieces;   // hashes of the text's pieces (serve/external/text_affinity.h)
  std::shared_ptr<void> counted;  // the body, among those of all clients

  // Once its answer has begun: it is sent to no other engine.
  void forget_body() {
    body = {};
    if (form) form.emplace();
    counted.reset();
  }
};

}  // namespace mc::serve
