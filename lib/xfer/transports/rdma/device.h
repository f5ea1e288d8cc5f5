// One opened RDMA device. Private to rdma/*.cc. It has the context, the protection domain, the
// completion queue, the memory registered on it and its queue pairs. After a fatal error the
// device is unusable; opening the same NIC again makes another Device with another epoch.
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

#include "xfer/core/messages.h"
#include "xfer/transports/rdma/open.h"
#include "xfer/transports/rdma/verbs.h"

namespace mc::xfer::rdma {

class Device;
using DevicePtr = std::shared_ptr<Device>;

class Region {  // of registered memory
 public:
  Region(DevicePtr device, ibv_mr* mr)
      : device_(std::move(device)), mr_(mr), lkey_(mr->lkey), rkey_(mr->rkey) {}
  ~Region() { revoke(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  void revoke();  // no peer reaches it when this returns, even while references remain here
  uint32_t lkey() const { return lkey_; }
  uint32_t rkey() const { return rkey_; }

 private:
  const DevicePtr device_;
  std::atomic<ibv_mr*> mr_;
  const uint32_t lkey_, rkey_;
};
using RegionPtr = std::shared_ptr<Region>;

// What the two ends of a queue pair exchange.
struct QpAddress {
  uint32_t number = 0, psn = 0, lid = 0, mtu = 0, reads = 0;
  std::string gid;  // 16 bytes
};

class QueuePair {
 public:
  static constexpr uint32_t kDepth = 256;   // work requests
  static constexpr uint32_t kInline = 220;  // bytes asked for; a device may give less
  QueuePair(DevicePtr device, ibv_qp* qp, uint32_t inline_max);
  ~QueuePair();  // nothing of it moves any more, here, when this returns
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;
  QpAddress address() const;
  uint32_t inline_max() const { return inline_max_; }
  // `serves`: the other end may read and write what is registered for that.
  Result<> connect(const QpAddress& peer, bool serves, Duration peer_timeout);
  Result<> post(ibv_send_wr* first);
  const DevicePtr& device() const { return device_; }

 private:
  const DevicePtr device_;
  ibv_qp* const qp_;
  const uint32_t inline_max_;
  const uint32_t psn_;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  static Result<std::vector<std::string>> names(const Verbs& verbs);
  // kNotFound: there is no such device now.
  static Result<DevicePtr> open(const Verbs& verbs, const std::string& name,
                                const RdmaConfig& config, uint64_t epoch);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  uint64_t epoch() const { return epoch_; }
  const std::string& gid() const { return gid_; }
  int gid_index() const { return gid_index_; }
  uint32_t lid() const { return lid_; }
  uint32_t mtu() const { return mtu_; }
  uint32_t reads_max() const { return reads_max_; }
  uint64_t speed_mbit() const { return speed_mbit_; }
  bool ethernet() const { return ethernet_; }
  const Verbs& verbs() const { return verbs_; }
  uint8_t port() const { return port_; }
  uint8_t traffic_class() const { return traffic_class_; }
  bool port_active() const;  // asks the device

  Result<RegionPtr> register_memory(std::byte* data, uint64_t bytes, int access);
  // Memory of a device behind a dma-buf, whose byte 0 peers shall know as `address`.
  Result<RegionPtr> register_dmabuf(int fd, uint64_t offset, uint64_t bytes, uint64_t address,
                                    int access);
  Result<std::unique_ptr<QueuePair>> make_queue_pair();

  // Room in the completion queue; given back once what was posted is known to be over.
  bool take_room(uint32_t requests);
  void give_room(uint32_t requests);
  uint32_t under_way() const { return under_way_.load(std::memory_order_seq_cst); }

  size_t poll(std::span<ibv_wc> out);
  void arm();
  int completion_fd() const;
  int event_fd() const { return context_->async_fd; }
  void take_completion_events();
  std::optional<ibv_event_type> next_event();

  void set_dead() { dead_.store(true); }
  bool dead() const { return dead_.load(); }

 private:
  explicit Device(const Verbs& verbs) : verbs_(verbs) {}
  Result<> set_up(const RdmaConfig& config);
  Result<> choose_port();
  Result<> choose_gid(const RdmaConfig& config, int entries);
  static constexpr int kCompletions = 1 << 14;

  const Verbs& verbs_;
  std::string name_, gid_;
  uint64_t epoch_ = 0, speed_mbit_ = 0;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  int gid_index_ = 0;
  uint32_t lid_ = 0, mtu_ = 0, reads_max_ = 1, completions_ = 0, depth_ = QueuePair::kDepth;
  uint8_t port_ = 1, traffic_class_ = 0;
  bool ethernet_ = false;
  std::atomic<uint32_t> under_way_{0};
  std::atomic<bool> dead_{false};
};

}  // namespace mc::xfer::rdma
