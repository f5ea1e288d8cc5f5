// What runs prompts, without a worker: their order, their chunks, and their ends.
#include "serve/prefill/prefill_run.h"

#include "gated_engine.h"
#include "prefill_site.h"

namespace mc::serve {
namespace prefill_run_test {
namespace {

// Prompts of this process, which delivers them to itself.
struct Run {
  explicit Run(io::Loop& loop) : site(loop, settings(), &engine), prefixes(*site.shared) {
    site.shared->own_decode = {
        "here", [this](const std::string& request, uint64_t, const std::vector<BlockId>&) {
          if (refuse) return Result<>(fail(Code::kNotFound, "nothing is reserved for it"));
          adopted.push_back(request);
          return Result<>();
        }};
    auto queue = PrefillRun::make_queue(engine, settings());
    REQUIRE(queue);
    auto opened = PrefillRun::open(*site.shared, std::move(*queue), prefixes, nullptr, nullptr);
    REQUIRE(opened);
    run = std::move(*opened);
    site.on_resume = [this] { run->advance(); };
    site.on_failed = [this](const PrefillJob& job) { run->remove(job); };
  }
  ~Run() {
    engine.hold(0);
    engine.open();
  }
  static PrefillConfig settings() {
    PrefillConfig c;
    c.blocks = 64;
    c.chunk_tokens = 2 * kBlock;
    c.time_scale = 0;
    return c;
  }
  PrefillJobPtr add(const std::string& id, const std::vector<int32_t>& prompt,
                    int64_t priority = 0) {
    const PrefillJobPtr job = site.job(id, prompt);
    job->priority = priority;
    run->add(job, 0);
    return job;
  }
  // Of a conductor's decision with that number.
  PrefillJobPtr decided(uint64_t number, const std::string& id,
                        const std::vector<int32_t>& prompt) {
    const PrefillJobPtr job = site.job(id, prompt);
    job->conductor = "there";
    job->number = number;
    run->add(job, 0);
    return job;
  }
  // Blocks whose KV is wrong.
  uint64_t wrong(const PrefillJob& job) const {
    return engine.verify({job.prompt, job.parents, job.kv.blocks});
  }

