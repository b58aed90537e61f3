#!/usr/bin/env bash
# sbatch slurm/singlenode.sh [train flags]        all GPUs of one node, or so many CPU workers:
# sbatch slurm/singlenode.sh [flags] -- train.py --lr 1e-3        any program, from its own folder
# sbatch --cpus-per-task=8 slurm/singlenode.sh --nproc-per-node 8
#
# Edit the SITE lines once for your cluster; what is given to sbatch itself wins over them.
#SBATCH --job-name=muster
#SBATCH --nodes=1
# One task: the agent, whose torchrun starts the workers.
#SBATCH --ntasks=1
# SITE: cores for all workers together.
#SBATCH --cpus-per-task=4
# SITE: with GPUs remove one #; there is then a worker for each.
##SBATCH --gpus-per-node=4
# SITE: time limit, and what else the cluster wants to know.
#SBATCH --time=01:00:00
##SBATCH --partition=gpu
##SBATCH --account=my-group
# In the folder where sbatch is called: Slurm makes no other. A requeued job adds to its file.
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
# After a node failure Slurm starts the job again, at most MUSTER_MAX_REQUEUES (3) times.
#SBATCH --requeue
# Two minutes before the time limit this shell is told: workers write a checkpoint, and the job is
# started again, to go on from it.
#SBATCH --signal=B:USR1@120

# $0 is Slurm's own copy of this file; the checkout is where the file lies that sbatch was given.
file=$(scontrol show job "$SLURM_JOB_ID" | sed -nE 's|^ *Command=(.*/slurm)/[a-z_]+\.sh( .*)?$|\1|p' | head -n 1)
[[ -e $file/job.sh ]] || file=$SLURM_SUBMIT_DIR/slurm # a copy of it, elsewhere
cd "${MUSTER_DIR:-$file/..}"
source slurm/job.sh || { echo "error: submit from the checkout, or set MUSTER_DIR" >&2; exit 2; }

begin torchrun "$@"
run --nodes=1 --ntasks=1
finish
