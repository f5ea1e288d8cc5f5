#include "serve/conductor/pool_view.h"

#include <optional>
#include <utility>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"

namespace mc::serve {
namespace {

// Workers that hold whole blocks name them so; others' parts of blocks have other ranks.
std::string keys_of(const std::string& model) {
  return model + "@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@";
}

// The first 8 bytes of the hash that ends the key.
std::optional<uint64_t> tag_of(const ObjectKey& key, size_t prefix) {
  const auto hash = parse_block_hash(std::string_view(key).substr(prefix));
  return hash ? std::optional(hash->tag()) : std::nullopt;
}

sched::PoolTier tier_of(store::EventTier tier) {
  switch (tier) {
    case store::EventTier::kMemory: return sched::PoolTier::kMemory;
    case store::EventTier::kDisk: return sched::PoolTier::kDisk;
    case store::EventTier::kUntold: break;
  }
  return sched::PoolTier::kNone;
}

Counter& predicted_from(Metrics& metrics, const char* tier) {
  return metrics.counter("mc_conductor_pool_predicted_tokens_total",
                         "prompt tokens that decisions expected from the pool", {{"tier", tier}});
}

}  // namespace

Result<std::unique_ptr<PoolView>> PoolView::open(io::Loop& loop, const std::string& masters,
                                                 const std::string& model, uint64_t blocks_max,
                                                 Duration patience, Metrics& metrics) {
  auto self = std::unique_ptr<PoolView>(new PoolView(keys_of(model), blocks_max, metrics));
  if (masters.empty()) return self;
  store::ObjectFeedOptions options;
  options.prefix = self->prefix_;
  options.objects_max = 4 * blocks_max;
  options.lost_after = patience;
  options.answer_within = patience * 2 / 3;
  options.pause = patience / 3;
  MC_TRY(self->follower_, store::ObjectFollower::open(loop, masters, options));
  PoolView* const p = self.get();
  store::ObjectFeed& feed = p->follower_->feed();
  feed.on_object = [p](const ObjectKey& key, store::EventTier tier, std::string_view node) {
    p->object(key, tier, node);
  };
  feed.on_begin = [p] {
    p->retire(p->fresh_);
    p->begun_ = true;
  };
  feed.on_whole = [p, masters] {
    p->begun_ = false;
    if (p->view_ == nullptr)
      log_info("conductor", "the pool of %s: %zu blocks of this model", escape(masters).c_str(),
               p->fresh_->blocks());
    p->warned_ = false;
    std::swap(p->view_, p->fresh_);
    if (p->fresh_ == nullptr) p->fresh_ = p->empty_index();
    p->retire(p->fresh_);
  };
  feed.on_drop = [p, masters] {
    p->begun_ = false;
    if (!std::exchange(p->warned_, true))
      log_warn("conductor", "the pool of %s is not known, and decisions go on without: %s",
               escape(masters).c_str(), p->follower_->feed().trouble().c_str());
    if (p->view_ != nullptr) p->retired_.push_back(std::exchange(p->view_, nullptr));
    p->retire(p->fresh_);
  };
  p->follower_->start();
  return self;
}

PoolView::PoolView(std::string prefix, uint64_t blocks_max, Metrics& metrics)
    : prefix_(std::move(prefix)),
      blocks_max_(blocks_max),
      metrics_(metrics),
      predicted_{predicted_from(metrics, "memory"), predicted_from(metrics, "disk")},
      came_(metrics.counter("mc_conductor_pool_tokens_total",
                            "prompt tokens that came from the pool")),
      fresh_(empty_index()) {}

std::unique_ptr<sched::PoolIndex> PoolView::empty_index() const {
  return std::make_unique<sched::PoolIndex>(blocks_max_);
}

// Puts an empty one in its place.
void PoolView::retire(std::unique_ptr<sched::PoolIndex>& index) {
  if (index->blocks() == 0 && index->refused() == 0) return;
  retired_.push_back(std::exchange(index, empty_index()));
}

void PoolView::object(const ObjectKey& key, store::EventTier tier, std::string_view node) {
  const auto tag = tag_of(key, prefix_.size());
  if (!tag) return;
  (begun_ || view_ == nullptr ? fresh_ : view_)->put(*tag, {tier_of(tier), number_of(node)});
}

// 0: of none, or one more than there are numbers.
uint16_t PoolView::number_of(std::string_view node) {
  if (node.empty()) return 0;
  if (const auto it = numbers_.find(node); it != numbers_.end()) return it->second;
  if (nodes_.size() == kNodesMax) return 0;
  nodes_.emplace_back(node);
  return numbers_[nodes_.back()] = static_cast<uint16_t>(nodes_.size());
}

Json PoolView::rates(const sched::Cost& cost) const {
  Json all = Json::array();
  const auto add = [&all](const std::string& node, bool disk, double bytes_per_s) {
    const char* const tier = disk ? "disk" : "memory";
    all.push_back({{"name", node}, {"tier", tier}, {"bytes_per_s", bytes_per_s}});
  };
  for (const bool disk : {false, true}) add("", disk, cost.pool_bytes_per_s(disk));
  for (const auto& [place, rate] : cost.pool_holders().all())
    add(nodes_[place.node - 1u], place.tier == sched::PoolTier::kDisk, 1 / rate.slow);
  return all;
}

void PoolView::tick() {
  if (!retired_.empty() && !retired_.front()->release_some()) retired_.pop_front();
}

void PoolView::expected(uint64_t memory_tokens, uint64_t disk_tokens) {
  predicted_.memory.add(memory_tokens);
  predicted_.disk.add(disk_tokens);
}

void PoolView::came(uint64_t tokens) { came_.add(tokens); }

Json PoolView::state() const {
  if (!followed()) return nullptr;
  const store::ObjectFeed& feed = follower_->feed();
  return {{"blocks", index().blocks()}, {"whole", feed.whole()},
          {"epoch", feed.epoch()},      {"snapshots", feed.snapshots()},
          {"faults", feed.faults()},    {"refused_blocks", index().refused()},
          {"trouble", feed.trouble()}};
}

void PoolView::update_metrics() {
  metrics_.gauge("mc_conductor_pool_blocks", "blocks of this model that the pool has")
      .set(static_cast<double>(index().blocks()));
  if (!followed()) return;
  const auto raise = [&](const char* name, const char* help, uint64_t total) {
    Counter& counter = metrics_.counter(name, help);
    counter.add(total - std::min(total, counter.value()));
  };
  const store::ObjectFeed& feed = follower_->feed();
  raise("mc_conductor_pool_snapshots_total", "snapshots of the pool taken", feed.snapshots());
  raise("mc_conductor_pool_faults_total", "answers of mc-master that could not be true",
        feed.faults());
}

}  // namespace mc::serve
