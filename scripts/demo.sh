#!/usr/bin/env bash
# The main job, on any machine: the best way to train 10B parameters on one 32 GB GPU, which is printed
# as soon as the planner is built; then a small GPT trained on the licence texts that come with the
# system, with ZeRO-2 and its optimizer in host memory, and a sample of what it writes. It trains on up
# to two GPUs, or without one on the CPU, about two minutes on two cores. Usage: scripts/demo.sh [STEPS]
# Environment: ZEROPLAN_WHEELS, a folder with the wheels of scripts/release.sh, which are used in place of a build
set -euo pipefail
cd "$(dirname "$0")/.."
steps=${1:-1200}

say() { printf '\nzeroplan: %s\n' "$*" >&2; }

# GPUs that a CUDA process would see.
count_gpus() {
  local gpus listed
  if command -v nvidia-smi > /dev/null; then
    gpus=$({ nvidia-smi -L 2> /dev/null || true; } | grep -c '^GPU ' || true)
  else
    gpus=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l)
  fi
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    listed=$(tr ',' '\n' <<< "$CUDA_VISIBLE_DEVICES" | grep -c '[^ ]' || true)
    [ "$CUDA_VISIBLE_DEVICES" != -1 ] || listed=0
    if [ "$listed" -lt "$gpus" ]; then gpus=$listed; fi
  fi
  echo "$gpus"
}

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
gpus=$(count_gpus)
if [ -n "${ZEROPLAN_WHEELS:-}" ]; then
  say "installing the wheels in $ZEROPLAN_WHEELS"
  python3 -m venv "$out/env"
  pip=("$out/env/bin/python" -m pip install --quiet --disable-pip-version-check)
  # NVIDIA's packages, where there are GPUs; where pip cannot have them, the system's libraries are tried.
  "${pip[@]}" --no-deps "$ZEROPLAN_WHEELS"/zeroplan*.whl
  [ "$gpus" -eq 0 ] || "${pip[@]}" --find-links "$ZEROPLAN_WHEELS" 'zeroplan[train]' ||
    say "pip cannot install what zeroplan[train] names"
  zeroplan=$out/env/bin/zeroplan
  cuda=on
else
  zeroplan=build/release/zeroplan
  say "first the planner (a few minutes on two cores)"
  scripts/build.sh release zeroplan
fi
say "the fastest way to train 10B parameters on one 32 GB GPU"
"$zeroplan" plan --model gpt2-10b --hw dgx-2 --gpus 1
if [ -z "${ZEROPLAN_WHEELS:-}" ]; then
  say "now the executor, to train a small model here"
  scripts/build.sh release zeroplan_executor_program
  cuda=$(sed -n 's/^ZEROPLAN_CUDA_STATUS:INTERNAL=//p' build/release/CMakeCache.txt)
fi

ranks=2
if [ "$gpus" -eq 0 ]; then
  backend=cpu
  say "no NVIDIA GPU here: training on the CPU, two ranks as threads"
elif [ "$cuda" != on ]; then
  backend=cpu
  say "$gpus NVIDIA GPU(s) here, but this build cannot use them ($cuda): training on the CPU, two ranks as threads"
else
  backend=cuda
  if [ "$gpus" -lt "$ranks" ]; then ranks=$gpus; fi
  say "training on the GPU, $ranks of $gpus"
fi

data=/usr/share/common-licenses
[ -d "$data" ] || data=LICENSE
"$zeroplan" train --model examples/byte_gpt/config.json --config examples/byte_gpt/ds_config.json \
  --backend "$backend" --gpus "$ranks" --data "$data" --steps "$steps" --save "$out/run" \
  --metrics "$out/metrics.jsonl"

echo
echo "What it writes:"
"$zeroplan" generate "$out/run" --prompt 'The ' --tokens 240
