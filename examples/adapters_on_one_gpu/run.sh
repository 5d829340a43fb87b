#!/usr/bin/env bash
# Plans LoRA and QLoRA of Llama 3.2 3B and 3.1 8B on cards of 8, 12, 16 and 24 GB, and prints what README.md
# quotes: some seconds, no GPU needed. Where there is a GPU as large or larger, it then trains each within
# the card's memory, on random weights of the true shape and random tokens: tokens/s, bytes used and planned.
# That needs 32 GB of host memory, Python with numpy, and about ten seconds a case.
# Usage: examples/adapters_on_one_gpu/run.sh [ZEROPLAN], a path from the root of the repository.
# PLAN_ONLY=1 ends after the plans; ARGS="--hw mine.json --json results.jsonl" goes to the measurement.
set -euo pipefail
cd "$(dirname "$0")/../.."
zeroplan=${1:-build/release/zeroplan}
models=(llama3.2-3b llama3.1-8b)
cards=(rtx3070 rtx3060 rtx4080 rtx4090)
step=(--gpus 1 --seq-len 2048 --global-batch-tokens 16384)

for model in "${models[@]}"; do
  for card in "${cards[@]}"; do
    echo
    echo "$ zeroplan plan $model --hw $card ${step[*]} --method all --quick"
    "$zeroplan" plan "$model" --hw "$card" "${step[@]}" --method all --quick
  done
done

if [[ -n ${PLAN_ONLY:-} ]]; then
  exit 0
fi
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo
  echo "No GPU here: nothing is trained."
  exit 0
fi
for method in qlora lora; do
  for model in "${models[@]}"; do
    # shellcheck disable=SC2086  # several options
    python3 benchmarks/within_memory.py --only zeroplan --method $method --model "$model" --cards "${cards[@]}" \
      --seq-len 2048 --tokens 16384 --host-memory 32GB --steps 2 --binary "$zeroplan" ${ARGS:-}
  done
done
