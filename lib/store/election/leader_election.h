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
  // `changed` is called, on the loop, after every answer and when a lead lapses.
  LeaderElection(io::Loop& loop, EtcdUrl url, ElectionOptions options,
                 std::function<void()> changed);
  ~LeaderElection();
  LeaderElection(const LeaderElection&) = delete;
  LeaderElection& operator=(const LeaderElection&) = delete;

  // By the clock as it is now, not as it was when the loop's turn began.
  bool leads() const { return election_.leads(loop_.clock().now()); }
  const ElectionState& election() const { return election_; }
  void raise(uint64_t epoch);
  // Gives the lead up, so that another takes it at once, then calls back: soon, even without etcd.
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
  std::string told_;  // trouble that was logged
};

// The addresses of the masters, separated by commas: `text` itself, or what etcd says when it is an
// etcd:// URL. Waits while there are none. Errors: kInvalid; kUnavailable.
inline constexpr Duration kFindMasters = std::chrono::seconds(30);  // that a node looks for
Result<std::string> find_masters(const std::string& text, const Clock& clock, Duration budget);

}  // namespace mc::store
