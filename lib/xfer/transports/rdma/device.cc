#include "xfer/transports/rdma/device.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/file.h"

namespace mc::xfer::rdma {
namespace {

constexpr uint32_t kReadsMax = 16;
const uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

Result<> non_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return fail_errno("non-blocking verbs events");
  return {};
}

Failure refused(int error, const std::string& device, const char* what) {
  return fail(Code::kUnavailable, "%s: %s: %s", device.c_str(), what, std::strerror(error));
}

// Higher is better: routable RoCE v2 first, what has no use at all is 0.
int worth(uint32_t type, const ibv_gid& gid) {
  static const ibv_gid none{};
  if (std::memcmp(&gid, &none, sizeof gid) == 0) return 0;
  const bool mapped = std::memcmp(gid.raw, kMappedPrefix, sizeof kMappedPrefix) == 0;
  const bool local = gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80;
  return (type == IBV_GID_TYPE_ROCE_V2 ? 4 : 1) + (mapped ? 2 : local ? 0 : 1);
}

uint64_t speed_of(const ibv_port_attr& port) {
  static const uint64_t lanes[] = {1, 4, 8, 12, 2};  // by the bit that is set
  uint64_t lane = 0, width = 1;
  switch (port.active_speed) {
    case 1: lane = 2500; break;
    case 2: lane = 5000; break;
    case 4:
    case 8: lane = 10000; break;
    case 16: lane = 14000; break;
    case 32: lane = 25000; break;
    case 64: lane = 50000; break;
    case 128: lane = 100000; break;
    default: break;
  }
  for (size_t bit = 0; bit < std::size(lanes); ++bit)
    if (port.active_width == 1u << bit) width = lanes[bit];
  return lane * width;
}

}  // namespace

void Region::revoke() {
  if (ibv_mr* mr = mr_.exchange(nullptr)) device_->verbs().dereg_mr(mr);
}

// ---- queue pairs

QueuePair::QueuePair(DevicePtr device, ibv_qp* qp, uint32_t inline_max)
    : device_(std::move(device)), qp_(qp), inline_max_(inline_max), psn_(qp->qp_num & 0xffffff) {}

QueuePair::~QueuePair() { device_->verbs().destroy_qp(qp_); }

QpAddress QueuePair::address() const {
  return {qp_->qp_num, psn_, device_->lid(), device_->mtu(), device_->reads_max(), device_->gid()};
}

Result<> QueuePair::post(ibv_send_wr* first) {
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(qp_, first, &bad);
  if (error != 0) return refused(error, device_->name(), "post");
  return {};
}

namespace {

// 4.096 us x 2^n, seven times over, in about half of what a peer may be silent.
uint8_t ack_timeout(Duration peer_timeout) {
  uint8_t n = 8;
  while (n < 18 && Duration(4096) * (uint64_t{1} << (n + 1)) * 7 <= peer_timeout / 2) ++n;
  return n;
}

ibv_qp_attr path_to(const QpAddress& peer, const Device& device) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = static_cast<ibv_mtu>(std::clamp(std::min(peer.mtu, device.mtu()), 1u, 5u));
  a.dest_qp_num = peer.number;
  a.rq_psn = peer.psn;
  a.max_dest_rd_atomic = static_cast<uint8_t>(std::min(peer.reads, device.reads_max()));
  a.min_rnr_timer = 12;
  a.ah_attr.port_num = device.port();
  a.ah_attr.dlid = static_cast<uint16_t>(peer.lid);
  if (device.ethernet() || peer.lid == 0) {
    a.ah_attr.is_global = 1;
    std::memcpy(&a.ah_attr.grh.dgid, peer.gid.data(), sizeof a.ah_attr.grh.dgid);
    a.ah_attr.grh.sgid_index = static_cast<uint8_t>(device.gid_index());
    a.ah_attr.grh.hop_limit = 64;
    a.ah_attr.grh.traffic_class = device.traffic_class();
  }
  return a;
}

}  // namespace

