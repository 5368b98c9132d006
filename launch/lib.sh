# Shell functions of the scripts here and of tests/run.sh; sourced by bash.

# die MESSAGE [STATUS]: one line, and out.
die() {
  echo "${0##*/}: $1" >&2
  exit "${2:-1}"
}

# step MESSAGE COMMAND...: runs COMMAND quietly, its output in build/logs; shows the time it takes.
# When it fails, shows the end of its output (not with STEP_TERSE=1) and returns its status.
step() {
  local message=$1 log status=0 started=$SECONDS pid
  shift
  mkdir -p build/logs
  log=build/logs/$(tr -cs 'a-zA-Z0-9' '_' <<<"$message").log
  if [ -t 2 ]; then
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
      printf '\r%s ... %d s' "$message" $((SECONDS - started)) >&2
      sleep 0.5
    done
    wait "$pid" || status=$?
    printf '\r' >&2
  else
    echo "$message ..." >&2
    "$@" >"$log" 2>&1 </dev/null || status=$?
  fi
  if [ "$status" -ne 0 ]; then
    [ -z "${STEP_TERSE:-}" ] || return "$status"
    tail -n 30 "$log" >&2
    echo "${0##*/}: $message: failed (status $status); the whole output is in $log" >&2
    return "$status"
  fi
  echo "$message ... done in $((SECONDS - started)) s" >&2
}

# A clone at another place finds what this one has compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true

# Compilers that may run side by side: a core each, and 1.5 GiB of memory each.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
  [ "${memory:-1}" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

# Open MPI on one machine, also as root, in a container, without ssh and with fewer cores than ranks.
set_mpi_environment() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_plm=isolated                           # no ssh is needed for one host
  export OMPI_MCA_rmaps_base_oversubscribe=1             # more ranks than cores
  export OMPI_MCA_hwloc_base_binding_policy=none         # a rank has threads of its own
  export OMPI_MCA_mpi_yield_when_idle=1                  # a waiting rank leaves its core to others
  export OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1        # shared memory, no search for a network
  export OMPI_MCA_btl_vader_single_copy_mechanism=none   # containers forbid reading a peer's memory
  # A container's /dev/shm may be too small for the segments of a few ranks (4 MiB and more each).
  local free
  free=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $4}')
  [ "${free:-0}" -ge 65536 ] || export OMPI_MCA_btl_vader_backing_directory=${TMPDIR:-/tmp}
}
