#!/bin/bash
# Makes the small random model of configs/toy.toml, once, at build/models/toy.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -f build/models/toy/config.json ] && exit 0
build/release/rollcast convert --toy 1 --output build/models/toy
