// Follows the objects of a master over the control plane: asks what an ObjectFeed wants to know.
//
// Of several masters the one that leads answers (rpc/server_list.h).
//
// Thread: the loop's. Callbacks of the feed must not destroy the follower.
#pragma once
#include <memory>
#include <string>

#include "io/loop.h"
#include "rpc/client.h"
#include "store/client/object_feed.h"

namespace mc::store {

class ObjectFollower {
 public:
  // `masters`: as --master of the clients; asks etcd for them if it is its URL, and blocks then,
  // kFindMasters at most. No answer of a master is awaited. Errors: kInvalid; kUnavailable: of
  // etcd.
  static Result<std::unique_ptr<ObjectFollower>> open(io::Loop& loop, const std::string& masters,
                                                      ObjectFeedOptions options);
  ~ObjectFollower();
  ObjectFollower(const ObjectFollower&) = delete;
  ObjectFollower& operator=(const ObjectFollower&) = delete;

  // Begins to ask, on a later turn; after the feed's callbacks are set.
  void start();
  ObjectFeed& feed() { return feed_; }
  const ObjectFeed& feed() const { return feed_; }

 private:
  ObjectFollower(io::Loop& loop, ObjectFeedOptions options, std::unique_ptr<rpc::Client> master);
  void go_on();

  io::Loop& loop_;
  const Duration answer_within_;
  ObjectFeed feed_;
  io::Loop::Handle timer_ = 0;
  std::unique_ptr<rpc::Client> master_;  // destroyed first: its callbacks use the feed
};

}  // namespace mc::store
