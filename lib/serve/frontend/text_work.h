// Does what takes long with the text of a request: short texts at once, long ones beside the loop
// (serve/frontend/text_pool.h). A text that finds no place or no memory, or whose work throws, is
// refused, and one whose client leaves is forgotten.
//
// A model's chat template may take long with a short text. On the loop it may do so much as takes a
// few milliseconds. What wants more is done anew on the threads of texts, within a bound too, and
// what wants still more on a thread of its own: other texts do not wait for it.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <string>
#include <utility>

#include "http/server.h"
#include "serve/frontend/text_pool.h"
#include "serve/request/openai.h"

namespace mc::serve {

class TextWork {
 public:
  static constexpr size_t kShort = 8192;  // bytes: some milliseconds to tokenize
  // `id`: of the request. Also called, with status 499, for a client that left.
  using Refuse =
      std::function<void(const http::Exchange& x, const std::string& id, const ApiError& e)>;
  TextWork(io::Loop& loop, Refuse refuse)
      : refuse_(std::move(refuse)), pool_(loop), slow_(loop, {}, 1) {}

  // Runs `work`, then `then(true)`; or `then(false)` if it was refused or the client left. `work`
  // may read the exchange's request, and `then` should hold the exchange.
  void run(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
           std::function<void()> work, std::function<void(bool done)> then);
  // The same for work that renders a template, within `bound` if that is not null. It may be called
  // three times.
  void render(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
              std::function<void(RenderingBound* bound)> work, std::function<void(bool done)> then);
  TextPool& pool() { return pool_; }

 private:
  using Work = std::function<void()>;
  using Then = std::function<void(bool done)>;
  // A text: its exchange, the request's name, its tenant and its length.
  struct Text {
    http::Exchange x;
    std::string id;
    size_t tenant, bytes;
  };
  // Runs it at once, without a pool, or there.
  void run_in(TextPool* pool, const Text& text, Work work, Then then);

  const Refuse refuse_;
  TextPool pool_;
  TextPool slow_;  // one thread, for slow templates
};

}  // namespace mc::serve
