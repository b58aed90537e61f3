#!/usr/bin/env bash
# sbatch slurm/sweep.sh [train flags]             batch size x precision x number of workers
# sbatch slurm/sweep.sh [flags] -- train.py ...   --batch-size and --precision are appended
#
# One job of an array for each point of the grid, each on one node, as in the BSC study. To see
# what came of it: grep each run's summary.json; a run's name ends with its place in the array.
# Where the grid is yours, and a table is wanted: muster sweep --launcher slurm, docs/sweeps.md.
# Edit the SITE lines once for your cluster; what is given to sbatch itself wins over them.
#SBATCH --job-name=muster-sweep
# SITE: 0 to (points of the grid - 1), and after the % how many may run at a time.
#SBATCH --array=0-17%4
#SBATCH --nodes=1
# One task: the agent, whose torchrun starts the workers.
#SBATCH --ntasks=1
# SITE: cores for all workers together, enough for the largest number of them.
#SBATCH --cpus-per-task=4
# SITE: with GPUs remove one #: as many as the largest number of workers.
##SBATCH --gpus-per-node=4
# SITE: time limit of one point, and what else the cluster wants to know.
#SBATCH --time=00:30:00
##SBATCH --partition=gpu
##SBATCH --account=my-group
# In the folder where sbatch is called: Slurm makes no other. A requeued job adds to its file.
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append
# After a node failure Slurm starts the job again, at most MUSTER_MAX_REQUEUES (3) times.
#SBATCH --requeue
# Two minutes before the time limit the leader is told: workers write a checkpoint, and the job is
# started again, to go on from it.
#SBATCH --signal=B:USR1@120

# SITE: the grid; the last changes fastest. fp16 needs GPUs.
grid=(
    'workers=1,2,4'
    'precision=fp32,bf16'
    'batch=64,128,256' # samples per worker and step
)

# Until the leader hears it, a notice must not end this shell; a short job gets it at once.
trap '' USR1
# SITE: what Python needs on this cluster, on the first node and in all steps.
# module load cuda

# $0 is Slurm's own copy of this file; the checkout is where the file lies that sbatch was given,
# or where sbatch was called.
checkout=$(scontrol show job "$SLURM_JOB_ID" | sed -nE 's|^ *Command=(.*)/slurm/[a-z_]+\.sh( .*)?$|\1|p' | head -n 1)
cd "${MUSTER_DIR:-${checkout:-$SLURM_SUBMIT_DIR}}" && python=${MUSTER_PYTHON:-$PWD/.venv/bin/python}
command -v -- "$python" >/dev/null || { echo "error: no Python at $python; submit from the checkout or set MUSTER_DIR; make its Python with: make install, or set MUSTER_PYTHON" >&2; exit 2; }

point=${SLURM_ARRAY_TASK_ID:?"submit this with an array: sbatch --array=0-17 slurm/sweep.sh"}
values=$("$python" muster/run_module.py launch.studies.grid "$point" "${grid[@]}") || exit
read -r points count precision batch <<<"$values"
echo "point $point of $points: batch size $batch per worker, $precision, $count workers"

settings=(--batch-size "$((batch * count))" --precision "$precision")
if [[ " $* " == *" -- "* ]]; then
    set -- "$@" "${settings[@]}"
else
    set -- --task synthetic "${settings[@]}" "$@"
fi

# The leader of the run: on this node it starts an agent with srun, and restarts, stops and explains the run. exec: what Slurm tells this shell is for the leader to hear.
exec "$python" muster/run_module.py launch.leading.batch_job new --nproc-per-node "$count" "$@"
