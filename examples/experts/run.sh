#!/usr/bin/env bash
# A small mixture of experts learns the licence texts that come with the system, on the CPU, and writes a
# sample. Usage: examples/experts/run.sh [STEPS]
set -euo pipefail
cd "$(dirname "$0")/../.."
zeroplan=${ZEROPLAN:-build/release/zeroplan}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$zeroplan" train --model examples/experts/config.json --backend cpu --data /usr/share/common-licenses \
  --seq-len 128 --micro-batch 16 --steps "${1:-400}" --lr 2e-3 --warmup-steps 20 --router-aux-loss 0.1 --save "$out/run"
"$zeroplan" generate "$out/run" --backend cpu --prompt 'The ' --max-new-tokens 160
