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
# Two minutes before the time limit the leader is told: workers write a checkpoint, and the job is
# started again, to go on from it.
#SBATCH --signal=B:USR1@120

# Until the leader hears it, a notice must not end this shell; a short job gets it at once.
trap '' USR1
# SITE: what Python needs on this cluster, on the first node and in all steps.
# module load cuda

# $0 is Slurm's own copy of this file; the checkout is where the file lies that sbatch was given,
# or where sbatch was called.
checkout=$(scontrol show job "$SLURM_JOB_ID" | sed -nE 's|^ *Command=(.*)/slurm/[a-z_]+\.sh( .*)?$|\1|p' | head -n 1)
cd "${MUSTER_DIR:-${checkout:-$SLURM_SUBMIT_DIR}}" && python=${MUSTER_PYTHON:-$PWD/.venv/bin/python}
command -v -- "$python" >/dev/null || { echo "error: no Python at $python; submit from the checkout or set MUSTER_DIR; make its Python with: make install, or set MUSTER_PYTHON" >&2; exit 2; }

# The leader of the run: on this node, the job's first, it starts an agent on each with srun, and
# restarts, stops and explains the run. exec: what Slurm tells this shell is for the leader to hear.
exec "$python" muster/run_module.py launch.leading.batch_job new "$@"
