// The extended way to post: wr_start, one builder and one setter for each request, wr_complete.
// The queue pair is locked from start to complete, as the interface wants it.
#include <cstring>

#include "objects.h"

namespace mc::emu {
namespace {

// The builder and the setters refer to the request at the batch's end.
Work* begin(ibv_qp_ex* ex, ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote, uint32_t imm) {
  Qp& qp = *of(ex);
  Work work;
  work.wr_id = ex->wr_id;
  work.flags = ex->wr_flags;
  work.opcode = opcode;
  work.rkey = rkey;
  work.remote = remote;
  work.imm = imm;
  qp.batch.push_back(work);
  qp.batch_sges.resize(qp.batch.size() * kSgeMax);
  qp.batch_inlined.resize(qp.batch.size() * kInlineMax);
  return &qp.batch.back();
}

void rdma_read(ibv_qp_ex* ex, uint32_t rkey, uint64_t remote) {
  if (of(ex)->attr.max_rd_atomic == 0) of(ex)->batch_error = EINVAL;
  begin(ex, IBV_WR_RDMA_READ, rkey, remote, 0);
}
void rdma_write(ibv_qp_ex* ex, uint32_t rkey, uint64_t remote) {
  begin(ex, IBV_WR_RDMA_WRITE, rkey, remote, 0);
}
void rdma_write_imm(ibv_qp_ex* ex, uint32_t rkey, uint64_t remote, uint32_t imm) {
  begin(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote, imm);
}
void send(ibv_qp_ex* ex) { begin(ex, IBV_WR_SEND, 0, 0, 0); }
void send_imm(ibv_qp_ex* ex, uint32_t imm) { begin(ex, IBV_WR_SEND_WITH_IMM, 0, 0, imm); }

void set_sge_list(ibv_qp_ex* ex, size_t count, const ibv_sge* list) {
  Qp& qp = *of(ex);
  if (qp.batch.empty() || count > qp.cap.max_send_sge) {
    qp.batch_error = EINVAL;
    return;
  }
  Work& work = qp.batch.back();
  work.sges = uint32_t(count);
  for (size_t i = 0; i < count; ++i) work.bytes += list[i].length;
  std::copy(list, list + count, &qp.batch_sges[(qp.batch.size() - 1) * kSgeMax]);
}

void set_sge(ibv_qp_ex* ex, uint32_t lkey, uint64_t address, uint32_t length) {
  ibv_sge one{address, length, lkey};
  set_sge_list(ex, 1, &one);
}

void set_inline_list(ibv_qp_ex* ex, size_t count, const ibv_data_buf* list) {
  Qp& qp = *of(ex);
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += list[i].length;
  if (qp.batch.empty() || bytes > qp.cap.max_inline_data ||
      qp.batch.back().opcode == IBV_WR_RDMA_READ) {
    qp.batch_error = EINVAL;
    return;
  }
  Work& work = qp.batch.back();
  work.flags |= IBV_SEND_INLINE;
  char* to = &qp.batch_inlined[(qp.batch.size() - 1) * kInlineMax];
  for (size_t i = 0; i < count; ++i) {
    memcpy(to + work.bytes, list[i].addr, list[i].length);
    work.bytes += list[i].length;
  }
}

void set_inline(ibv_qp_ex* ex, void* address, size_t length) {
  ibv_data_buf one{address, length};
  set_inline_list(ex, 1, &one);
}

void start(ibv_qp_ex* ex) {
  Qp& qp = *of(ex);
  qp.mutex.lock();
  qp.batch.clear();
  qp.batch_error = 0;
}

int finish(ibv_qp_ex* ex) {
  Qp& qp = *of(ex);
  uint32_t state = qp.slot->state.load();
  int rc = qp.batch_error;
  if (state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR) rc = EINVAL;
  if (rc == 0 && qp.room.load() < int(qp.batch.size())) rc = ENOMEM;
  for (size_t i = 0; rc == 0 && i < qp.batch.size(); ++i)
    rc = accept(qp, qp.batch[i], &qp.batch_sges[i * kSgeMax], &qp.batch_inlined[i * kInlineMax]);
  pump(qp);
  qp.mutex.unlock();
  return rc;
}

void abort(ibv_qp_ex* ex) { of(ex)->mutex.unlock(); }

}  // namespace

void fill_extended(ibv_qp_ex& ex) {
  ex.wr_rdma_read = rdma_read;
  ex.wr_rdma_write = rdma_write;
  ex.wr_rdma_write_imm = rdma_write_imm;
  ex.wr_send = send;
  ex.wr_send_imm = send_imm;
  ex.wr_set_sge = set_sge;
  ex.wr_set_sge_list = set_sge_list;
  ex.wr_set_inline_data = set_inline;
  ex.wr_set_inline_data_list = set_inline_list;
  ex.wr_start = start;
  ex.wr_complete = finish;
  ex.wr_abort = abort;
}

}  // namespace mc::emu
