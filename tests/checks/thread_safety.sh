#!/bin/bash
# Clang's thread-safety analysis over the rooms that have threads; a compiler that writes nothing.
# usage: thread_safety.sh                every .cc of these rooms
#        thread_safety.sh --self-test    plants a violation and sees that it is caught
set -euo pipefail
cd "$(dirname "$0")/../.."
read -ra flags <<<"$(pkg-config --cflags hdf5-serial ompi-c tomlplusplus 2>/dev/null || true)"

# check FILE...
check() {
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" clang++ -std=c++20 -fsyntax-only -Wno-everything \
    -Wthread-safety -Werror=thread-safety -DROLLCAST_VERSION='"check"' -DSPDLOG_COMPILED_LIB \
    -DSPDLOG_FMT_EXTERNAL -I. "${flags[@]}"
}

if [ "${1:-}" = --self-test ]; then
  folder=$(mktemp -d)
  trap 'rm -r "$folder"' EXIT
  cat >"$folder/planted.cc" <<'END'
#include "engine/mutex.h"
rollcast::Mutex mutex;
int guarded RC_GUARDED_BY(mutex);
int Read() { return guarded; }
END
  sed 's/return/rollcast::MutexLock lock(mutex); return/' "$folder/planted.cc" >"$folder/right.cc"
  check "$folder/right.cc"
  ! check "$folder/planted.cc" 2>/dev/null || { echo "a read without the lock was not caught"; exit 1; }
  echo "2 passed, 0 failed"
  exit
fi

mapfile -t files < <(git ls-files -- 'engine/*.cc' 'rollout/*.cc' 'trainer_bridge/*.cc' 'launch/*.cc')
check "${files[@]}"
