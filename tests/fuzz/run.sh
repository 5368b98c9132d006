#!/bin/bash
# Builds the fuzz targets (clang, libFuzzer, AddressSanitizer, UndefinedBehaviorSanitizer) and runs
# each for a while, one after another. What they find interesting stays in build/fuzz/corpus for the
# next run. Ends with a table, and with status 1 when a target failed; the input that did it is then
# in build/fuzz/failures, and build/fuzz/NAME FILE runs it again.
# usage: tests/fuzz/run.sh [--seconds N] [NAME...]
#   --seconds  for each target; 60 if not given
#   NAME       of a target, e.g. gguf_fuzz; all if none is given
set -euo pipefail
cd "$(dirname "$0")/../.."
. launch/lib.sh

seconds=60
if [ "${1:-}" = --seconds ]; then
  [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die "--seconds needs a number" 2
  seconds=$2
  shift 2
fi
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for source in tests/fuzz/*_fuzz.cc; do targets+=("$(basename "$source" .cc)"); done
fi
for target in "${targets[@]}"; do
  [ -f "tests/fuzz/$target.cc" ] || die "there is no tests/fuzz/$target.cc" 2
done

./launch/install_deps.sh build test
step "Configuring build/fuzz" cmake --preset fuzz
step "Building the fuzz targets" \
  cmake --build build/fuzz -j "$(build_jobs)" --target make_seeds "${targets[@]}"
rm -rf build/fuzz/seeds
build/fuzz/make_seeds build/fuzz/seeds

export UBSAN_OPTIONS=print_stacktrace=1
table=$(printf '%-20s %12s %10s %10s %8s' target executions coverage features corpus)
status=0
for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/corpus/$target" build/fuzz/failures
  # Longer inputs and slower ones find nothing more here; 20 s for one input is a hang.
  if ! step "Running $target for $seconds s" "build/fuzz/$target" -max_total_time="$seconds" \
    -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/failures/$target-" \
    "build/fuzz/corpus/$target" "build/fuzz/seeds/$target"; then
    status=1
  fi
  log=$(ls -t build/logs/Running_"$target"* | head -n 1)
  table+=$'\n'$(awk -v target="$target" '
    / cov: / {
      for (i = 1; i < NF; ++i) value[$i] = $(i + 1)
    }
    /stat::number_of_executed_units/ {executed = $2}
    END {
      printf "%-20s %12d %10d %10d %8s\n", target, executed, value["cov:"], value["ft:"], value["corp:"]
    }' "$log")
done
echo "$table"
exit "$status"
