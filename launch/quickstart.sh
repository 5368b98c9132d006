#!/bin/bash
# From a fresh Debian 12 or Ubuntu 24.04 (root or sudo) to a running job: installs what is missing,
# builds build/release, gets the demo model, and trains it for a few dozen updates with one trainer
# and two rollout ranks. Fails when the reward does not rise by trainer.min_reward_gain.
# usage: launch/quickstart.sh [OPTION OF rollcast trainer AND worker...]
#        e.g. launch/quickstart.sh --set trainer.updates=60
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/lib.sh

./launch/install_deps.sh build
if [ ! -f build/release/CMakeCache.txt ]; then
  step "Configuring build/release" cmake --preset release -DROLLCAST_TESTS=OFF
fi
step "Building build/release/rollcast" \
  cmake --build build/release --target rollcast rollcast_trainer -j "$(build_jobs)"

config=configs/demo.toml status=0
./launch/get_demo_model.sh || status=$?
if [ "$status" -eq 3 ]; then
  echo "No network for the demo model: going on with a small random model made here." >&2
  config=configs/toy.toml
  ./launch/get_toy_model.sh
elif [ "$status" -ne 0 ]; then
  die "the demo model could not be made (status $status)" "$status"
fi

mkdir -p build/demo
set_mpi_environment
echo "mpirun -np 1 build/release/rollcast trainer -c $config : -np 2 build/release/rollcast worker -c $config" >&2
exec mpirun -q -np 1 build/release/rollcast trainer -c "$config" "$@" : \
  -np 2 build/release/rollcast worker -c "$config" "$@"
