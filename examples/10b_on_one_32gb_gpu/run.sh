#!/usr/bin/env bash
# Prints every output that README.md quotes. Needs no GPU; some seconds on two CPU cores.
# Usage: examples/10b_on_one_32gb_gpu/run.sh [ZEROPLAN], a
# path from the root of the repository. OUT=FILE keeps the config that plan writes.
set -euo pipefail
cd "$(dirname "$0")/../.."
zeroplan=${1:-build/release/zeroplan}
here=examples/10b_on_one_32gb_gpu
machine=(--hw dgx-2 --gpus 1)
show() {
  echo
  echo "$ zeroplan $*"
  "$zeroplan" "$@"
}

show config check "$here/ds_config.json" "${machine[@]}" --model gpt2-10b || true  # the slips of the tutorial
show estimate "${machine[@]}" --model gpt2-10b --config "$here/ds_config.json"
show estimate "${machine[@]}" --model gpt2-10b --micro-batch 10 --checkpointing full
show plan "${machine[@]}" --model gpt2-10b
show plan "${machine[@]}" --model gpt2-10b --runtime zeroplan --out "${OUT:-/dev/null}"
show plan "${machine[@]}" --model gpt3-13b --stage 2
