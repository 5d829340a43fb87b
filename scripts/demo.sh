#!/usr/bin/env bash
# The main job, on any machine: the best way to train 10B parameters on one 32 GB GPU, then a small GPT
# trained on the licence texts that come with the system, with ZeRO-2 and its optimizer in host memory, and a
# sample of what it writes. About two minutes of training on two cores. Usage: scripts/demo.sh [STEPS]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release zeroplan
zeroplan=build/release/zeroplan
steps=${1:-1200}

"$zeroplan" plan --model gpt2-10b --hw dgx-2 --gpus 1
echo

data=/usr/share/common-licenses
[ -d "$data" ] || data=LICENSE
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$zeroplan" train --model examples/byte_gpt/config.json --config examples/byte_gpt/ds_config.json \
  --gpus 2 --data "$data" --steps "$steps" --save "$out/run" --metrics "$out/metrics.jsonl"

echo
echo "What it writes:"
"$zeroplan" generate "$out/run" --prompt 'The ' --tokens 240
