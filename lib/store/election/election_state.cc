#include "store/election/election_state.h"

#include <algorithm>

namespace mc::store {

using Kind = EtcdQuestion::Kind;

void ElectionState::lose() {
  leading_ = joined_ = looked_ = false;
  if (lease_ != 0) abandoned_ = lease_;
  lease_ = 0;
}

std::optional<EtcdQuestion> ElectionState::ask(Time now, uint64_t wall_s) {
  if (leading_ && now >= until_) {
    lose();
    next_ = now;
  }
  if (open_ || now < next_) return std::nullopt;
  EtcdQuestion q;
  q.lease = lease_;
  if (resigning_) {
    lose();
    if (abandoned_ == 0) return std::nullopt;
  }
  if (abandoned_ != 0) {
    q.kind = Kind::kResign;
    q.lease = abandoned_;
  } else if (lease_ == 0) {
    q.kind = Kind::kGrant;
    q.ttl_s = static_cast<uint64_t>(
        std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(options_.ttl).count()));
  } else if (now - renewed_ >= lasts_ / 4) {
    q.kind = Kind::kRenew;
  } else if (!joined_) {
    q.kind = Kind::kJoin;
  } else if (leading_ && noted_ < epoch_) {
    q.kind = Kind::kRaise;
    q.epoch = epoch_;
  } else if (looked_ && leader_.empty() && !leading_) {
    q.kind = Kind::kCampaign;
    q.epoch = std::max({wall_s, seen_epoch_ + 1, epoch_ + 1});
    q.revision = seen_revision_;
  } else {
    q.kind = Kind::kLook;
  }
  open_ = q;
  asked_ = now;
  return q;
}

void ElectionState::answered(const Result<EtcdAnswer>& answer, Time now) {
  if (!open_) return;
  const EtcdQuestion q = *std::exchange(open_, std::nullopt);
  next_ = now;
  if (q.kind == Kind::kResign) {
    abandoned_ = 0;  // otherwise it expires
    return;
  }
  if (leading_ && now >= until_) lose();
  if (q.lease != lease_) return;
  if (!answer) {
    trouble_ = answer.error().what;
    next_ = now + period();
    looked_ = false;  // a campaign with a lost answer may have succeeded
    return;
  }
  trouble_.clear();
  switch (q.kind) {
    case Kind::kGrant:
    case Kind::kRenew:
      if (answer->ttl_s == 0 || (q.kind == Kind::kGrant && answer->lease == 0)) {
        lose();
        if (q.kind == Kind::kGrant) next_ = now + period();  // a server that grants nothing
        break;
      }
      if (q.kind == Kind::kGrant) lease_ = answer->lease;
      lasts_ = std::min<Duration>(options_.ttl, std::chrono::seconds(answer->ttl_s));
      renewed_ = asked_;
      until_ = asked_ + lasts_ - lasts_ / 10;
      break;
    case Kind::kJoin: joined_ = true; break;
    case Kind::kLook: look(*answer); break;
    case Kind::kCampaign:
      look(*answer);
      if (!leading_ && leader_.empty()) next_ = now + period();  // nobody won it
      break;
    case Kind::kRaise: noted_ = q.epoch; break;
    case Kind::kResign: break;  // see above
  }
}

void ElectionState::look(const EtcdAnswer& found) {
  seen_epoch_ = found.epoch;
  seen_revision_ = found.epoch_revision;
  const bool mine = lease_ != 0 && found.leader_lease == lease_;
  if (leading_ && !mine) return lose();  // the key was deleted or replaced
  if (mine && !leading_) {
    if (found.epoch <= epoch_) {  // another master wrote the epoch
      next_ = asked_ + period();
      return lose();
    }
    leading_ = true;
    epoch_ = noted_ = led_ = found.epoch;
  }
  looked_ = true;
  leader_ = mine ? "" : found.leader;
  if (mine || !leader_.empty()) next_ = asked_ + period();
}

void ElectionState::raise(uint64_t epoch) {
  if (leading_ && epoch > epoch_) epoch_ = epoch;
}

void ElectionState::resign() {
  resigning_ = true;
  leading_ = false;
  next_ = Time{};
}

Time ElectionState::deadline() const {
  const Time lapse = leading_ ? until_ : Time::max();
  if (open_ || resigned()) return lapse;
  return std::min(next_, lapse);
}

}  // namespace mc::store
