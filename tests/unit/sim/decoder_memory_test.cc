// The memory and the batch of a simulated decode node: preempts whom a live worker preempts, at the
// same step, and lets those join who join there.
#include "sim/cluster/decoder_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/random.h"
#include "serve/engine/dummy_engine.h"
#include "serve/worker/decode_memory.h"
#include "sim/cluster/cluster.h"

namespace mc::sim {
namespace decoder_memory_test {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kBlock = 16;  // tokens

struct Ask {
  uint64_t step;  // during which it reserves, and its KV comes; 0: before the first
  uint64_t prompt, answer;
};

struct Gone {  // preempted
  uint64_t step, id, generated;
  bool to_host;
  friend auto operator<=>(const Gone&, const Gone&) = default;
};

struct Outcome {
  std::vector<Gone> gone;             // sorted
  std::map<uint64_t, uint64_t> ends;  // steps until a request has its answer
  std::vector<uint64_t> refused;      // no room
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  for (const Gone& g : o.gone)
    out << "step " << g.step << ": " << g.id << " after " << g.generated << " tokens"
        << (g.to_host ? " to host memory; " : "; ");
  for (const auto& [id, step] : o.ends) out << id << " ends with step " << step << "; ";
  for (const uint64_t id : o.refused) out << id << " is refused; ";
  return out;
}

// The first one's answer is longer than all the rest takes: some step always runs.
std::vector<Ask> asks(uint64_t seed) {
  Random random(seed);
  std::vector<Ask> out = {{0, 10, 600}};
  uint64_t step = 1;
  for (int i = 1; i < 24; ++i) {
    out.push_back({step, 1 + random.below(60), 1 + random.below(200)});
    if (i >= 4) step += random.below(30);
  }
  return out;
}

// Many short answers beside long ones: some wait long for blocks.
std::vector<Ask> crowd(uint64_t seed) {
  Random random(seed);
  std::vector<Ask> out = {{0, 10, 1500}};
  uint64_t step = 1;
  for (int i = 1; i < 120; ++i) {
    out.push_back({step, 1 + random.below(60), 1 + random.below(i % 4 ? 100 : 900)});
    if (i >= 4) step += random.below(8);
  }
  return out;
}

struct Options {
  const char* preempt;
  uint64_t swap_blocks;
  uint32_t blocks = 40;
  uint64_t batch = 0;  // requests, by what a step may take; 0: no limit
  Duration tbt_slo() const {
    return batch == 0 ? Duration{} : 1s + std::chrono::microseconds(batch - 1);
  }
};

// A step takes a second, and a microsecond for each other request; KV moves in no time.
cost::ModelSpec seconds() {
  cost::ModelSpec s = cost::tiny();
  s.cost = {};
  s.cost.load_bytes_per_s = 1e30;
  s.cost.t0 = 1;
  s.cost.t1 = 1e-6;
  return s;
}

Outcome simulated(const std::vector<Ask>& asks, const Options& options) {
  const cost::ModelSpec spec = seconds();
  DecoderOptions o;
  o.join_share = 0;
  o.memory = {.blocks = options.blocks,
              .block_tokens = kBlock,
              .preempt = options.preempt,
              .swap_bytes = options.swap_blocks * spec.block_bytes(kBlock),
              .copy_bytes_per_s = 1e30,
              .tbt_slo = options.tbt_slo()};
  Decoder decoder(spec, o, true);
  Outcome out;
  std::vector<Decoded> ended;
  const auto tick_before = [&](Time when) {
    while (decoder.deadline() < when) decoder.tick(decoder.deadline(), ended);
  };
  for (uint64_t id = 0; id < asks.size(); ++id) {
    const Ask& a = asks[id];
    const Time when = a.step == 0 ? Time{} : Time{} + from_seconds(double(a.step) - 0.5);
    tick_before(when);
    if (!decoder.reserve({id, a.prompt, a.answer, 0}, when)) out.refused.push_back(id);
    if (id + 1 < asks.size() && asks[id + 1].step == a.step) continue;
    for (uint64_t i = 0; i <= id; ++i)
      if (asks[i].step == a.step && decoder.memory()->find(i) != nullptr)
        decoder.ready({i, asks[i].prompt, asks[i].answer, 0}, when);
  }
  tick_before(Time::max());
  for (const Decoded& d : ended) {
    out.ends[d.id] = static_cast<uint64_t>(std::llround(to_seconds(d.end - Time{})));
    CHECK(d.gaps_list.size() == asks[d.id].answer - 1);
    CHECK(d.gaps_s == doctest::Approx(to_seconds(d.end - d.first_token)));
  }
  for (const Preemption& p : decoder.memory()->preemptions())
    out.gone.push_back({p.step + 1, p.id, p.generated, p.way == serve::KvWay::kHost});
  std::sort(out.gone.begin(), out.gone.end());
  CHECK(decoder.running() == 0);
  CHECK(decoder.waiting() == 0);
  CHECK(decoder.context() == 0);
  CHECK(decoder.reserved() == 0);
  CHECK(decoder.memory()->available() == options.blocks);
  return out;
}

// The live object with its real blocks, driven a step at a time as DecodeWorker does.
struct Live {
  Live(const std::vector<Ask>& these, const Options& options)
      : asked(these), batch(cost::Timing{seconds(), 1}, {.tbt_slo = options.tbt_slo()}) {
    xfer::EngineOptions o;
    o.node = "d";
    o.transports = {"shm"};
    auto opened = xfer::Engine::open(clock, o, metrics);
    REQUIRE(opened);
    transfer = std::move(*opened);
    auto made = serve::WorkerCore::open(loop, *transfer, engine, options.blocks, 7);
    REQUIRE(made);
    core = *made;
    const serve::DecodeMemoryOptions m{options.preempt, 0.01,
                                       options.swap_blocks * engine.spec().block_bytes(kBlock), 0};
    memory.emplace(loop, *core, engine, batch, m, metrics,
                   serve::DecodeMemory::Hooks{
                       .unused = [](const serve::SequencePtr&) { FAIL("none ends early"); },
                       .fail = [](const serve::SequencePtr&, const std::string& why) { FAIL(why); },
                       .fence = [](const serve::SequencePtr&) { FAIL("all are settled"); },
                       .alive = [](const serve::SequencePtr&) {},
                       .step = [] {}});
  }
  ~Live() { core->close(); }

