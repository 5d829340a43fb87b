#!/usr/bin/env bash
# Plans the training of Llama 3.1 8B on one card of 24 GB and one of 32 GB, and prints what README.md
# quotes: some seconds, no GPU needed. Where there is a GPU as large or larger, it then trains within
# each card's memory, on random weights of the true shape and random tokens: a few steps of each case,
# and tokens/s, bytes used and planned. That needs 128 GiB of host memory, Python with numpy, and about
# two minutes a case.
# Usage: examples/8b_on_one_24gb_gpu/run.sh [ZEROPLAN], a path from the root of the repository.
# PLAN_ONLY=1 ends after the plans; ARGS="--cards rtx4090 --seq-len 2048" runs one case.
set -euo pipefail
cd "$(dirname "$0")/../.."
zeroplan=${1:-build/release/zeroplan}
show() {
  echo
  echo "$ zeroplan $*"
  "$zeroplan" "$@"
}

for card in rtx4090 rtx5090; do
  for length in 2048 4096; do
    show plan --model llama3.1-8b --hw "$card" --host-memory 128GiB --gpus 1 --seq-len "$length" \
      --global-batch-tokens 65536
  done
done
show estimate --model llama3.1-8b --hw rtx4090 --host-memory 128GiB --gpus 1 --seq-len 2048 --micro-batch 8 \
  --checkpointing full
show plan --model llama3.1-8b --hw rtx4090 --host-memory 128GiB --gpus 1 --seq-len 2048 \
  --global-batch-tokens 65536 \
  --method all

if [[ -n ${PLAN_ONLY:-} ]]; then
  exit 0
fi
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo
  echo "No GPU here: nothing is trained."
  exit 0
fi
echo
# shellcheck disable=SC2086  # several options
python3 benchmarks/within_memory.py --only zeroplan --binary "$zeroplan" ${ARGS:-}
