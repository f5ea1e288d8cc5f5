// Does what takes long with the text of a request: short texts at once, long ones beside the loop
// (serve/frontend/text_pool.h). A text that finds no place or no memory, or whose work throws, is
// refused, and one whose client leaves is forgotten.
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
  TextWork(io::Loop& loop, Refuse refuse) : refuse_(std::move(refuse)), pool_(loop) {}

  // Runs `work`, then `then(true)`; or `then(false)` if it was refused or the client left. `work`
  // may read the exchange's request, and `then` should hold the exchange.
  void run(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
           std::function<void()> work, std::function<void(bool done)> then);
  TextPool& pool() { return pool_; }

 private:
  const Refuse refuse_;
  TextPool pool_;
};

}  // namespace mc::serve