  void arrive(uint64_t step) {
    std::vector<serve::SequencePtr> here;
    for (uint64_t id = 0; id < asked.size(); ++id) {
      if (asked[id].step != step) continue;
      serve::Reserve m;
      m.request = std::to_string(id);
      m.max_tokens = static_cast<uint32_t>(asked[id].answer);
      Random random(id + 1);
      for (uint64_t i = 0; i < asked[id].prompt; ++i)
        m.prompt.push_back(static_cast<int32_t>(random.below(32000)));
      const serve::SequencePtr s = serve::make_sequence(m, kBlock);
      if (!memory->reserve(s, loop.now())) {
        out.refused.push_back(id);
        continue;
      }
      REQUIRE(batch.wait(m.request, asked[id].prompt, Time::max()));
      sequences[m.request] = s;
      here.push_back(s);
    }
    for (const serve::SequencePtr& s : here) {
      s->settled = true;
      core->blocks().computed(s->tx, s->prompt / kBlock);
      CHECK(batch.kv_arrived(s->request));
    }
  }
  // Until no KV is being moved.
  void rest() {
    const auto moving = [&] {
      return std::any_of(sequences.begin(), sequences.end(),
                         [](const auto& s) { return s.second->busy > 0; });
    };
    while (moving()) REQUIRE(loop.turn(20ms));
  }
  void step() {
    memory->bring_back();
    batch.admit();
    std::vector<serve::SequencePtr> running;
    for (const std::string& request : batch.batch()) running.push_back(sequences.at(request));
    std::map<std::string, serve::KvPlace> before;
    for (const auto& [request, s] : sequences) before[request] = s->kv;
    running = memory->grow(std::move(running));
    for (const auto& [request, s] : sequences)
      if (before[request] == serve::KvPlace::kHere && s->kv != serve::KvPlace::kHere)
        out.gone.push_back(
            {steps + 1, std::stoull(request), s->generated(), s->kv == serve::KvPlace::kLeaving});
    if (!running.empty()) ++steps;
    rest();
    if (running.empty()) return;
    arrive(steps);
    for (const serve::SequencePtr& s : running) {
      s->append(static_cast<int32_t>(s->tokens.size()), kBlock);
      batch.advanced(s->request);
      if (s->generated() < s->max_tokens) continue;
      out.ends[std::stoull(s->request)] = steps;
      s->ended = true;
      batch.remove(s->request);
      memory->release(s);
      sequences.erase(s->request);
    }
  }
  Outcome run() {
    arrive(0);
    for (size_t idle = 0; !sequences.empty(); ++idle) {
      const uint64_t before = steps;
      step();
      if (steps > before) idle = 0;
      REQUIRE(idle < 10);  // nobody would ever go on
    }
    std::sort(out.gone.begin(), out.gone.end());
    return out;
  }

