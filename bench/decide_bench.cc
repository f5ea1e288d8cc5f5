// What a decision costs in a cluster of 10,000 workers: the CPU time from a request's arrival to
// where it goes, with prompts of 512 blocks that share prefixes. The peer is the budget. Workers
// report what they computed, and the index is ticked as the conductor does, ten times a second:
// what these take is not of a decision. The first decisions of a conductor are figures of their
// own: its tables grow most then. A prompt of a million tokens in blocks of 16 that the KV store's
// pool has is looked up there, and what of it is worth fetching is planned: of one node, or of
// eight by turns.
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"
#include "bench/figure.h"
#include "cmd/command.h"
#include "sched/pool_plan.h"
#include "sched/request/request_machine.h"

namespace mc {
namespace {

using bench::Measured;
using namespace std::chrono_literals;

constexpr uint64_t kBlock = 256;
constexpr size_t kPromptBlocks = 512;
constexpr double kBudgetUs = 200;

double cpu_us() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

// Half of the workers compute prompts, half decode. All answer at once.
class Site {
 public:
  explicit Site(size_t workers)
      : fleet_({.block_tokens = kBlock, .policy = {}, .admission = {.admission = "predict"}}, cost_,
               index_, roster_),
        machine_({}, fleet_) {
    for (size_t i = 0; i < workers; ++i) {
      sched::FleetWorker& w = *workers_.emplace_back(std::make_unique<sched::FleetWorker>());
      w.prefill = i % 2 == 0;
      w.node = (w.prefill ? "p" : "d") + std::to_string(i / 2);
      w.blocks_total = w.blocks_free = 1 << 20;
      w.pipeline.chunk_tokens = 1024;
      if (w.prefill) slots_[w.node] = w.slot = static_cast<sched::PrefixIndex::Slot>(i / 2);
    }
    roster_.slots_changed(workers / 2);
    for (const auto& w : workers_) roster_.join(*w);
  }
  // A request that shares from nothing to all of its prompt with earlier ones. CPU microseconds.
  double arrive() {
    sched::RequestArrived e{.request = ++requests_};
    e.ask.tokens = e.ask.prompt_tokens = kPromptBlocks * kBlock + 7;
    e.ask.max_tokens = 100;
    const uint64_t family = random_.below(1000), shared = random_.below(kPromptBlocks + 1);
    for (uint64_t i = 0; i < kPromptBlocks; ++i)
      e.tags.push_back(mix64((i < shared ? family : 1000 + requests_) * kPromptBlocks + i));
    now_ += 20ms;
    if (requests_ % 5 == 0) index_.tick(now_);
    out_.clear();
    const double before = cpu_us();
    machine_.handle(e, now_, out_);
    const double took = cpu_us() - before;
    follow();
    running_.push_back({requests_, std::move(e.tags)});
    if (running_.size() > 400) end_first();
    return took;
  }
  // Of what so many requests took. Microseconds.
  double quantile(size_t requests, double share) {
    std::vector<double> took;
    for (size_t i = 0; i < requests; ++i) took.push_back(arrive());
    std::sort(took.begin(), took.end());
    const auto at = static_cast<size_t>(share * static_cast<double>(requests));
    return took[std::min(at, requests - 1)];
  }

 private:
  void follow() {
    std::vector<sched::RequestAction> todo;
    std::swap(todo, out_);
    for (const sched::RequestAction& a : todo)
      if (const auto* step = std::get_if<sched::SendStep>(&a);
          step != nullptr && step->step != sched::Step::kCommit) {
        of_[step->of.request] = step->of;
        if (step->step == sched::Step::kPrefill) {  // it computes for a while
          computes_[step->of.request] = slots_.at(step->to.node);
          continue;
        }
        machine_.handle(
            sched::StepAnswered{.of = step->of, .step = step->step, .queue_ms = queue_ms_}, now_,
            out_);
      } else if (const auto* made = std::get_if<sched::DecisionMade>(&a)) {
        queue_ms_ = made->choice.decision.chosen.queue_ms;
      }
    if (!out_.empty()) follow();
  }
  void end_first() {
    const auto [request, tags] = std::move(running_.front());
    running_.pop_front();
    const sched::AttemptRef of = of_[request];
    machine_.handle(sched::StepAnswered{.of = of, .step = sched::Step::kPrefill}, now_, out_);
    if (const auto at = computes_.find(request); at != computes_.end()) {
      index_.add(at->second, tags);
      computes_.erase(at);
    }
    machine_.handle(sched::TokensArrived{.of = of, .count = 1, .finish = "length"}, now_, out_);
    of_.erase(of.request);
    out_.clear();
  }

