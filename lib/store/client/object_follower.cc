#include "store/client/object_follower.h"

#include <utility>
#include <variant>

#include "store/election/leader_election.h"

namespace mc::store {

Result<std::unique_ptr<ObjectFollower>> ObjectFollower::open(io::Loop& loop,
                                                             const std::string& masters,
                                                             ObjectFeedOptions options) {
  MC_TRY(const std::string found, find_masters(masters, loop.clock(), kFindMasters));
  MC_TRY(auto client, rpc::Client::connect(loop, found));
  return std::unique_ptr<ObjectFollower>(
      new ObjectFollower(loop, std::move(options), std::move(client)));
}

ObjectFollower::ObjectFollower(io::Loop& loop, ObjectFeedOptions options,
                               std::unique_ptr<rpc::Client> master)
    : loop_(loop),
      answer_within_(options.answer_within),
      feed_(std::move(options), loop.clock().now()),
      master_(std::move(master)) {}

ObjectFollower::~ObjectFollower() { loop_.cancel(timer_); }

void ObjectFollower::start() { go_on(); }

void ObjectFollower::go_on() {
  loop_.cancel(timer_);
  const ObjectFeed::Question question = feed_.ask(loop_.clock().now());
  if (const auto* list = std::get_if<List>(&question)) {
    master_->call(*list, answer_within_, [this](const Result<Listed>& page) {
      const Time now = loop_.clock().now();
      page ? feed_.listed(*page, now) : feed_.failed(page.error(), now);
      go_on();
    });
  } else if (const auto* replay = std::get_if<Replay>(&question)) {
    master_->call(*replay, answer_within_, [this](const Result<Replayed>& events) {
      const Time now = loop_.clock().now();
      events ? feed_.replayed(*events, now) : feed_.failed(events.error(), now);
      go_on();
    });
  } else if (feed_.deadline() != Time::max()) {
    timer_ = loop_.at(feed_.deadline(), [this] {
      timer_ = 0;
      go_on();
    });
  }
}

}  // namespace mc::store
