#!/usr/bin/env bash
# sbatch slurm/accelerate.sh [train flags]        `accelerate launch` on every node
# sbatch slurm/accelerate.sh [flags] -- train.py --lr 1e-3        any program, from its own folder
# sbatch --nodes 2 slurm/accelerate.sh --nproc-per-node 2 --precision bf16
#
# Edit the SITE lines once for your cluster. Options on sbatch's command line override them.
#SBATCH --job-name=muster
#SBATCH --nodes=4
# One task per node: Muster's agent. It runs accelerate launch, which starts the node's workers.
#SBATCH --ntasks-per-node=1
# SITE: the cores of each node, if workers run on CPUs: at least 4 for --nproc-per-node 4.
##SBATCH --cpus-per-task=4
# SITE: for GPUs, remove one # from both lines. Each node then starts one worker per GPU. A worker needs
# a few cores to load data. If your cluster has a good default for them, leave out the second line.
##SBATCH --gpus-per-node=4
##SBATCH --cpus-per-gpu=4
# SITE: the time limit, and other options that your cluster requires.
#SBATCH --time=01:00:00
##SBATCH --partition=gpu
##SBATCH --account=my-group
# The output file is in the folder in which you call sbatch, because Slurm creates no folders. A requeued
# job appends to it.
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
# After a node failure, Slurm restarts the job. After more than MUSTER_MAX_REQUEUES (3) restarts, Muster
# ends it.
#SBATCH --requeue
# Two minutes before the time limit, Slurm sends the leader a signal. The workers then write a
# checkpoint, and the job is restarted and continues from it.
#SBATCH --signal=B:USR1@120

# The signal must not end this shell before the leader can handle it. A job with a short time limit
# gets the signal immediately.
trap '' USR1
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

[[ " $* " == *" -- "* ]] || set -- --sync accelerate "$@" # Muster's own trainer
# The leader runs on this node, the first one of the job. With srun, it starts an agent on each node. It
# restarts and stops the run, and reports why it ended. With exec, it gets the signals that Slurm sends
# to this shell.
exec "$python" "$checkout/muster/run_module.py" launch.leading.batch_job new --workers accelerate "$@"
