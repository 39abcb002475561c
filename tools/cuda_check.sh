#!/usr/bin/env bash
# cuda_check.sh compile | run BUILD_DIR ON|OFF: what ctest does for the GPU twins. Without nvcc, or to run without a GPU, it
# says so and exits 77, which ctest counts as skipped.
set -euo pipefail
what=$1 build=$2 found=$3

skip() {
  echo "cuda: skipped: $*"
  exit 77
}
[ "$found" = ON ] || skip "nvcc is not installed (make cuda-check says how to get it), so the GPU twins were not compiled"
case $what in
  compile) exec cmake --build "$build" --target cuda_check ;;
  run)
    [ -x "$build/gpu_check/gpu_check" ] || skip "gpu_check is not built"
    exec "$build/gpu_check/gpu_check"
    ;;
  *)
    echo "cuda_check.sh: got '$what', expected compile or run" >&2
    exit 1
    ;;
esac
