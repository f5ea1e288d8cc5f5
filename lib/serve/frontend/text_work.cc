#include "serve/frontend/text_work.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <optional>

#include "base/log.h"
#include "base/units.h"

namespace mc::serve {
namespace {

// About 2 ms of a template, and text that is tokenized in some.
constexpr model::TemplateLimits kOnTheLoop{
    .steps = 20'000, .bytes = 256 * kKiB, .output = 2 * TextWork::kShort};

// About 20 ms of a template, and as much again for each 100 kB of a conversation.
model::TemplateLimits beside_the_loop(size_t bytes) {
  model::TemplateLimits limits;
  limits.steps = std::min<uint64_t>(limits.steps, 200'000 + 2 * uint64_t{bytes});
  return limits;
}

}  // namespace

void TextWork::run(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
                   std::function<void()> work, std::function<void(bool done)> then) {
  run_in(bytes <= kShort ? nullptr : &pool_, {x, id, tenant, bytes}, std::move(work),
         std::move(then));
}

void TextWork::run_in(TextPool* pool, const Text& text, Work work, Then then) {
  // What one text makes a library throw must not end the process.
  const auto failed = std::make_shared<std::optional<ApiError>>();
  const auto guarded = [work = std::move(work), failed, id = text.id] {
    try {
      work();
    } catch (const std::bad_alloc&) {
      *failed = {503, "there is no memory for so long a text now: retry later", "", "no_capacity"};
    } catch (const std::exception& e) {
      log_error("conductor", "request %s cannot be read: %s", id.c_str(), e.what());
      *failed = {500, "this request cannot be read: the log says why", "", "internal"};
    }
  };
  const auto refused = [this, x = text.x, id = text.id, then](const ApiError& e) {
    refuse_(x, id, e);
    then(false);
  };
  const auto worked = [then, refused, failed] {
    if (!*failed) return then(true);
    refused(**failed);
  };
  if (pool == nullptr) {
    guarded();
    return worked();
  }
  const auto job = pool->submit(text.tenant, text.bytes, guarded, worked);
  if (job)
    return text.x.on_gone([pool, job = *job, refused] {
      pool->cancel(job);
      refused({499, "the client is gone", "", "client_gone"});
    });
  const bool own = job.error().code == Code::kBusy;
  refused({own ? 429 : 503, job.error().what, "", own ? "text_queue_full" : "no_capacity"});
}

void TextWork::render(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
                      std::function<void(RenderingBound* bound)> work,
                      std::function<void(bool done)> then) {
  const Text text{x, id, tenant, bytes};
  if (bytes <= kShort) {
    RenderingBound bound{.most = kOnTheLoop};
    bool done = false;
    run_in(
        nullptr, text, [&] { work(&bound); }, [&](bool worked) { done = worked; });
    if (!done || !bound.exceeded) return then(done);
  }
  const auto bound =
      std::make_shared<RenderingBound>(RenderingBound{.most = beside_the_loop(bytes)});
  run_in(
      &pool_, text, [work, bound] { work(bound.get()); },
      [this, text, work, bound, then = std::move(then)](bool done) {
        if (!done || !bound->exceeded) return then(done);
        run_in(
            &slow_, text, [work] { work(nullptr); }, then);
      });
}

}  // namespace mc::serve
