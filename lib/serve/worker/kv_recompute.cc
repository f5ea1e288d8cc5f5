#include "serve/worker/kv_recompute.h"

#include <algorithm>
#include <utility>

namespace mc::serve {
namespace {
constexpr size_t kPieceTokens = 256;
constexpr double kLearnShare = 0.3;
}  // namespace

double KvRecompute::seconds(size_t begin, size_t end) const {
  return to_seconds(timing_.chunk(begin, end, begin)) * correction_;
}

void KvRecompute::run(const SequencePtr& s, size_t begin, size_t end, Done done) {
  const size_t upto = std::min(begin + kPieceTokens, end);
  const Time start = loop_.clock().now();
  const Time due = engine_.modelled_time() ? start + timing_.chunk(begin, upto, 0) : start;
  ++s->busy;
  const bool queued = core_.submit(
      [this, s, begin, upto] {
        engine_.write({s->view(), begin, upto});
      },
      [this, s, begin, upto, end, start, due, done] {
        if (loop_.clock().now() >= due) return computed(s, begin, upto, end, start, done);
        loop_.at(due, [this, s, begin, upto, end, start, done, alive = std::weak_ptr(alive_)] {
          if (!alive.expired()) computed(s, begin, upto, end, start, done);
        });
      });
  if (queued) return;
  --s->busy;
  done(fail(Code::kBusy, "this worker is overloaded"));
}

void KvRecompute::computed(const SequencePtr& s, size_t begin, size_t upto, size_t end, Time start,
                           Done done) {
  --s->busy;
  const double predicted = to_seconds(timing_.chunk(begin, upto, 0));
  if (predicted > 0) {
    const double factor = to_seconds(loop_.clock().now() - start) / predicted;
    correction_ += kLearnShare * (std::clamp(factor, 1e-3, 1e3) - correction_);
  }
  if (s->ended || upto == end) return done({});
  run(s, upto, end, std::move(done));
}

}  // namespace mc::serve
