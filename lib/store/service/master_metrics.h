// Prints a master's metrics for /metrics. They are its own under mc_store_* and, where the meaning
// is the same, the names of the reference master (design, "Metric names").
//
// Thread: the loop's.
#pragma once
#include <map>
#include <string_view>

#include "base/metrics.h"
#include "store/master/master.h"

namespace mc::store {

// Counters of one type of call. Calls of several keys count apart from those of one key.
struct CallTally {
  struct {
    uint64_t calls = 0, failures = 0;
  } single;
  struct {
    uint64_t calls = 0, failures = 0, partial = 0, items = 0, failed_items = 0;
  } batch;
  void add(size_t items, size_t failed);
};

class MasterMetrics {
 public:
  explicit MasterMetrics(Metrics& metrics) : metrics_(metrics) {}
  // The counters of a type of call, valid for the object's life; nullptr: it is not counted.
  CallTally* of(std::string_view type);
  void update(Master& master, Time now);

 private:
  void update_theirs(const Master& master, const ClusterStat& stat);
  void update_values(const Master::Totals& totals);
  void update_tenants(const Master& master);

  Metrics& metrics_;
  std::map<std::string_view, CallTally> calls_;
  Master::Totals told_values_;  // as last added
};

}  // namespace mc::store
