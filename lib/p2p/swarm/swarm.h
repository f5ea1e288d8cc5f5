// Pure: decides which shard a source grants, and which source a puller asks. A source grants its
// uplink to a few askers at a time, and gives each the shard it has granted least. So an origin
// sends every shard once before it repeats one, and the pullers have shards to exchange. A puller
// asks the sources with the fewest pulls of its own in flight, and tries another one when a source
// refuses or dies.
//
// Thread: one at a time. Times are the caller's.
// Source: BitTorrent's rarest-first and super-seeding (Cohen 2003), seen from the source.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/time.h"
#include "p2p/shards.h"

namespace mc::p2p {

// One source's uplink, for one set.
class Uplink {
 public:
  struct Config {
    uint32_t slots = 2;  // uploads at a time
    // A slot not given back by then is free again: sooner than pullers lose patience with a source
    // whose slots are those of a puller that died.
    Duration slot_max = std::chrono::seconds(8);
  };
  Uplink(size_t shards, Config config, uint64_t seed)
      : config_(config), granted_(shards), random_(seed) {}

  // A shard of `mine` that is in `wanted`, given out least so far (a random one of those).
  // kBusy: no slot is free; kNotFound: there is none.
  Result<uint32_t> grant(const ShardSet& mine, const ShardSet& wanted, const std::string& asker,
                         Time now);
  void released(uint32_t shard, const std::string& asker);
  size_t busy(Time now);

 private:
  Config config_;
  std::vector<uint32_t> granted_;
  Random random_;
  std::map<std::pair<std::string, uint32_t>, Time> uploads_;  // until when
};

// One puller's view of its sources, for one set.
class Sources {
 public:
  struct Config {
    uint32_t per_source = 2;  // pulls in flight from one source
    Duration busy_pause = std::chrono::milliseconds(20),
             empty_pause = std::chrono::milliseconds(50);
    Duration failed_pause = std::chrono::milliseconds(500);
    // Failures in a row after which a source is dropped; the latter if it never gave a shard.
    uint32_t failures_max = 5, unproven_failures_max = 2;
  };
  Sources(Config config, std::string self, uint64_t seed)
      : config_(config), self_(std::move(self)), random_(seed) {}

  void learn(const std::string& address);  // itself is ignored
  // The source to ask now; nothing: see wakes(). It counts as in flight until one of the below.
  std::optional<std::string> next(Time now);
  void gave(const std::string& address, Time now);
  void refused(const std::string& address, bool empty, Time now);  // busy, or has nothing we want
  void failed(const std::string& address, Time now);
  Time wakes() const;  // when a paused source may be asked again; Time::max(): none is paused
  bool none() const { return sources_.empty(); }
  std::vector<std::string> known() const;

 private:
  struct Source {
    uint32_t in_flight = 0, failures = 0;
    uint64_t given = 0;
    Time paused_until{};
  };
  void back(const std::string& address, Time until);
  Config config_;
  std::string self_;
  Random random_;
  std::map<std::string, Source> sources_;
};

}  // namespace mc::p2p
