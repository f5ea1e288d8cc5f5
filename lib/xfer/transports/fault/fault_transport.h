// Wraps another transport and injects faults, as a FaultPlan decides. Slices are held, slowed,
// dropped, refused, or reported as failed although their bytes moved. It never changes the bytes.
// It serves tests, and drills on a live cluster.
//
// A held slice is completed soon after it is cancelled, late, or its peer is closed, as every
// transport does.
// Thread: any; one thread of its own releases held slices.
#pragma once
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "xfer/core/transport.h"
#include "xfer/transports/fault/fault_plan.h"

namespace mc::xfer::fault {

class FaultTransport final : public Transport, public Sink {
 public:
  // `silence`: after this a dropped slice fails, as with a peer that hangs.
  FaultTransport(Sink& outer, Plan plan, uint64_t seed, const Clock& clock, Duration silence);
  ~FaultTransport() override { stop(); }
  void wrap(std::unique_ptr<Transport> inner);  // once, before all else; its sink is this

  const char* name() const override { return inner_->name(); }
  bool reaches(const Peer& peer, uint64_t offset, Op op) const override {
    return inner_->reaches(peer, offset, op);
  }
  bool takes(const Buffer& device) const override { return inner_->takes(device); }
  void submit(SlicePtr slice) override;
  void flush() override { inner_->flush(); }
  void forget(const PeerPtr& peer) override { inner_->forget(peer); }
  void stop() override;
  void finished(SlicePtr slice, Result<> outcome) override;

 private:
  struct Held {
    SlicePtr slice;
    Time until;
    FaultAction action;
  };
  void run();
  void release(Held held);
  Error why(const Slice& slice, const char* what) const;

  Sink& outer_;
  const Clock& clock_;
  const Duration silence_;
  std::unique_ptr<Transport> inner_;
  Mutex mutex_;
  Condition changed_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  Plan plan_ MC_GUARDED_BY(mutex_);
  std::vector<Held> held_ MC_GUARDED_BY(mutex_);
  std::unordered_set<const Slice*> doomed_ MC_GUARDED_BY(mutex_);  // fail when they come back
  std::thread thread_;
};

}  // namespace mc::xfer::fault
