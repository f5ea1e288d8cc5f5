// One opened RDMA device. Private to rdma/*.cc. It has the context, the protection domain, the
// completion queue, the memory registered on it and its queue pairs. After a fatal error the
// device is unusable, and so is one whose completion queue failed; opening the same NIC again makes
// another Device with another epoch.
//
// Thread: any, but poll() one at a time. Regions and queue pairs keep their device open.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "xfer/core/messages.h"
#include "xfer/transports/rdma/completion_room.h"
#include "xfer/transports/rdma/port.h"

namespace mc::xfer::rdma {

class Device;
using DevicePtr = std::shared_ptr<Device>;

class Region {  // of registered memory
 public:
  Region(DevicePtr device, ibv_mr* mr, int access)
      : device_(std::move(device)),
        mr_(mr),
        lkey_(mr->lkey),
        rkey_(mr->rkey),
        written_((access & IBV_ACCESS_LOCAL_WRITE) != 0) {}
  ~Region() { revoke(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  void revoke();  // no peer reaches it when this returns, even while references remain here
  uint32_t lkey() const { return lkey_; }
  uint32_t rkey() const { return rkey_; }
  bool written() const { return written_; }  // the device may write here what it reads elsewhere

 private:
  const DevicePtr device_;
  std::atomic<ibv_mr*> mr_;
  const uint32_t lkey_, rkey_;
  const bool written_;
};
using RegionPtr = std::shared_ptr<Region>;

// What the two ends of a queue pair exchange.
struct QpAddress {
  uint32_t number = 0, psn = 0, lid = 0, mtu = 0, reads = 0;
  std::string gid;  // 16 bytes
};

class QueuePair {
 public:
  static constexpr uint32_t kDepth = 256;   // work requests; a device may have fewer
  static constexpr uint32_t kInline = 220;  // bytes asked for; a device may give less
  QueuePair(DevicePtr device, ibv_qp* qp, const ibv_qp_cap& has);
  ~QueuePair();  // nothing of it moves any more, here, when this returns
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;
  QpAddress address() const;
  uint32_t inline_max() const { return inline_max_; }
  uint32_t depth() const { return depth_; }
  // The port that it was made for. Another one by now: it leads nowhere.
  bool outdated() const;
  // `serves`: the other end may read and write what is registered for that.
  Result<> connect(const QpAddress& peer, bool serves, Duration peer_timeout);
  Result<> post(ibv_send_wr* first);
  const DevicePtr& device() const { return device_; }

 private:
  const DevicePtr device_;
  const std::shared_ptr<const PortFacts> port_;
  ibv_qp* const qp_;
  const uint32_t inline_max_, depth_;
  const uint32_t psn_;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  // Those that can be used. `left_out`: the others, with the reason.
  static Result<std::vector<std::string>> names(const Verbs& verbs,
                                                std::vector<DeviceLeftOut>* left_out = nullptr);
  // kNotFound: there is no such device now.
  static Result<DevicePtr> open(const Verbs& verbs, const std::string& name,
                                const RdmaConfig& config, uint64_t epoch);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  uint64_t epoch() const { return epoch_; }
  // As of the last time that it was read.
  std::shared_ptr<const PortFacts> port() const;
  // Reads the port again. Returns: connections that were made before lead nowhere.
  bool reread_port();
  uint32_t reads_max() const { return reads_max_; }
  const Verbs& verbs() const { return verbs_; }
  const RdmaConfig& config() const { return config_; }

  Result<RegionPtr> register_memory(std::byte* data, uint64_t bytes, int access);
  // Memory of a device behind a dma-buf, whose byte 0 peers shall know as `address`.
  Result<RegionPtr> register_dmabuf(int fd, uint64_t offset, uint64_t bytes, uint64_t address,
                                    int access);
  // `serves`: it posts nothing, but for the other end.
  Result<std::unique_ptr<QueuePair>> make_queue_pair(bool serves);

  CompletionRoom& room() { return room_; }
  uint32_t under_way() const { return room_.taken(); }

  size_t poll(std::span<ibv_wc> out);
  void arm();
  int completion_fd() const;
  int event_fd() const { return context_->async_fd; }
  void take_completion_events();
  std::optional<ibv_event_type> next_event();

  void set_dead() { dead_.store(true); }
  bool dead() const { return dead_.load(); }

 private:
  friend class QueuePair;  // counts itself
  Device(const Verbs& verbs, const RdmaConfig& config) : verbs_(verbs), config_(config) {}
  Result<> set_up();
  void grow_completions();
  static constexpr uint32_t kCompletions = 1 << 14;  // at first

  const Verbs& verbs_;
  const RdmaConfig config_;
  std::string name_;
  uint64_t epoch_ = 0, region_max_ = UINT64_MAX;  // the latter in bytes
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  uint32_t reads_max_ = 1, completions_max_ = 0, depth_ = QueuePair::kDepth;
  CompletionRoom room_;
  std::atomic<uint32_t> posting_pairs_{0};
  std::atomic<bool> dead_{false};
  mutable Mutex mutex_;
  std::shared_ptr<const PortFacts> facts_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer::rdma