  Random random_{1};
  sched::Cost cost_{cost::tiny()};
  sched::PrefixIndex index_;
  sched::Roster roster_;
  std::vector<std::unique_ptr<sched::FleetWorker>> workers_;
  sched::Fleet fleet_;
  sched::RequestMachine machine_;
  std::vector<sched::RequestAction> out_;
  std::map<uint64_t, sched::AttemptRef> of_;
  std::map<uint64_t, sched::PrefixIndex::Slot> computes_;  // by request
  std::map<std::string, sched::PrefixIndex::Slot> slots_;  // by node
  std::deque<std::pair<uint64_t, std::vector<uint64_t>>> running_;
  Time now_{1s};
  double queue_ms_ = 0;  // as predicted: what the worker answers, too
  uint64_t requests_ = 0;
};

// A prompt of a million tokens that the pool has, spread over so many of its nodes.
class PooledPrompt {
 public:
  explicit PooledPrompt(size_t nodes) : pool_(kBlocks) {
    for (size_t i = 0; i < kBlocks; ++i) {
      tags_.push_back(mix64(i + 1));
      pool_.put(tags_.back(),
                {sched::PoolTier::kMemory, static_cast<uint16_t>(1 + mix64(i) % nodes)});
    }
    for (uint16_t n = 1; n <= nodes; ++n)
      cost_.learn_pool({{{sched::PoolTier::kMemory, n}, 100'000}}, 100);
    match_ = pool_.match(tags_, 0);
  }
  double match_us() {
    const double before = cpu_us();
    const sched::PoolMatch found = pool_.match(tags_, 0);
    return cpu_us() - before + (found.size() == kBlocks ? 0 : 1e9);
  }
  double plan_us() {
    const double before = cpu_us();
    const sched::PoolPlan plan(match_, kBlocks * kPoolBlock + 1, kPoolBlock, cost_);
    const auto part = plan.best(0);
    return cpu_us() - before + (part.blocks == kBlocks ? 0 : 1e9);
  }

 private:
  static constexpr size_t kBlocks = 62'500;
  static constexpr uint64_t kPoolBlock = 16;
  sched::PoolIndex pool_;
  sched::Cost cost_{cost::tiny()};
  std::vector<uint64_t> tags_;
  sched::PoolMatch match_;
};

Result<> pooled(size_t nodes, size_t turns) {
  PooledPrompt prompt(nodes);
  const auto figure = [&](const char* name, double target, auto took) {
    return bench::compare(
        {"decide", strf("%s 62500 blocks of %zu pool node%s", name, nodes, nodes > 1 ? "s" : ""),
         "us", "the budget", target, true},
        turns,
        [&]() -> Result<Measured> {
          std::vector<double> us;
          for (int i = 0; i < 15; ++i) us.push_back(took());
          return Measured(bench::median(us));
        },
        [] { return Result<Measured>(kBudgetUs); });
  };
  MC_TRY_(figure("the plan of", nodes == 1 ? 1 : 0, [&] { return prompt.plan_us(); }));
  return figure("looking up", 0, [&] { return prompt.match_us(); });
}

Result<int> run(const bench::Options& o) {
  for (const size_t nodes : {1u, 8u}) MC_TRY_(pooled(nodes, o.turns()));
  const auto figure = [&](size_t workers, double share, const char* name, double target) {
    Site site(workers);
    const size_t many = o.quick ? 3000 : 10'000;
    return bench::compare(
        {"decide", strf("%s of a decision among %zu workers", name, workers), "us", "the budget",
         target, true},
        o.quick ? 3 : 7, [&]() -> Result<Measured> { return Measured(site.quantile(many, share)); },
        [] { return Result<Measured>(kBudgetUs); });
  };
  for (const size_t workers : {100u, 10'000u}) {
    MC_TRY_(figure(workers, 0.5, "median", 0));
    MC_TRY_(figure(workers, 0.99, "p99", 1));
  }
  constexpr size_t kFirst = 3000;
  for (const double share : {0.99, 1.0})
    MC_TRY_(bench::compare(
        {"decide",
         strf("%s of the first %zu among 10000 workers", share < 1 ? "p99" : "slowest", kFirst),
         "us", "the budget", share < 1 ? 1.0 : 0.0, true},
        o.quick ? 3 : 7,
        [&]() -> Result<Measured> {
          Site site(10'000);
          return Measured(site.quantile(kFirst, share));
        },
        [] { return Result<Measured>(kBudgetUs); }));
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("decide_bench", "what a decision of the conductor costs");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
