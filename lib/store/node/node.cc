#include "store/node/node.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "store/election/leader_election.h"
#include "store/metadata/tombstones.h"

namespace mc::store {
namespace {

// A master answers a held heartbeat after hold_ms. Later than this the answer was lost with the
// master.
constexpr Duration kOverdue = std::chrono::milliseconds(250);
constexpr Duration kFenceAsk = std::chrono::milliseconds(5);
constexpr Duration kDrainAsk = std::chrono::milliseconds(50);
constexpr size_t kPageRecords = 2048;  // per inventory message: 2 MiB with the longest keys

}  // namespace

void NodeOptions::describe(OptionList& v) {
  v("master", master,
    "address of mc-master; of several, all, separated by commas, or etcd://host:port[/prefix]");
  v("size", size, "memory to offer to the pool, when no --segment is given");
  v("segments", segments,
    "memory to offer, each SIZE[@hugepages|@file:PATH][@numa=N][@index=PATH][@fallback]; what a "
    "file "
    "holds is there again when the node is started again");
  v("heartbeat", heartbeat, "how often to tell the master that this node lives");
  v("call-timeout", call_timeout, "how long the master may take to answer");
  v("copy-timeout", copy_timeout, "how long a copy from another node may take");
  v("host", host, "name of this machine, which writers may prefer; empty: none");
  v("domain", domain, "failure domain (rack, power): replicas go to different ones; empty: none");
}

Result<PreparedNode> prepare_node(xfer::Engine& engine, const NodeId& name,
                                  const NodeOptions& options, const Clock& clock,
                                  const HostTimes& host) {
  MC_TRY_(check_node_id(name));
  if (options.heartbeat < std::chrono::milliseconds(1))
    return fail(Code::kInvalid, "heartbeat %s: want 1ms or more",
                to_text(options.heartbeat).c_str());
  if (options.call_timeout < std::chrono::milliseconds(1))
    return fail(Code::kInvalid, "call-timeout %s: want 1ms or more",
                to_text(options.call_timeout).c_str());
  if (options.size.n < kPage && options.segments.empty() && options.memory.empty())
    return fail(Code::kInvalid, "size %s: want at least one page of %s",
                bytes_text(options.size.n).c_str(), bytes_text(kPage).c_str());
  PreparedNode out;
  const Time began = clock.now();
  out.keep_clock.emplace(host, began);
  MC_TRY(out.masters, find_masters(options.master, clock, kFindMasters));
  const std::vector<std::string> size{bytes_text(options.size.n)};
  MC_TRY(out.segments,
         options.memory.empty()
             ? Segments::open(engine, options.segments.empty() ? size : options.segments,
                              out.keep_clock->mark(host, began))
             : Segments::open_in(engine, options.memory));
  return out;
}

Result<std::unique_ptr<StoreNode>> StoreNode::open(io::Loop& loop, xfer::Engine& engine,
                                                   NodeId name, std::string control,
                                                   const NodeOptions& options, Metrics& metrics,
                                                   PreparedNode prepared) {
  if (prepared.segments == nullptr) {
    MC_TRY(prepared, prepare_node(engine, name, options, loop.clock()));
  }
  MC_TRY(auto master, rpc::Client::connect(loop, prepared.masters, rpc::Channel::kShm));
  Segments::Recovered recovered = prepared.segments->take_recovered();
  NodeRef me{std::move(name), std::move(control), engine.generation()};
  auto node = std::unique_ptr<StoreNode>(new StoreNode(
      loop, engine, std::move(me), options, metrics, std::move(prepared), std::move(master)));
  node->restore(std::move(recovered));
  node->mount();
  return node;
}

StoreNode::StoreNode(io::Loop& loop, xfer::Engine& engine, NodeRef me, const NodeOptions& options,
                     Metrics& metrics, PreparedNode prepared, std::unique_ptr<rpc::Client> master)
    : loop_(loop),
      me_(std::move(me)),
      options_(options),
      segments_(std::move(prepared.segments)),
      layout_(segments_->layout()),
      master_(std::move(master)),
      directory_(layout_),
      keep_clock_(*prepared.keep_clock),
      copier_(
          loop, engine, [this](uint64_t offset) { return segments_->bytes_at(offset); },
          options.copy_timeout,
          [this](uint64_t task, const Result<>& result) { copied(task, result, mount_.by); }),
      fences_(engine, layout_, [this](uint64_t offset) { return segments_->bytes_at(offset); }),
      objects_(metrics.gauge("mc_store_node_objects", "objects this node holds")),
      bytes_(metrics.gauge("mc_store_node_bytes", "bytes of their values")),
      orders_(metrics.counter("mc_store_node_orders_total", "orders of the master carried out")),
      mounts_(metrics.counter("mc_store_node_mounts_total", "times it mounted at a master")),
      recovered_(metrics.counter("mc_store_node_recovered_total",
                                 "objects found in its files when it started")),
      given_up_(metrics.counter("mc_store_node_given_up_total",
                                "objects there whose bytes were not those that were put")) {}

void StoreNode::restore(Segments::Recovered recovered) {
  for (ObjectRecord& record : recovered.records) {
    Order order;
    order.kind = static_cast<uint8_t>(OrderKind::kRecord);
    order.record = std::move(record);
    MC_CHECK(directory_.carry_out(order).has_value());
  }
  for (const auto& [hash, before] : recovered.dead) directory_.learn_dead(hash, before);
  recovered_.add(recovered.records.size());
  given_up_.add(recovered.given_up);
  if (segments_->lasting())
    log_info("store", "%zu objects of %s were there, %llu were given up", directory_.objects(),
             rounded_bytes_text(directory_.bytes()).c_str(),
             static_cast<unsigned long long>(recovered.given_up));
}

StoreNode::~StoreNode() {
  loop_.cancel(timer_);
  loop_.cancel(drain_timer_);
}

std::string StoreNode::not_ready() const {
  if (mounted()) return {};
  if (state_ == State::kStopping) return "stopping";
  return "not mounted at " + options_.master + (last_error_.empty() ? "" : ": " + last_error_);
}

bool StoreNode::sees(uint64_t epoch) {
  if (epoch < epoch_seen_) {
    master_->skip_server();
    log_warn("store", "master %s is at epoch %llu, older than %llu seen: refused",
             options_.master.c_str(), static_cast<unsigned long long>(epoch),
             static_cast<unsigned long long>(epoch_seen_));
    return false;
  }
  epoch_seen_ = epoch_ = epoch;
  return true;
}

void StoreNode::mount() {
  if (state_ == State::kStopping) return;
  state_ = State::kMounting;
  copier_.cancel_all();  // the next master does not know their ranges
  mount_.done = 0;
  fences_.forget_orders();
  asked_ = loop_.now();
  epoch_seen_ = std::max(epoch_seen_, directory_.newest().n >> 32);
  master_->call(Mount{me_, layout_, epoch_seen_, nodes_seen_, options_.host, options_.domain,
                      wire::this_release()},
                options_.call_timeout, [this](const Result<Mounted>& reply) {
                  if (!reply) return retry(reply.error());
                  const auto fits =
                      wire::check_release("the master", reply->release, "node " + me_.name);
                  if (!fits) return retry(fits.error());
                  const bool first = epoch_ == 0 && !segments_->lasting();
                  if (!sees(reply->epoch)) return retry({Code::kStale, "master of an older epoch"});
                  mount_.by = reply->fence;
                  keep_clock_.mounted(reply->now_s, loop_.now());
                  const Generation fence = std::max(reply->fence, Generation{epoch_ << 32});
                  if (!first) fences_.forget_free(directory_.free_ranges(), fence);
                  send_inventory(0, true);
                });
}

void StoreNode::send_inventory(uint64_t after, bool from_start) {
  if (state_ == State::kStopping) return;
  if (from_start && !fences_.nics_ended()) {
    timer_ = loop_.at(loop_.now() + kFenceAsk, [this] { send_inventory(0, true); });
    return;
  }
  Inventory m{me_.name, me_.generation, directory_.page(after, from_start, kPageRecords), false,
              tier_};
  for (ObjectRecord& r : m.records) r.keep_until_s = keep_clock_.there(r.keep_until_s);
  m.mount = mount_.by;
  m.last = m.records.size() < kPageRecords;
  if (m.last) {
    directory_.tell_dead(m);
    fences_.tell(m);
  }
  const bool last = m.last;
  const uint64_t next = m.records.empty() ? after : m.records.back().offset;
  master_->call(m, options_.call_timeout, [this, last, next](const Result<Mounted>& reply) {
    if (!reply) return retry(reply.error());
    if (state_ == State::kStopping) return;
    if (!last) return send_inventory(next, false);
    state_ = State::kMounted;
    nodes_seen_ = reply->nodes;
    last_error_.clear();
    mounts_.add();
    log_info("store", "mounted %s with %zu objects at %s, epoch %llu",
             rounded_bytes_text(layout_.total()).c_str(), directory_.objects(),
             options_.master.c_str(), static_cast<unsigned long long>(epoch_));
    if (on_mounted_) on_mounted_();
    beat();
  });
}

void StoreNode::beat() {
  if (state_ != State::kMounted) return;
  asked_ = loop_.now();
  const Duration budget = options_.heartbeat + std::min(options_.call_timeout, kOverdue);
  const Duration hold = fences_.fence(options_.heartbeat);
  Heartbeat m{me_.name, me_.generation, 0,
              static_cast<uint32_t>(hold / std::chrono::milliseconds(1))};
  m.mount = mount_.by;
  fences_.tell(m, mount_.done);
  master_->call_over(m, budget, last_, [this](const Result<>& reply) {
    if (!reply) return retry(reply.error());
    take(last_);
  });
}

void StoreNode::take(const HeartbeatReply& reply) {
  if (state_ == State::kStopping) return;
  // Before the epoch check: a master that restarted twice within a second starts at an epoch seen
  // before, and raises it when a mount reports it.
  if (reply.status == static_cast<uint8_t>(BeatStatus::kRemount)) {
    log_info("store", "master %s asks for this node's inventory", options_.master.c_str());
    return mount();
  }
  if (!sees(reply.epoch)) return retry({Code::kStale, "master of an older epoch"});
  nodes_seen_ = reply.nodes;
  for (const Order& order : reply.orders) {
    if (order.seq <= mount_.done) continue;
    if (order.record.keep_until_s > 0) {
      Order mine = order;
      mine.record.keep_until_s = keep_clock_.here(order.record.keep_until_s);
      carry_out(mine);
    } else {
      carry_out(order);
    }
    mount_.done = order.seq;
    orders_.add();
  }
  // Persist before the acknowledgement.
  if (auto kept = segments_->flush(directory_); !kept)
    log_error("store", "%s", kept.error().what.c_str());
  objects_.set(static_cast<double>(directory_.objects()));
  bytes_.set(static_cast<double>(directory_.bytes()));
  if (const int64_t by = keep_clock_.stepped_s(host_times().wall_s, loop_.clock().now()); by != 0)
    log_warn("store", "the wall clock was set %s by %s: times to live go on as before",
             by > 0 ? "forward" : "back", to_text(std::chrono::seconds(std::abs(by))).c_str());
  beat();
}

void StoreNode::carry_out(const Order& order) {
  const auto kind = static_cast<OrderKind>(order.kind);
  if (kind == OrderKind::kForget) copier_.cancel(order.record.offset);
  if (auto taken = directory_.carry_out(order); !taken)
    return log_error("store", "%s", taken.error().what.c_str());
  if (kind == OrderKind::kRecord) segments_->record(order.record);
  if (kind == OrderKind::kForget) {
    fences_.forget(order);
    segments_->forget(order.record);
  }
  if (order.removed || kind == OrderKind::kAddTombstone)
    segments_->dead(Tombstones::hash_of(in_space(order.record.tenant, order.record.key)),
                    order.fence.n);
  if (kind == OrderKind::kCheck) copier_.check(order);
  if (kind != OrderKind::kCopy) return;
  fences_.raise_guards(order.record, order.record.generation);
  copier_.copy(order);
}

void StoreNode::copied(uint64_t task, const Result<>& result, Generation mount) {
  if (!result) log_warn("store", "%s", result.error().what.c_str());
  master_->call(TaskDone{me_.name, me_.generation, task, Outcome::of(result), mount},
                options_.call_timeout,
                [this, task, result, mount](const Result<rpc::Empty>& reply) {
                  if (reply || reply.error().code == Code::kStale || !mounted()) return;
                  copied(task, result, mount);  // the answer was lost: retry
                });
}

void StoreNode::retry(const Error& error) {
  if (state_ == State::kStopping) return;
  if (last_error_ != error.what)
    log_warn("store", "%s; trying again every %s", error.what.c_str(),
             to_text(options_.heartbeat).c_str());
  last_error_ = error.what;
  loop_.cancel(timer_);
  // A call that timed out was pause enough.
  timer_ = loop_.at(std::max(loop_.now(), asked_ + options_.heartbeat), [this] {
    if (state_ == State::kMounted)
      beat();  // a restarted master asks for the inventory
    else
      mount();
  });
}

void StoreNode::drain(Duration limit, std::function<void()> done) {
  if (limit <= Duration::zero() || !mounted()) return done();
  log_info("store", "draining for up to %s", to_text(limit).c_str());
  ask_drained(loop_.now() + limit, done);
}

// A drain order is idempotent, so after a lost answer the node sends it again.
void StoreNode::ask_drained(Time until, const std::function<void()>& done) {
  master_->call(Drain{me_.name, static_cast<uint8_t>(DrainAction::kStart)}, options_.call_timeout,
                [this, until, done](const Result<DrainInfo>& reply) {
                  const bool alone = reply && reply->others == 0;
                  if (reply && reply->state == "drained") {
                    log_info("store", "drained");
                  } else if (!alone && loop_.now() < until) {
                    drain_timer_ = loop_.at(loop_.now() + kDrainAsk,
                                            [this, until, done] { ask_drained(until, done); });
                    return;
                  } else {
                    std::string why = !reply ? reply.error().what : reply->why;
                    if (alone) why = "there is no other node";
                    if (why.empty()) why = "time is over while they move, or are read here";
                    log_warn("store", "not drained, %llu objects are left: %s",
                             reply ? static_cast<unsigned long long>(reply->objects_left) : 0ULL,
                             escape(why).c_str());
                  }
                  done();
                });
}

void StoreNode::stop(std::function<void()> done) {
  const bool was_mounted = mounted();
  state_ = State::kStopping;
  loop_.cancel(timer_);
  if (!was_mounted) return done();
  master_->call(Unmount{me_.name, me_.generation, segments_->lasting()}, options_.call_timeout,
                [done = std::move(done)](const Result<Mounted>& reply) {
                  if (!reply) log_warn("store", "unmount: %s", reply.error().what.c_str());
                  done();
                });
}

}  // namespace mc::store
