#include "serve/frontend/text_work.h"

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

}  // namespace

void TextWork::run(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
                   std::function<void()> work, std::function<void(bool done)> then) {
  // What one text makes a library throw must not end the process.
  const auto failed = std::make_shared<std::optional<ApiError>>();
  const auto guarded = [work = std::move(work), failed, id] {
    try {
      work();
    } catch (const std::bad_alloc&) {
      *failed = {503, "there is no memory for so long a text now: retry later", "", "no_capacity"};
    } catch (const std::exception& e) {
      log_error("conductor", "request %s cannot be read: %s", id.c_str(), e.what());
      *failed = {500, "this request cannot be read: the log says why", "", "internal"};
    }
  };
  const auto refused = [this, x, id, then](const ApiError& e) {
    refuse_(x, id, e);
    then(false);
  };
  const auto worked = [then, refused, failed] {
    if (!*failed) return then(true);
    refused(**failed);
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

void TextWork::render(const http::Exchange& x, const std::string& id, size_t tenant, size_t bytes,
                      std::function<void(RenderingBound* bound)> work,
                      std::function<void(bool done)> then) {
  RenderingBound bound{.most = kOnTheLoop};
  if (bytes <= kShort) {
    bool done = false;
    run(
        x, id, tenant, bytes, [&] { work(&bound); }, [&](bool worked) { done = worked; });
    if (!done || !bound.exceeded) return then(done);
    bytes = kSlow;
  }
  run(
      x, id, tenant, bytes, [work = std::move(work)] { work(nullptr); }, std::move(then));
}

}  // namespace mc::serve
