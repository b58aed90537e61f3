#!/usr/bin/env bash
# sbatch slurm/sweep.sh [train flags]             batch size x precision x number of workers
# sbatch slurm/sweep.sh [flags] -- train.py ...   --batch-size and --precision are appended
#
# Each point of the grid is one job of an array and runs on one node, as in the BSC study. The results
# are in each run's summary.json. The name of a run ends with its index in the array.
# For your own grid with a table of results, use muster sweep --launcher slurm (docs/sweeps.md).
# Edit the SITE lines once for your cluster. Options on sbatch's command line override them.
#SBATCH --job-name=muster-sweep
# SITE: the points, from 0 to (number of points - 1), and after the % how many may run at a time.
#SBATCH --array=0-17%4
#SBATCH --nodes=1
# One task: Muster's agent. It starts torchrun, which starts the workers.
#SBATCH --ntasks=1
# SITE: the cores for all workers together, enough for the largest number of workers.
#SBATCH --cpus-per-task=4
# SITE: for GPUs, remove one #. Set as many as the largest number of workers.
##SBATCH --gpus-per-node=4
# SITE: the time limit of one point, and other options that your cluster requires.
#SBATCH --time=00:30:00
##SBATCH --partition=gpu
##SBATCH --account=my-group
# The output file is in the folder in which you call sbatch, because Slurm creates no folders. A requeued
# job appends to it.
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append
# After a node failure, Slurm restarts the job. After more than MUSTER_MAX_REQUEUES (3) restarts, Muster
# ends it.
#SBATCH --requeue
# Two minutes before the time limit, Slurm sends the leader a signal. The workers then write a
# checkpoint, and the job is restarted and continues from it.
#SBATCH --signal=B:USR1@120

# SITE: the grid. The values of the last line change fastest. fp16 needs GPUs.
grid=(
    'workers=1,2,4'
    'precision=fp32,bf16'
    'batch=64,128,256' # samples per worker and step
)

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

point=${SLURM_ARRAY_TASK_ID:?"submit this with an array: sbatch --array=0-17 slurm/sweep.sh"}
values=$("$python" "$checkout/muster/run_module.py" launch.studies.grid "$point" "${grid[@]}") || exit
read -r points count precision batch <<<"$values"
echo "point $point of $points: batch size $batch per worker, $precision, $count workers"

settings=(--batch-size "$((batch * count))" --precision "$precision")
if [[ " $* " == *" -- "* ]]; then
    set -- "$@" "${settings[@]}"
else
    set -- --task synthetic "${settings[@]}" "$@"
fi

# The leader runs on this node. With srun, it starts an agent. It restarts and stops the run, and reports
# why it ended. With exec, it gets the signals that Slurm sends to this shell.
exec "$python" "$checkout/muster/run_module.py" launch.leading.batch_job new --nproc-per-node "$count" "$@"