Result<> QueuePair::connect(const QpAddress& peer, bool serves, Duration peer_timeout) {
  if (peer.gid.size() != sizeof(ibv_gid))
    return fail(Code::kInvalid, "a GID has 16 bytes, not %zu", peer.gid.size());
  const Verbs& v = device_->verbs();
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = device_->port();
  init.qp_access_flags = serves ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0;
  int error =
      v.modify_qp(qp_, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return refused(error, device_->name(), "queue pair to INIT");
  ibv_qp_attr path = path_to(peer, *device_);
  error = v.modify_qp(qp_, &path,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return refused(error, device_->name(), "queue pair to RTR");
  ibv_qp_attr ready{};
  ready.qp_state = IBV_QPS_RTS;
  ready.timeout = ack_timeout(peer_timeout);
  ready.retry_cnt = 7;
  ready.rnr_retry = 7;
  ready.sq_psn = psn_;
  ready.max_rd_atomic = static_cast<uint8_t>(std::min(peer.reads, device_->reads_max()));
  error = v.modify_qp(qp_, &ready,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) return refused(error, device_->name(), "queue pair to RTS");
  return {};
}

Result<std::unique_ptr<QueuePair>> Device::make_queue_pair() {
  for (const uint32_t inline_max : {QueuePair::kInline, 64u, 0u}) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = depth_;
    init.cap.max_recv_wr = 1;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = inline_max;
    if (ibv_qp* qp = verbs_.create_qp(pd_, &init))
      return std::make_unique<QueuePair>(shared_from_this(), qp, init.cap.max_inline_data);
    if (errno != EINVAL && errno != ENOMEM) break;
  }
  return refused(errno, name_, "create a queue pair");
}

// ---- devices

Result<std::vector<std::string>> Device::names(const Verbs& verbs) {
  int count = 0;
  ibv_device** list = verbs.get_device_list(&count);
  if (list == nullptr)  // a kernel without RDMA says ENOSYS
    return fail(Code::kUnsupported, "no RDMA devices: %s", std::strerror(errno));
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.emplace_back(verbs.get_device_name(list[i]));
  verbs.free_device_list(list);
  return out;
}

Result<DevicePtr> Device::open(const Verbs& verbs, const std::string& name,
                               const RdmaConfig& config, uint64_t epoch) {
  DevicePtr device(new Device(verbs));
  device->name_ = name;
  device->epoch_ = epoch;
  int count = 0;
  ibv_device** list = verbs.get_device_list(&count);
  if (list == nullptr) return fail_errno("list RDMA devices");
  ibv_device* found = nullptr;
  for (int i = 0; i < count && found == nullptr; ++i)
    if (name == verbs.get_device_name(list[i])) found = list[i];
  if (found != nullptr) device->context_ = verbs.open_device(found);
  const int error = errno;
  verbs.free_device_list(list);
  if (found == nullptr) return fail(Code::kNotFound, "no RDMA device '%s'", name.c_str());
  if (device->context_ == nullptr) return refused(error, name, "open");
  MC_TRY_(device->set_up(config));
  return device;
}

Result<> Device::set_up(const RdmaConfig& config) {
  ibv_device_attr attr{};
  if (const int error = verbs_.query_device(context_, &attr); error != 0)
    return refused(error, name_, "query");
  const auto positive = [](int n) { return static_cast<uint32_t>(std::max(n, 1)); };
  reads_max_ =
      std::min({kReadsMax, positive(attr.max_qp_rd_atom), positive(attr.max_qp_init_rd_atom)});
  depth_ = std::min(QueuePair::kDepth, positive(attr.max_qp_wr));
  completions_ = std::min<uint32_t>(kCompletions, positive(attr.max_cqe));
  MC_TRY_(choose_port());
  ibv_port_attr port{};
  if (const int error = verbs_.query_port(context_, port_, &port); error != 0)
    return refused(error, name_, "query its port");
  lid_ = port.lid;
  mtu_ = static_cast<uint32_t>(port.active_mtu);
  for (uint32_t wanted = 1; wanted <= 5; ++wanted)
    if (config.mtu == 128u << wanted) mtu_ = std::min(mtu_, wanted);
  ethernet_ = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  speed_mbit_ = speed_of(port);
  traffic_class_ = static_cast<uint8_t>(config.traffic_class);
  MC_TRY_(choose_gid(config, port.gid_tbl_len));
  pd_ = verbs_.alloc_pd(context_);
  if (pd_ == nullptr) return refused(errno, name_, "protection domain");
  channel_ = verbs_.create_comp_channel(context_);
  if (channel_ == nullptr) return refused(errno, name_, "completion channel");
  cq_ = verbs_.create_cq(context_, static_cast<int>(completions_), nullptr, channel_, 0);
  if (cq_ == nullptr) return refused(errno, name_, "completion queue");
  MC_TRY_(non_blocking(channel_->fd));
  return non_blocking(context_->async_fd);
}

// The first port that is active, else the first.
Result<> Device::choose_port() {
  ibv_device_attr attr{};
  if (const int error = verbs_.query_device(context_, &attr); error != 0)
    return refused(error, name_, "query");
  for (uint8_t p = 1; p <= attr.phys_port_cnt; ++p) {
    ibv_port_attr port{};
    if (verbs_.query_port(context_, p, &port) != 0 || port.state != IBV_PORT_ACTIVE) continue;
    port_ = p;
    break;
  }
  return {};
}

Result<> Device::choose_gid(const RdmaConfig& config, int entries) {
  int best = -1, best_worth = 0;
  ibv_gid chosen{};
  for (int i = 0; i < entries; ++i) {
    if (config.gid_index >= 0 && i != config.gid_index) continue;
    ibv_gid gid{};
    if (verbs_.query_gid(context_, port_, i, &gid) != 0) continue;
    uint32_t type = IBV_GID_TYPE_ROCE_V1;
    ibv_gid_entry entry{};
    if (verbs_.query_gid_ex != nullptr) {
      if (verbs_.query_gid_ex(context_, port_, static_cast<uint32_t>(i), &entry, 0, sizeof entry) ==
          0)
        type = entry.gid_type;
    } else if (io::read_file("/sys/class/infiniband/" + name_ + "/ports/" + std::to_string(port_) +
                             "/gid_attrs/types/" + std::to_string(i))
                   .value_or("")
                   .find("v2") != std::string::npos) {
      type = IBV_GID_TYPE_ROCE_V2;
    }
    const int w = worth(type, gid);
    if (w <= best_worth) continue;
    best = i;
    best_worth = w;
    chosen = gid;
    if (!ethernet_) break;
  }
  if (best < 0 && config.gid_index >= 0)
    return fail(Code::kInvalid, "%s has no GID %d: see ibv_devinfo -v, or leave --gid-index auto",
                name_.c_str(), config.gid_index);
  if (best < 0 && ethernet_)
    return fail(Code::kUnavailable, "%s has no GID: does its interface have an address?",
                name_.c_str());
  gid_index_ = std::max(best, 0);
  gid_.assign(reinterpret_cast<const char*>(chosen.raw), sizeof chosen.raw);
  return {};
}

Device::~Device() {
  if (cq_ != nullptr) verbs_.destroy_cq(cq_);
  if (channel_ != nullptr) verbs_.destroy_comp_channel(channel_);
  if (pd_ != nullptr) verbs_.dealloc_pd(pd_);
  if (context_ != nullptr) verbs_.close_device(context_);
}

bool Device::port_active() const {
  ibv_port_attr port{};
  return verbs_.query_port(context_, port_, &port) == 0 && port.state == IBV_PORT_ACTIVE;
}

Result<RegionPtr> Device::register_memory(std::byte* data, uint64_t bytes, int access) {
  ibv_mr* mr = verbs_.register_mr(pd_, data, bytes, access);
  if (mr == nullptr)
    return fail(Code::kUnsupported, "%s: register %s of memory: %s%s", name_.c_str(),
                rounded_bytes_text(bytes).c_str(), std::strerror(errno),
                errno == ENOMEM ? " (raise the memlock limit: ulimit -l)" : "");
  return std::make_shared<Region>(shared_from_this(), mr);
}

Result<RegionPtr> Device::register_dmabuf(int fd, uint64_t offset, uint64_t bytes, uint64_t address,
                                          int access) {
  if (verbs_.register_dmabuf_mr == nullptr)
    return fail(Code::kUnsupported, "this libibverbs has no ibv_reg_dmabuf_mr");
  ibv_mr* mr = verbs_.register_dmabuf_mr(pd_, offset, bytes, address, fd, access);
  if (mr == nullptr)
    return fail(Code::kUnsupported, "%s: register %s of a dma-buf: %s", name_.c_str(),
                rounded_bytes_text(bytes).c_str(), std::strerror(errno));
  return std::make_shared<Region>(shared_from_this(), mr);
}

// ---- completions and events

bool Device::take_room(uint32_t requests) {
  if (under_way_.fetch_add(requests) + requests <= completions_) return true;
  under_way_.fetch_sub(requests);
  return false;
}

void Device::give_room(uint32_t requests) { under_way_.fetch_sub(requests); }

size_t Device::poll(std::span<ibv_wc> out) {
  const int n = ibv_poll_cq(cq_, static_cast<int>(out.size()), out.data());
  return n > 0 ? static_cast<size_t>(n) : 0;
}

void Device::arm() { ibv_req_notify_cq(cq_, 0); }

int Device::completion_fd() const { return channel_->fd; }

void Device::take_completion_events() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  unsigned taken = 0;
  while (verbs_.get_cq_event(channel_, &cq, &context) == 0) ++taken;
  if (taken > 0) verbs_.ack_cq_events(cq_, taken);
}

std::optional<ibv_event_type> Device::next_event() {
  ibv_async_event event{};
  if (verbs_.get_async_event(context_, &event) != 0) return std::nullopt;
  const ibv_event_type type = event.event_type;
  verbs_.ack_async_event(&event);
  return type;
}

}  // namespace mc::xfer::rdma
