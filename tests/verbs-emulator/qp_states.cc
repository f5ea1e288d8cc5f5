#include "qp_states.h"

namespace mc::emu {
namespace {

constexpr int kPath = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr int kRuntime = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | kPath;
constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kInit, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kInit},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     kRuntime},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, kRuntime},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_CUR_STATE},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, kRuntime},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     kRuntime | IBV_QP_PKEY_INDEX | IBV_QP_AV | IBV_QP_MAX_QP_RD_ATOMIC |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY},
};
constexpr Transition kToReset = {IBV_QPS_UNKNOWN, IBV_QPS_RESET, 0, 0};
constexpr Transition kToError = {IBV_QPS_UNKNOWN, IBV_QPS_ERR, 0, IBV_QP_CUR_STATE};

}  // namespace

const Transition* transition(ibv_qp_state from, ibv_qp_state to) {
  if (to == IBV_QPS_RESET) return &kToReset;
  if (to == IBV_QPS_ERR) return &kToError;
  for (const Transition& one : kTransitions)
    if (one.from == from && one.to == to) return &one;
  return nullptr;
}

bool mask_fits(const Transition& transition, int mask) {
  mask &= ~IBV_QP_STATE;
  return (mask & transition.required) == transition.required &&
         (mask & ~(transition.required | transition.optional)) == 0;
}

}  // namespace mc::emu
