// mc-prefill with redis in the place of the KV store: one value a block, SET and GET pipelined, as
// caches beside engines have it. For bench/pool_ttft.py; --master is redis' unix socket.
#include <hiredis/hiredis.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "cmd/worker.h"
#include "serve/connector/kv_pool.h"

namespace mc {
namespace {

// A connection and a thread that has it to itself.
class RedisPool : public serve::KvPool {
 public:
  static Result<std::unique_ptr<KvPool>> open(io::Loop& loop, const std::string& socket) {
    redisContext* redis = ::redisConnectUnix(socket.c_str());
    if (redis == nullptr || redis->err != 0)
      return fail(Code::kUnavailable, "redis at %s: %s", socket.c_str(),
                  redis == nullptr ? "no memory" : redis->errstr);
    return std::unique_ptr<KvPool>(new RedisPool(loop, redis));
  }
  ~RedisPool() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    ::redisFree(redis_);
  }

  void match_prefix(std::vector<ObjectKey> keys, Done<Result<uint64_t>> done) override {
    post([this, keys = std::move(keys), done = std::move(done)] {
      for (const ObjectKey& key : keys) append({"EXISTS", key});
      uint64_t hits = 0;
      bool whole = true;
      for (size_t i = 0; i < keys.size(); ++i) {
        const Reply reply = next();
        whole = whole && reply && reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
        hits += whole ? 1 : 0;
      }
      answer([done, hits] { done(hits); });
    });
  }
  void get_batch(std::vector<store::GetItem> items, Done<Got> done) override {
    post([this, items = std::move(items), done = std::move(done)] {
      for (const auto& item : items) append({"GET", item.key});
      Got got;
      for (const auto& item : items) got.push_back(take(item, next()));
      answer([done, got] { done(got); });
    });
  }
  void put_batch(std::vector<store::PutItem> items, store::PutAs, Done<Put> done) override {
    post([this, items = std::move(items), done = std::move(done)] {
      for (const auto& item : items) {
        std::string value;
        for (const auto part : item.parts)
          value.append(reinterpret_cast<const char*>(part.data()), part.size());
        append({"SET", item.key, value, "NX"});
      }
      Put put;
      for (size_t i = 0; i < items.size(); ++i) {
        const Reply reply = next();
        if (!reply || reply->type == REDIS_REPLY_ERROR)
          put.push_back(fail(Code::kUnavailable, "redis: SET failed"));
        else
          put.push_back(reply->type == REDIS_REPLY_NIL ? store::PutOutcome::kExisted
                                                       : store::PutOutcome::kStored);
      }
      answer([done, put] { done(put); });
    });
  }
  void prefetch(std::vector<ObjectKey>) override {}

 private:
  struct FreeReply {
    void operator()(redisReply* r) const { ::freeReplyObject(r); }
  };
  using Reply = std::unique_ptr<redisReply, FreeReply>;

  RedisPool(io::Loop& loop, redisContext* redis)
      : loop_(loop), redis_(redis), thread_([this] { run(); }) {}

  void append(std::initializer_list<std::string_view> words) {
    std::vector<const char*> at;
    std::vector<size_t> bytes;
    for (const auto word : words) {
      at.push_back(word.data());
      bytes.push_back(word.size());
    }
    ::redisAppendCommandArgv(redis_, static_cast<int>(at.size()), at.data(), bytes.data());
  }
  Reply next() {
    void* reply = nullptr;
    if (::redisGetReply(redis_, &reply) != REDIS_OK) return nullptr;
    return Reply(static_cast<redisReply*>(reply));
  }
  static Result<uint64_t> take(const store::GetItem& item, const Reply& reply) {
    if (!reply) return fail(Code::kUnavailable, "redis: GET failed");
    if (reply->type != REDIS_REPLY_STRING) return fail(Code::kNotFound, "redis: no such block");
    size_t at = 0;
    for (const auto part : item.parts) {
      const size_t n = std::min(part.size(), reply->len - at);
      std::memcpy(part.data(), reply->str + at, n);
      at += n;
    }
    return reply->len;
  }
  void post(std::function<void()> job) {
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }
  void answer(std::function<void()> callback) {
    while (!loop_.post([alive = std::weak_ptr(alive_), callback] {
      if (!alive.expired()) callback();
    }))
      std::this_thread::yield();
  }
  void run() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }

  io::Loop& loop_;
  redisContext* const redis_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::WorkerProgram options("prefill", "127.0.0.1:0", "127.0.0.1:0");
  options.pool = [](mc::io::Loop& loop, mc::xfer::Engine&, const mc::store::ClientOptions& o,
                    mc::Metrics&, uint32_t) { return mc::RedisPool::open(loop, o.master); };
  return mc::worker_main(argc, argv, "redis-worker", "a prefill worker whose pool is redis",
                         std::move(options));
}
