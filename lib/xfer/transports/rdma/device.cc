#include "xfer/transports/rdma/device.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/random.h"

namespace mc::xfer::rdma {
namespace {

constexpr uint32_t kReadsMax = 16;

Result<> non_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return fail_errno("non-blocking verbs events");
  return {};
}

Failure too_large(const std::string& device, uint64_t most, uint64_t bytes) {
  return fail(Code::kUnsupported, "%s registers %s at once, and not %s: offer it in parts",
              device.c_str(), rounded_bytes_text(most).c_str(), rounded_bytes_text(bytes).c_str());
}

Failure refused(int error, const std::string& device, const char* what) {
  return fail(Code::kUnavailable, "%s: %s: %s", device.c_str(), what, std::strerror(error));
}

}  // namespace

void Region::revoke() {
  if (ibv_mr* mr = mr_.exchange(nullptr)) device_->verbs().dereg_mr(mr);
}

// ---- queue pairs

// Packet numbers begin anywhere, so that old packets of a peer that returns are not taken for new
// ones.
QueuePair::QueuePair(DevicePtr device, ibv_qp* qp, const ibv_qp_cap& has)
    : device_(std::move(device)),
      port_(device_->port()),
      qp_(qp),
      inline_max_(has.max_inline_data),
      depth_(has.max_send_wr),
      psn_(static_cast<uint32_t>(fresh_seed()) & 0xffffff) {
  if (depth_ > 1) device_->posting_pairs_.fetch_add(1);
}

QueuePair::~QueuePair() {
  device_->verbs().destroy_qp(qp_);
  if (depth_ > 1) device_->posting_pairs_.fetch_sub(1);
}

QpAddress QueuePair::address() const {
  return {qp_->qp_num, psn_, port_->lid, port_->mtu, device_->reads_max(), port_->gid};
}

bool QueuePair::outdated() const { return !port_->same_path(*device_->port()); }

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

bool other_subnet(const std::string& a, const std::string& b) {
  return a.compare(0, 8, b, 0, 8) != 0;  // the prefix of a GID
}

