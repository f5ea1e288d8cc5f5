// Makes traces of conversations for simulations: each request comes back with all that an earlier
// one had, or with nothing, and adds some blocks.
//
// Thread: values. Pure.
#pragma once
#include <cstdint>
#include <utility>

#include "base/random.h"
#include "trace/records/records.h"

namespace mc::bench {

inline trace::Trace made_conversations(uint64_t seed, size_t n) {
  Random random(seed);
  trace::Trace t;
  t.name = "conversations";
  uint64_t next = 1, ms = 0;
  for (size_t i = 0; i < n; ++i) {
    ms += random.below(1200);
    trace::TraceRequest r;
    if (!t.records.empty() && random.chance(0.7))
      r.hash_ids = t.records[random.below(t.records.size())].hash_ids;
    for (uint64_t k = 4 + random.below(16); k > 0; --k) r.hash_ids.push_back(next++);
    r.timestamp_ms = ms;
    r.input_length = r.hash_ids.size() * 512 - random.below(512);
    r.output_length = 1 + random.below(40);
    t.records.push_back(std::move(r));
  }
  return t;
}

}  // namespace mc::bench
