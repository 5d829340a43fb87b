#!/usr/bin/env bash
# Llama 3.1 8B on 2 nodes of 8 GPUs, by torchrun: the same command on every node,
#
#   HEAD=node1 ./torchrun.sh
#
# with HEAD the host where ranks meet, one of them. plan.json, the data and the folder of checkpoints are on
# storage that all nodes share. What stands behind torchrun.sh goes to zeroplan.
set -euo pipefail
: "${HEAD:?the host where ranks meet, one of the nodes}"

# Here belong the lines that zeroplan doctor --hosts prints.
export NCCL_DEBUG=WARN

# torchrun starts all ranks again after one failed. --resume then goes on from the newest checkpoint; it
# starts afresh where there is none.
exec torchrun --nnodes "${NODES:-2}" --nproc-per-node "${GPUS:-8}" --max-restarts 3 \
  --rdzv-backend c10d --rdzv-id "${RUN_ID:-zeroplan}" --rdzv-endpoint "$HEAD:${PORT:-29500}" \
  --no-python zeroplan train --plan "${PLAN:-plan.json}" --data "${DATA:-data}" \
  --save "${OUT:-out}" --save-every 500 --resume "$@"
