// The interface of a shared KV block pool, as StoreConnector uses it.
// It is the KV store, unless the program supplies another pool (a benchmark compares with redis
// that way).
//
// Requires: memory named by an item belongs to the call until its callback has run.
// Thread: the loop's; callbacks run on later turns, and none after the pool was destroyed.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "base/metrics.h"
#include "io/loop.h"
#include "store/client/client.h"

namespace mc::serve {

class KvPool {
 public:
  template <class T>
  using Done = std::function<void(T)>;
  using Put = std::vector<Result<store::PutOutcome>>;
  using Got = std::vector<Result<uint64_t>>;  // bytes of each

  virtual ~KvPool() = default;
  // Counts the leading keys that the pool has.
  virtual void match_prefix(std::vector<ObjectKey> keys, Done<Result<uint64_t>> done) = 0;
  // The same, and where each of them is. By default all are in memory somewhere.
  using Places = Result<std::vector<store::StoredPlace>>;
  virtual void match_places(std::vector<ObjectKey> keys, Done<Places> done);
  virtual void get_batch(std::vector<store::GetItem> items, Done<Got> done) = 0;
  virtual void put_batch(std::vector<store::PutItem> items, store::PutAs as, Done<Put> done) = 0;
  virtual void prefetch(std::vector<ObjectKey> keys) = 0;  // a hint
};

// `calls`: the number made at a time. Errors: those of store::AsyncClient::open.
using OpenPool = std::function<Result<std::unique_ptr<KvPool>>(
    io::Loop&, xfer::Engine&, const store::ClientOptions&, Metrics&, uint32_t calls)>;
Result<std::unique_ptr<KvPool>> open_store_pool(io::Loop& loop, xfer::Engine& engine,
                                                const store::ClientOptions& options,
                                                Metrics& metrics, uint32_t calls);

}  // namespace mc::serve
