#include "serve/connector/kv_pool.h"

#include <utility>

#include "store/client/async_client.h"

namespace mc::serve {
namespace {

class StorePool : public KvPool {
 public:
  explicit StorePool(std::unique_ptr<store::AsyncClient> client) : client_(std::move(client)) {}
  void match_prefix(std::vector<ObjectKey> keys, Done<Result<uint64_t>> done) override {
    client_->match_prefix(std::move(keys), std::move(done));
  }
  void match_places(std::vector<ObjectKey> keys, Done<Places> done) override {
    client_->match_places(std::move(keys), std::move(done));
  }
  void get_batch(std::vector<store::GetItem> items, Done<Got> done) override {
    client_->get_batch(std::move(items), std::move(done));
  }
  void put_batch(std::vector<store::PutItem> items, store::PutAs as, Done<Put> done) override {
    client_->put_batch(std::move(items), std::move(as), std::move(done));
  }
  void prefetch(std::vector<ObjectKey> keys) override {
    client_->prefetch(std::move(keys), [](const Result<uint64_t>&) {});
  }

 private:
  const std::unique_ptr<store::AsyncClient> client_;
};

}  // namespace

void KvPool::match_places(std::vector<ObjectKey> keys, Done<Places> done) {
  match_prefix(std::move(keys), [done = std::move(done)](const Result<uint64_t>& found) {
    if (!found) return done(fail(found.error()));
    done(std::vector<store::StoredPlace>(*found));
  });
}

Result<std::unique_ptr<KvPool>> open_store_pool(io::Loop& loop, xfer::Engine& engine,
                                                const store::ClientOptions& options,
                                                Metrics& metrics, uint32_t calls) {
  MC_TRY(auto client, store::AsyncClient::open(loop, engine, options, metrics, calls));
  return std::make_unique<StorePool>(std::move(client));
}

}  // namespace mc::serve
