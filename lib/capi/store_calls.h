// Calls of many items on the store: made from the caller's arrays on its thread, and carried out
// there or by a queue.
//
// Thread: any; a call is of one thread at a time.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "capi/common.h"
#include "capi/mc/store.h"
#include "capi/queue.h"

namespace mc::capi {

// How this thread's calls go: mc_call_with.
struct CallHow {
  Duration timeout{};  // 0: as the store's options say
  mc_each_progress progress = nullptr;
  void* user = nullptr;
};
CallHow& call_how();  // of this thread

// The clients of a store. A client does one round trip to the master at a time, so each call has
// one of its own: none waits for another's time.
class Clients {
 public:
  class Lease {
   public:
    Lease(Clients& of, std::unique_ptr<store::Client> client)
        : of_(&of), client_(std::move(client)) {}
    Lease(Lease&&) = default;
    ~Lease() {
      if (client_ != nullptr) of_->give(std::move(client_));
    }
    store::Client* operator->() const { return client_.get(); }
    store::Client& operator*() const { return *client_; }

   private:
    Clients* of_;
    std::unique_ptr<store::Client> client_;
  };
  Clients(std::unique_ptr<store::Client> first, Metrics& metrics)
      : metrics_(metrics), first_(std::move(first)) {}
  // One that goes as this thread's calls do, until `stopped`, which outlives the lease, is true.
  Result<Lease> take(std::atomic<bool>* stopped = nullptr);

 private:
  static constexpr size_t kIdleMax = 16;
  Result<std::unique_ptr<store::Client>> any();
  void give(std::unique_ptr<store::Client> client);
  Metrics& metrics_;
  const std::unique_ptr<store::Client> first_;  // only for another(): it never connects
  Mutex mutex_;
  std::vector<std::unique_ptr<store::Client>> idle_ MC_GUARDED_BY(mutex_);
};

class StoreCall {
 public:
  virtual ~StoreCall() = default;
  virtual mc_done run() = 0;  // all of it
  // The same, or a turn of it: Queue::Call::turn.
  virtual std::optional<mc_done> turn(Duration) { return run(); }
  virtual mc_done give_up(const Error& why) = 0;
  virtual mc_done late(const Error& why) { return give_up(why); }
  virtual Duration wait() const { return {}; }  // its time is so much longer
  void stop() { stopped_.store(true); }         // any thread: run() ends early where it can

 protected:
  std::atomic<bool> stopped_{false};
};

// Its time counts from here on: `limit`, or this thread's, or the store's.
// Errors: kBusy; kInvalid: no queue.
Result<> queue_up(const mc_store& store, mc_queue* queue, uint64_t tag,
                  std::shared_ptr<StoreCall> call, Duration limit = {});
// The same, or runs the call now when there is no queue.
Result<> carry_out(const mc_store& store, mc_queue* queue, uint64_t tag,
                   const std::shared_ptr<StoreCall>& call);

class PutCall : public StoreCall {
 public:
  // `results`: one for each place, or null.
  PutCall(mc_store& store, mc_put_result* results);
  // Returns: the group of items with these options, which may be null.
  Result<size_t> group(const mc_put_options* options);
  void add(size_t group, size_t place, store::PutItem item);
  void refuse(size_t place, const Error& why);  // this item, now
  mc_done run() override;
  mc_done give_up(const Error& why) override;
  mc_done late(const Error& why) override;

 private:
  struct Group {  // items that are put alike
    store::PutAs as;
    bool replace = false;
    std::vector<store::PutItem> items{};
    std::vector<size_t> places{};  // in the results
  };
  void run(Group& group, Time until);
  std::vector<Result<>> remove_waiting(store::Client& client, const std::vector<ObjectKey>& keys,
                                       const std::string& tenant, Time until) const;
  void set(size_t place, const Result<store::PutOutcome>& outcome, uint64_t bytes, bool replace);
  mc_store& store_;
  mc_put_result* const results_;
  std::vector<Group> groups_;
  std::map<const mc_put_options*, size_t> known_;
  mc_done done_{};
};

class GetCall : public StoreCall {
 public:
  GetCall(mc_store& store, Duration wait, mc_get_result* results);
  void add(size_t place, store::GetItem item);
  void want(uint64_t bytes) { want_ = bytes; }  // every value's exact size
  void refuse(size_t place, const Error& why);
  mc_done run() override;
  std::optional<mc_done> turn(Duration hold) override;
  mc_done give_up(const Error& why) override;
  mc_done late(const Error& why) override;
  Duration wait() const override { return wait_; }

 private:
  void set(size_t place, const Result<uint64_t>& got, bool verified);
  mc_store& store_;
  const Duration wait_;
  const Time until_;  // it looks for what is not stored
  mc_get_result* const results_;
  uint64_t want_ = 0;
  std::vector<store::GetItem> items_;
  std::vector<size_t> places_;
  mc_done done_{};
};

class ExistsCall : public StoreCall {
 public:
  ExistsCall(mc_store& store, std::vector<ObjectKey> keys, uint8_t* found)
      : store_(store), keys_(std::move(keys)), found_(found) {}
  Result<> ask();
  mc_done run() override;
  mc_done give_up(const Error& why) override;

 private:
  mc_store& store_;
  const std::vector<ObjectKey> keys_;
  uint8_t* const found_;
};

// A question whose answer is filled in by `ask`, which returns how many of its items failed.
class AskCall : public StoreCall {
 public:
  explicit AskCall(std::function<Result<uint32_t>()> ask) : ask_(std::move(ask)) {}
  mc_done run() override;
  mc_done give_up(const Error& why) override;

 private:
  const std::function<Result<uint32_t>()> ask_;
};

Result<> remove_all(mc_store& store, const std::vector<ObjectKey>& keys, bool force,
                    mc_code* codes);

Result<ObjectKey> key_of(const mc_key& key);
Result<std::vector<ObjectKey>> keys_of(const mc_key* keys, size_t count);

}  // namespace mc::capi

struct mc_store {
  mc_store(std::unique_ptr<mc_engine> e, mc::store::ClientOptions o,
           std::unique_ptr<mc::store::Client> first)
      : engine(std::move(e)), options(std::move(o)), clients(std::move(first), engine->metrics) {}
  mc::ProcessMark mark;
  const std::unique_ptr<mc_engine> engine;
  const mc::store::ClientOptions options;
  mc::capi::Clients clients;
};
