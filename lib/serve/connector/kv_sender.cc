#include "serve/connector/kv_sender.h"

#include <algorithm>
#include <utility>

namespace mc::serve {
namespace {

class PushSender final : public KvSender {
 public:
  PushSender(SendGranularity granularity, SenderParts parts)
      : granularity_(granularity), parts_(std::move(parts)) {}
  SendGranularity granularity() const override { return granularity_; }
  void send(const std::shared_ptr<KvRoute>& route, const KvRange& range, Done done) override {
    parts_.transfer.run(plan_between(xfer::Op::kWrite, route->blocks, route->peer, route->ranks,
                                     range, parts_.shape),
                        std::move(done));
  }

 private:
  const SendGranularity granularity_;
  const SenderParts parts_;
};

class PullSender final : public KvSender {
 public:
  PullSender(SendGranularity granularity, SenderParts parts)
      : granularity_(granularity), parts_(std::move(parts)) {}
  SendGranularity granularity() const override { return granularity_; }
  void send(const std::shared_ptr<KvRoute>& route, const KvRange& range, Done done) override {
    rpc::Client* const decode = parts_.client(route->decode);
    if (decode == nullptr) {
      (void)parts_.loop.post(
          [done = std::move(done)] { done(fail(Code::kInvalid, "the address is malformed")); });
      return;
    }
    KvOffer offer;
    offer.request = route->request;
    offer.guard = route->peer.guard.expected;
    offer.from = parts_.engine.describe();
    if (std::exchange(route->offered, true)) offer.from.buffers.clear();
    for (size_t i = range.first; i < range.last; ++i)
      offer.offsets.push_back(parts_.memory.offset() +
                              static_cast<uint64_t>(route->blocks[i] - parts_.memory.data()) -
                              route->shift);  // `at` comes on top
    offer.first = range.first;
    offer.at = range.at + route->shift;
    offer.bytes = range.bytes;
    offer.ranks = parts_.shape.ranks;
    decode->call(offer, range.deadline - parts_.loop.clock().now(),
                 [done = std::move(done)](const Result<rpc::Empty>& read) {
                   done(read ? Result<>() : fail(read.error()));
                 });
  }

 private:
  const SendGranularity granularity_;
  const SenderParts parts_;
};

class PoolSender final : public KvSender {
 public:
  explicit PoolSender(SenderParts parts) : parts_(std::move(parts)) {}
  SendGranularity granularity() const override { return SendGranularity::kChunk; }
  void send(const std::shared_ptr<KvRoute>& route, const KvRange& range, Done done) override {
    struct Puts {
      std::shared_ptr<KvRoute> route;
      KvRange range;
      Duration patience{};  // of a push, from its start
      Done done;
      size_t left = 0;
      std::vector<size_t> refused;
    };
    const Duration patience = range.deadline - parts_.loop.clock().now();
    auto puts = std::make_shared<Puts>(Puts{route, range, patience, std::move(done), 0, {}});
    puts->left = range.last - range.first;
    for (size_t i = range.first; i < range.last; ++i)
      parts_.pool->publish(route->keys[i], route->ids[i],
                           {route->blocks[i], parts_.shape.block_bytes},
                           [this, puts, i](bool there) {
                             if (there)
                               puts->route->pooled.push_back(static_cast<uint32_t>(i));
                             else
                               puts->refused.push_back(i);
                             if (--puts->left > 0) return;
                             puts->range.deadline = parts_.loop.clock().now() + puts->patience;
                             push(*puts->route, puts->range, puts->refused, puts->done);
                           });
  }

 private:
  void push(const KvRoute& route, KvRange range, const std::vector<size_t>& blocks,
            const Done& done) {
    if (blocks.empty()) return done({});
    std::vector<xfer::Request> requests;
    for (const size_t i : blocks) {
      range.first = i;
      range.last = i + 1;
      const auto one = plan_between(xfer::Op::kWrite, route.blocks, route.peer, route.ranks, range,
                                    parts_.shape);
      requests.insert(requests.end(), one.begin(), one.end());
    }
    parts_.transfer.run(requests, done);
  }

  const SenderParts parts_;
};

}  // namespace

Result<Connector> connector_named(const std::string& name) {
  if (name == "push") return Connector::kPush;
  if (name == "pull") return Connector::kPull;
  if (name == "pool") return Connector::kPool;
  if (name == "multi") return Connector::kMulti;
  return fail(Code::kInvalid, "no connector '%s': take push, pull, pool or multi",
              escape(name).c_str());
}

Result<std::unique_ptr<KvSender>> make_sender(Connector connector, bool layerwise,
                                              SenderParts parts) {
  const SendGranularity granularity =
      layerwise ? SendGranularity::kLayer : SendGranularity::kPrompt;
  switch (connector) {
    case Connector::kPush:
    case Connector::kMulti: return std::make_unique<PushSender>(granularity, std::move(parts));
    case Connector::kPull: return std::make_unique<PullSender>(granularity, std::move(parts));
    case Connector::kPool: break;
  }
  if (parts.pool == nullptr)
    return fail(Code::kInvalid,
                "--connector pool needs a KV store: give --master, or take push, pull or multi");
  return std::make_unique<PoolSender>(std::move(parts));
}

}  // namespace mc::serve
