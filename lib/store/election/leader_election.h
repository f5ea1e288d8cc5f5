// Drives an ElectionState over HTTP to etcd and reports every change. It sends one request at a
// time. find_masters() is the client side: a node or a client that has only etcd's URL learns the
// masters' addresses.
//
// Thread: the loop's; find_masters: any, and blocks.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "http/client.h"
#include "io/loop.h"
#include "store/election/etcd.h"

namespace mc::store {

class LeaderElection {
 public:
  // Calls `changed`, on the loop, after every answer and when a lead lapses.
  LeaderElection(io::Loop& loop, EtcdUrl url, ElectionOptions options,
                 std::function<void()> changed);
  ~LeaderElection();
  LeaderElection(const LeaderElection&) = delete;
  LeaderElection& operator=(const LeaderElection&) = delete;

  // Uses the clock's current time, not the start of the loop's turn.
  bool leads() const { return election_.leads(loop_.clock().now()); }
  const ElectionState& election() const { return election_; }
  void raise(uint64_t epoch);
  // Gives up the lead, so that another master takes it at once, then calls back; soon, even if etcd
  // is down.
  void resign(std::function<void()> done);

 private:
  void go();
  void answered(const EtcdQuestion& q, const Result<http::ClientResponse>& response);

  io::Loop& loop_;
  const EtcdUrl url_;
  const std::string me_;
  const Duration timeout_;
  const std::function<void()> changed_;
  ElectionState election_;
  http::Client http_;
  size_t endpoint_ = 0;
  std::function<void()> resigned_;
  io::Loop::Handle timer_ = 0;
  std::string told_;  // the last logged trouble
};

// Returns: the masters' addresses, separated by commas: `text` itself, or etcd's list if it is an
// etcd:// URL. Waits while the list is empty. Errors: kInvalid; kUnavailable.
inline constexpr Duration kFindMasters = std::chrono::seconds(30);  // a node's limit
Result<std::string> find_masters(const std::string& text, const Clock& clock, Duration budget);

}  // namespace mc::store
