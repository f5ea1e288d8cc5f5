// What a greedy tenant costs another one, in virtual time: one decode worker of eight places, on
// which answers of twenty tokens take twenty steps. The peer is the same without shares, where all
// requests wait in the order of their arrival, or the other tenant alone.
#include <algorithm>
#include <map>
#include <memory>
#include <variant>
#include <vector>

#include "bench/figure.h"
#include "cmd/command.h"
#include "sched/request/request_machine.h"

namespace mc {
namespace {

using bench::Measured;
using namespace std::chrono_literals;

constexpr size_t kPlaces = 8, kGreedy = 1, kOther = 2;
constexpr uint32_t kAnswer = 20;
constexpr uint64_t kPrompt = 40;
constexpr Duration kStep = 50ms;
// All places together answer 0.4 requests in a step.
constexpr double kCapacity = static_cast<double>(kPlaces) / kAnswer;

sched::RequestOptions patient() {
  sched::RequestOptions o;
  o.queue_timeout = o.prefill_timeout = o.token_timeout = std::chrono::hours(24);
  o.queue_max = 1 << 20;
  return o;
}

class Server {
 public:
  // shares: the machine knows tenants apart.
  explicit Server(bool shares)
      : shares_(shares),
        fleet_({.block_tokens = 16, .policy = {}, .admission = {}}, cost_, index_, roster_),
        machine_(patient(), fleet_) {
    for (const bool prefill : {true, false}) {
      sched::FleetWorker& w = *workers_.emplace_back(std::make_unique<sched::FleetWorker>());
      w.prefill = prefill;
      w.node = prefill ? "p" : "d";
      w.blocks_total = w.blocks_free = 1 << 20;
    }
    roster_.slots_changed(1);
    for (const auto& w : workers_) roster_.join(*w);
  }

  // Requests of each tenant in a step, by load[tenant].
  void run(const std::map<size_t, double>& load, size_t steps) {
    std::map<size_t, double> due;
    for (size_t i = 0; i < steps; ++i, now_ += kStep) {
      for (const auto& [tenant, each] : load)
        for (due[tenant] += each; due[tenant] >= 1; --due[tenant]) ask(tenant);
      generate();
      handle(sched::RoomFreed{});
      machine_.tick(now_, out_);
      follow();
    }
  }
  // Prompts once, answers' twice, as shares count them.
  double tokens(size_t tenant) const {
    const auto it = served_.find(tenant);
    return it == served_.end() ? 0 : it->second;
  }
  // Milliseconds from arrival to a place. Of who still waits: until now.
  double wait_ms(size_t tenant, double share) const {
    std::vector<double> waits;
    for (const auto& [id, r] : requests_)
      if (r.tenant == tenant) waits.push_back(to_ms((r.placed ? *r.placed : now_) - r.arrived));
    std::sort(waits.begin(), waits.end());
    if (waits.empty()) return 0;
    const auto at = static_cast<size_t>(share * static_cast<double>(waits.size()));
    return waits[std::min(at, waits.size() - 1)];
  }

 private:
  struct Request {
    size_t tenant = 0;
    Time arrived{};
    std::optional<Time> placed{};
  };
  struct Answer {
    sched::AttemptRef of;
    uint32_t left = kAnswer;
  };

  void ask(size_t tenant) {
    sched::RequestArrived e{.request = ++last_};
    e.ask.tokens = e.ask.prompt_tokens = kPrompt;
    e.ask.max_tokens = kAnswer;
    e.ask.tenant = shares_ ? tenant : 0;
    requests_[last_] = {tenant, now_};
    handle(e);
  }
  void generate() {
    for (Answer& a : std::vector<Answer>(answers_)) {
      const bool ends = a.left == 1;
      served_[requests_.at(a.of.request).tenant] += 2;
      handle(sched::TokensArrived{.of = a.of, .count = 1, .finish = ends ? "length" : ""});
    }
    for (Answer& a : answers_) --a.left;
    std::erase_if(answers_, [](const Answer& a) { return a.left == 0; });
  }
  void handle(const sched::RequestEvent& event) {
    machine_.handle(event, now_, out_);
    follow();
  }
  void follow() {
    while (!out_.empty()) {
      std::vector<sched::RequestAction> todo;
      std::swap(todo, out_);
      for (const sched::RequestAction& a : todo)
        if (const auto* step = std::get_if<sched::SendStep>(&a)) answer(*step);
    }
  }
  void answer(const sched::SendStep& step) {
    if (step.step == sched::Step::kCommit) return;
    sched::StepAnswered e{.of = step.of, .step = step.step};
    if (step.step == sched::Step::kReserve && answers_.size() == kPlaces) {
      e.outcome = fail(Code::kNoSpace, "no place");
    } else if (step.step == sched::Step::kReserve) {
      Request& r = requests_.at(step.of.request);
      r.placed = now_;
      served_[r.tenant] += static_cast<double>(kPrompt);
      answers_.push_back({step.of});
    }
    machine_.handle(e, now_, out_);
  }

  const bool shares_;
  sched::Cost cost_{cost::tiny()};
  sched::PrefixIndex index_{1 << 16};
  sched::Roster roster_;
  std::vector<std::unique_ptr<sched::FleetWorker>> workers_;
  sched::Fleet fleet_;
  sched::RequestMachine machine_;
  std::vector<sched::RequestAction> out_;
  std::map<uint64_t, Request> requests_;
  std::vector<Answer> answers_;
  std::map<size_t, double> served_;
  uint64_t last_ = 0;
  Time now_{1s};
};

Result<int> run(const bench::Options& o) {
  const size_t steps = o.quick ? 1000 : 2000;
  const auto waited = [&](bool shares, double greedy) -> Result<Measured> {
    Server s(shares);
    s.run({{kGreedy, greedy * kCapacity}, {kOther, 0.4 * kCapacity}}, steps);
    return Measured(s.wait_ms(kOther, 0.9));
  };
  // The other one wants less than half of the places.
  MC_TRY_(bench::compare(
      {"fair", "p90 wait beside 10 times its load", "ms", "order of arrival", 10, true}, 1,
      [&] { return waited(true, 4); }, [&] { return waited(false, 4); }));
  // Both want more than there is: the fewer tokens, of the more.
  const auto tokens = [&](bool shares) -> Result<Measured> {
    Server s(shares);
    s.run({{kGreedy, 3 * kCapacity}, {kOther, kCapacity}}, steps / 4);
    const double a = s.tokens(kGreedy), b = s.tokens(kOther);
    return Measured(std::min(a, b) / std::max(a, b));
  };
  MC_TRY_(bench::compare(
      {"fair", "fewer tokens of two that wait, of the more", "", "order of arrival", 2}, 1,
      [&] { return tokens(true); }, [&] { return tokens(false); }));
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("fair_bench", "what a greedy tenant costs another one");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
