#!/bin/bash
# Installs what is missing to build (and, with `test`, to test) rollcast on Debian 12 or Ubuntu 24.04.
# usage: launch/install_deps.sh [build] [test]     default: build. Does nothing when all is there.
# Status: 0 all is there; 1 cannot install here; 3 the package registries cannot be reached.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/lib.sh

build=(g++ make cmake ninja-build pkg-config ccache mold libopenmpi-dev openmpi-bin libhdf5-dev
  libboost-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libfmt-dev libspdlog-dev
  libpcre2-dev libxxhash-dev libutf8proc-dev prometheus-cpp-dev zlib1g-dev
  libopenblas-dev python3 python3-pip python3-venv)
test=(libgtest-dev libbenchmark-dev clang libclang-rt-dev clang-format-14 git python3-numpy
  python3-h5py procps)

wanted=()
for set in "${@:-build}"; do
  case $set in
    build) wanted+=("${build[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    *) die "unknown set \"$set\"; expected build or test" ;;
  esac
done

command -v dpkg-query >/dev/null ||
  die "this is not Debian or Ubuntu; install what these packages bring by hand: ${wanted[*]}"
installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qx "ii  *$package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "needs root or sudo to install: ${missing[*]}"
  # Asked here, since the steps below run without a terminal.
  sudo -v || die "sudo was refused; to be installed: ${missing[*]}"
  as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q
  -o Acquire::Retries=2 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20
  -o DPkg::Lock::Timeout=300)
STEP_TERSE=1 step "Reading the package lists" \
  "${apt[@]}" -o APT::Update::Error-Mode=any update ||
  die "no network: the package registries cannot be reached, and these packages are missing: ${missing[*]}" 3
step "Installing ${#missing[@]} packages" "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
