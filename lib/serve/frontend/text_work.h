// Does what takes long with the text of a request: short texts at once, long ones beside the loop
// (serve/frontend/text_pool.h). A text that finds no place or no memory, or whose work throws, is
// refused, and one whose client leaves is forgotten.
//
// A model's chat template may take long with a short text. On the loop it may do so much as takes a
// few milliseconds; what wants more is done anew beside the loop.
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
  static constexpr size_t kSlow = FairQueueLimits{}.large + 1;  // what a slow template counts as
  // `id`: of the request. Also called, with status 499, for a client that left.
  using Refuse =
      std::function<void(const http::Exchange& x, const std::string& id, const ApiError& e)>;
  TextWork(io::Loop& loop, Refuse refuse) : refuse_(std::move(refuse)), pool_(loop) {}

  // Runs `work`, then `then(true)`; or `then(false)` if it was refused or the client left. `work`
  // may read the exchange's request, and `then` should hold the exchange.
  void run(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
           std::function<void()> work, std::function<void(bool done)> then);
  // The same for work that renders a template, within `bound` if that is not null. It may be called
  // twice.
  void render(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
              std::function<void(RenderingBound* bound)> work, std::function<void(bool done)> then);
  TextPool& pool() { return pool_; }

 private:
  const Refuse refuse_;
  TextPool pool_;
};

}  // namespace mc::serve
