// Elects one of several masters as the leader through etcd. The leader holds a key that is bound to
// its etcd lease. Each new leader writes a larger epoch in the same transaction.
//
// ask() returns the next question for etcd, one at a time; answered() takes its answer. A master
// leads only while leads(now) is true, which ends before its lease does. The lease counts on the
// leader's own clock from before the request, less a tenth. So a leader that was stopped (SIGSTOP,
// a stalled machine) knows without a request when it wakes that it no longer leads. A master that
// lost the lead gives up its lease and starts again: no epoch has two leaders.
//
// Thread: one owner. Pure: time is an argument.
// Source: design, "Master" (epochs, self-stall); docs/decisions/0013-election.md.
#pragma once
#include <optional>
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace mc::store {

struct EtcdQuestion {
  enum class Kind : uint8_t {
    kGrant,     // a lease
    kJoin,      // name this master among those there are, while the lease lasts
    kRenew,     // the lease
    kLook,      // who leads
    kCampaign,  // lead, if nobody does and nobody did since the last look
    kRaise,     // note the epoch, while leading
    kResign,    // end the lease, and with it the lead
  };
  Kind kind = Kind::kLook;
  int64_t lease = 0;
  uint64_t ttl_s = 0;  // of kGrant
  uint64_t epoch = 0;
  int64_t revision = 0;  // of kCampaign: of the epoch as it was last seen; 0: there was none
};

struct EtcdAnswer {
  int64_t lease = 0;     // of kGrant
  uint64_t ttl_s = 0;    // of kGrant and kRenew; 0: there is no such lease
  std::string leader{};  // of kLook and kCampaign; empty: nobody leads
  int64_t leader_lease = 0;
  uint64_t epoch = 0;
  int64_t epoch_revision = 0;
};

struct ElectionOptions {
  std::string me;  // the address others are told of
  Duration ttl = std::chrono::seconds(3);
};

class ElectionState {
 public:
  explicit ElectionState(ElectionOptions options) : options_(std::move(options)) {}

  // The next question, if it is time for one and none is open. `wall_s`: the wall clock, which new
  // epochs are not behind.
  std::optional<EtcdQuestion> ask(Time now, uint64_t wall_s);
  // To the question asked last. Errors: etcd could not be asked; it is asked again.
  void answered(const Result<EtcdAnswer>& answer, Time now);
  Time deadline() const;  // when something is to be asked, or the lead lapses

  bool leads(Time now) const { return leading_ && now < until_; }
  uint64_t epoch() const { return epoch_; }  // of this master's lead
  uint64_t led() const { return led_; }      // the epoch it began with
  void raise(uint64_t epoch);                // it went beyond, by what nodes had seen
  // Who leads, as far as is known; empty while nobody does, or this master.
  const std::string& leader() const { return leader_; }
  const std::string& trouble() const { return trouble_; }  // with etcd; empty: none
  Duration period() const { return options_.ttl / 10; }
  void resign();  // ask() gives the lease up, and nothing is asked after that
  bool resigned() const { return resigning_ && lease_ == 0 && abandoned_ == 0 && !open_; }

 private:
  void look(const EtcdAnswer& found);
  void lose();  // the lead, if any, and the lease

  const ElectionOptions options_;
  std::optional<EtcdQuestion> open_;
  Time asked_{};  // the open question
  Time next_{};   // question
  int64_t lease_ = 0, abandoned_ = 0;
  Duration lasts_{};  // the lease
  Time renewed_{};
  bool joined_ = false, leading_ = false, looked_ = false, resigning_ = false;
  Time until_{};
  uint64_t epoch_ = 0, noted_ = 0, led_ = 0;
  uint64_t seen_epoch_ = 0;
  int64_t seen_revision_ = 0;
  std::string leader_, trouble_;
};

}  // namespace mc::store
