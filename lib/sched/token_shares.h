// Shares a busy cluster among tenants by the tokens that they were served.
//
// Each tenant has a virtual counter of tokens. Of the tenants with waiting requests, the one with
// the smallest counter is next. Prompt tokens count when a request is taken, output tokens as they
// come. So tenants that wait get equal numbers of tokens, however many requests they have, and one
// that wants less than its share waits for nobody's backlog. Who did not wait earns no credit: a
// tenant that begins to wait starts at the smallest counter of those that wait.
//
//   shares.waits(tenant);  next = shares.next();  shares.taken(next, prompt_tokens);
//   shares.generated(tenant, 1);  ...             shares.gave_up(tenant) instead of taken
//
// Thread: one owner. Pure. Units: weighted tokens.
// Source: Sheng et al., Fairness in Serving Large Language Models (OSDI 2024), algorithm 2.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace mc::sched {

struct TokenShareOptions {
  double input = 1, output = 2;  // what a token of a prompt and of an answer counts
};

class TokenShares {
 public:
  using Tenant = size_t;
  explicit TokenShares(TokenShareOptions options = {}) : options_(options) {}

  // One more request of this tenant waits. `weight`: its share, relative to others'; above 0.
  void waits(Tenant tenant, double weight = 1);
  // The tenant whose request is to be taken; of equals, the one of the lowest number.
  std::optional<Tenant> next() const;
  // One of its waiting requests is taken, and its prompt has so many tokens to compute.
  void taken(Tenant tenant, uint64_t prompt_tokens);
  // One of its waiting requests is gone.
  void gave_up(Tenant tenant);
  // A request that never waited was taken.
  void passed(Tenant tenant, uint64_t prompt_tokens);
  // Tokens of its answers.
  void generated(Tenant tenant, uint64_t tokens);

  // The order in which tenants are next: the smallest first.
  double counter(Tenant tenant) const;
  size_t waiting(Tenant tenant) const;

 private:
  struct Entry {
    double counter = 0, weight = 1;
    size_t waiting = 0;
  };
  double floor() const;  // where a tenant that begins to wait begins
  void leave(Tenant tenant, Entry& entry);
  void add(Tenant tenant, Entry& entry, double tokens);

  const TokenShareOptions options_;
  std::map<Tenant, Entry> entries_;
  std::set<std::pair<double, Tenant>> order_;  // of those that wait
  double last_ = 0;                            // where tenants begin while none waits
};

}  // namespace mc::sched
