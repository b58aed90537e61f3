#!/usr/bin/env bash
# sbatch slurm/multinode_manual.sh [train flags]       one Slurm task for each worker, no torchrun
# sbatch slurm/multinode_manual.sh [flags] -- train.py --lr 1e-3        any program, from its own folder
# sbatch --nodes 2 --ntasks-per-node 2 slurm/multinode_manual.sh --sync all_reduce
#
# Edit the SITE lines once for your cluster; what is given to sbatch itself wins over them.
#SBATCH --job-name=muster
#SBATCH --nodes=4
# SITE: tasks per node, each of them a worker: as many as the node has GPUs, or cores to spare.
#SBATCH --ntasks-per-node=1
# SITE: cores per worker; one on a GPU needs a few to load data.
#SBATCH --cpus-per-task=1
# SITE: with GPUs remove one #, and make tasks per node the same number.
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

# Each task reads its rank from its own environment: here, in the batch shell, all would be 0.
begin manual "$@"
run --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_NTASKS"
finish
