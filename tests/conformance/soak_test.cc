// What must never happen, looked for: seconds here, minutes with MC_SOAK=SECONDS (make soak).
#include <dirent.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/conformance/child.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

double soak_seconds(double otherwise) {
  const char* text = std::getenv("MC_SOAK");
  return text == nullptr ? otherwise : std::atof(text);
}

// A block whose every word is made from its slot, its generation and its place.
void describe_block(std::span<std::byte> block, uint64_t slot, uint64_t generation) {
  auto* words = reinterpret_cast<uint64_t*>(block.data());
  for (size_t i = 0; i < block.size() / 8; ++i) words[i] = mix64(slot * 0x10001 + generation) + i;
}
size_t wrong_words(std::span<const std::byte> block, uint64_t slot, uint64_t generation) {
  const auto* words = reinterpret_cast<const uint64_t*>(block.data());
  size_t wrong = 0;
  for (size_t i = 0; i < block.size() / 8; ++i)
    wrong += words[i] != mix64(slot * 0x10001 + generation) + i ? 1 : 0;
  return wrong;
}

// Slots in the owner's memory: a guard word, then a block. A writer owns a slot for as long as it
// writes one generation; readers come and go, and may be late.
struct Slots {
  static constexpr uint64_t kSlots = 16, kBlock = 96 * kKiB, kPitch = kBlock + 64;
  std::atomic<uint64_t> published[kSlots] = {};  // the generation that may be read; 0: none
  std::atomic<uint64_t> next{1};
  Mutex owner[kSlots];
};

struct Counts {
  std::atomic<uint64_t> written{0}, read{0}, stale{0}, wrong{0}, failed{0};
};

Request slot_request(Pair& pair, Op op, std::span<std::byte> local, uint64_t slot,
                     uint64_t generation) {
  Request r = pair.request(op, local, slot * Slots::kPitch + 64);
  r.guard = {pair.remote.offset() + slot * Slots::kPitch, generation};
  return r;
}

void write_slots(Pair& pair, Slots& slots, Counts& counts, uint64_t seed,
                 const std::atomic<bool>& stop) {
  Random random(seed);
  std::vector<std::byte> local(Slots::kBlock);
  while (!stop.load()) {
    const uint64_t slot = random.below(Slots::kSlots);
    Lock lock(slots.owner[slot]);
    const uint64_t generation = slots.next.fetch_add(1);
    slots.published[slot].store(0);
    const uint64_t guard = pair.remote.offset() + slot * Slots::kPitch;
    auto raised = pair.engine().advance_guard(pair.segment, guard, generation, 5s);
    describe_block(local, slot, generation);
    if (raised)
      raised =
          pair.engine().transfer_sync(slot_request(pair, Op::kWrite, local, slot, generation), 5s);
    if (!raised) {
      ++counts.failed;
      continue;
    }
    slots.published[slot].store(generation);
    ++counts.written;
  }
}

void read_slots(Pair& pair, Slots& slots, Counts& counts, uint64_t seed,
                const std::atomic<bool>& stop) {
  Random random(seed);
  std::vector<std::byte> local(Slots::kBlock);
  while (!stop.load()) {
    const uint64_t slot = random.below(Slots::kSlots);
    const uint64_t generation = slots.published[slot].load();
    if (generation == 0) continue;
    const auto outcome =
        pair.engine().transfer_sync(slot_request(pair, Op::kRead, local, slot, generation), 5s);
    if (outcome) {
      ++counts.read;
      counts.wrong += wrong_words(local, slot, generation);
    } else if (outcome.error().code == Code::kStale) {
      ++counts.stale;
    } else {
      ++counts.failed;
    }
  }
}

size_t open_descriptors() {
  size_t n = 0;
  if (DIR* dir = ::opendir("/proc/self/fd")) {
    while (::readdir(dir) != nullptr) ++n;
    ::closedir(dir);
  }
  return n;
}
size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t n = 0;
  for (std::string line; std::getline(maps, line);) ++n;
  return n;
}

}  // namespace

TEST_SUITE("soak") {
  TEST_CASE("concurrent writers and readers of self-describing blocks: zero wrong words") {
#ifdef __SANITIZE_THREAD__
    if (std::getenv("MC_SOAK") == nullptr) return;  // they race by design, and the guards tell
#endif
    for (const std::string& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, Slots::kSlots * Slots::kPitch);
      auto slots = std::make_unique<Slots>();
      Counts counts;
      std::atomic<bool> stop{false};
      std::vector<std::thread> threads;
      for (uint64_t t = 0; t < 2; ++t)
        threads.emplace_back([&, t] { write_slots(pair, *slots, counts, t, stop); });
      for (uint64_t t = 0; t < 3; ++t)
        threads.emplace_back([&, t] { read_slots(pair, *slots, counts, 100 + t, stop); });
      const Time until = kClock.now() + from_seconds(soak_seconds(.5));
      Mutex mutex;
      Condition never;
      {
        Lock lock(mutex);
        while (kClock.now() < until || counts.read.load() == 0)
          never.wait_for(mutex, std::chrono::milliseconds(50));
      }
      stop.store(true);
      for (auto& t : threads) t.join();
      MESSAGE(transport << ": " << counts.written.load() << " written, " << counts.read.load()
                        << " read, " << counts.stale.load() << " stale");
      CHECK(counts.wrong.load() == 0);
      CHECK(counts.failed.load() == 0);
      CHECK(counts.written.load() > 0);
    }
  }

  TEST_CASE("peers that come and are killed leave no descriptor and no mapping behind") {
    // Ten thousand with MC_SOAK.
    const int cycles = std::getenv("MC_SOAK") == nullptr ? 24 : 10'000;
    for (const std::string transport : {"shm", "tcp"}) {
      CAPTURE(transport);
      auto engine = make_engine("parent", {transport});
      std::vector<std::byte> want(64 * kKiB), got(64 * kKiB);
      fill(want, 11);
      size_t descriptors = 0, mapped = 0;
      for (int i = 0; i < cycles; ++i) {
        Child child({.transports = {transport}, .bytes = 64 * kKiB});
        child.segment.node = "child-" + std::to_string(i % 4);
        auto segment = engine->open_segment(child.segment);
        REQUIRE(segment.has_value());
        auto read = engine->transfer_sync(read_of(*segment, 0, got), 5s);
        REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
        CHECK(digest(got) == digest(want));
        child.kill();
        engine->close_segment(*segment);
        if (i == cycles / 2) {
          descriptors = open_descriptors();
          mapped = mappings();
        }
      }
      // Closing runs in the background: the last few may still be open.
      CHECK(open_descriptors() <= descriptors + 16);
      CHECK(mappings() <= mapped + 32);
    }
  }
}
