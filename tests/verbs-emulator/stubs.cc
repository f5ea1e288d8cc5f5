// What the emulation does not have. Unreliable datagrams, multicast and importing answer as
// hardware without them does. The rest is what providers' libraries import: clients that are linked
// with them bind every name when they start, and none is called, since no device here is theirs.
#include <infiniband/verbs.h>

#include <cerrno>

namespace {

std::nullptr_t unsupported() {
  errno = EOPNOTSUPP;
  return nullptr;
}

}  // namespace

#define REFUSE(name) \
  int name(void) { return EOPNOTSUPP; }
#define REFUSE_POINTER(name) \
  void* name(void) { return unsupported(); }
#define IGNORE(name) \
  void name(void) {}

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd*, ibv_ah_attr*) { return unsupported(); }
ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, uint8_t) { return unsupported(); }
int ibv_init_ah_from_wc(ibv_context*, uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  return EOPNOTSUPP;
}
int ibv_destroy_ah(ibv_ah*) { return EOPNOTSUPP; }
int ibv_attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return EOPNOTSUPP; }
int ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return EOPNOTSUPP; }
ibv_context* ibv_import_device(int) { return unsupported(); }
ibv_pd* ibv_import_pd(ibv_context*, uint32_t) { return unsupported(); }
void ibv_unimport_pd(ibv_pd*) {}
ibv_mr* ibv_import_mr(ibv_pd*, uint32_t) { return unsupported(); }
void ibv_unimport_mr(ibv_mr*) {}
ibv_dm* ibv_import_dm(ibv_context*, uint32_t) { return unsupported(); }
void ibv_unimport_dm(ibv_dm*) {}
int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) {
  return EOPNOTSUPP;
}

IGNORE(__verbs_log)
REFUSE_POINTER(_verbs_init_and_alloc_context)
REFUSE(execute_ioctl)
REFUSE(ibv_cmd_advise_mr)
REFUSE(ibv_cmd_alloc_dm)
REFUSE(ibv_cmd_alloc_mw)
REFUSE(ibv_cmd_alloc_pd)
REFUSE(ibv_cmd_attach_mcast)
REFUSE(ibv_cmd_close_xrcd)
REFUSE(ibv_cmd_create_ah)
REFUSE(ibv_cmd_create_counters)
REFUSE(ibv_cmd_create_cq)
REFUSE(ibv_cmd_create_cq_ex)
REFUSE(ibv_cmd_create_flow)
REFUSE(ibv_cmd_create_flow_action_esp)
REFUSE(ibv_cmd_create_qp)
REFUSE(ibv_cmd_create_qp_ex)
REFUSE(ibv_cmd_create_qp_ex2)
REFUSE(ibv_cmd_create_rwq_ind_table)
REFUSE(ibv_cmd_create_srq)
REFUSE(ibv_cmd_create_srq_ex)
REFUSE(ibv_cmd_create_wq)
REFUSE(ibv_cmd_dealloc_mw)
REFUSE(ibv_cmd_dealloc_pd)
REFUSE(ibv_cmd_dereg_mr)
REFUSE(ibv_cmd_destroy_ah)
REFUSE(ibv_cmd_destroy_counters)
REFUSE(ibv_cmd_destroy_cq)
REFUSE(ibv_cmd_destroy_flow)
REFUSE(ibv_cmd_destroy_flow_action)
REFUSE(ibv_cmd_destroy_qp)
REFUSE(ibv_cmd_destroy_rwq_ind_table)
REFUSE(ibv_cmd_destroy_srq)
REFUSE(ibv_cmd_destroy_wq)
REFUSE(ibv_cmd_detach_mcast)
REFUSE(ibv_cmd_free_dm)
REFUSE(ibv_cmd_get_context)
REFUSE(ibv_cmd_modify_cq)
REFUSE(ibv_cmd_modify_flow_action_esp)
REFUSE(ibv_cmd_modify_qp)
REFUSE(ibv_cmd_modify_qp_ex)
REFUSE(ibv_cmd_modify_srq)
REFUSE(ibv_cmd_modify_wq)
REFUSE(ibv_cmd_open_qp)
REFUSE(ibv_cmd_open_xrcd)
REFUSE(ibv_cmd_poll_cq)
REFUSE(ibv_cmd_post_recv)
REFUSE(ibv_cmd_post_send)
REFUSE(ibv_cmd_post_srq_recv)
REFUSE(ibv_cmd_query_context)
REFUSE(ibv_cmd_query_device_any)
REFUSE(ibv_cmd_query_mr)
REFUSE(ibv_cmd_query_port)
REFUSE(ibv_cmd_query_qp)
REFUSE(ibv_cmd_query_srq)
REFUSE(ibv_cmd_read_counters)
REFUSE(ibv_cmd_reg_dm_mr)
REFUSE(ibv_cmd_reg_dmabuf_mr)
REFUSE(ibv_cmd_reg_mr)
REFUSE(ibv_cmd_req_notify_cq)
REFUSE(ibv_cmd_rereg_mr)
REFUSE(ibv_cmd_resize_cq)
IGNORE(ibv_copy_ah_attr_from_kern)
IGNORE(ibv_copy_path_rec_from_kern)
IGNORE(ibv_copy_path_rec_to_kern)
IGNORE(ibv_copy_qp_attr_from_kern)
IGNORE(ibv_register_driver)
IGNORE(verbs_init_cq)
REFUSE_POINTER(verbs_open_device)
IGNORE(verbs_register_driver_34)
IGNORE(verbs_set_ops)
IGNORE(verbs_uninit_context)
int ibv_dofork_range(void*, size_t) { return 0; }
int ibv_dontfork_range(void*, size_t) { return 0; }
unsigned __ioctl_final_num_attrs(unsigned) { return 0; }  // NOLINT: its name is the ABI's
bool verbs_allow_disassociate_destroy = false;

}  // extern "C"
