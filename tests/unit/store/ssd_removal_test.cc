// Removals and evictions that a disk fails to carry out.
#include "base/time.h"
#include "model_disk.h"
#include "ssd_values.h"

namespace mc::store::ssd {
namespace ssd_removal_test {
namespace {

BackendOptions options_of(const std::string& kind) {
  BackendOptions o;
  o.kind = kind;
  o.capacity = 1 * kMiB;
  o.reader_wait = {};
  return o;
}

std::unique_ptr<Backend> open(const std::shared_ptr<Disk>& disk, const BackendOptions& options,
                              ScanReport& report) {
  static const SteadyClock clock;
  auto backend = open_backend(disk, options, clock, report);
  REQUIRE_MESSAGE(backend.has_value(), backend.error().what);
  return std::move(*backend);
}

// A removal that had failed counted as done: the next start found the object again.
TEST_CASE("what a disk could not remove keeps its space, and is removed by a later try") {
  for (const std::string kind : {"bucket", "file", "offset"})
    for (const bool evicted : {false, true})
      for (const bool alone : {false, true}) {
        CAPTURE(kind);
        CAPTURE(evicted);
        CAPTURE(alone);
        auto disk = std::make_shared<ModelDisk>();
        ScanReport report;
        auto backend = open(disk, options_of(kind), report);
        Saves saves;
        saves.add("k", 10, 9000);
        if (!alone) saves.add("other", 10, 9000);
        REQUIRE(backend->write(saves.items()));
        const Stored object = backend->find("k").value_or(Stored{});
        const uint64_t used = backend->usage().used;
        const auto remove = [&] { return backend->remove({&object, 1}).has_value(); };
        disk->read_only = true;
        if (evicted) {
          auto eviction = backend->begin_evict(1 * kMiB);
          if (kind == "bucket") CHECK(!remove());  // its .meta is there until phase two
          const auto left = backend->commit_evict(std::move(eviction));
          CHECK(left.size() == (alone ? 1 : 2));
        }
        for (int i = 0; i < 3; ++i) {
          CHECK(!remove());
          backend->compact();
          CHECK(!backend->find("k").has_value());
          CHECK(backend->usage().used >= used);
        }
        disk->read_only = false;
        CHECK(remove());
        if (evicted) backend->compact();
        if (alone || evicted || kind != "bucket") CHECK(backend->usage().used < used);
        CHECK(backend->usage().waiting == 0);
        for (const Crash crash : kCrashes) {
          auto again = open(disk->after(crash), options_of(kind), report);
          CHECK(!again->find("k").has_value());
          CHECK(again->find("other").has_value() == (!alone && !evicted));
        }
      }
}

TEST_CASE("an older content that a disk could not remove does not outlive the newer one") {
  for (const std::string kind : {"bucket", "file", "offset"}) {
    CAPTURE(kind);
    auto disk = std::make_shared<ModelDisk>();
    ScanReport report;
    auto backend = open(disk, options_of(kind), report);
    Saves old, fresh;
    old.add("k", 10, 9000);
    fresh.add("k", 20, 5000);
    REQUIRE(backend->write(old.items()));
    const Stored before = backend->find("k").value_or(Stored{});
    disk->read_only = true;
    CHECK(!backend->remove({&before, 1}));
    disk->read_only = false;
    REQUIRE(backend->write(fresh.items()));
    const Stored now = backend->find("k").value_or(Stored{});
    CHECK(now.generation == Generation{20});
    REQUIRE(backend->remove({&now, 1}));
    CHECK(!open(disk->after(Crash::kPowerCut), options_of(kind), report)->find("k").has_value());
  }
}

// An object that was evicted may be offloaded again: same key, same generation.
TEST_CASE("a removal that failed does not reach what was written again since") {
  for (const std::string kind : {"bucket", "file", "offset"}) {
    CAPTURE(kind);
    auto disk = std::make_shared<ModelDisk>();
    ScanReport report;
    auto backend = open(disk, options_of(kind), report);
    Saves saves;
    saves.add("k", 10, 9000);
    REQUIRE(backend->write(saves.items()));
    const uint64_t used = backend->usage().used;
    const Stored object = backend->find("k").value_or(Stored{});
    disk->read_only = true;
    CHECK(!backend->remove({&object, 1}));
    disk->read_only = false;
    REQUIRE(backend->write(saves.items()));
    backend->compact();
    CHECK(backend->find("k").has_value());
    if (kind == "file") CHECK(backend->usage().used == used);  // others count logs and buckets
    for (const Crash crash : kCrashes) {
      CAPTURE(static_cast<int>(crash));
      CHECK(open(disk->after(crash), options_of(kind), report)->find("k").has_value());
    }
  }
}

}  // namespace
}  // namespace ssd_removal_test
}  // namespace mc::store::ssd
