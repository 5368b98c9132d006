#!/bin/bash
# Fails, naming the places, when a tracked source is not as clang-format 14 writes it.
set -euo pipefail
cd "$(dirname "$0")/../.."
git ls-files -z -- '*.cc' '*.h' '*.cu' '*.cuh' |
  xargs -0 -r -n 16 -P "$(nproc)" clang-format-14 --dry-run -Werror
