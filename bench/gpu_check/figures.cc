// Rates, each beside the driver's own copy of as many bytes in the same run, taking turns.
#include <array>

#include "base/units.h"
#include "bench/gpu_check/check.h"

namespace mc::gpu_check {
namespace {

using bench::Figure;
using bench::Measured;
using device::Block;
using device::Memory;
using device::Stream;

constexpr size_t kLayers = 61, kPerLayer = 32;  // the paper's KV pattern
constexpr uint64_t kKvBlock = 128 * kKiB;

// Real devices have room for gigabytes; a stand-in copies at the host's speed.
uint64_t sized(const Bench& b, uint64_t bytes) {
  return b.device->info().kind == "stand-in" ? bytes / 16 : bytes;
}

// GB/s of `submit`, repeated until there are about 2 GiB (or one turn of a stand-in).
bench::Turn turn(const Bench& b, Stream& s, uint64_t bytes, std::function<Result<>()> submit) {
  const uint64_t enough = sized(b, 2 * kGiB);
  const size_t rounds = std::max<uint64_t>(1, enough / bytes);
  return [&b, &s, bytes, rounds, submit = std::move(submit)]() -> Result<Measured> {
    return bench::gigabytes(b.clock, bytes, 1,
                            [&]() -> Result<> {
                              return finish(s, [&]() -> Result<> {
                                for (size_t i = 0; i < rounds; ++i) MC_TRY_(submit());
                                return {};
                              });
                            })
        .map([&](Measured m) { return Measured(m.value * static_cast<double>(rounds)); });
  };
}

// Slices, as the engine cuts, on two streams with an event each, against one copy of all.
Result<> host_copies(const Bench& b, bool to_device) {
  const uint64_t bytes = sized(b, 1 * kGiB), slice = bytes / 16;
  MC_TRY(const Memory device, b.device->allocate(bytes));
  MC_TRY(const Memory host, b.device->allocate_host(bytes));
  MC_TRY(const auto one, b.device->open_stream());
  MC_TRY(const auto two, b.device->open_stream());
  std::byte* const to = to_device ? device.data() : host.data();
  const std::byte* const from = to_device ? host.data() : device.data();
  const auto slices = [&]() -> Result<Measured> {
    return bench::gigabytes(b.clock, bytes, 1, [&]() -> Result<> {
      std::vector<std::unique_ptr<device::Event>> events;
      for (uint64_t at = 0, i = 0; at < bytes; at += slice, ++i) {
        Stream& s = i % 2 == 0 ? *one : *two;
        MC_TRY_(s.copy(to + at, from + at, slice));
        MC_TRY(auto event, s.record());
        events.push_back(std::move(event));
      }
      for (const auto& event : events) MC_TRY_(event->wait());
      return {};
    });
  };
  const auto whole = [&]() -> Result<Measured> {
    return bench::gigabytes(b.clock, bytes, 1, [&] {
      return finish(*one, [&] { return one->copy(to, from, bytes); });
    });
  };
  return bench::compare({.bench = "gpu-copy",
                         .name = to_device ? "host to device" : "device to host",
                         .against = "one copy, pinned",
                         .target = 0.9},
                        b.turns(), slices, whole);
}

Result<> device_copies(const Bench& b) {
  const uint64_t bytes = sized(b, 1 * kGiB);
  MC_TRY(const Memory memory, b.device->allocate(2 * bytes));
  MC_TRY(const auto s, b.device->open_stream());
  std::byte* const to = memory.data() + bytes;
  // The kernel, made to work by rows that are not dense on one side.
  const uint64_t row = 1 * kMiB, stride = row + 4096, rows = bytes / stride;
  const auto kernel = turn(b, *s, rows * row, [&] {
    return s->copy_rows({to, memory.data(), row, stride, row, rows});
  });
  const auto copy = turn(b, *s, rows * row, [&] { return s->copy(to, memory.data(), rows * row); });
  return bench::compare({.bench = "gpu-copy",
                         .name = "device to device, rows",
                         .against = "one copy",
                         .target = 0.85},
                        b.turns(), kernel, copy);
}

struct Kv {
  Memory cache, dense;
  std::vector<Block> gather, scatter;
  uint64_t bytes = 0;
};

// 61 layers of 32 blocks, each elsewhere in a cache that is twice as large.
Result<Kv> kv_pattern(const Bench& b, bool to_host) {
  Kv kv;
  const size_t layers = b.device->info().kind == "stand-in" ? 4 : kLayers;
  const size_t n = layers * kPerLayer, places = 2 * n + 1;
  kv.bytes = n * kKvBlock;
  MC_TRY(kv.cache, b.device->allocate(places * kKvBlock));
  MC_TRY(kv.dense, to_host ? b.device->allocate_host(kv.bytes) : b.device->allocate(kv.bytes));
  for (size_t i = 0; i < n; ++i) {
    std::byte* const block = kv.cache.data() + (i * 1009 % places) * kKvBlock;
    std::byte* const place = kv.dense.data() + i * kKvBlock;
    kv.gather.push_back({place, block, kKvBlock});
    kv.scatter.push_back({block, place, kKvBlock});
  }
  return kv;
}

Result<> kv_blocks(const Bench& b, bool to_host, bool scatter) {
  MC_TRY(const Kv kv, kv_pattern(b, to_host));
  MC_TRY(const auto s, b.device->open_stream());
  const auto& list = scatter ? kv.scatter : kv.gather;
  std::byte* const flat = kv.cache.data();
  const auto launch = turn(b, *s, kv.bytes, [&] { return s->copy_blocks(list); });
  const auto one = turn(b, *s, kv.bytes, [&] {
    return scatter ? s->copy(flat, kv.dense.data(), kv.bytes)
                   : s->copy(kv.dense.data(), flat, kv.bytes);
  });
  const auto each = turn(b, *s, kv.bytes, [&]() -> Result<> {
    for (const Block& x : list) MC_TRY_(s->copy(x.to, x.from, x.bytes));
    return {};
  });
  const std::string name = strf("%s %zu x 128 KiB, %s", scatter ? "scatter" : "gather", list.size(),
                                to_host ? "host" : "device");
  MC_TRY_(bench::compare(
      {.bench = "gpu-gather", .name = name, .against = "one contiguous copy", .target = 0.8},
      b.turns(), launch, one));
  return bench::compare({.bench = "gpu-gather",
                         .name = name,
                         .against = "a copy for each block",
                         .target = to_host ? 0 : 5.0},
                        b.turns(), launch, each);
}

// Small blocks, where starting a copy costs more than the bytes: a token's keys of one layer.
Result<> small_blocks(const Bench& b) {
  constexpr uint64_t kBytes = 4 * kKiB;
  const size_t n = sized(b, 65'536);
  MC_TRY(const Memory memory, b.device->allocate(3 * n * kBytes));
  MC_TRY(const auto s, b.device->open_stream());
  std::vector<Block> list;
  for (size_t i = 0; i < n; ++i)
    list.push_back(
        {memory.data() + i * kBytes, memory.data() + (n + i * 7919 % (2 * n)) * kBytes, kBytes});
  const auto launch = turn(b, *s, n * kBytes, [&] { return s->copy_blocks(list); });
  const auto each = turn(b, *s, n * kBytes, [&]() -> Result<> {
    for (const Block& x : list) MC_TRY_(s->copy(x.to, x.from, x.bytes));
    return {};
  });
  return bench::compare({.bench = "gpu-gather",
                         .name = strf("gather %zu x 4 KiB, device", n),
                         .against = "a copy for each block",
                         .target = 5},
                        b.turns(), launch, each);
}

}  // namespace

std::vector<Case> copy_figures() {
  return {
      {"h2d", "pinned memory to the device", [](const Bench& b) { return host_copies(b, true); }},
      {"d2h", "the device to pinned memory", [](const Bench& b) { return host_copies(b, false); }},
      {"d2d", "the copy kernel within the device", device_copies},
      {"gather", "a KV cache's blocks together",
       [](const Bench& b) { return kv_blocks(b, false, false); }},
      {"scatter", "and apart again", [](const Bench& b) { return kv_blocks(b, false, true); }},
      {"gather-host", "straight into pinned memory",
       [](const Bench& b) { return kv_blocks(b, true, false); }},
      {"gather-small", "blocks of 4 KiB", small_blocks},
  };
}

}  // namespace mc::gpu_check
