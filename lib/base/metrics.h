// Counts in named counters, gauges and histograms, printed in the Prometheus text format.
//
//   auto& puts = metrics.counter("mc_store_puts_total", "objects put");
//   puts.add();
//   auto& hits = metrics.counter("mc_x_total", "...", {{"code", "ok"}});
//
// Names are mc_<component>_<what>_<unit>. References stay valid for the registry's life.
//
// Thread: any (the values are atomics; registration and printing lock).
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <forward_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace mc {

class Counter {
 public:
  // A part of the count with one writer at a time, on a cache line of its own: adding to it costs
  // neither a locked instruction nor a line that other threads want.
  class Cell {
   public:
    void add(uint64_t n = 1) { n_.store(value() + n, std::memory_order_relaxed); }
    uint64_t value() const { return n_.load(std::memory_order_relaxed); }

   private:
    alignas(64) std::atomic<uint64_t> n_{0};
  };
  void add(uint64_t n = 1) { n_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const;  // with all cells
  Cell& cell();            // a new one, which lives as long as the counter

 private:
  std::atomic<uint64_t> n_{0};
  mutable Mutex mutex_;
  std::forward_list<Cell> cells_ MC_GUARDED_BY(mutex_);
};

class Gauge {
 public:
  void set(double v) { v_.store(v, std::memory_order_relaxed); }
  void add(double v) { v_.fetch_add(v, std::memory_order_relaxed); }  // of several that write
  double value() const { return v_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> v_{0};
};

class BucketHistogram {
 public:
  explicit BucketHistogram(std::vector<double> bounds);
  void observe(double v);
  // Adds `n` values of one bucket. They add up to `sum`.
  void add(size_t bucket, uint64_t n, double sum);
  const std::vector<double>& bounds() const { return bounds_; }
  uint64_t bucket(size_t i) const { return buckets_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;                        // ascending; +Inf is implied
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;  // bounds_.size() + 1, not cumulative
  std::atomic<double> sum_{0};
};
std::vector<double> seconds_buckets();  // 1 ms .. 2560 s, as serving engines use for TTFT

using Labels = std::vector<std::pair<std::string, std::string>>;

class Metrics {
 public:
  Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  BucketHistogram& histogram(const std::string& name, const std::string& help,
                             std::vector<double> bounds = seconds_buckets(),
                             const Labels& labels = {});
  std::string text() const;  // Prometheus exposition format 0.0.4

 private:
  struct Series {
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<BucketHistogram> histogram;
  };
  struct Family {
    std::string help, type;
    std::map<std::string, Series> series;  // by rendered labels
  };
  Series& series(const std::string& name, const std::string& help, const char* type,
                 const Labels& labels) MC_REQUIRES(mutex_);
  mutable Mutex mutex_;
  std::map<std::string, Family> families_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc
