#!/usr/bin/env bash
# Trains a small GPT-2 on this project's documentation, then goes on from the saved folder with C++
# headers, validated on headers of another folder: about three minutes of one core's time. README.md
# quotes what it prints.
# Usage: examples/gpt2_text/run.sh [ZEROPLAN [FOLDER]], a path from the root of the repository, and where
# texts and models go (default: run/gpt2_text), without models of an earlier run.
set -euo pipefail
cd "$(dirname "$0")/../.."
zeroplan=${1:-build/release/zeroplan}
out=${2:-run/gpt2_text}
rm -rf "$out/headers" "$out/held"
mkdir -p "$out/headers" "$out/held"
find core planner -name '*.h' -exec cp -p --parents -t "$out/headers" {} +
find cost_models -name '*.h' -exec cp -p --parents -t "$out/held" {} +
show() {
  echo
  echo "$ zeroplan $*"
  "$zeroplan" "$@"
}

common=(--validation-data "$out/held" --seq-len 128 --micro-batch 8 --dtype fp32
  --lr-schedule cosine --warmup-ratio 0.05)
show train --model examples/gpt2_text/model --fresh-weights --data docs/*.md --epochs 6 --lr 3e-3 --save "$out/base" \
  "${common[@]}"
show train --model "$out/base" --data "$out/headers" --epochs 10 --lr 2e-3 --save "$out/continued" \
  "${common[@]}" --validate-every 60 --keep-best --final-weights best --patience 3
for model in base continued; do
  show generate "$out/$model" --prompt "#pragma once" --max-new-tokens 60 --temperature 0
done
