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
    kJoin,      // register this master for as long as the lease lasts
    kRenew,     // the lease
    kLook,      // who leads
    kCampaign,  // take the lead, if no master has or had it since the last look
    kRaise,     // write a larger epoch while leading
    kResign,    // revoke the lease, which ends the lead
  };
  Kind kind = Kind::kLook;
  int64_t lease = 0;
  uint64_t ttl_s = 0;  // of kGrant
  uint64_t epoch = 0;
  int64_t revision = 0;  // of kCampaign: the epoch key's revision when last seen; 0: absent
};

struct EtcdAnswer {
  int64_t lease = 0;     // of kGrant
  uint64_t ttl_s = 0;    // of kGrant and kRenew; 0: there is no such lease
  std::string leader{};  // of kLook and kCampaign; empty: no leader
  int64_t leader_lease = 0;
  uint64_t epoch = 0;
  int64_t epoch_revision = 0;
};

struct ElectionOptions {
  std::string me;  // this master's advertised address
  Duration ttl = std::chrono::seconds(3);
};

class ElectionState {
 public:
  explicit ElectionState(ElectionOptions options) : options_(std::move(options)) {}

  // Returns: the next question, if one is due and none is open. `wall_s`: the wall clock; new
  // epochs are not smaller.
  std::optional<EtcdQuestion> ask(Time now, uint64_t wall_s);
  // Takes the answer to the last question. An error means that etcd was unreachable; ask() repeats
  // the question.
  void answered(const Result<EtcdAnswer>& answer, Time now);
  Time deadline() const;  // when a question is due, or the lead lapses

  bool leads(Time now) const { return leading_ && now < until_; }
  uint64_t epoch() const { return epoch_; }  // of this master's lead
  uint64_t led() const { return led_; }      // the epoch at its start
  void raise(uint64_t epoch);                // nodes had seen a larger epoch
  // The other master that leads, as far as known; empty if none does, or this one.
  const std::string& leader() const { return leader_; }
  const std::string& trouble() const { return trouble_; }  // the last error of etcd; empty: none
  Duration period() const { return options_.ttl / 10; }
  void resign();  // ask() returns the lease's revocation, and nothing after it
  bool resigned() const { return resigning_ && lease_ == 0 && abandoned_ == 0 && !open_; }

 private:
  void look(const EtcdAnswer& found);
  void lose();  // drops the lead, if any, and the lease

  const ElectionOptions options_;
  std::optional<EtcdQuestion> open_;
  Time asked_{};  // start of the open question
  Time next_{};   // time of the next question
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
