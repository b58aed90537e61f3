#!/usr/bin/env bash
# sbatch slurm/accelerate.sh [train flags]        `accelerate launch` on every node
# sbatch slurm/accelerate.sh [flags] -- train.py --lr 1e-3        any program, from its own folder
# sbatch --nodes 2 slurm/accelerate.sh --nproc-per-node 2 --precision bf16
#
# Edit the SITE lines once for your cluster; options given to sbatch itself override them.
#SBATCH --job-name=muster
#SBATCH --nodes=4
# One task per node: its agent runs accelerate launch, which starts the node's workers.
#SBATCH --ntasks-per-node=1
# SITE: cores per node, if workers run on CPUs: with --nproc-per-node 4 at least 4.
##SBATCH --cpus-per-task=4
# SITE: with GPUs remove one # of both; each node then starts a worker per GPU. A worker needs a few
# cores to load data. Many clusters have a good default for them: then leave the second line out.
##SBATCH --gpus-per-node=4
##SBATCH --cpus-per-gpu=4
# SITE: time limit, and other options that the cluster requires.
#SBATCH --time=01:00:00
##SBATCH --partition=gpu
##SBATCH --account=my-group
# A file in the folder of the sbatch call, since Slurm makes no folder. A requeued job appends to it.
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
# After a node failure Slurm restarts the job, at most MUSTER_MAX_REQUEUES (3) times.
#SBATCH --requeue
# Two minutes before the time limit Slurm signals the leader: workers write a checkpoint, and the job
# is restarted and continues from it.
#SBATCH --signal=B:USR1@120

# The signal must not end this shell before the leader handles it; a short job gets it at once.
trap '' USR1
# SITE: what Python needs on this cluster, on the first node and in all steps.
# module load cuda

# $0 is Slurm's own copy of this file. Muster's folder is that of the file that was given to sbatch, or
# the folder of the sbatch call.
checkout=$(scontrol show job "$SLURM_JOB_ID" | sed -nE 's|^ *Command=(.*)/slurm/[a-z_]+\.sh( .*)?$|\1|p' | head -n 1)
CDPATH='' cd "${MUSTER_DIR:-${checkout:-$SLURM_SUBMIT_DIR}}" || exit 2
checkout=$PWD
[[ -f launch/own_python.sh ]] || { printf "error: no Muster in %s\ntip: submit from the checkout, or set MUSTER_DIR to what muster path prints\n" "$PWD" >&2; exit 2; }
python=$(bash launch/own_python.sh) || exit 2
# Where Muster was installed, paths on the command line are those of the sbatch call.
[[ $checkout != */muster/_checkout ]] || CDPATH='' cd "$SLURM_SUBMIT_DIR" || exit 2

[[ " $* " == *" -- "* ]] || set -- --sync accelerate "$@" # for the trainer that comes with this
# The leader of the run: on this node, the job's first, it starts an agent on each with srun, and
# restarts, stops and explains the run. exec: the leader must get Slurm's signals to this shell.
exec "$python" "$checkout/muster/run_module.py" launch.leading.batch_job new --workers accelerate "$@"
