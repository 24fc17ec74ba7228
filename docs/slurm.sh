#!/bin/bash
# Several hosts under Slurm: one task a host, each with all its GPUs. Checked for form, not run: docs/scale.md.
# The checkout, with its .venv, lies on a disk that all hosts share; runtime.nproc is the number of GPUs of a host.
#SBATCH --job-name=niels-gpt
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
set -euo pipefail
source .venv/bin/activate

export NNODES="$SLURM_NNODES"
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"

# Everything before training once, on this host, which is the first; then the training on all.
dvc repro mix
srun --kill-on-bad-exit=1 bash -c '
    export NODE_RANK="$SLURM_NODEID"
    if [ "$NODE_RANK" = 0 ]; then exec dvc repro train; else exec niels-gpt join train; fi'
