#!/bin/bash
# Fails, naming the places, on what must not be committed: absolute paths of one machine, addresses
# of package registries, and unfinished work that a comment hides.
set -euo pipefail
cd "$(dirname "$0")/../.."
# Written in two halves, so that this file does not find itself.
words=('/wo''rk/' '/ho''me/[a-z]' '/ro''ot/' '/Us''ers/' 'TO''DO' 'FIX''ME' 'HA''CK\b'
  'deb\.deb''ian' 'pypi\.o''rg' 'pythonho''sted' 'archive\.ubu''ntu')
pattern=$(IFS='|'; echo "${words[*]}")
if git grep -nIE "$pattern" -- . ':!tests/data' ':!configs/*.jsonl'; then
  echo "words.sh: the lines above must not be committed" >&2
  exit 1
fi
