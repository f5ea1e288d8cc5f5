#include "xfer/engine/descriptor_refresher.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "io/thread.h"
#include "rpc/client.h"

namespace mc::xfer {
namespace {

constexpr size_t kCallsMax = 256;  // side by side; each has a socket
constexpr Duration kLookEvery = std::chrono::milliseconds(5);

bool overdue(const Slice& slice, Time now) {
  return slice.cancelled->load(std::memory_order_acquire) ||
         (slice.deadline != Time::max() && now >= slice.deadline);
}

}  // namespace

DescriptorRefresher::DescriptorRefresher(const Clock& clock, NodeId self, Hooks hooks)
    : clock_(clock), self_(std::move(self)), hooks_(std::move(hooks)), loop_(clock) {}

DescriptorRefresher::~DescriptorRefresher() { stop(); }

void DescriptorRefresher::wait(SegmentHandle segment, const std::string& control, Waiting waiting) {
  bool first = false;
  std::optional<Waiting> late;  // nothing is fetched any more
  {
    Lock lock(mutex_);
    const Result<> started = stopping_ ? Result<>{} : start();
    if (stopping_ || !started) {
      late = std::move(waiting);
      if (!started) late->why = started.error();
    } else {
      Segment& s = segments_[segment];
      first = s.waiting.empty() && !s.fetching;
      if (!control.empty()) s.control = control;
      s.waiting.push_back(std::move(waiting));
    }
  }
  if (late && late->slice) return hooks_.give_up(std::move(late->slice), late->why);
  if (!first || loop_.post([this, segment] { begin(segment); })) return;
  fetched(segment, fail(Code::kBusy, "too many descriptors are fetched"));
}

Result<> DescriptorRefresher::start() {
  if (broken_) return fail(*broken_);
  if (thread_.joinable()) return {};
  MC_TRY(thread_, io::start_thread([this] { run(); }));
  return {};
}

void DescriptorRefresher::run() {
  const Result<> ran = loop_.run();
  calls_.clear();
  ended_.clear();
  if (ran) return;  // stop() gives up what waits
  const Error why{ran.error().code, "descriptors are fetched no more: " + ran.error().what};
  log_error("xfer", "%s", why.what.c_str());
  std::map<SegmentHandle, Segment> left;
  {
    Lock lock(mutex_);
    broken_ = why;
    left.swap(segments_);
  }
  for (auto& [handle, segment] : left)
    for (Waiting& w : segment.waiting) hooks_.give_up(std::move(w.slice), why);
}

void DescriptorRefresher::begin(SegmentHandle segment) {
  if (timer_ == 0) timer_ = loop_.every(kLookEvery, [this] { look(); });
  std::string control;
  {
    Lock lock(mutex_);
    Segment& s = segments_[segment];
    if (s.fetching) return;
    s.fetching = true;
    control = std::exchange(s.control, {});
  }
  if (control.empty()) return fetched(segment, {});
  if (calls_.size() < kCallsMax) return fetch(segment, control);
  queued_.emplace_back(segment, control);
}

// A connection of its own: to a process that took the place of another one at the same address, an
// old connection would first have to find that its end is gone.
void DescriptorRefresher::fetch(SegmentHandle segment, const std::string& control) {
  auto client = rpc::Client::connect(loop_, control);
  if (!client) return fetched(segment, fail(client.error()));
  rpc::Client& to = *(calls_[segment] = std::move(*client));
  to.call(DescribeSegment{self_}, kBudget,
          [this, segment, control](const Result<SegmentDescriptor>& descriptor) {
            ended_.push_back(std::move(calls_[segment]));
            calls_.erase(segment);
            fetched(segment, descriptor ? hooks_.open(*descriptor, control)
                                        : Result<>(fail(descriptor.error())));
            while (!queued_.empty() && calls_.size() < kCallsMax) {  // one may fail at once
              const auto next = std::move(queued_.front());
              queued_.pop_front();
              fetch(next.first, next.second);
            }
          });
}

void DescriptorRefresher::fetched(SegmentHandle segment, Result<> outcome) {
  std::vector<Waiting> waiting;
  {
    Lock lock(mutex_);
    const auto it = segments_.find(segment);
    if (it == segments_.end()) return;
    waiting.swap(it->second.waiting);
    segments_.erase(it);
  }
  hooks_.over(segment, std::move(waiting), std::move(outcome));
}

std::vector<DescriptorRefresher::Waiting> DescriptorRefresher::take_overdue() {
  const Time now = clock_.now();
  std::vector<Waiting> out;
  Lock lock(mutex_);
  for (auto& [handle, segment] : segments_) {
    const auto first =
        std::stable_partition(segment.waiting.begin(), segment.waiting.end(),
                              [&](const Waiting& w) { return !overdue(*w.slice, now); });
    std::move(first, segment.waiting.end(), std::back_inserter(out));
    segment.waiting.erase(first, segment.waiting.end());
  }
  return out;
}

void DescriptorRefresher::look() {
  ended_.clear();
  for (Waiting& w : take_overdue()) {
    const Slice& slice = *w.slice;
    Error why = slice.cancelled->load() ? cancelled_error(slice) : expired_error(slice);
    hooks_.give_up(std::move(w.slice), std::move(why));
  }
  Lock lock(mutex_);
  if (!segments_.empty()) return;
  loop_.cancel(timer_);
  timer_ = 0;
}

void DescriptorRefresher::stop() {
  std::thread thread;
  {
    Lock lock(mutex_);
    stopping_ = true;
    thread.swap(thread_);
  }
  loop_.stop();
  if (thread.joinable()) thread.join();
  std::map<SegmentHandle, Segment> left;
  {
    Lock lock(mutex_);
    left.swap(segments_);
  }
  for (auto& [handle, segment] : left)
    for (Waiting& w : segment.waiting) hooks_.give_up(std::move(w.slice), std::move(w.why));
}

}  // namespace mc::xfer
