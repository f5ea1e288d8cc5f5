// A store on a simulated network: the live Master and Directory, and by one seed everything that
// may go wrong with them. Messages are late, lost and doubled, hosts are cut off or stand still,
// nodes and the master are killed. A write takes its claim at its node first, and its bytes land
// later. Clients follow the live ones' rules; their history is for tests/history/check.h.
//
// Each of `Rules` is one of those promises: with it broken, histories are wrong.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "store/master/master.h"
#include "store/node/directory.h"
#include "tests/history/check.h"

namespace mc::store {

using namespace std::chrono_literals;

struct Rules {
  bool guards = true;      // a node raises the guard word of what it forgets
  bool fences = true;      // and says which of its ranges a late writer may still write
  bool epochs = true;      // a new master's epoch is larger, and older ones are refused
  bool tombstones = true;  // removals of what absent nodes hold are remembered
  bool checksums = true;   // readers look at them; memory decays now and then
};

class SimulatedStore {
 public:
  SimulatedStore(uint64_t seed, const Rules& rules);

  void run(Duration with_faults, Duration without);
  std::vector<std::string> wrong;  // what must not have been
  std::vector<history::Op> ops;
  uint64_t digest = 0;  // of every event: the same for the same seed
  struct Counts {
    uint64_t puts = 0, gets = 0, removals = 0, failed = 0, lost = 0, doubled = 0, kills = 0;
  } counts;

 private:
  struct Claim {
    uint64_t guard = 0, offset = 0, bytes = 0;
  };
  struct Node {
    NodeId name;
    uint64_t generation = 1, epoch = 0, epoch_seen = 0, nodes_seen = 0, done = 0, turn = 0;
    Generation mount;
    bool mounted = false;
    std::unique_ptr<Directory> directory;
    std::vector<uint64_t> guards, pages;  // by page; of a page: the value that it is of
    std::map<uint64_t, Claim> claims;     // of writes whose bytes have not landed
    std::vector<std::pair<uint64_t, ObjectRecord>> unfenced;  // orders
    NodeRef ref() const { return {name, name, Generation{generation}}; }
  };
  struct Write {  // or a read of a value
    ObjectKey key;
    uint64_t value = 0, pages = 0, open = 0;
    size_t at = 0;  // in ops
    Generation generation;
    bool failed = false;
    std::vector<uint64_t> seen;
    Time until, lease;
  };
  struct Client {
    std::string name;
    uint64_t epoch = 0;
  };
  struct Piece {
    NodeRef node;
    uint64_t offset = 0, bytes = 0, guard = 0;
    Generation generation;
  };
  using Event = std::function<void()>;

  // ---- the network
  void at(Time when, Event event) {
    events_.emplace(std::pair{when, ++sequence_}, std::move(event));
  }
  void after(Duration d, Event event) { at(now_ + d, std::move(event)); }
  Duration a_while(Duration most) {
    return Duration(
        static_cast<Duration::rep>(random_.below(static_cast<uint64_t>(most.count()) + 1)));
  }
  bool cut(const std::string& a, const std::string& b) const {
    const auto it = cuts_.find({a, b});
    return it != cuts_.end() && it->second > now_;
  }
  void deliver(const std::string& from, const std::string& to, const Event& event);
  void arrive(const std::string& to, const Event& event);
  template <class M>
  void call(const std::string& from, const M& message, Duration patience,
            std::function<void(const Result<typename M::Reply>*)> done);
  // Again and again until `until`, as nobody knows what became of it.
  template <class M>
  void insist(const std::string& from, const M& message, Time until,
              std::function<void(const Result<typename M::Reply>*)> done);
  bool step(Time until);

  // ---- nodes
  static constexpr uint64_t kPages = 40;
  static Layout layout() { return {1 * kMiB, kPages * kPage, 0}; }
  static size_t page_of(uint64_t offset) {
    return static_cast<size_t>((offset - layout().data) / kPage);
  }
  void born(Node& node) {
    node.epoch = node.epoch_seen = node.nodes_seen = node.done = 0;
    node.mounted = false;
    node.directory = std::make_unique<Directory>(layout());
    node.guards.assign(kPages, 0);
    node.pages.assign(kPages, 0);
    node.claims.clear();
    node.unfenced.clear();
    mount(node);
  }
  void mount(Node& node);
  void inventory(Node& node, uint64_t turn);
  void beat(Node& node, uint64_t turn);
  void again(Node& node, uint64_t turn);
  void take(Node& node, const HeartbeatReply& reply, uint64_t turn);
  void forget(Node& node, const Order& order);
  static bool claimed(const Node& node, uint64_t offset, uint64_t bytes);
  static std::vector<Extent> pieces_of(const ObjectRecord& record);

  // ---- clients
  void next(Client& client);
  void put(Client& client, const ObjectKey& key);
  void write(Client& client, const std::shared_ptr<Write>& w, const PutStarted& granted);
  void wrote(Client& client, const std::shared_ptr<Write>& w);
  void get(Client& client, const ObjectKey& key);
  void read(Client& client, const std::shared_ptr<Write>& r, const Replicas& found);
  void remove(Client& client, const ObjectKey& key);
  void end(Client& client, size_t op, history::Fate fate, uint64_t value = 0);
  bool accepts(Client& client, uint64_t epoch) {
    if (epoch < client.epoch && rules_.epochs) return false;
    client.epoch = std::max(client.epoch, epoch);
    return true;
  }
  std::vector<Piece> pieces(const ReplicaLocation& place, const std::vector<NodeRef>& nodes,
                            Generation generation, uint64_t bytes) const;

  // ---- faults
  void fault();
  // Nobody is away. What was removed meanwhile may come back with the next master, if the nodes
  // that remember it are away then (docs/decisions/0012-tombstones.md).
  bool whole() const {
    const auto over = [this](const auto& fault) { return fault.second <= now_; };
    return std::all_of(cuts_.begin(), cuts_.end(), over) &&
           std::all_of(still_.begin(), still_.end(), over) &&
           std::all_of(nodes_.begin(), nodes_.end(), [this](const auto& node) {
             const auto member = master_->members().all().find(node.first);
             return node.second.mounted && member != master_->members().all().end() &&
                    member->second->ready &&
                    member->second->ref.generation.n == node.second.generation;
           });
  }

  // No node has yet to forget what was removed while it was away, or put anew since. The next
  // master hears of that before it hears of what came after.
  bool settled() const {
    const auto late = [this](const PendingOrder& pending) {
      const Order& order = *pending.order;
      if (order.kind != static_cast<uint8_t>(OrderKind::kForget)) return false;
      const auto newest = newest_.find(order.record.key);
      return !order.removed ||
             (newest != newest_.end() && newest->second > order.record.generation);
    };
    return whole() && std::none_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
             const auto& orders = master_->members().all().at(node.first)->orders;
             return std::any_of(orders.begin(), orders.end(), late);
           });
  }
  void restart_master();
  void check_room();

  const Rules rules_;
  Random random_;
  Time now_{1000s};
  std::multimap<std::pair<Time, uint64_t>, Event> events_;
  uint64_t sequence_ = 0, claims_ = 0, values_ = 0, epoch_ = 1000, running_ = 0;
  MasterOptions options_;
  std::unique_ptr<Master> master_;
  uint64_t lives_ = 0;  // of the master: an answer of an earlier one is not sent
  std::map<NodeId, Node> nodes_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::map<std::string, Time> still_;                         // hosts that stand still, until when
  std::map<std::pair<std::string, std::string>, Time> cuts_;  // what from one to another is lost
  std::map<ObjectKey, Generation> newest_;                    // granted
  std::map<uint64_t, std::pair<ObjectKey, uint64_t>> written_;  // values: their keys, pages
  bool faults_ = true, asks_ = true;
};

}  // namespace mc::store
