#!/usr/bin/env bash
# sbatch slurm/sweep.sh [train flags]             batch size x precision x number of workers
# sbatch slurm/sweep.sh [flags] -- train.py ...   --batch-size and --precision are appended
#
# One job of an array for each point of the grid, each on one node, as in the BSC study. To see
# the results: grep each run's summary.json; a run's name ends with its place in the array.
# For your own grid, with a table of results: muster sweep --launcher slurm, docs/sweeps.md.
# Edit the SITE lines once for your cluster; options given to sbatch itself override them.
#SBATCH --job-name=muster-sweep
# SITE: 0 to (points of the grid - 1), and after the % how many may run at a time.
#SBATCH --array=0-17%4
#SBATCH --nodes=1
# One task: the agent, whose torchrun starts the workers.
#SBATCH --ntasks=1
# SITE: cores for all workers together, enough for the largest number of them.
#SBATCH --cpus-per-task=4
# SITE: with GPUs remove one #; give as many as the largest number of workers.
##SBATCH --gpus-per-node=4
# SITE: time limit of one point, and other options that the cluster requires.
#SBATCH --time=00:30:00
##SBATCH --partition=gpu
##SBATCH --account=my-group
# A file in the folder of the sbatch call, since Slurm makes no folder. A requeued job appends to it.
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append
# After a node failure Slurm restarts the job, at most MUSTER_MAX_REQUEUES (3) times.
#SBATCH --requeue
# Two minutes before the time limit Slurm signals the leader: workers write a checkpoint, and the job
# is restarted and continues from it.
#SBATCH --signal=B:USR1@120

# SITE: the grid; the values of the last line change fastest. fp16 needs GPUs.
grid=(
    'workers=1,2,4'
    'precision=fp32,bf16'
    'batch=64,128,256' # samples per worker and step
)

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

# The leader of the run: on this node it starts an agent with srun, and restarts, stops and explains the
# run. exec: the leader must get Slurm's signals to this shell.
exec "$python" "$checkout/muster/run_module.py" launch.leading.batch_job new --nproc-per-node "$count" "$@"
