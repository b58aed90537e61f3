#!/usr/bin/env bash
# sbatch slurm/multinode_manual.sh [train flags]       one Slurm task for each worker, by plain srun
# sbatch slurm/multinode_manual.sh -- train.py --lr 1e-3        any program, from its own folder
# sbatch --nodes 2 --ntasks-per-node 2 slurm/multinode_manual.sh --sync all_reduce
#
# Nothing of Muster is between Slurm and the workers: nobody watches over them, and none is started
# again. For that, and without torchrun: slurm/multinode.sh --workers manual.
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
# After a node failure Slurm starts the job again, as another run.
#SBATCH --requeue
# Two minutes before the time limit each worker is told: the trainer writes a checkpoint.
#SBATCH --signal=USR1@120

# SITE: what Python needs on this cluster, on the first node and in all steps.
# module load cuda

# $0 is Slurm's own copy of this file; the checkout is where the file lies that sbatch was given,
# or where sbatch was called.
checkout=$(scontrol show job "$SLURM_JOB_ID" | sed -nE 's|^ *Command=(.*)/slurm/[a-z_]+\.sh( .*)?$|\1|p' | head -n 1)
cd "${MUSTER_DIR:-${checkout:-$SLURM_SUBMIT_DIR}}" && python=${MUSTER_PYTHON:-$PWD/.venv/bin/python}
command -v -- "$python" >/dev/null || { echo "error: no Python at $python; submit from the checkout or set MUSTER_DIR; make its Python with: make install, or set MUSTER_PYTHON" >&2; exit 2; }

# A name for the run, and where rank 0 is, for all workers alike.
TORCHELASTIC_RUN_ID=$(date +%Y%m%d-%H%M%S)-job$SLURM_JOB_ID
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TORCHELASTIC_RUN_ID MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# Each task reads its rank from its own environment: here, in the batch shell, all would be 0.
step=(srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 --unbuffered)
[[ ${1-} == -- ]] || exec "${step[@]}" "$python" muster/run_module.py train.worker "$@"
shift && cd "$SLURM_SUBMIT_DIR" || exit 2
[[ ${1-} != *.py ]] || set -- "$python" "$@"
# What torchrun would tell a program of its rank.
# shellcheck disable=SC2016 # for each task to expand
ranks='export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
exec "${step[@]}" bash -c "$ranks" worker "$@"
