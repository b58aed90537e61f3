#!/usr/bin/env bash
# sbatch slurm/multinode_manual.sh [train flags]       one Slurm task for each worker, started by srun
# sbatch slurm/multinode_manual.sh -- train.py --lr 1e-3        any program, from its own folder: with
#         the Python of the active environment; `python train.py` uses the Python on PATH
# sbatch --nodes 2 --ntasks-per-node 2 slurm/multinode_manual.sh --sync all_reduce
#
# No agent runs between Slurm and the workers, so nothing monitors or restarts them. To use agents but
# no torchrun: slurm/multinode.sh --workers manual.
# Edit the SITE lines once for your cluster. Options on sbatch's command line override them.
#SBATCH --job-name=muster
#SBATCH --nodes=4
# SITE: tasks per node. Each task is one worker. Use as many as the node has GPUs or free cores.
#SBATCH --ntasks-per-node=1
# SITE: cores per worker. A worker on a GPU needs a few to load data.
#SBATCH --cpus-per-task=1
# SITE: for GPUs, remove one #, and set the tasks per node to the same number.
##SBATCH --gpus-per-node=4
# SITE: the time limit, and other options that your cluster requires.
#SBATCH --time=01:00:00
##SBATCH --partition=gpu
##SBATCH --account=my-group
# The output file is in the folder in which you call sbatch, because Slurm creates no folders. A requeued
# job appends to it.
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
# After a node failure, Slurm restarts the job as a new run.
#SBATCH --requeue
# Two minutes before the time limit, Slurm sends SIGTERM to each worker. The trainer then writes a
# checkpoint, and so do programs that save when they receive SIGTERM.
#SBATCH --signal=TERM@120

# SITE: the modules that Python needs on this cluster. This shell loads them, and srun passes
# its environment to all nodes.
# module load cuda

# $0 is Slurm's copy of this file, so Muster's folder is MUSTER_DIR, or else is found from the path that
# was given to sbatch, or else is the folder in which sbatch was called.
checkout=$(scontrol show job "$SLURM_JOB_ID" | sed -nE 's|^ *Command=(.*)/slurm/[^/ ]+\.sh( .*)?$|\1|p' | head -n 1)
CDPATH='' cd "${MUSTER_DIR:-${checkout:-$SLURM_SUBMIT_DIR}}" || exit 2
checkout=$PWD
[[ -f launch/own_python.sh ]] || { printf "error: no Muster in %s\ntip: submit from the checkout, or set MUSTER_DIR to what muster path prints\n" "$PWD" >&2; exit 2; }
python=$(bash launch/own_python.sh) || exit 2
# If Muster is installed without a clone, relative paths on the command line are
# relative to the folder in which sbatch was called.
[[ $checkout != */muster/_checkout ]] || CDPATH='' cd "$SLURM_SUBMIT_DIR" || exit 2

# The name of the run and the address of rank 0, which are the same for all workers.
TORCHELASTIC_RUN_ID=$(date +%Y%m%d-%H%M%S)-job$SLURM_JOB_ID
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TORCHELASTIC_RUN_ID MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# Each task reads its rank from its own environment. If this shell set it, every rank would be 0.
step=(srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 --unbuffered)
[[ ${1-} == -- ]] || exec "${step[@]}" "$python" "$checkout/muster/run_module.py" train.worker "$@"
shift && CDPATH='' cd "$SLURM_SUBMIT_DIR" || exit 2
# This refuses torchrun, which would start all workers in each task, and prints the program's Python.
active=$("$python" "$checkout/muster/run_module.py" launch.programs.other_launchers "$@") || exit
[[ ${1-} != -m && ${1-} != *.py && ${1-} != *.pyz && ! -f ${1-}/__main__.py ]] || set -- "$active" "$@"
[[ $* != *"{"*"}"* ]] || set -- "$python" "$checkout/muster/worker/placeholders.py" "$@" # --rank {rank}
# The variables from which programs for torchrun read their rank.
# shellcheck disable=SC2016 # each task expands them
ranks='export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
export GROUP_RANK=$SLURM_NODEID GROUP_WORLD_SIZE=$SLURM_NNODES
export LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_NNODES)); exec "$@"'
exec "${step[@]}" bash -c "$ranks" worker "$@"
