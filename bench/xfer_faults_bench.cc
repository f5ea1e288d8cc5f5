// Transfers while transports fail, lose answers or stall, against the same transfers undisturbed in
// the same run; and how soon all is answered, or goes on elsewhere, when the peer is killed or
// stopped in the middle, against the timeout that was asked for. With each: requests that failed,
// bytes that are wrong, bytes that landed after all was answered.
#include <algorithm>
#include <cstring>
#include <thread>

#include "bench/figure.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"
#include "io/file.h"

namespace mc::bench {
namespace {

using xfer::Engine;
using xfer::Op;
using xfer::TransferState;
using Names = std::vector<std::string>;

constexpr uint64_t kHalf = 32 * kMiB, kMemory = 2 * kHalf;  // of the peer: read, and written
constexpr uint64_t kRequest = 4 * kMiB, kVictim = 8 * kMiB;
constexpr Duration kTimeout = std::chrono::milliseconds(300), kLimit = std::chrono::seconds(30),
                   kPatience = 5 * kTimeout;

struct Drill {
  const char* name;
  Names transports;
  const char* rule;
  Names undisturbed;
  double target;  // of the undisturbed goodput; 0: none
};
const Drill kDrills[] = {
    {"tcp refuses, on by shm",
     {"tcp", "shm"},
     R"("transport": "tcp", "error": "submit")",
     {"shm"},
     .9},
    {"shm refuses, on by tcp",
     {"shm", "tcp"},
     R"("transport": "shm", "error": "submit")",
     {"tcp"},
     .9},
    {"tcp loses 1 answer in 10",
     {"tcp", "shm"},
     R"("transport": "tcp", "error": "completion", "share": 0.1)",
     {"tcp"},
     .8},
    {"shm loses 1 answer in 10",
     {"shm", "tcp"},
     R"("transport": "shm", "error": "completion", "share": 0.1)",
     {"shm"},
     0},
    {"tcp 1 in 20 late by 2ms", {"tcp"}, R"("delay": "2ms", "share": 0.05)", {"tcp"}, .9},
    {"shm 1 in 20 late by 2ms", {"shm"}, R"("delay": "2ms", "share": 0.05)", {"shm"}, 0},
    {"tcp 1 in 200 never answered",
     {"tcp", "shm"},
     R"("transport": "tcp", "drop": true, "share": 0.005)",
     {"tcp"},
     0},
};

struct Event {
  const char* name;
  Names transports;
  int signal;        // to the peer, in mid-transfer; 0: none
  const char* rule;  // of slices; "": none
  bool survives;     // no request may fail
  double target;     // of timeout / time
};
const Event kEvents[] = {
    {"tcp peer killed, answered", {"tcp"}, SIGKILL, "", false, 1},
    {"shm peer killed, answered", {"shm"}, SIGKILL, "", false, 1},
    {"tcp peer stopped, answered", {"tcp"}, SIGSTOP, "", false, .5},
    {"tcp falls silent, on by shm",
     {"tcp", "shm"},
     0,
     R"("transport": "tcp", "drop": true, "skip": 300)",
     true,
     .5},
};

// What must be none.
struct Tally {
  uint64_t requests = 0, failed = 0, unanswered = 0, checked = 0, wrong = 0;
  Error first;
  void print(const std::string& name, bool survives) const {
    if (survives && failed > 0) std::fprintf(stderr, "%s: %s\n", name.c_str(), first.what.c_str());
    if (survives)
      none({"xfer-faults", name, "requests failed", "all"}, failed, requests);
    else
      none({"xfer-faults", name, "requests unanswered", "all"}, unanswered, requests);
    none({"xfer-faults", name, "bytes wrong", "all"}, wrong, checked);
  }
};

uint64_t differing(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return 0;
  uint64_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += a[i] != b[i] ? 1 : 0;
  return n;
}

xfer::Request request(xfer::SegmentHandle segment, Op op, uint64_t at, std::byte* local) {
  xfer::Request r;
  r.op = op;
  r.segment = segment;
  r.offset = at;
  r.local = local;
  r.bytes = kRequest;
  return r;
}

struct Opened {
  Metrics metrics;
  std::unique_ptr<Engine> engine;
  xfer::SegmentHandle segment = 0;
  // `rule`: what goes wrong, as fields of a fault script's line; "": nothing.
  Result<> open(const Clock& clock, const Names& transports, const std::string& rule,
                const ServingPeer& peer) {
    xfer::EngineOptions o;
    o.node = "bench";
    o.transports = transports;
    o.peer_timeout = kTimeout;
    if (!rule.empty()) {
      o.fault = "/tmp/mc-faults-bench-" + std::to_string(::getpid());
      MC_TRY_(io::write_file_atomically(o.fault, "{" + rule + "}\n"));
    }
    auto opened = Engine::open(clock, o, metrics);
    if (!rule.empty()) ::unlink(o.fault.c_str());
    MC_TRY(engine, std::move(opened));
    MC_TRY(segment, engine->open_segment(peer.segment));
    return {};
  }
};

struct Bench {
  SteadyClock clock;
  bool quick = false;
  std::unique_ptr<ServingPeer> peer, stopped;
  std::vector<std::unique_ptr<ServingPeer>> doomed;  // started before any thread
  std::vector<std::byte> pattern, local, back;
  Opened checker;
  uint64_t seed = 2;

