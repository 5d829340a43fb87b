#!/bin/bash
# Llama 3.1 8B on 2 nodes of 8 GPUs, below Slurm:  sbatch slurm.sh
#
# plan.json, the data and the folder of checkpoints are on storage that all nodes share, in the folder of
# which sbatch is called; zeroplan is on PATH of all nodes. What stands behind slurm.sh goes to zeroplan.
#SBATCH --job-name=zeroplan
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
# Two minutes before the end ranks hear of it and save (docs/checkpoints.md).
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# Here belong the lines that zeroplan doctor --hosts prints.
export NCCL_DEBUG=WARN

# A task for each GPU. All tasks of a node see all of its GPUs: zeroplan takes one by SLURM_LOCALID.
# --resume goes on from the newest checkpoint, and starts afresh where there is none.
exec srun --kill-on-bad-exit=1 zeroplan train --plan "${PLAN:-plan.json}" --data "${DATA:-data}" \
  --save "${OUT:-out}" --save-every 500 --resume "$@"
