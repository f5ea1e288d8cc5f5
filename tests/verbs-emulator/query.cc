#include "query.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "objects.h"
#undef ibv_query_port

namespace mc::emu {
namespace {

constexpr uint32_t kVendor = 0x02454d;

bool is_zero(const ibv_gid& gid) {
  return gid.global.subnet_prefix == 0 && gid.global.interface_id == 0;
}

uint32_t gid_type(const Nic& nic, uint32_t index) {
  if (nic.ethernet == 0) return IBV_GID_TYPE_IB;
  return index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
}

ibv_gid_entry gid_entry(const Nic& nic, uint32_t index) {
  return {nic.gids[index], index, 1, gid_type(nic, index), 0};
}

void fill_device(const Nic& nic, ibv_device_attr& out) {
  out = {};
  snprintf(out.fw_ver, sizeof out.fw_ver, "1.0.0");
  out.node_guid = htobe64(nic.guid);
  out.sys_image_guid = htobe64(nic.guid);
  out.max_mr_size = nic.max_mr_size.load() != 0 ? nic.max_mr_size.load() : uint64_t{1} << 47;
  out.page_size_cap = 4096;
  out.vendor_id = kVendor;
  out.vendor_part_id = 1;
  out.max_qp = int(kQpsMax);
  out.max_qp_wr = int(nic.max_qp_wr.load() != 0 ? nic.max_qp_wr.load() : kQueueMax);
  out.device_cap_flags =
      IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_CURR_QP_STATE_MOD;
  out.max_sge = int(kSgeMax);
  out.max_sge_rd = int(kSgeMax);
  out.max_cq = int(kCqsMax);
  out.max_cqe = int(nic.max_cqe.load() != 0 ? nic.max_cqe.load() : kCompletionsMax);
  out.max_mr = int(kMrsMax);
  out.max_pd = 1 << 16;
  out.max_qp_rd_atom = 16;
  out.max_res_rd_atom = 16 * int(kQpsMax);
  out.max_qp_init_rd_atom = 16;
  out.atomic_cap = IBV_ATOMIC_NONE;
  out.max_srq = int(kSrqsMax);
  out.max_srq_wr = int(kQueueMax);
  out.max_srq_sge = int(kSgeMax);
  out.max_pkeys = kPkeysMax;
  out.local_ca_ack_delay = 16;
  out.phys_port_cnt = 1;
}

}  // namespace

int query_port(ibv_context* ibcontext, uint8_t port, ibv_port_attr* attr, size_t size) {
  Context& context = *of(ibcontext);
  if (context.dead()) return EIO;
  if (port != 1) return EINVAL;
  const Nic& nic = context.nic();
  bool up = nic.up.load() != 0;
  ibv_port_attr out{};
  out.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  out.max_mtu = IBV_MTU_4096;
  out.active_mtu = ibv_mtu(nic.mtu);
  out.gid_tbl_len = nic.ethernet != 0 ? int(kGidsMax) : 1;
  out.port_cap_flags = nic.ethernet != 0 ? IBV_PORT_IP_BASED_GIDS : 0;
  out.max_msg_sz = kMessageMax;
  out.pkey_tbl_len = kPkeysMax;
  out.lid = nic.lid;
  out.sm_lid = nic.ethernet != 0 ? 0 : 1;
  out.max_vl_num = 1;
  out.active_width = 2;         // 4x
  out.active_speed = 32;        // of 25 Gb/s lanes
  out.phys_state = up ? 5 : 3;  // link up, disabled
  out.link_layer = nic.ethernet != 0 ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  memset(attr, 0, size);
  memcpy(attr, &out, std::min(size, sizeof out));
  return 0;
}

int query_device_extended(ibv_context* ibcontext, const ibv_query_device_ex_input*,
                          ibv_device_attr_ex* attr, size_t size) {
  Context& context = *of(ibcontext);
  if (context.dead()) return EIO;
  if (size < sizeof attr->orig_attr) return EINVAL;
  memset(attr, 0, size);
  fill_device(context.nic(), attr->orig_attr);
  if (vext_field_avail(ibv_device_attr_ex, phys_port_cnt_ex, size)) attr->phys_port_cnt_ex = 1;
  return 0;
}

}  // namespace mc::emu

using namespace mc::emu;

extern "C" {

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  if (of(context)->dead()) return EIO;
  fill_device(of(context)->nic(), *attr);
  return 0;
}

// The struct of old binaries ends before port_cap_flags2.
int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr) {
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attr),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  const Nic& nic = of(context)->nic();
  if (of(context)->dead() || port != 1 || index < 0 || index >= int(kGidsMax)) {
    errno = EINVAL;
    return -1;
  }
  *gid = nic.gids[index];
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t size) {
  const Nic& nic = of(context)->nic();
  if (flags != 0) return EOPNOTSUPP;
  if (port != 1 || index >= kGidsMax || size < sizeof *entry) return EINVAL;
  if (is_zero(nic.gids[index])) return ENODATA;
  *entry = gid_entry(nic, index);
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t count,
                             uint32_t flags, size_t size) {
  const Nic& nic = of(context)->nic();
  if (flags != 0) return -EOPNOTSUPP;
  if (size < sizeof *entries) return -EINVAL;
  size_t n = 0;
  for (uint32_t i = 0; i < kGidsMax && n < count; ++i)
    if (!is_zero(nic.gids[i])) entries[n++] = gid_entry(nic, i);
  return ssize_t(n);
}

// 0: InfiniBand or RoCE v1; 1: RoCE v2.
int ibv_query_gid_type(ibv_context* context, uint8_t port, unsigned index, unsigned* type) {
  if (port != 1 || index >= kGidsMax) {
    errno = EINVAL;
    return -1;
  }
  *type = gid_type(of(context)->nic(), index) == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}

int ibv_query_pkey(ibv_context* context, uint8_t port, int index, __be16* pkey) {
  if (port != 1 || index < 0 || index >= int(kPkeysMax)) {
    errno = EINVAL;
    return -1;
  }
  *pkey = htobe16(of(context)->nic().pkeys[index].load());
  return 0;
}

int ibv_get_pkey_index(ibv_context* context, uint8_t port, __be16 pkey) {
  for (int i = 0; port == 1 && i < int(kPkeysMax); ++i)
    if (pkey != 0 && of(context)->nic().pkeys[i].load() == be16toh(pkey)) return i;
  return -1;
}

const char* ibv_get_sysfs_path(void) { return "/sys"; }

// Emulated devices have no sysfs; clients ask for little of it.
int ibv_read_sysfs_file(const char* folder, const char* file, char* out, size_t size) {
  std::string path = std::string(folder) + "/" + file;
  if (path.starts_with("/sys/class/infiniband")) {
    const char* text = strcmp(file, "board_id") == 0 ? "MC_EMULATED"
                       : strcmp(file, "fw_ver") == 0 ? "1.0.0"
                                                     : nullptr;
    if (text == nullptr || size == 0) return -1;
    return std::min(snprintf(out, size, "%s", text), int(size) - 1);
  }
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = read(fd, out, size);
  close(fd);
  if (n > 0 && out[n - 1] == '\n') out[--n] = 0;
  return int(n);
}

int ibv_read_ibdev_sysfs_file(char* out, size_t size, ibv_device* device, const char* format, ...) {
  return ibv_read_sysfs_file(device->ibdev_path, format, out, size);
}

}  // extern "C"
