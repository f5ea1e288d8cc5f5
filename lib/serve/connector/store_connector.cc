#include "serve/connector/store_connector.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mc::serve {
namespace {
constexpr size_t kBlocksPerPut = 32;
constexpr uint32_t kLayerGroups = 8;  // reads of a prefix, layer by layer
constexpr size_t kCallsMax = 2;       // puts at a time
constexpr size_t kQueueMax = 16384;   // blocks; pinned ones cannot be reused
// A request waits kPatience for the pool's directory. After a failure the pool is not used for
// kRest.
constexpr Duration kPatience = std::chrono::seconds(1);
constexpr Duration kRest = std::chrono::seconds(1);
constexpr Duration kLoopLate = std::chrono::milliseconds(200);
}  // namespace

std::string pool_key(const std::string& model, const BlockHash& hash, uint32_t pp_rank) {
  return model + "@pcp0@dcp0@head_or_tp_rank:0@pp_rank:" + std::to_string(pp_rank) + "@" +
         hash.hex();
}

StoreConnector::StoreConnector(io::Loop& loop, std::string model, BlockManager& blocks,
                               Metrics& metrics, const KvShape& shape, uint32_t pp_rank)
    : loop_(loop),
      model_(std::move(model)),
      blocks_(blocks),
      shape_(shape),
      pp_rank_(pp_rank),
      fetched_(metrics.counter("mc_engine_pool_blocks_fetched_total", "KV blocks from the pool")),
      stored_(metrics.counter("mc_engine_pool_blocks_stored_total", "KV blocks put in the pool")),
      existed_(metrics.counter("mc_engine_pool_blocks_existed_total",
                               "blocks that the pool had already")),
      dropped_(metrics.counter("mc_engine_pool_blocks_dropped_total",
                               "blocks not published because the queue or the pool was full")),
      failed_(metrics.counter("mc_engine_pool_failures_total", "calls to the pool that failed")) {}

StoreConnector::~StoreConnector() = default;

Result<std::unique_ptr<StoreConnector>> StoreConnector::open(io::Loop& loop, xfer::Engine& engine,
                                                             const store::ClientOptions& options,
                                                             std::string model,
                                                             BlockManager& blocks, Metrics& metrics,
                                                             const KvShape& shape, uint32_t pp_rank,
                                                             const OpenPool& open_pool) {
  auto self = std::unique_ptr<StoreConnector>(
      new StoreConnector(loop, std::move(model), blocks, metrics, shape, pp_rank));
  // One thread more than puts need: a fetch never waits for puts.
  MC_TRY(self->store_, open_pool(loop, engine, options, metrics, kCallsMax + 1));
  return self;
}

// Tracks whether the pool answers, and logs when that changes.
void StoreConnector::note(const Error* error) {
  if (error != nullptr) {
    failed_.add();
    const bool gone = error->code == Code::kUnavailable || error->code == Code::kTimeout;
    if (!gone || last_error_.empty()) log_warn("serve", "KV pool: %s", error->what.c_str());
    if (!gone) return;
    last_error_ = error->what;
    rest_until_ = loop_.clock().now() + kRest;
  } else if (!last_error_.empty()) {
    log_info("serve", "KV pool: it answers again");
    last_error_.clear();
    rest_until_ = {};
  }
}

void StoreConnector::match(const std::vector<BlockHash>& hashes, std::function<void(size_t)> done) {
  ask<uint64_t>(
      hashes, {}, [this](auto keys, auto told) { store_->match_prefix(std::move(keys), told); },
      [done = std::move(done)](uint64_t found) { done(found); });
}