  GatedEngine engine;
  PrefillSite site;
  RemotePrefixes prefixes;
  bool refuse = false;
  std::vector<std::string> adopted;
  std::unique_ptr<PrefillRun> run;
};

std::vector<int32_t> prompt_with(int32_t first, size_t tokens) {
  std::vector<int32_t> prompt = prompt_of(tokens, static_cast<uint64_t>(first));
  prompt[0] = first;
  return prompt;
}

TEST_CASE("an urgent prompt goes before the next chunk of another, equals one after the other") {
  SteadyClock clock;
  io::Loop loop(clock);
  Run r(loop);
  const PrefillJobPtr a = r.add("a", prompt_with(1, 5 * kBlock - 3), 1);
  r.engine.await_call();
  const PrefillJobPtr b = r.add("b", prompt_with(2, kBlock), 1);
  const PrefillJobPtr urgent = r.add("urgent", prompt_with(3, 3 * kBlock));
  CHECK(r.run->queue().size() == 3);
  r.engine.open();
  REQUIRE(r.site.until([&] { return r.adopted.size() == 3; }));
  CHECK(r.adopted == std::vector<std::string>{"urgent", "a", "b"});
  using Chunks = std::vector<GatedEngine::Chunk>;
  CHECK(r.engine.chunks() ==
        Chunks{{1, 0, 32}, {3, 0, 32}, {3, 32, 48}, {1, 32, 64}, {1, 64, 77}, {2, 0, 16}});
  CHECK(r.run->queue().size() == 0);
  for (const PrefillJobPtr& job : {a, b, urgent}) {
    CHECK(job->stage == PrefillStage::kDelivered);
    CHECK(job->busy == 0);
    CHECK(job->done.cached_tokens == 0);
    CHECK(r.wrong(*job) == 0);
  }
}

TEST_CASE("prompts of a conductor are computed in the order of its decisions, late ones too") {
  SteadyClock clock;
  io::Loop loop(clock);
  Run r(loop);
  const PrefillJobPtr third = r.decided(3, "third", prompt_with(3, 4 * kBlock));
  r.engine.await_call();
  r.decided(4, "fourth", prompt_with(4, kBlock));
  r.decided(1, "first", prompt_with(1, kBlock));
  r.add("any", prompt_with(5, kBlock));  // as it came
  r.decided(2, "second", prompt_with(2, kBlock));
  r.engine.open();
  REQUIRE(r.site.until([&] { return r.adopted.size() == 5; }));
  using Chunks = std::vector<GatedEngine::Chunk>;
  CHECK(r.engine.chunks() ==
        Chunks{{3, 0, 32}, {1, 0, 16}, {3, 32, 64}, {4, 0, 16}, {5, 0, 16}, {2, 0, 16}});
  CHECK(r.wrong(*third) == 0);
}

TEST_CASE("what another worker's blocks will spare a prompt is no work that others wait for") {
  SteadyClock clock;
  io::Loop loop(clock);
  Run r(loop);
  r.add("runs", prompt_with(1, 2 * kBlock));
  r.engine.await_call();
  const PrefillJobPtr fetches = r.site.job("fetches", prompt_with(2, 7 * kBlock));
  fetches->peer_blocks = 5;
  r.site.shared->jobs.fetch(fetches, FetchState::kPeer);
  r.run->add(fetches, 1);
  CHECK(r.run->queue().queued_tokens() == (2 + 2) * kBlock);
  r.site.shared->jobs.fetched(fetches);
  r.run->prefix_came(fetches, 0);  // it did not come
  CHECK(r.run->queue().queued_tokens() == (2 + 7) * kBlock);
  r.engine.open();
  REQUIRE(r.site.until([&] { return r.adopted.size() == 2; }));
  CHECK(fetches->done.cached_tokens == 0);
  CHECK(r.wrong(*fetches) == 0);
}

TEST_CASE("a prompt that was overtaken takes what others computed of it meanwhile") {
  SteadyClock clock;
  io::Loop loop(clock);
  Run r(loop);
  const auto prompt = prompt_with(1, 7 * kBlock - 3);
  const PrefillJobPtr begun = r.add("begun", prompt, 1);
  r.engine.await_call();
  const PrefillJobPtr urgent = r.add("urgent", prompt);
  r.engine.open();
  REQUIRE(r.site.until([&] { return r.adopted.size() == 2; }));
  CHECK(r.adopted == std::vector<std::string>{"urgent", "begun"});
  using Chunks = std::vector<GatedEngine::Chunk>;
  CHECK(r.engine.chunks() ==
        Chunks{{1, 0, 32}, {1, 32, 64}, {1, 64, 96}, {1, 96, 109}, {1, 96, 109}});
  CHECK(urgent->done.cached_tokens == 32);
  CHECK(begun->done.cached_tokens == 64);
  CHECK(begun->published == 6);
  CHECK(begun->kv.ids[5] == urgent->kv.ids[5]);
  CHECK(begun->kv.ids[6] != urgent->kv.ids[6]);
  for (const PrefillJobPtr& job : {begun, urgent}) CHECK(r.wrong(*job) == 0);
  r.site.shared->blocks().check();
}

TEST_CASE("while others compute between its chunks, a prompt waits: that is no computing of its") {
  SteadyClock clock;
  io::Loop loop(clock);
  Run r(loop);
  const PrefillJobPtr slow = r.add("slow", prompt_with(1, 4 * kBlock), 1);
  r.engine.await_call();
  const PrefillJobPtr urgent = r.add("urgent", prompt_with(2, kBlock));
  r.engine.hold(2);
  r.engine.open();
  REQUIRE(r.site.until([&] { return urgent->stage == PrefillStage::kComputing; }));
  const Time begun = clock.now();
  REQUIRE(r.site.until([&] { return clock.now() - begun >= 20ms; }));
  r.engine.hold(0);
  REQUIRE(r.site.until([&] { return r.adopted.size() == 2; }));
  CHECK(slow->paused >= 20ms);
  CHECK(slow->done.queue_ms >= 20);
  CHECK(urgent->paused == 0ms);
  CHECK(urgent->done.prefill_ms >= 20);
  CHECK(slow->done.prefill_ms >= 0);
}

TEST_CASE("a prompt uses what another computes before its turn, and its last block it computes") {
  SteadyClock clock;
  io::Loop loop(clock);
  Run r(loop);
  const auto prompt = prompt_with(1, 4 * kBlock);
  r.add("a", prompt);
  const PrefillJobPtr twin = r.add("twin", prompt);
  r.engine.open();
  REQUIRE(r.site.until([&] { return r.adopted.size() == 2; }));
  CHECK(twin->done.cached_tokens == 3 * kBlock);
  CHECK(r.engine.chunks().back() == GatedEngine::Chunk{1, 48, 64});
  CHECK(r.wrong(*twin) == 0);
}

TEST_CASE("a request that fails while it is computed ends when its chunk does, and others go on") {
  SteadyClock clock;
  io::Loop loop(clock);
  Run r(loop);
  const PrefillJobPtr a = r.add("a", prompt_with(1, 6 * kBlock));
  r.engine.await_call();
  const PrefillJobPtr b = r.add("b", prompt_with(2, kBlock));
  r.site.fail_job(a, {Code::kUnavailable, "enough"});
  CHECK(a->busy == 1);
  CHECK(r.site.ended.empty());
  CHECK(r.run->queue().running());
  const uint64_t used = r.site.shared->blocks().counts().used;
  CHECK(used == 7);
  r.engine.open();
  REQUIRE(r.site.until([&] { return r.adopted.size() == 1; }));
  CHECK(r.site.ended == std::vector<std::string>{"a"});
  CHECK(r.adopted == std::vector<std::string>{"b"});
  CHECK(r.engine.chunks().size() == 2);  // nothing more of a
  CHECK(r.site.shared->blocks().counts().used == 1);
  // What a computed was given up with it: it is computed again.
  const PrefillJobPtr again = r.add("again", prompt_with(1, 6 * kBlock));
  REQUIRE(r.site.until([&] { return r.adopted.size() == 2; }));
  CHECK(again->done.cached_tokens == 0);
  CHECK(r.wrong(*again) == 0);
  r.site.shared->blocks().check();
}

TEST_CASE("a request that its decode side refuses fails, and one committed early ends at once") {
  SteadyClock clock;
  io::Loop loop(clock);
  Run r(loop);
  r.engine.open();
  r.refuse = true;
  const PrefillJobPtr a = r.add("a", prompt_with(1, kBlock));
  REQUIRE(r.site.until([&] { return !r.site.ended.empty(); }));
  CHECK(a->failure->code == Code::kNotFound);
  CHECK(r.site.shared->blocks().counts().used == 0);
  r.refuse = false;
  const PrefillJobPtr b = r.add("b", prompt_with(2, kBlock));
  b->committed_early = true;
  REQUIRE(r.site.until([&] { return !r.site.committed.empty(); }));
  CHECK(r.site.committed == std::vector<std::string>{"b"});
  CHECK(r.adopted == std::vector<std::string>{"b"});
  CHECK(PrefillRun::open(*r.site.shared, *PrefillRun::make_queue(r.engine, Run::settings()),
                         r.prefixes, nullptr, nullptr)
            .has_value());
  PrefillConfig odd = Run::settings();
  odd.chunk_tokens = kBlock + 1;
  CHECK(PrefillRun::make_queue(r.engine, odd).error().code == Code::kInvalid);
}

}  // namespace
}  // namespace prefill_run_test
}  // namespace mc::serve
