#include "base/metrics.h"

#include <algorithm>

#include "base/units.h"

namespace mc {
namespace {

std::string render(const Labels& labels) {
  std::string out;
  for (const auto& [key, value] : labels) {
    out += (out.empty() ? "" : ",") + key + "=\"";
    for (char c : value) {
      if (c == '\n') {
        out += "\\n";
        continue;
      }
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    out += '"';
  }
  return out;
}

std::string line(const std::string& name, const std::string& labels, const std::string& value) {
  return name + (labels.empty() ? "" : "{" + labels + "}") + " " + value + "\n";
}

void render_histogram(std::string& out, const std::string& name, const std::string& labels,
                      const BucketHistogram& h) {
  uint64_t total = 0;
  const std::string comma = labels.empty() ? "" : ",";
  for (size_t i = 0; i <= h.bounds().size(); ++i) {
    total += h.bucket(i);
    const std::string le = i < h.bounds().size() ? number_text(h.bounds()[i]) : "+Inf";
    out += line(name + "_bucket", labels + comma + "le=\"" + le + "\"", std::to_string(total));
  }
  out += line(name + "_sum", labels, number_text(h.sum()));
  out += line(name + "_count", labels, std::to_string(total));
}

}  // namespace

BucketHistogram::BucketHistogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), buckets_(new std::atomic<uint64_t>[bounds_.size() + 1]()) {}

void BucketHistogram::observe(double v) {
  const auto i = std::lower_bound(bounds_.begin(), bounds_.end(), v) - bounds_.begin();
  add(static_cast<size_t>(i), 1, v);
}

void BucketHistogram::add(size_t bucket, uint64_t n, double sum) {
  buckets_[bucket].fetch_add(n, std::memory_order_relaxed);
  double old = sum_.load(std::memory_order_relaxed);
  while (!sum_.compare_exchange_weak(old, old + sum, std::memory_order_relaxed)) {
  }
}

std::vector<double> seconds_buckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}

Metrics::Series& Metrics::series(const std::string& name, const std::string& help, const char* type,
                                 const Labels& labels) {
  Family& family = families_[name];
  if (family.type.empty()) {
    family.help = help;
    family.type = type;
  }
  MC_CHECK(family.type == type);
  return family.series[render(labels)];
}

uint64_t Counter::value() const {
  Lock lock(mutex_);
  uint64_t sum = n_.load(std::memory_order_relaxed);
  for (const Cell& cell : cells_) sum += cell.value();
  return sum;
}

Counter::Cell& Counter::cell() {
  Lock lock(mutex_);
  return cells_.emplace_front();
}

Counter& Metrics::counter(const std::string& name, const std::string& help, const Labels& labels) {
  Lock lock(mutex_);
  auto& s = series(name, help, "counter", labels).counter;
  if (!s) s = std::make_unique<Counter>();
  return *s;
}

Gauge& Metrics::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  Lock lock(mutex_);
  auto& s = series(name, help, "gauge", labels).gauge;
  if (!s) s = std::make_unique<Gauge>();
  return *s;
}

BucketHistogram& Metrics::histogram(const std::string& name, const std::string& help,
                                    std::vector<double> bounds, const Labels& labels) {
  Lock lock(mutex_);
  auto& s = series(name, help, "histogram", labels).histogram;
  if (!s) s = std::make_unique<BucketHistogram>(std::move(bounds));
  return *s;
}

std::string Metrics::text() const {
  Lock lock(mutex_);
  std::string out;
  for (const auto& [name, family] : families_) {
    out += "# HELP " + name + " " + family.help + "\n# TYPE " + name + " " + family.type + "\n";
    for (const auto& [labels, s] : family.series) {
      if (s.counter) out += line(name, labels, std::to_string(s.counter->value()));
      if (s.gauge) out += line(name, labels, number_text(s.gauge->value()));
      if (s.histogram) render_histogram(out, name, labels, *s.histogram);
    }
  }
  return out;
}

}  // namespace mc
