// The KV pattern (61 layers x 32 blocks x (128 KiB + 16 KiB), every block apart from the next on
// both sides) against one contiguous transfer of as many bytes, over each transport; and over tcp
// 32 layers x 32 blocks of one size, smaller ones.
//
// "strided" submits a request a layer and kind, "blocks" one a block, shuffled, each to the place
// that it has here, "paged" one a block, each to the place of another, so that nothing can be
// joined. All of it is submitted as one batch and awaited. "bare" is what plain copies of paged
// blocks reach: what the hardware leaves of contiguous bandwidth when the next block is elsewhere.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "bench/figure.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"
#include "xfer/memory/copy.h"

namespace mc::bench {
namespace {

constexpr uint64_t kBlocks = 32;
constexpr uint64_t kGap = 4 * kKiB;  // between two blocks
constexpr Duration kBudget = std::chrono::seconds(30);

struct Shape {
  uint64_t layers = 0;
  std::vector<uint64_t> kinds;  // bytes of a block
  uint64_t payload() const { return layers * kBlocks * sum(); }
  uint64_t memory() const { return payload() + layers * kBlocks * kinds.size() * kGap; }
  uint64_t sum() const {
    uint64_t out = 0;
    for (const uint64_t bytes : kinds) out += bytes;
    return out;
  }
};
const Shape kWhole{61, {128 * kKiB, 16 * kKiB}};

struct Block {
  uint64_t at = 0, bytes = 0;
};

// Layer after layer, all blocks of a kind, then of the other.
std::vector<Block> blocks(const Shape& shape) {
  std::vector<Block> out;
  uint64_t at = 0;
  for (uint64_t layer = 0; layer < shape.layers; ++layer)
    for (const uint64_t bytes : shape.kinds)
      for (uint64_t i = 0; i < kBlocks; ++i, at += bytes + kGap) out.push_back({at, bytes});
  return out;
}

std::vector<Block> shuffled(const Shape& shape, uint64_t seed) {
  std::vector<Block> all = blocks(shape);
  Random random(seed);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.next() % i]);
  return all;
}

struct Move {
  uint64_t from = 0, to = 0, bytes = 0;
};

// Each block to the place of some other of its kind.
std::vector<Move> paged(const Shape& shape) {
  const std::vector<Block> from = shuffled(shape, 7), to = shuffled(shape, 8);
  std::vector<Move> out;
  for (const uint64_t bytes : shape.kinds) {
    auto there = to.begin();
    for (const Block& b : from) {
      if (b.bytes != bytes) continue;
      there = std::find_if(there, to.end(), [&](const Block& t) { return t.bytes == bytes; });
      out.push_back({b.at, there++->at, bytes});
    }
  }
  return out;
}

struct Setup {
  const Clock& clock;
  xfer::Engine& engine;
  xfer::SegmentHandle segment;
  std::span<std::byte> local;
  uint64_t offset;
  pid_t peer;
  Shape shape;

  xfer::Request request(xfer::Op op, uint64_t at, uint64_t bytes) const {
    return request(op, Move{at, at, bytes});
  }
  xfer::Request request(xfer::Op op, const Move& m) const {  // `from` is ours
    xfer::Request r;
    r.op = op;
    r.segment = segment;
    r.local = local.data() + m.from;
    r.offset = offset + m.to;
    r.bytes = m.bytes;
    return r;
  }
  Turn turn(std::vector<xfer::Request> requests, size_t rounds) const {
    return [this, rounds, requests = std::move(requests)] {
      return measured(clock, peer, shape.payload() * rounds, [&]() -> Result<> {
        for (size_t i = 0; i < rounds; ++i) {
          const xfer::BatchId batch = engine.allocate_batch();
          Result<> outcome = engine.submit(batch, requests);
          if (outcome) outcome = engine.wait(batch, kBudget);
          engine.free_batch(batch);
          MC_TRY_(outcome);
        }
        return {};
      });
    };
  }
};

std::vector<xfer::Request> strided(const Setup& s, xfer::Op op) {
  std::vector<xfer::Request> out;
  const auto all = blocks(s.shape);
  for (size_t i = 0; i < all.size(); i += kBlocks) {
    xfer::Request r = s.request(op, all[i].at, all[i].bytes);
    r.rows = kBlocks;
    r.local_stride = r.remote_stride = all[i].bytes + kGap;
    out.push_back(r);
  }
  return out;
}

std::vector<xfer::Request> one_by_one(const Setup& s, xfer::Op op) {
  std::vector<xfer::Request> out;
  for (const Block& b : shuffled(s.shape, 7)) out.push_back(s.request(op, b.at, b.bytes));
  return out;
}

std::vector<xfer::Request> each_elsewhere(const Setup& s, xfer::Op op) {
  std::vector<xfer::Request> out;
  for (const Move& m : paged(s.shape)) out.push_back(s.request(op, m));
  return out;
}

// What the machine gives: the blocks, in that order, copied by two threads and nothing else around
// it; `together` at a time, as the engine's copy threads take them.
Turn bare(const Setup& s, std::span<std::byte> other, std::vector<Move> all, size_t rounds) {
  return [=, &s] {
    return gigabytes(s.clock, s.shape.payload(), rounds, [&]() -> Result<> {
      constexpr size_t kTogether = 4;
      std::atomic<size_t> next{0};
      const auto work = [&] {
        for (size_t i = next.fetch_add(kTogether); i < all.size(); i = next.fetch_add(kTogether))
          for (size_t n = i; n < std::min(i + kTogether, all.size()); ++n) {
            const Move& m = all[n];
            xfer::copy_rows({other.data() + m.to, s.local.data() + m.from, m.bytes, 1, 0, 0}, true);
          }
      };
      std::thread second(work);
      work();
      second.join();
      return {};
    });
  };
}

std::vector<Move> in_a_row(const Shape& shape) {
  std::vector<Move> out;
  for (uint64_t at = 0; at < shape.payload(); at += 512 * kKiB)
    out.push_back({at, at, std::min(512 * kKiB, shape.payload() - at)});
  return out;
}

using Requests = std::vector<xfer::Request> (*)(const Setup& s, xfer::Op op);

// Writes, wipes, reads back: what lies in blocks must be what was sent, the gaps untouched.
Result<> verify(const Setup& s, Requests there, Requests back) {
  fill(s.local, 3);
  const std::vector<std::byte> sent(s.local.begin(), s.local.end());
  MC_TRY_(s.turn(there(s, xfer::Op::kWrite), 1)());
  std::memset(s.local.data(), 0, s.local.size());
  MC_TRY_(s.turn(back(s, xfer::Op::kRead), 1)());
  uint64_t end = 0;
  for (const Block& b : blocks(s.shape)) {
    const bool same = std::memcmp(s.local.data() + b.at, sent.data() + b.at, b.bytes) == 0;
    const auto gap = s.local.subspan(end, b.at - end);
    const bool clean = std::all_of(gap.begin(), gap.end(), [](auto c) { return c == std::byte{}; });
    if (!same || !clean)
      return fail(Code::kCorrupt, "block at %llu differs", static_cast<unsigned long long>(b.at));
    end = b.at + b.bytes;
  }
  return {};
}

// Small blocks, over tcp: what a frame costs shows there.
Result<> small_blocks(const Options& o, Setup s) {
  for (const uint64_t bytes : {4 * kKiB, 16 * kKiB, 64 * kKiB}) {
    s.shape = {32, {bytes}};
    s.local = s.local.first(s.shape.memory());
    const size_t rounds = (o.quick ? 256 : 1024) * kMiB / s.shape.payload();
    MC_TRY_(verify(s, each_elsewhere, each_elsewhere));
    for (const auto op : {xfer::Op::kWrite, xfer::Op::kRead})
      MC_TRY_(compare({"xfer-kv",
                       strf("tcp %s paged %s", op == xfer::Op::kWrite ? "write" : "read",
                            rounded_bytes_text(bytes).c_str()),
                       "GB/s", "tcp contiguous"},
                      o.turns(), s.turn(each_elsewhere(s, op), rounds),
                      s.turn({s.request(op, 0, s.shape.payload())}, rounds)));
  }
  return {};
}

Result<int> run(const Options& o) {
  SteadyClock clock;
  const uint64_t memory = kWhole.memory();
  const size_t rounds = o.quick ? 3 : 8;
  MC_TRY(auto peer, ServingPeer::start(clock, memory));
  for (const std::string transport : {"shm", "tcp"}) {
    Metrics metrics;
    xfer::EngineOptions options;
    options.node = "bench";
    options.transports = {transport};
    MC_TRY(auto engine, xfer::Engine::open(clock, options, metrics));
    MC_TRY(const auto segment, engine->open_segment(peer->segment));
    MC_TRY(const xfer::Memory local, engine->allocate(memory));
    const Setup s{
        clock,       *engine, segment, local.bytes(), peer->segment.buffers.front().offset,
        peer->pid(), kWhole};
    MC_TRY_(verify(s, strided, one_by_one));
    MC_TRY_(verify(s, each_elsewhere, each_elsewhere));
    if (transport == "shm") {
      MC_TRY(const xfer::Memory other, engine->allocate(memory));
      std::memset(other.data(), 0, memory);
      MC_TRY_(compare({"xfer-kv", "bare copies of blocks", "GB/s", "bare copies, contiguous"},
                      o.turns(), bare(s, other.bytes(), paged(s.shape), rounds),
                      bare(s, other.bytes(), in_a_row(s.shape), rounds)));
    }
    for (const auto op : {xfer::Op::kWrite, xfer::Op::kRead}) {
      const std::string what = transport + (op == xfer::Op::kWrite ? " write" : " read");
      const Turn contiguous = s.turn({s.request(op, 0, s.shape.payload())}, rounds);
      MC_TRY_(compare({"xfer-kv", what + " strided", "GB/s", transport + " contiguous", 0.9},
                      o.turns(), s.turn(strided(s, op), rounds), contiguous));
      MC_TRY_(compare({"xfer-kv", what + " blocks", "GB/s", transport + " contiguous", 0.9},
                      o.turns(), s.turn(one_by_one(s, op), rounds), contiguous));
      MC_TRY_(compare({"xfer-kv", what + " paged", "GB/s", transport + " contiguous", 0.9},
                      o.turns(), s.turn(each_elsewhere(s, op), rounds), contiguous));
    }
    if (transport == "tcp") MC_TRY_(small_blocks(o, s));
  }
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_kv_bench", "key-value cache blocks against one contiguous transfer");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
