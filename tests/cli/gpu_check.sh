#!/usr/bin/env bash
# gpu-check over the stand-in: every check passes, every figure is printed; without a device it says so.
source "$(dirname "$0")/../common.inc"
check=$MC_BIN/gpu-check
[ -x "$check" ] || { echo "gpu-check is not built: make gpu-check"; exit 77; }

expect 0 "$check" --device stand-in copies blocks rows order errors processes
jq -es 'length == 6 and all(.outcome == "ok")' "$T/out" >/dev/null || die "checks: $(cat "$T/out" "$T/err")"
kernels=(activations sampling graphs)
[ -n "${MC_SANITIZE:-}" ] || kernels=(activations sampling graphs products attention) # unit/gpu runs them there
expect 0 "$check" --device stand-in "${kernels[@]}"
jq -es --argjson n ${#kernels[@]} 'length == $n and all(.outcome == "ok")' "$T/out" >/dev/null ||
  die "kernels: $(cat "$T/out" "$T/err")"
expect 0 "$check" --device stand-in cublaslt time-cublaslt
jq -es 'length == 2 and all(.outcome == "skipped" and (.why | test("no library of matrix products")))' "$T/out" \
  >/dev/null || die "cuBLASLt is not skipped with a reason: $(cat "$T/out")"
expect 0 "$check" --device stand-in --quick time-normalize time-products time-sampling time-draws time-graphs
jq -es 'length == 11 and all(.value > 0 and .against_value > 0)' "$T/out" >/dev/null ||
  die "times of kernels: $(cat "$T/out")"
expect 0 "$check" --device stand-in --quick h2d gather
jq -es 'length == 3 and all(.value > 0 and .against_value > 0 and .ratio > 0)' "$T/out" >/dev/null ||
  die "figures: $(cat "$T/out")"
# Nothing but the C library and what comes with it.
ldd "$check" | grep -vqE 'linux-vdso|ld-linux|libc\.so|libm\.so|libdl\.so|libpthread\.so|librt\.so' &&
  [ -z "${MC_SANITIZE:-}" ] && die "it needs more than a driver: $(ldd "$check")"
expect 2 "$check" --device toaster
expect 2 "$check" no-such-check
[ -e /dev/nvidiactl ] || expect 77 "$check"
