// Many concurrent requests, many of them aborted at random moments.
// The others get exactly the tokens they get alone, and at the end nothing is held.
#include <algorithm>

#include "pair.h"

namespace mc::serve {
namespace {

// One request as a conductor drives it. It aborts after `abort_after` turns (0: never).
struct Flow {
  Pair* pair = nullptr;
  std::string id;
  std::vector<int32_t> prompt;
  int abort_after = 0;
  bool begins = true;   // Prefill follows TxAllocate
  bool commits = true;  // TxCommit follows the first token
  bool aborted = false, over = false, committed = false;
  uint64_t tx = 0;

  void start() {
    Reserve m;
    m.request = id;
    m.conductor = pair->c_server->address();
    m.prompt = prompt;
    m.max_tokens = 12;
    m.ignore_eos = true;
    m.kv_deadline_ms = 5000;
    pair->to_d->call<Reserve>(m, 5s, [this](const Result<Reservation>& r) {
      if (!r || aborted) return end();
      TxAllocate a;
      a.request = id;
      a.prompt = prompt;
      a.target = *r;
      a.lease_ms = 1000;
      pair->to_p->call<TxAllocate>(a, 5s, [this](const Result<TxAllocated>& t) {
        if (!t || aborted) return end();
        tx = t->tx;
        if (begins)
          pair->to_p->call<Prefill>(Prefill{tx}, 5s, [this](const Result<PrefillDone>& d) {
            if (!d) end();
          });
      });
    });
  }
  void turn() {
    const Answer& a = pair->answers[id];
    if (!a.tokens.empty() && commits && !committed && !aborted) {
      committed = true;
      pair->to_p->call<TxCommit>(TxCommit{tx}, 5s, [](const Result<TxCommitted>&) {});
    }
    if (!a.finish.empty()) over = true;
    if (abort_after > 0 && --abort_after == 0) end();
  }
  void end() {
    if (aborted) return;
    aborted = over = true;
    for (rpc::Client* client : {pair->to_p.get(), pair->to_d.get()})
      client->call<Abort>(Abort{id, "the test gives up"}, 5s, [](const Result<rpc::Empty>&) {});
  }
};

TEST_CASE("requests that run to their end are right, while others are aborted") {
  SteadyClock clock;
  for (const char* transport : {"shm", "tcp"}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(transport);
      CAPTURE(seed);
      io::Loop loop(clock);
      PairOptions options;
      options.transports = {transport};
      options.prefill_blocks = 60;
      options.decode_blocks = 200;
      options.time_scale = 0.3;
      options.chunk_tokens = 32;
      Pair pair(loop, options);
      Random random(seed);
      std::vector<std::vector<int32_t>> prompts;
      for (uint64_t i = 0; i < 6; ++i) {
        auto prompt = prompt_of(16 * (1 + i % 3), 1 + i % 2);  // shared beginnings
        const auto tail = prompt_of(random.below(120), 100 + i);
        prompt.insert(prompt.end(), tail.begin(), tail.end());
        prompts.push_back(prompt);
        const std::string id = "alone" + std::to_string(i);
        pair.serve(id, prompt, 12);
      }
      std::vector<std::unique_ptr<Flow>> flows;
      for (int i = 0; i < 60; ++i) {
        auto flow = std::make_unique<Flow>();
        flow->pair = &pair;
        flow->id = "r" + std::to_string(i);
        flow->prompt = prompts[random.below(prompts.size())];
        if (random.chance(0.4)) flow->abort_after = 1 + static_cast<int>(random.below(120));
        flow->begins = random.chance(0.95);
        flow->commits = random.chance(0.9);
        flows.push_back(std::move(flow));
      }
      size_t started = 0;
      const bool all = pair.until([&] {
        if (started < flows.size() && random.chance(0.3)) flows[started++]->start();
        bool over = started == flows.size();
        for (size_t i = 0; i < started; ++i) {
          flows[i]->turn();
          over = over && flows[i]->over;
        }
        return over;
      });
      CHECK(all);
      CHECK(pair.comes_to_rest());
      CHECK(pair.d_metrics.counter("mc_engine_kv_errors_total", "").value() == 0);
      size_t finished = 0;
      for (const auto& flow : flows) {
        const Answer& a = pair.answers[flow->id];
        if (flow->aborted || a.finish != "length") continue;
        ++finished;
        const auto at = std::find(prompts.begin(), prompts.end(), flow->prompt) - prompts.begin();
        CHECK(a.tokens == pair.answers["alone" + std::to_string(at)].tokens);
      }
      CHECK(finished > 10);
    }
  }
}

}  // namespace
}  // namespace mc::serve