  const std::vector<Ask>& asked;
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  serve::DummyEngine engine{cost::tiny(), kBlock};
  std::unique_ptr<xfer::Engine> transfer;
  std::shared_ptr<serve::WorkerCore> core;
  serve::DecodeBatch batch;
  std::optional<serve::DecodeMemory> memory;
  std::map<std::string, serve::SequencePtr> sequences;
  uint64_t steps = 0;
  Outcome out;
};

}  // namespace

TEST_CASE("F80: a simulated node preempts whom a live worker preempts, at the same steps") {
  for (const Options& options :
       {Options{"recompute", 0}, Options{"swap", 1000}, Options{"swap", 8}, Options{"off", 0}}) {
    CAPTURE(options.preempt);
    CAPTURE(options.swap_blocks);
    size_t preemptions = 0;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      const std::vector<Ask> these = asks(seed);
      const Outcome want = Live(these, options).run(), got = simulated(these, options);
      CHECK(got == want);
      CHECK(want.ends.size() + want.refused.size() == these.size());
      preemptions += want.gone.size();
    }
    CHECK((preemptions > 20) == (std::string(options.preempt) != "off"));
  }
}

TEST_CASE("so it does where many wait for blocks") {
  for (const Options& options : {Options{"recompute", 0, 100}, Options{"swap", 1000, 100},
                                 Options{"swap", 8, 100}, Options{"off", 0, 100}}) {
    CAPTURE(options.preempt);
    CAPTURE(options.swap_blocks);
    for (const uint64_t seed : {49u, 55u, 79u, 134u}) {
      CAPTURE(seed);
      const std::vector<Ask> these = crowd(seed);
      CHECK(simulated(these, options) == Live(these, options).run());
    }
  }
}

TEST_CASE("F80: a simulated batch lets those join whom a live worker lets join, then") {
  for (const uint64_t most : {1u, 3u, 6u}) {
    // Of several that are computed again at once the live worker's threads say which is back first.
    for (const Options& options :
         {Options{"swap", 1000, 100, most}, Options{"off", 0, 300, most}}) {
      CAPTURE(most);
      CAPTURE(options.preempt);
      size_t later = 0;
      for (uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(seed);
        const std::vector<Ask> these = crowd(seed);
        const Outcome got = simulated(these, options);
        CHECK(got == Live(these, options).run());
        Options all = options;
        all.batch = 0;
        later += got.ends != simulated(these, all).ends ? 1 : 0;
      }
      CHECK(later == 5);  // the limit counts
    }
  }
}

TEST_CASE("who waits for a block leaves a full batch to an older one that waits for a place") {
  const std::vector<Ask> these = {{0, 10, 20}, {0, 60, 60}, {0, 60, 60}};
  for (const char* preempt : {"recompute", "swap"}) {
    CAPTURE(preempt);
    const cost::ModelSpec spec = seconds();
    Decoder decoder(spec,
                    {.join_share = 0,
                     .memory = {{.blocks = 10,
                                 .block_tokens = kBlock,
                                 .preempt = preempt,
                                 .swap_bytes = uint64_t{1} << 40,
                                 .copy_bytes_per_s = 1e30,
                                 .tbt_slo = 1s}}},
                    false);
    for (uint64_t id = 0; id < these.size(); ++id)
      REQUIRE(decoder.reserve({id, these[id].prompt, these[id].answer, 0}, Time{}));
    for (const uint64_t id : {2u, 1u, 0u})  // the youngest has its KV first, and the only place
      decoder.ready({id, these[id].prompt, these[id].answer, 0}, Time{});
    std::vector<Decoded> ended;
    while (decoder.deadline() != Time::max()) decoder.tick(decoder.deadline(), ended);
    CHECK(ended.size() == 3);
    CHECK(decoder.memory()->preemptions().front().id == 2);
  }
}

