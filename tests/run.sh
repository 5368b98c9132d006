#!/bin/bash
# Installs what is missing, builds, and runs every test through CTest, whose closing lines come last.
# The tests of the demo model (label demo) need a download; where that is not possible they are not
# run, and the output says so.
# usage: tests/run.sh [--sanitizers] [CTEST ARGUMENT...]
#   --sanitizers  all tests under AddressSanitizer and UndefinedBehaviorSanitizer, and those of the
#                 rooms with threads under ThreadSanitizer, instead of the plain build
#   further arguments go to ctest, e.g. -R Config
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/lib.sh

sanitizers=
if [ "${1:-}" = --sanitizers ]; then
  sanitizers=1
  shift
fi

./launch/install_deps.sh build test
set_mpi_environment
jobs=$(build_jobs)

# run_tests PRESET [CTEST ARGUMENT...]: all that has been built there
run_tests() {
  local preset=$1
  shift
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" "$@"
}

if [ -z "$sanitizers" ]; then
  step "Configuring build/release" cmake --preset release -DROLLCAST_TESTS=ON
  step "Building build/release" cmake --build build/release -j "$jobs"
  status=0
  ./launch/get_demo_model.sh || status=$?
  case $status in
    0) run_tests release "$@" ;;
    3) echo "not run: the tests of the demo model (label demo), which cannot be downloaded" >&2
       run_tests release -LE "^demo$" "$@" ;;
    *) die "the demo model could not be made (status $status)" "$status" ;;
  esac
  exit
fi

# A small quarantine: the soak test bounds the growth of memory, which a large one would look like.
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:quarantine_size_mb=16
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export LSAN_OPTIONS=suppressions=$PWD/tests/checks/lsan.supp
# Open MPI is built without what ThreadSanitizer needs.
export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1
status=0
step "Configuring build/asan" cmake --preset asan -DROLLCAST_TESTS=ON
step "Building build/asan" cmake --build build/asan -j "$jobs"
run_tests asan -LE "^demo$" "$@" || status=$?
step "Configuring build/tsan" cmake --preset tsan -DROLLCAST_TESTS=ON
step "Building build/tsan" cmake --build build/tsan -j "$jobs" \
  --target engine_tests rollout_tests trainer_bridge_tests
run_tests tsan -L "^(engine|rollout|trainer_bridge)$" "$@" || status=$?
exit "$status"
