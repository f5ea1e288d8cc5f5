// Runs store client calls on worker threads and answers on an io::Loop.
//
//   AsyncClient store(loop, engine, {.master = "127.0.0.1:5550"}, metrics);
//   store.match_prefix(keys, [&](Result<uint64_t> hits) {...});
//   store.get_batch(std::move(items), [&](std::vector<Result<uint64_t>> bytes) {...});
//
// Calls return at once. A get that waits for keys occupies one thread meanwhile. Hints to prefetch
// run when no other call waits, and leave it a thread if there are two.
//
// A call, and its callback, run for the trace that its caller had (base/step_trace.h).
//
// Requires: the memory that an item names stays valid until the call's callback has run.
// Errors: kBusy when `queue_max` calls wait, or as many hints.
// Thread: the loop's. The destructor waits for the calls in progress (bounded by `timeout`) and
// drops those still queued. No callback runs after it.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "io/loop.h"
#include "store/client/client.h"

namespace mc::store {

class AsyncClient {
 public:
  template <class T>
  using Done = std::function<void(T)>;

  static Result<std::unique_ptr<AsyncClient>> open(io::Loop& loop, xfer::Engine& engine,
                                                   const ClientOptions& options, Metrics& metrics,
                                                   uint32_t threads = 2, size_t queue_max = 4096);
  ~AsyncClient();
  AsyncClient(const AsyncClient&) = delete;
  AsyncClient& operator=(const AsyncClient&) = delete;

  void put(ObjectKey key, std::span<const std::byte> value, Done<Result<PutOutcome>> done);
  void put(ObjectKey key, std::span<const std::byte> value, PutAs as,
           Done<Result<PutOutcome>> done);
  void get(ObjectKey key, std::span<std::byte> into, Done<Result<uint64_t>> done);
  void put_batch(std::vector<PutItem> items, Done<std::vector<Result<PutOutcome>>> done);
  void put_batch(std::vector<PutItem> items, PutAs as, Done<std::vector<Result<PutOutcome>>> done);
  void prefetch(std::vector<ObjectKey> keys, Done<Result<uint64_t>> done);
  void get_batch(std::vector<GetItem> items, Done<std::vector<Result<uint64_t>>> done,
                 Duration wait = {});
  void exists(std::vector<ObjectKey> keys, Done<Result<std::vector<bool>>> done);
  void match_prefix(std::vector<ObjectKey> keys, Done<Result<uint64_t>> done);
  void match_places(std::vector<ObjectKey> keys, Done<Result<std::vector<StoredPlace>>> done);
  void remove(std::vector<ObjectKey> keys, bool force, Done<std::vector<Result<>>> done);

 private:
  using Job = std::function<void(Client&)>;
  AsyncClient(io::Loop& loop, size_t queue_max);
  void run(Client& client);
  enum class Urgency : uint8_t { kCall, kHint };
  bool enqueue(Job job, Urgency urgency);
  bool take(Job& job, Urgency& urgency) MC_REQUIRES(mutex_);
  template <class R>
  void submit(std::function<R(Client&)> call, std::function<R(const Error&)> failed, Done<R> done,
              Urgency urgency = Urgency::kCall);
  void answer(std::function<void()> callback);

  io::Loop& loop_;
  const size_t queue_max_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::thread> threads_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Job> jobs_ MC_GUARDED_BY(mutex_), hints_ MC_GUARDED_BY(mutex_);
  size_t hinting_ MC_GUARDED_BY(mutex_) = 0;  // hints that run
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
};

}  // namespace mc::store
