#!/usr/bin/env bash
# Prints every output that README.md quotes. Needs no GPU; about half a minute on two CPU cores.
# Usage: examples/5b_on_16_gpus/run.sh [ZEROPLAN], a
# path from the root of the repository. OUT=FILE keeps the config that plan writes.
set -euo pipefail
cd "$(dirname "$0")/../.."
zeroplan=${1:-build/release/zeroplan}
here=examples/5b_on_16_gpus
machine=(--params 5B --gpus 16 --hw dgx-a100-40gb --shard-group all)
show() {
  echo
  echo "$ zeroplan $*"
  "$zeroplan" "$@"
}

show plan "${machine[@]}"
for stage in 2 3; do show plan "${machine[@]}" --stage "$stage"; done
for network in 90Gb 80Gb; do show plan "${machine[@]}" --network "$network"; done
for network in 25Gb 10Gb; do
  for stage in 2 3; do show plan "${machine[@]}" --network "$network" --stage "$stage"; done
done
show plan --params 5B --gpus 16 --hw dgx-a100-40gb --network 90Gb
show plan --params 5B --gpus 16 --hw dgx-a100-40gb --config "$here/ds_config.json"
show plan "${machine[@]}" --out "${OUT:-/dev/null}"
