// Offers this process's memory to the store as a node. It mounts the memory at the master and keeps
// the directory of objects by the master's orders. At a master that does not know the node it
// mounts again with its inventory. The bytes move one-sided, without this class.
//
// Thread: the loop's. Every call to the master has a deadline. Without a master the node retries
// and keeps its objects. It notices a restarted master within a heartbeat plus 250 ms.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/metrics.h"
#include "base/options.h"
#include "io/loop.h"
#include "rpc/client.h"
#include "store/node/copier.h"
#include "store/node/directory.h"
#include "store/node/keep_clock.h"
#include "store/node/range_fences.h"
#include "store/node/segments.h"
#include "xfer/engine.h"

namespace mc::store {

struct NodeOptions {
  std::string master = "127.0.0.1:5550";
  Bytes size{1 * kGiB};
  std::vector<std::string> segments;  // texts of SegmentSpec; empty: one of `size`
  Duration heartbeat = std::chrono::seconds(1);
  Duration call_timeout = std::chrono::seconds(1);
  Duration copy_timeout = std::chrono::seconds(30);
  std::string host, domain;
  std::span<std::byte> memory;  // of the application, which outlives the node; instead of `size`
  void describe(OptionList& v);
};

struct PreparedNode {  // what takes seconds to get
  std::optional<KeepClock> keep_clock;
  std::string masters;
  std::unique_ptr<Segments> segments;
};
// Any thread: see Opening. Errors: kNoSpace (not enough memory); kInvalid; kUnavailable (no
// masters).
Result<PreparedNode> prepare_node(xfer::Engine& engine, const NodeId& name,
                                  const NodeOptions& options, const Clock& clock,
                                  const HostTimes& host = host_times());

struct NodeMount {
  Generation by;      // as the master names it
  uint64_t done = 0;  // its last order that was carried out
};

class StoreNode {
 public:
  // `control`: the address at which peers request the engine's segment. `prepared`: if empty, it is
  // prepared now. Errors: those of prepare_node().
  static Result<std::unique_ptr<StoreNode>> open(io::Loop& loop, xfer::Engine& engine, NodeId name,
                                                 std::string control, const NodeOptions& options,
                                                 Metrics& metrics, PreparedNode prepared = {});
  ~StoreNode();
  StoreNode(const StoreNode&) = delete;
  StoreNode& operator=(const StoreNode&) = delete;

  bool mounted() const { return state_ == State::kMounted; }
  void on_mounted(std::function<void()> callback) { on_mounted_ = std::move(callback); }
  uint64_t epoch() const { return epoch_; }  // of the master it is mounted at
  // Returns: false if a newer master replaced the one of that epoch; its messages do not count.
  bool outdated(uint64_t epoch) const { return epoch < epoch_seen_; }
  const Directory& directory() const { return directory_; }
  Generation mounted_by() const { return mount_.by; }  // Mounted::fence
  const NodeRef& me() const { return me_; }
  const Layout& layout() const { return layout_; }
  std::byte* bytes_at(uint64_t offset) const {  // of this process's transfer segment
    return segments_->bytes_at(offset);
  }
  std::string not_ready() const;          // empty when mounted
  void announce_tier() { tier_ = true; }  // right after open()
  const KeepClock& keep_clock() const { return keep_clock_; }

  // Asks the master to move this node's objects to others, for up to `limit`, then calls back; at
  // once if it holds none. It logs what is left.
  void drain(Duration limit, std::function<void()> done);

  // Unmounts, so that readers know at once, then calls back. Heartbeats end.
  void stop(std::function<void()> done);

 private:
  enum class State { kMounting, kMounted, kStopping };
  StoreNode(io::Loop& loop, xfer::Engine& engine, NodeRef me, const NodeOptions& options,
            Metrics& metrics, PreparedNode prepared, std::unique_ptr<rpc::Client> master);
  void restore(Segments::Recovered recovered);
  void mount();
  void send_inventory(uint64_t after, bool from_start);
  void beat();
  void take(const HeartbeatReply& reply);
  void carry_out(const Order& order);
  void copied(uint64_t task, const Result<>& result, Generation mount);
  void ask_drained(Time until, const std::function<void()>& done);
  void retry(const Error& error);
  bool sees(uint64_t epoch);

  io::Loop& loop_;
  const NodeRef me_;
  const NodeOptions options_;
  const std::unique_ptr<Segments> segments_;
  const Layout layout_;
  std::unique_ptr<rpc::Client> master_;
  Directory directory_;
  State state_ = State::kMounting;
  // Of the master it is mounted at; the largest of any; as the last master reported.
  uint64_t epoch_ = 0, epoch_seen_ = 0, nodes_seen_ = 0;
  NodeMount mount_;
  Time asked_{};          // when the master was last called
  KeepClock keep_clock_;  // of the directory's records
  std::string last_error_;
  bool tier_ = false;
  std::function<void()> on_mounted_;
  io::Loop::Handle timer_ = 0, drain_timer_ = 0;
  Copier copier_;
  RangeFences fences_;
  HeartbeatReply last_;  // the answer to the last heartbeat
  Gauge &objects_, &bytes_;
  Counter &orders_, &mounts_, &recovered_, &given_up_;
};

}  // namespace mc::store
