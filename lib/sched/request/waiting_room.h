// The order of requests that wait for room.
//
// Requests of a lower priority number go first. Within a priority the tenant that was served the
// fewest tokens is next (sched/token_shares.h), and of one tenant the request that came first. A
// priority ages: the longer the next one of a priority waits, the lower its number counts, and
// after half of the longest wait it goes before any that has not waited so long. So a steady stream
// of urgent requests starves nobody, and within a priority age does not outweigh a tenant's share.
//
// A request that tries to get its place is out of the order, but counts as waiting for its tenant's
// share until it has the place.
//
// A call costs the logarithm of those that wait, and a step for each priority that waits.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/time.h"
#include "sched/token_shares.h"

namespace mc::sched {

class WaitingRoom {
 public:
  static constexpr int64_t kAgeSteps = 16;  // priorities that the whole of the wait makes up for
  explicit WaitingRoom(Duration longest) : longest_(longest) {}

  struct Turn {
    int64_t priority = 0;
    TokenShares::Tenant tenant = 0;
    double share = 1;  // of its tenant, relative to others'
    Time since{};
  };
  void put(uint64_t request, const Turn& turn);
  void tries(uint64_t request, uint64_t round);  // put() or served() or gone() follows
  // It has its place, whether it waited or not. Its prompt counts as served.
  void served(uint64_t request, TokenShares::Tenant tenant, uint64_t prompt_tokens);
  void gone(uint64_t request);  // may be unknown
  void generated(TokenShares::Tenant tenant, uint64_t tokens);

  // The next of those that did not try in this round, which is the latest; 0: any.
  std::optional<uint64_t> next(Time now, uint64_t round = 0) const;
  size_t size() const { return queued_; }
  bool has(uint64_t request) const;  // it is in the order
  bool counts(uint64_t request) const { return entries_.contains(request); }
  uint64_t last_round(uint64_t request) const;  // in which it tried; 0: in none

 private:
  enum class Place : uint8_t { kQueued, kTries };
  struct Entry {
    Turn turn;
    Place place = Place::kQueued;
    uint64_t round = 0;
  };
  // Requests in their order, but for the time they waited.
  class Lines {
   public:
    void insert(uint64_t request, const Turn& turn, double counter);
    void erase(uint64_t request, const Turn& turn);
    void moved(TokenShares::Tenant tenant, double counter);  // it was served
    // visit(counter, request) for the first of each priority.
    template <class Visit>
    void each_first(Visit visit) const {
      for (const auto& [priority, line] : by_priority_)
        visit(std::get<0>(*line.order.begin()), std::get<1>(*line.order.begin()));
    }

   private:
    struct OfTenant {
      double counter = 0;
      std::set<uint64_t> requests;
    };
    struct Line {
      std::map<TokenShares::Tenant, OfTenant> tenants;
      std::set<std::tuple<double, uint64_t, TokenShares::Tenant>> order;  // their first requests
    };
    std::map<int64_t, Line> by_priority_;
  };
  int64_t aged(const Turn& turn, Time now) const;
  void enter(uint64_t request, const Entry& entry);
  void leave(uint64_t request, const Entry& entry);
  void served_to(TokenShares::Tenant tenant);

  const Duration longest_;
  std::map<uint64_t, Entry> entries_;
  size_t queued_ = 0;
  Lines all_, fresh_;            // in the order; of these, that did not try in the latest round
  uint64_t round_ = 0;           // the latest
  std::vector<uint64_t> tried_;  // in it
  TokenShares shares_;
};

}  // namespace mc::sched
