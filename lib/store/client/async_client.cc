#include "store/client/async_client.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/step_trace.h"
#include "io/thread.h"

namespace mc::store {
namespace {

constexpr Duration kPostRetry = std::chrono::milliseconds(1);

Error busy(size_t waiting) {
  return {Code::kBusy, strf("%zu store calls are waiting already: retry later", waiting)};
}

}  // namespace

Result<std::unique_ptr<AsyncClient>> AsyncClient::open(io::Loop& loop, xfer::Engine& engine,
                                                       const ClientOptions& options,
                                                       Metrics& metrics, uint32_t threads,
                                                       size_t queue_max) {
  auto self = std::unique_ptr<AsyncClient>(new AsyncClient(loop, queue_max));
  for (uint32_t i = 0; i < threads; ++i) {
    MC_TRY(auto client, i == 0 ? Client::open(engine, loop.clock(), options, metrics)
                               : self->clients_[0]->another(metrics));
    self->clients_.push_back(std::move(client));
  }
  for (auto& client : self->clients_) {
    MC_TRY(auto thread, io::start_thread([raw = self.get(), c = client.get()] { raw->run(*c); }));
    self->threads_.push_back(std::move(thread));
  }
  return self;
}

AsyncClient::AsyncClient(io::Loop& loop, size_t queue_max) : loop_(loop), queue_max_(queue_max) {}

AsyncClient::~AsyncClient() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    jobs_.clear();
    hints_.clear();
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void AsyncClient::run(Client& client) {
  for (;;) {
    Job job;
    auto urgency = Urgency::kCall;
    {
      Lock lock(mutex_);
      while (!stopping_ && !take(job, urgency)) changed_.wait(mutex_);
      if (stopping_) return;
    }
    job(client);
    if (urgency == Urgency::kCall) continue;
    Lock lock(mutex_);
    --hinting_;
  }
}

bool AsyncClient::take(Job& job, Urgency& urgency) {
  const size_t hints_most = std::max<size_t>(clients_.size(), 2) - 1;
  urgency = jobs_.empty() ? Urgency::kHint : Urgency::kCall;
  auto& queue = urgency == Urgency::kCall ? jobs_ : hints_;
  if (queue.empty() || (urgency == Urgency::kHint && hinting_ == hints_most)) return false;
  hinting_ += urgency == Urgency::kHint;
  job = std::move(queue.front());
  queue.pop_front();
  return true;
}

bool AsyncClient::enqueue(Job job, Urgency urgency) {
  {
    Lock lock(mutex_);
    auto& queue = urgency == Urgency::kCall ? jobs_ : hints_;
    if (queue.size() >= queue_max_) return false;
    queue.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

// Runs on a worker thread. If the loop is overloaded it waits: no completion is lost.
void AsyncClient::answer(std::function<void()> callback) {
  const auto task = [alive = std::weak_ptr(alive_), callback = std::move(callback)] {
    if (!alive.expired()) callback();
  };
  while (!loop_.post(task)) {
    Lock lock(mutex_);
    if (stopping_) return;
    changed_.wait_for(mutex_, kPostRetry);
  }
}

template <class R>
void AsyncClient::submit(std::function<R(Client&)> call, std::function<R(const Error&)> failed,
                         Done<R> done, Urgency urgency) {
  auto shared = std::make_shared<Done<R>>(std::move(done));
  Job job = [this, call = std::move(call), shared, trace = StepTrace::current()](Client& client) {
    const StepScope scope(trace);
    answer([shared, trace, result = call(client)]() mutable {
      const StepScope again(std::move(trace));  // of what the callback asks for next
      (*shared)(std::move(result));
    });
  };
  const bool queued = enqueue(std::move(job), urgency);
  if (queued) return;
  loop_.post([alive = std::weak_ptr(alive_), shared, result = failed(busy(queue_max_))]() mutable {
    if (!alive.expired()) (*shared)(std::move(result));
  });
}

void AsyncClient::put(ObjectKey key, std::span<const std::byte> value,
                      Done<Result<PutOutcome>> done) {
  submit<Result<PutOutcome>>([key = std::move(key), value](Client& c) { return c.put(key, value); },
                             [](const Error& e) { return fail(e); }, std::move(done));
}

void AsyncClient::put(ObjectKey key, std::span<const std::byte> value, PutAs as,
                      Done<Result<PutOutcome>> done) {
  submit<Result<PutOutcome>>(
      [item = PutItem{std::move(key), {value}}, as = std::move(as)](Client& c) {
        return std::move(c.put_batch({&item, 1}, as)[0]);
      },
      [](const Error& e) { return fail(e); }, std::move(done));
}

void AsyncClient::get(ObjectKey key, std::span<std::byte> into, Done<Result<uint64_t>> done) {
  submit<Result<uint64_t>>([key = std::move(key), into](Client& c) { return c.get(key, into); },
                           [](const Error& e) { return fail(e); }, std::move(done));
}

void AsyncClient::put_batch(std::vector<PutItem> items,
                            Done<std::vector<Result<PutOutcome>>> done) {
  using R = std::vector<Result<PutOutcome>>;
  const size_t n = items.size();
  submit<R>([items = std::move(items)](Client& c) { return c.put_batch(items); },
            [n](const Error& e) { return R(n, fail(e)); }, std::move(done));
}

void AsyncClient::put_batch(std::vector<PutItem> items, PutAs as,
                            Done<std::vector<Result<PutOutcome>>> done) {
  using R = std::vector<Result<PutOutcome>>;
  const size_t n = items.size();
  submit<R>(
      [items = std::move(items), as = std::move(as)](Client& c) { return c.put_batch(items, as); },
      [n](const Error& e) { return R(n, fail(e)); }, std::move(done));
}

void AsyncClient::prefetch(std::vector<ObjectKey> keys, Done<Result<uint64_t>> done) {
  submit<Result<uint64_t>>([keys = std::move(keys)](Client& c) { return c.prefetch(keys); },
                           [](const Error& e) { return fail(e); }, std::move(done), Urgency::kHint);
}

void AsyncClient::get_batch(std::vector<GetItem> items, Done<std::vector<Result<uint64_t>>> done,
                            Duration wait) {
  using R = std::vector<Result<uint64_t>>;
  const size_t n = items.size();
  submit<R>([items = std::move(items), wait](Client& c) { return c.get_batch(items, wait); },
            [n](const Error& e) { return R(n, fail(e)); }, std::move(done));
}

void AsyncClient::exists(std::vector<ObjectKey> keys, Done<Result<std::vector<bool>>> done) {
  submit<Result<std::vector<bool>>>([keys = std::move(keys)](Client& c) { return c.exists(keys); },
                                    [](const Error& e) { return fail(e); }, std::move(done));
}

void AsyncClient::match_prefix(std::vector<ObjectKey> keys, Done<Result<uint64_t>> done) {
  submit<Result<uint64_t>>([keys = std::move(keys)](Client& c) { return c.match_prefix(keys); },
                           [](const Error& e) { return fail(e); }, std::move(done));
}

void AsyncClient::match_places(std::vector<ObjectKey> keys,
                               Done<Result<std::vector<StoredPlace>>> done) {
  submit<Result<std::vector<StoredPlace>>>(
      [keys = std::move(keys)](Client& c) -> Result<std::vector<StoredPlace>> {
        std::vector<StoredPlace> places;
        MC_TRY_(c.match_prefix(keys, &places));
        return places;
      },
      [](const Error& e) { return fail(e); }, std::move(done));
}

void AsyncClient::remove(std::vector<ObjectKey> keys, bool force,
                         Done<std::vector<Result<>>> done) {
  using R = std::vector<Result<>>;
  const size_t n = keys.size();
  submit<R>([keys = std::move(keys), force](Client& c) { return c.remove(keys, force); },
            [n](const Error& e) { return R(n, fail(e)); }, std::move(done));
}

}  // namespace mc::store