  size_t turns() const { return quick ? 3 : 7; }

  Result<> start() {
    MC_TRY(peer, ServingPeer::start(clock, kMemory));
    MC_TRY(stopped, ServingPeer::start(clock, kVictim));
    const auto kills = std::count_if(std::begin(kEvents), std::end(kEvents),
                                     [](const Event& e) { return e.signal == SIGKILL; });
    for (size_t i = 0; i < static_cast<size_t>(kills) * (turns() + 1); ++i) {
      MC_TRY(auto victim, ServingPeer::start(clock, kVictim));
      doomed.push_back(std::move(victim));
    }
    pattern.resize(kHalf);
    fill(pattern, 1);
    local.resize(kMemory);
    back.resize(kHalf);
    MC_TRY_(checker.open(clock, {"shm"}, "", *peer));
    return offer(checker, kHalf);
  }

  // Writes the pattern to the peer's memory.
  Result<> offer(const Opened& to, uint64_t bytes) {
    xfer::Request r = request(to.segment, Op::kWrite, 0, pattern.data());
    r.bytes = bytes;
    return to.engine->transfer_sync(r, kLimit);
  }

  void count(const Engine& engine, xfer::BatchId batch, size_t requests, Tally& tally) const {
    tally.requests += requests;
    for (size_t i = 0; i < requests; ++i) {
      const xfer::Status s = engine.status(batch, i);
      if (s.state == TransferState::kCompleted) continue;
      tally.unanswered += xfer::finished(s.state) ? 0 : 1;
      if (tally.failed++ == 0) tally.first = s.error;
    }
  }

  // Half reads, half writes; every byte of both is looked at afterwards.
  Result<Measured> turn(Opened& by, Tally& tally) {
    const uint64_t total = quick ? 256 * kMiB : 1 * kGiB;
    std::memset(local.data(), 0, kHalf);
    fill(std::span(local).subspan(kHalf), ++seed);
    std::vector<xfer::Request> requests;
    for (uint64_t round = 0; round < total / kMemory; ++round)
      for (uint64_t at = 0; at < kHalf; at += kRequest) {
        requests.push_back(request(by.segment, Op::kRead, at, local.data() + at));
        requests.push_back(request(by.segment, Op::kWrite, kHalf + at, local.data() + kHalf + at));
      }
    const xfer::BatchId batch = by.engine->allocate_batch();
    const auto took = measured(clock, peer->pid(), total, [&]() -> Result<> {
      MC_TRY_(by.engine->submit(batch, requests));
      if (auto done = by.engine->wait(batch, kLimit); !done && done.error().code == Code::kTimeout)
        return done;
      return {};
    });
    count(*by.engine, batch, requests.size(), tally);
    by.engine->free_batch(batch);
    for (uint64_t at = 0; at < kHalf; at += kRequest)
      MC_TRY_(checker.engine->transfer_sync(
          request(checker.segment, Op::kRead, kHalf + at, back.data() + at), kLimit));
    tally.wrong += differing(std::span(local).first(kHalf), pattern) +
                   differing(std::span(local).subspan(kHalf), back);
    tally.checked += kMemory;
    return took;
  }