// An answer that does not come in time, or is an error, is as one that the pool has none.
template <class Answer>
void StoreConnector::ask(const std::vector<BlockHash>& hashes, const std::optional<StagePart>& part,
                         const Ask<Answer>& pool, std::function<void(Answer)> done) {
  struct Asked {
    std::function<void(Answer)> done;
    bool over = false;  // answered, or timed out
    io::Loop::Handle timer = 0;
  };
  auto asked = std::make_shared<Asked>(Asked{std::move(done)});
  const Time since = loop_.clock().now();
  const bool resting = since < rest_until_;
  const auto give_up = [asked, alive = std::weak_ptr(alive_)] {
    if (alive.expired() || std::exchange(asked->over, true)) return;
    asked->done({});
  };
  // Where the loop itself stood still, the answer may lie unread: as much time again, once.
  const auto over = [this, asked, give_up, due = since + kPatience, alive = std::weak_ptr(alive_)] {
    if (alive.expired() || asked->over) return;
    const Duration late = loop_.clock().now() - due;
    if (late <= kLoopLate) return give_up();
    asked->timer = loop_.after(std::min(late, kPatience), give_up);
  };
  if (resting) {
    asked->timer = loop_.after({}, give_up);
    return;
  }
  asked->timer = loop_.after(kPatience, over);
  std::vector<ObjectKey> keys;
  for (const BlockHash& hash : hashes) keys.push_back(key(hash, part));
  pool(std::move(keys), [this, asked, since](const Result<Answer>& found) {
    note(found ? nullptr : &found.error());
    if (std::exchange(asked->over, true)) return;
    loop_.cancel(asked->timer);
    if (!found) return asked->done({});
    rates_.learn_round_trip(to_seconds(loop_.clock().now() - since));
    asked->done(*found);
  });
}

void StoreConnector::fetch(Wanted wanted, std::function<void(size_t)> done) {
  auto shared = std::make_shared<Wanted>(std::move(wanted));
  ask<Found>(
      shared->hashes, shared->part,
      [this](auto keys, auto told) { store_->match_places(std::move(keys), told); },
      [this, shared, done = std::move(done)](Found found) {
        if (found.size() > shared->hashes.size()) found.resize(shared->hashes.size());
        rates_.advance(loop_.clock().now());
        if (!found.empty() && shared->choose) {
          const size_t chosen = shared->choose(found);
          if (chosen < found.size()) found.resize(chosen);
        }
        if (found.empty()) return done(0);
        if (shared->layers_arrived) return get_layers(shared, std::move(found), 0, {}, done);
        get(shared, std::move(found), done);
      });
}

void StoreConnector::get(const std::shared_ptr<Wanted>& wanted, Found chosen,
                         std::function<void(size_t)> done) {
  std::vector<store::GetItem> items;
  using Memory = std::vector<std::span<std::byte>>;
  for (size_t i = 0; i < chosen.size(); ++i)
    items.push_back(
        {key(wanted->hashes[i], wanted->part),
         wanted->part ? Memory{wanted->memory[i]} : plain_parts(wanted->memory[i], shape_)});
  const Time since = loop_.clock().now();
  store_->get_batch(std::move(items),
                    [this, wanted, since, chosen = std::move(chosen),
                     done = std::move(done)](const std::vector<Result<uint64_t>>& got) {
                      size_t whole = 0;
                      PoolRates::Bytes bytes{};  // of all that came, behind a gap too
                      const Error* error = nullptr;
                      for (size_t i = 0; i < got.size(); ++i) {
                        // A block evicted since the match is no failure of the pool.
                        if (!got[i] && got[i].error().code != Code::kNotFound && error == nullptr)
                          error = &got[i].error();
                        if (!got[i] || *got[i] != wanted->memory[i].size())
                          continue;  // none, or of another layout
                        bytes[chosen[i]] += *got[i];
                        if (whole == i) ++whole;
                      }
                      note(error);
                      // What a node that failed took is not the others' time.
                      if (error == nullptr)
                        rates_.learn(bytes, to_seconds(loop_.clock().now() - since));
                      fetched_.add(whole);
                      done(whole);
                    });
}

