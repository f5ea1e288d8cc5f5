#include "serve/connector/kv_transfer.h"

#include <utility>

namespace mc::serve {

std::vector<xfer::Request> plan_transfer(xfer::Op op, std::span<std::byte* const> local,
                                         const KvPeer& peer, const KvRange& range) {
  std::vector<xfer::Request> out;
  const auto distance = [&](size_t i) {  // from block i to block i + 1: local, remote
    return std::pair(local[i + 1] - local[i],
                     static_cast<int64_t>(peer.offsets[i + 1] - peer.offsets[i]));
  };
  for (size_t i = range.first; i < range.last;) {
    xfer::Request r;
    r.op = op;
    r.local = local[i] + range.at;
    r.segment = peer.segment;
    r.offset = peer.offsets[i] + range.at;
    r.bytes = range.bytes;
    r.guard = peer.guard;
    r.deadline = range.deadline;
    const auto fits = static_cast<int64_t>(range.bytes);
    if (i + 1 < range.last) {
      const auto stride = distance(i);
      if (stride.first >= fits && stride.second >= fits) {
        r.local_stride = static_cast<uint64_t>(stride.first);
        r.remote_stride = static_cast<uint64_t>(stride.second);
        while (i + r.rows < range.last && distance(i + r.rows - 1) == stride) ++r.rows;
      }
    }
    i += r.rows;
    if (r.rows > 1 && r.local_stride == r.bytes && r.remote_stride == r.bytes) {
      r.bytes *= r.rows;  // whole blocks side by side
      r.rows = 1;
    }
    if (r.rows == 1) r.local_stride = r.remote_stride = 0;
    out.push_back(r);
  }
  return out;
}

KvTransfer::KvTransfer(io::Loop& loop, xfer::Engine& engine, Metrics& metrics)
    : loop_(loop),
      engine_(engine),
      bytes_(metrics.counter("mc_engine_kv_transfer_bytes_total", "KV moved between workers")),
      failures_(
          metrics.counter("mc_engine_kv_transfer_failures_total", "transfers of KV that failed")),
      seconds_(metrics.histogram("mc_engine_kv_transfer_seconds",
                                 "time of a transfer: a layer, or whole blocks")) {}

KvTransfer::~KvTransfer() {
  alive_.reset();
  for (const xfer::BatchId batch : batches_) engine_.free_batch(batch);
}

Result<xfer::SegmentHandle> KvTransfer::segment(const xfer::SegmentDescriptor& descriptor) {
  auto known = segments_.find(descriptor.node);
  if (descriptor.buffers.empty()) {
    if (known == segments_.end() ||
        (descriptor.generation && known->second.generation != descriptor.generation))
      return fail(Code::kStale, "the segment of %s is not known here: send its descriptor",
                  escape(descriptor.node).c_str());
    return known->second.handle;
  }
  const uint64_t instance = xfer::instance_of(descriptor.secret.bytes);
  const bool same = known != segments_.end() && known->second.instance == instance;
  if (same && known->second.generation == descriptor.generation) return known->second.handle;
  if (known != segments_.end() && !same) engine_.close_segment(known->second.handle);
  MC_TRY(const xfer::SegmentHandle handle, engine_.open_segment(descriptor));
  segments_[descriptor.node] = {descriptor.generation, instance, handle};
  return handle;
}

void KvTransfer::run(const std::vector<xfer::Request>& requests, Done done) {
  uint64_t bytes = 0;
  for (const xfer::Request& r : requests) bytes += r.bytes * r.rows;
  const xfer::BatchId batch = engine_.allocate_batch();
  batches_.insert(batch);
  const auto task = [this, alive = std::weak_ptr(alive_), batch, n = requests.size(), bytes,
                     since = loop_.clock().now(),
                     done = std::move(done)](const Result<>& submitted) {
    if (alive.expired()) return;
    if (submitted) return finished(batch, n, bytes, since, done);
    batches_.erase(batch);
    engine_.free_batch(batch);
    failures_.add();
    done(submitted);
  };
  // On an engine thread; the loop's queue has room for far more batches than requests can start.
  const auto submitted = engine_.submit(
      batch, requests, [&loop = loop_, task] { (void)loop.post([task] { task({}); }); });
  if (!submitted) (void)loop_.post([task, submitted] { task(submitted); });
}

void KvTransfer::finished(xfer::BatchId batch, size_t requests, uint64_t bytes, Time since,
                          const Done& done) {
  Result<> outcome;
  for (size_t i = 0; i < requests && outcome; ++i) {
    const xfer::Status status = engine_.status(batch, i);
    if (status.state == xfer::TransferState::kCompleted) continue;
    outcome = status.error.what.empty()
                  ? fail(Code::kUnavailable, "KV transfer ended as %s", xfer::name(status.state))
                  : fail(status.error);
  }
  batches_.erase(batch);
  engine_.free_batch(batch);
  if (outcome) {
    bytes_.add(bytes);
    seconds_.observe(to_seconds(loop_.clock().now() - since));
  } else {
    failures_.add();
  }
  done(outcome);
}

}  // namespace mc::serve