  Result<> drill(const Drill& d) {
    Opened disturbed, calm;
    MC_TRY_(disturbed.open(clock, d.transports, d.rule, *peer));
    MC_TRY_(calm.open(clock, d.undisturbed, "", *peer));
    Tally tally, other;
    MC_TRY_(compare(
        {"xfer-faults", d.name, "GB/s", d.undisturbed[0] + " undisturbed", d.target}, turns(),
        [&] { return turn(disturbed, tally); }, [&] { return turn(calm, other); }));
    tally.print(d.name, true);
    return {};
  }

  // Milliseconds to the last answer, from the signal, which is sent in mid-transfer, or from
  // submit, when the slices are dropped.
  Result<Measured> turn(const Event& e, Tally& tally) {
    std::unique_ptr<ServingPeer> victim;
    if (e.signal == SIGKILL) {
      victim = std::move(doomed.back());
      doomed.pop_back();
    }
    const ServingPeer& at = victim ? *victim : *stopped;
    Opened by;
    MC_TRY_(by.open(clock, e.transports, e.rule, at));
    MC_TRY_(offer(by, kVictim));
    std::memset(local.data(), 0, kVictim);
    std::vector<xfer::Request> requests;
    for (size_t i = 0; i < 512; ++i) {
      const uint64_t from = i * kRequest % kVictim;
      requests.push_back(request(by.segment, Op::kRead, from, local.data() + from));
    }
    const xfer::BatchId batch = by.engine->allocate_batch();
    Time before = clock.now();
    MC_TRY_(by.engine->submit(batch, requests));
    const Time limit = clock.now() + kLimit;
    while (by.engine->status(batch, requests.size() / 8).state != TransferState::kCompleted)
      if (clock.now() > limit)
        return fail(Code::kTimeout, "%s: nothing moves", e.name);
      else
        std::this_thread::yield();
    if (e.signal != 0) before = clock.now();
    if (e.signal != 0) ::kill(at.pid(), e.signal);
    (void)by.engine->wait(batch, kPatience);  // errors are looked at one by one
    const double ms = to_seconds(clock.now() - before) * 1e3;
    count(*by.engine, batch, requests.size(), tally);
    for (uint64_t from = 0; from < kVictim; from += kRequest)  // their first ones completed
      tally.wrong += differing(std::span(local).subspan(from, kRequest),
                               std::span(pattern).subspan(from, kRequest));
    // Whatever lands from now on is wrong.
    std::memset(local.data(), 0x5a, kVictim);
    by.engine->free_batch(batch);
    by.engine.reset();
    if (e.signal == SIGSTOP) ::kill(at.pid(), SIGCONT);
    tally.wrong += kVictim - static_cast<uint64_t>(std::count(
                                 local.begin(), local.begin() + kVictim, std::byte{0x5a}));
    tally.checked += 2 * kVictim;
    return Measured(ms);
  }

  Result<> event(const Event& e) {
    Tally tally;
    const double timeout = to_seconds(kTimeout) * 1e3;
    MC_TRY_(compare(
        {"xfer-faults", e.name, "ms", "peer timeout", e.target, true}, turns(),
        [&] { return turn(e, tally); }, [&]() -> Result<Measured> { return Measured(timeout); }));
    tally.print(e.name, e.survives);
    return {};
  }
};

Result<int> run(const Options& o) {
  Bench b;
  b.quick = o.quick;
  MC_TRY_(b.start());
  for (const Drill& d : kDrills) MC_TRY_(b.drill(d));
  for (const Event& e : kEvents) MC_TRY_(b.event(e));
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_faults_bench", "transfers under faults against undisturbed ones");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
