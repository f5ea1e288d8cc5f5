#include "serve/frontend/text_work.h"

#include <memory>
#include <new>

namespace mc::serve {

void TextWork::run(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
                   std::function<void()> work, std::function<void(bool done)> then) {
  const auto no_memory = std::make_shared<bool>(false);
  const auto guarded = [work = std::move(work), no_memory] {
    try {
      work();
    } catch (const std::bad_alloc&) {
      *no_memory = true;
    }
  };
  const auto refused = [this, x, id, then](const ApiError& e) {
    refuse_(x, id, e);
    then(false);
  };
  const auto worked = [then, refused, no_memory] {
    if (!*no_memory) return then(true);
    refused({503, "there is no memory for so long a text now: retry later", "", "no_capacity"});
  };
  if (bytes <= kShort) {
    guarded();
    return worked();
  }
  const auto job = pool_.submit(tenant, bytes, guarded, worked);
  if (job)
    return x.on_gone([this, job = *job, refused] {
      pool_.cancel(job);
      refused({499, "the client is gone", "", "client_gone"});
    });
  const bool own = job.error().code == Code::kBusy;
  refused({own ? 429 : 503, job.error().what, "", own ? "text_queue_full" : "no_capacity"});
}

}  // namespace mc::serve