// Layers from `first` on, a group at a time. A block that lost some, or is not what was put, is
// none.
void StoreConnector::get_layers(const std::shared_ptr<Wanted>& wanted, Found chosen, uint32_t first,
                                Duration took, std::function<void(size_t)> done) {
  const uint32_t last = std::min(
      shape_.layers, first + std::max(1u, (shape_.layers + kLayerGroups - 1) / kLayerGroups));
  const uint64_t layer_bytes = shape_.block_bytes / shape_.layers;
  const uint64_t begin = first * layer_bytes, end = last * layer_bytes;
  std::vector<store::GetItem> items;
  for (size_t i = 0; i < chosen.size(); ++i) {
    store::GetItem item{key(wanted->hashes[i], wanted->part), {}, {}};
    uint64_t at = 0;  // in the value
    for (const std::span<std::byte> part : plain_parts(wanted->memory[i], shape_)) {
      const uint64_t from = std::max(at, begin), to = std::min(at + part.size(), end);
      if (from < to) item.ranges.push_back({from, part.subspan(from - at, to - from)});
      at += part.size();
    }
    item.completes = last == shape_.layers;
    if (item.completes) item.parts = plain_parts(wanted->memory[i], shape_);
    items.push_back(std::move(item));
  }
  const Time since = loop_.clock().now();
  store_->get_batch(std::move(items),
                    [this, wanted, chosen = std::move(chosen), last, took, since,
                     done = std::move(done)](const std::vector<Result<uint64_t>>& got) {
                      const Duration all = took + (loop_.clock().now() - since);
                      for (const Result<uint64_t>& g : got) {
                        if (g) continue;
                        // A block evicted since the match is no failure of the pool.
                        note(g.error().code == Code::kNotFound ? nullptr : &g.error());
                        return done(0);
                      }
                      note(nullptr);
                      wanted->layers_arrived(last);
                      if (last < shape_.layers) return get_layers(wanted, chosen, last, all, done);
                      rates_.learn(PoolRates::of(chosen, shape_.block_bytes), to_seconds(all));
                      fetched_.add(chosen.size());
                      done(chosen.size());
                    });
}

void StoreConnector::prefetch(const std::vector<BlockHash>& hashes) {
  if (loop_.clock().now() < rest_until_) return;
  std::vector<ObjectKey> keys;
  for (const BlockHash& hash : hashes) keys.push_back(key(hash));
  store_->prefetch(std::move(keys));
}

void StoreConnector::publish(const BlockHash& hash, BlockId block,
                             std::span<const std::byte> memory, PutDone done, store::PutConfig as) {
  if (queue_.size() >= kQueueMax || loop_.clock().now() < rest_until_) return give_up(done);
  blocks_.pin(block);
  queue_.push_back({hash, block, memory, std::move(done), std::move(as), StepTrace::current()});
  put_next();
}

void StoreConnector::give_up(const PutDone& done) {
  dropped_.add();
  if (done == nullptr) return;
  loop_.at(loop_.clock().now(), [done, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) done(false);
  });
}

bool StoreConnector::shed() {
  const size_t n = queue_.size();
  for (const Put& put : queue_) {
    blocks_.unpin(put.block);
    give_up(put.done);
  }
  queue_.clear();
  return n > 0;
}

void StoreConnector::put_next() {
  while (!queue_.empty() && calls_ < kCallsMax) {
    std::vector<Put> puts;
    std::vector<store::PutItem> items;
    const store::PutConfig as = queue_.front().as;
    const StepScope scope(queue_.front().trace);
    const auto alike = [&](const Put& p) {
      return p.as.cls == as.cls && p.as.ttl == as.ttl && p.trace == StepTrace::current();
    };
    while (!queue_.empty() && puts.size() < kBlocksPerPut && alike(queue_.front())) {
      puts.push_back(queue_.front());
      queue_.pop_front();
      items.push_back({key(puts.back().hash), plain_parts(puts.back().memory, shape_)});
    }
    ++calls_;
    putting_ += puts.size();
    store_->put_batch(std::move(items), {.tenant = {}, .config = as},
                      [this, puts](const std::vector<Result<store::PutOutcome>>& ends) {
                        --calls_;
                        putting_ -= puts.size();
                        put_done(puts, ends);
                        put_next();
                      });
  }
}

void StoreConnector::put_done(const std::vector<Put>& puts,
                              const std::vector<Result<store::PutOutcome>>& ends) {
  const Error* error = nullptr;
  for (const auto& end : ends) {
    if (end)
      (*end == store::PutOutcome::kStored ? stored_ : existed_).add();
    else if (end.error().code == Code::kNoSpace)
      dropped_.add();
    else if (end.error().code != Code::kBusy)  // another worker writes the same block
      error = &end.error();
  }
  note(error);
  for (size_t i = 0; i < puts.size(); ++i) {
    blocks_.unpin(puts[i].block);
    // kBusy: another worker is writing the same block, so the pool will have it.
    if (puts[i].done) puts[i].done(ends[i] || ends[i].error().code == Code::kBusy);
  }
}

}  // namespace mc::serve