ibv_qp_attr path_to(const QpAddress& peer, const PortFacts& own, const Device& device) {
  const RdmaConfig& config = device.config();
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = static_cast<ibv_mtu>(std::clamp(std::min(peer.mtu, own.mtu), 1u, 5u));
  a.dest_qp_num = peer.number;
  a.rq_psn = peer.psn;
  a.max_dest_rd_atomic = static_cast<uint8_t>(std::min(peer.reads, device.reads_max()));
  a.min_rnr_timer = 12;
  a.ah_attr.port_num = own.port;
  a.ah_attr.sl = static_cast<uint8_t>(config.service_level);
  a.ah_attr.dlid = static_cast<uint16_t>(peer.lid);
  if (own.ethernet || own.global || peer.lid == 0 || other_subnet(own.gid, peer.gid)) {
    a.ah_attr.is_global = 1;
    std::memcpy(&a.ah_attr.grh.dgid, peer.gid.data(), sizeof a.ah_attr.grh.dgid);
    a.ah_attr.grh.flow_label = config.flow_label;
    a.ah_attr.grh.sgid_index = static_cast<uint8_t>(own.gid_index);
    a.ah_attr.grh.hop_limit = 64;
    a.ah_attr.grh.traffic_class = static_cast<uint8_t>(config.traffic_class);
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
  init.port_num = port_->port;
  init.pkey_index = port_->pkey_index;
  init.qp_access_flags = serves ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0;
  int error =
      v.modify_qp(qp_, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return refused(error, device_->name(), "queue pair to INIT");
  ibv_qp_attr path = path_to(peer, *port_, *device_);
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

Result<std::unique_ptr<QueuePair>> Device::make_queue_pair(bool serves) {
  if (!serves) grow_completions();
  for (const uint32_t inline_max : {serves ? 0u : QueuePair::kInline, serves ? 0u : 64u, 0u}) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = serves ? 1 : depth_;
    init.cap.max_recv_wr = 1;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = inline_max;
    const uint32_t depth = init.cap.max_send_wr;
    if (ibv_qp* qp = verbs_.create_qp(pd_, &init)) {
      init.cap.max_send_wr = depth;  // a device may give more, and no more is used
      return std::make_unique<QueuePair>(shared_from_this(), qp, init.cap);
    }
    if (errno != EINVAL && errno != ENOMEM) break;
  }
  return refused(errno, name_, "create a queue pair");
}

// All queue pairs that post shall have room for all they may post, as far as the device goes.
void Device::grow_completions() {
  const uint32_t has = room_.entries();
  const uint64_t wanted = uint64_t{posting_pairs_.load() + 1} * depth_;
  if (wanted <= has || has >= completions_max_ || verbs_.resize_cq == nullptr) return;
  const auto entries = static_cast<uint32_t>(
      std::min<uint64_t>(completions_max_, std::max<uint64_t>(wanted, 2 * uint64_t{has})));
  if (verbs_.resize_cq(cq_, static_cast<int>(entries)) == 0) room_.set_entries(entries);
}

// ---- devices

namespace {

// Empty: its queue pairs are connected by what two ends tell each other.
std::string why_left_out(const ibv_device& device) {
  switch (device.transport_type) {
    case IBV_TRANSPORT_IB: return {};
    case IBV_TRANSPORT_IWARP: return "an iWARP device: its connections need rdma_cm";
    default: return "not InfiniBand or RoCE (EFA, usNIC): it has no reliable connections";
  }
}

}  // namespace

Result<std::vector<std::string>> Device::names(const Verbs& verbs,
                                               std::vector<DeviceLeftOut>* left_out) {
  int count = 0;
  ibv_device** list = verbs.get_device_list(&count);
  if (list == nullptr)  // a kernel without RDMA says ENOSYS
    return fail(Code::kUnsupported, "no RDMA devices: %s", std::strerror(errno));
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) {
    std::string why = why_left_out(*list[i]);
    if (why.empty())
      out.emplace_back(verbs.get_device_name(list[i]));
    else if (left_out != nullptr)
      left_out->push_back({verbs.get_device_name(list[i]), std::move(why)});
  }
  verbs.free_device_list(list);
  return out;
}

Result<DevicePtr> Device::open(const Verbs& verbs, const std::string& name,
                               const RdmaConfig& config, uint64_t epoch) {
  DevicePtr device(new Device(verbs, config));
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
  MC_TRY_(device->set_up());
  return device;
}

Result<> Device::set_up() {
  ibv_device_attr attr{};
  if (const int error = verbs_.query_device(context_, &attr); error != 0)
    return refused(error, name_, "query");
  const auto positive = [](int n) { return static_cast<uint32_t>(std::max(n, 1)); };
  reads_max_ =
      std::min({kReadsMax, positive(attr.max_qp_rd_atom), positive(attr.max_qp_init_rd_atom)});
  depth_ = std::min(QueuePair::kDepth, positive(attr.max_qp_wr));
  completions_max_ = positive(attr.max_cqe);
  region_max_ = attr.max_mr_size == 0 ? UINT64_MAX : attr.max_mr_size;
  MC_TRY(PortFacts read, read_port(verbs_, context_, name_, config_));
  if (!read.up)
    log_warn("xfer", "rdma: the port of %s is down, or has no address yet", name_.c_str());
  {
    Lock lock(mutex_);
    facts_ = std::make_shared<const PortFacts>(std::move(read));
  }
  pd_ = verbs_.alloc_pd(context_);
  if (pd_ == nullptr) return refused(errno, name_, "protection domain");
  channel_ = verbs_.create_comp_channel(context_);
  if (channel_ == nullptr) return refused(errno, name_, "completion channel");
  const uint32_t entries = std::min(kCompletions, completions_max_);
  // Processes on one NIC spread over its interrupts, and so over CPUs.
  const auto vector = static_cast<int>(fresh_seed() % positive(context_->num_comp_vectors));
  cq_ = verbs_.create_cq(context_, static_cast<int>(entries), nullptr, channel_, vector);
  if (cq_ == nullptr) return refused(errno, name_, "completion queue");
  room_.set_entries(entries);
  MC_TRY_(non_blocking(channel_->fd));
  return non_blocking(context_->async_fd);
}

std::shared_ptr<const PortFacts> Device::port() const {
  Lock lock(mutex_);
  return facts_;
}

// A port that is down keeps what it had: most come back as they were.
bool Device::reread_port() {
  auto read = read_port(verbs_, context_, name_, config_);
  if (!read) log_warn("xfer", "rdma: %s", read.error().what.c_str());
  Lock lock(mutex_);
  const bool up = read && read->up;
  const bool moved = up && !facts_->same_path(*read);
  if (up) {  // the path may be the same and its speed another
    facts_ = std::make_shared<const PortFacts>(std::move(*read));
  } else if (facts_->up) {
    PortFacts now = *facts_;
    now.up = false;
    facts_ = std::make_shared<const PortFacts>(std::move(now));
  }
  return moved;
}

Device::~Device() {
  if (cq_ != nullptr) verbs_.destroy_cq(cq_);
  if (channel_ != nullptr) verbs_.destroy_comp_channel(channel_);
  if (pd_ != nullptr) verbs_.dealloc_pd(pd_);
  if (context_ != nullptr) verbs_.close_device(context_);
}

Result<RegionPtr> Device::register_memory(std::byte* data, uint64_t bytes, int access) {
  if (bytes > region_max_) return too_large(name_, region_max_, bytes);
  ibv_mr* mr = verbs_.register_mr(pd_, data, bytes, access);
  if (mr == nullptr)
    return fail(Code::kUnsupported, "%s: register %s of memory: %s%s", name_.c_str(),
                rounded_bytes_text(bytes).c_str(), std::strerror(errno),
                errno == ENOMEM ? " (raise the memlock limit: ulimit -l)" : "");
  return std::make_shared<Region>(shared_from_this(), mr, access);
}

Result<RegionPtr> Device::register_dmabuf(int fd, uint64_t offset, uint64_t bytes, uint64_t address,
                                          int access) {
  if (verbs_.register_dmabuf_mr == nullptr)
    return fail(Code::kUnsupported, "this libibverbs has no ibv_reg_dmabuf_mr");
  if (bytes > region_max_) return too_large(name_, region_max_, bytes);
  ibv_mr* mr = verbs_.register_dmabuf_mr(pd_, offset, bytes, address, fd, access);
  if (mr == nullptr)
    return fail(Code::kUnsupported, "%s: register %s of a dma-buf: %s", name_.c_str(),
                rounded_bytes_text(bytes).c_str(), std::strerror(errno));
  return std::make_shared<Region>(shared_from_this(), mr, access);
}

// ---- completions and events

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
