#!/bin/bash
#SBATCH --job-name=asterism
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# Two nodes of eight GPUs: every sequence lies on the eight of a node, and each node reads sequences of its own.
#
#   sbatch slurm.sh
#
# One task on each node starts torchrun, and torchrun a process for each GPU. Five minutes before its time is up the job
# gets SIGTERM: the run writes a checkpoint and ends. Submitted again, or requeued, the same file goes on with it.

set -euo pipefail

run=${RUN:-$PWD/runs/long}
data=${DATA:-$PWD/data}
read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

if [[ -e $run/run.json ]]; then
    settings=(--resume)
else
    settings=(--recipe bytes-small --data "$data" --context 131072)
    settings+=(--batch_size 2 --minutes null --parallel dp=2,cp=8)
fi

srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:29500" \
    --no-python asterism train --folder "$run" "${settings[@]}"