// A step takes a second, and so does computing a token.
cost::ModelSpec computing() {
  cost::ModelSpec s = seconds();
  s.cost.c1 = 1;
  s.cost.t1 = 0;
  return s;
}

TEST_CASE("an ended prompt's blocks are taken after those of who was preempted before") {
  const cost::ModelSpec spec = computing();
  DecoderMemory memory(spec, {.blocks = 12, .block_tokens = kBlock, .preempt = "recompute"});
  REQUIRE(memory.reserve(0, 16, 150, Time{}));
  REQUIRE(memory.reserve(1, 32, 1, Time{}));
  REQUIRE(memory.reserve(2, 96, 1, Time{}));
  for (uint64_t id = 0; id < 3; ++id) memory.arrived(id);
  CHECK(memory.admit(Time{}).size() == 3);
  const DecoderMemory::KvPtr oldest = memory.find(0);
  const auto grow = [&](uint64_t tokens) {
    oldest->tokens = tokens;
    memory.grow({oldest}, 0);
    CHECK(oldest->blocks.size() == (tokens + kBlock - 1) / kBlock);
  };
  grow(64);
  CHECK(memory.available() == 0);
  grow(65);  // takes the last of the six blocks of request 2
  CHECK(memory.preempted() == 1);
  memory.release(1);
  grow(97);  // and two more
  memory.release(0);
  CHECK(memory.admit(Time{}).empty());
  CHECK(memory.deadline() == Time{} + 48s);  // three are computed again
}

TEST_CASE("blocks that come free within a step are not those that were taken before it") {
  const cost::ModelSpec spec = computing();
  DecoderOptions o;
  o.join_share = 0;
  o.memory = {.blocks = 10, .block_tokens = kBlock, .preempt = "recompute"};
  Decoder decoder(spec, o, false);
  const Decoding oldest{0, 16, 140, 0}, youngest{1, 64, 90, 0}, waiting{2, 48, 1, 0};
  for (const Decoding& r : {oldest, youngest, waiting}) REQUIRE(decoder.reserve(r, Time{}));
  decoder.ready(oldest, Time{});
  decoder.ready(youngest, Time{});
  std::vector<Decoded> ended;
  const auto tick_until = [&](Time when) {
    while (decoder.deadline() <= when) decoder.tick(decoder.deadline(), ended);
  };
  // The youngest leaves four cached blocks with step 17. The oldest takes one of them with step 33,
  // before there are others.
  tick_until(Time{} + 40s);
  CHECK(decoder.memory()->preempted() == 1);
  decoder.release(waiting.id, Time{} + 40500ms);
  tick_until(Time{} + 41s);
  CHECK(decoder.memory()->deadline() == Time{} + 41s + 31s);  // for 79 tokens but three blocks
}

TEST_CASE("F72: half the tokens of all answers serve all requests at once, with preemptions") {
  trace::Trace t;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < 12; ++i) {
    trace::TraceRequest r;
    r.timestamp_ms = 0;
    r.input_length = 512;
    r.output_length = 4000 + 100 * i;
    r.hash_ids = {i};
    sum += r.output_length;
    t.records.push_back(std::move(r));
  }
  const auto arrivals = trace::schedule(t, {});
  REQUIRE(arrivals);
  SimOptions o;
  o.prefill = o.decode = 1;
  o.queue_timeout = {};
  const auto run = [&] {
    const auto r = simulate(t, *arrivals, cost::tiny(), o);
    REQUIRE(r);
    for (const trace::RequestResult& one : r->requests) CHECK(one.status == trace::Status::kOk);
    return *r;
  };
  CHECK(run().preemptions == 0);  // with the room of 1.2 M tokens
  o.decode_tokens = sum / 2;
  const SimResult grown = run();
  CHECK(grown.preemptions > 0);
  o.preempt = "swap";
  o.swap_memory = Bytes{uint64_t{64} << 30};
  const SimResult swapped = run();
  CHECK(swapped.preempted_to_host == swapped.preemptions);
  CHECK(swapped.preemptions > 0);
  o.preempt = "off";
  const SimResult whole = run();
  CHECK(whole.preemptions == 0);
  CHECK(grown.steps < whole.steps);  // more of them run at once
}

}  // namespace decoder_memory_test
}  // namespace mc::sim
