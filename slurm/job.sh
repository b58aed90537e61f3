# shellcheck shell=bash
# Sourced by the scripts beside it, on the first node of a job: what all of them do alike.
#
#   begin STARTER [flags]   -> $run_dir; wrong flags end the job here, with exit code 2
#   run SRUN_OPTIONS...     srun, to its end; signals reach the workers; says why it failed
#   finish                  ends the script with the right exit code
#
# As a program it does the same for a run that launch/submit.py has made:
#
#   bash slurm/job.sh RUN_DIR SRUN_OPTIONS...
#
# In a job that is not the run's own, $MUSTER_STEP is the name of its steps there.

# Slurm tells a short job at once that its time will be up: it must not end this shell, see `run`.
early=
trap 'early=yes' USR1

set -euo pipefail

# What runs is $MUSTER_PYTHON, else the checkout's own environment.
python=${MUSTER_PYTHON:-$PWD/.venv/bin/python}
module=muster/run_module.py  # as -m, also where PYTHONSAFEPATH is set
if ! command -v -- "$python" >/dev/null; then
    echo "error: no Python at $python; make it with: make -C $PWD install, or set MUSTER_PYTHON" >&2
    exit 2
fi

# A job that Slurm starts again and again (bad nodes, preemption) must end at some time.
attempt=${SLURM_RESTART_COUNT:-0}
most=${MUSTER_MAX_REQUEUES:-3}
if ! [[ $most =~ ^[0-9]+$ ]]; then # in (( )) text could run commands
    echo "error: MUSTER_MAX_REQUEUES is ${most@Q}, not a number" >&2
    exit 2
fi
if ((attempt > most)); then
    echo "error: requeued $attempt times; MUSTER_MAX_REQUEUES allows $most" >&2
    exit 1
fi

code=0

begin() {
    run_dir=$("$python" "$module" launch.slurm.batch begin "$@")
    [[ $run_dir ]] || exit 0 # after --help
}

run() {
    # bash heeds a signal only when its foreground command is done, so srun runs in the background.
    trap 'stop TERM' TERM INT
    trap 'stop KILL' QUIT
    trap 'stop USR2' USR1 # the time limit is near: workers write a checkpoint, see batch.py
    if [[ $early ]]; then remind & fi
    local more words=()
    while true; do
        step "$@" "${words[@]:1}"
        # The run is over, which is said with the reason and the exit code; or a worker or a node
        # was lost, and all start again on the nodes that answer, while --max-restarts lets them:
        # "again", and options for srun that say on which.
        more=$("$python" "$module" launch.slurm.batch next "$run_dir" "$code") || code=$?
        [[ $more ]] || break
        read -ra words <<<"$more"
    done
}

step() {
    # --cpus-per-task: srun of Slurm 22.05 and 23.02 does not take it from the job. Where it is not
    # set (--cpus-per-gpu, or nothing), a step has all cores that the job has on each node.
    # --kill-on-bad-exit, --wait: when one task fails, all end; a task that is done waits a minute.
    # --overlap: in a job that is not ours, another step, such as its shell, may hold the cores.
    srun ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
        ${MUSTER_STEP:+--overlap "--job-name=$MUSTER_STEP"} \
        --kill-on-bad-exit=1 --wait=60 --unbuffered \
        "$@" "$python" "$module" launch.slurm.task "$run_dir" &
    step=$!
    while true; do
        if wait "$step"; then code=0; else code=$?; fi
        kill -0 "$step" 2>/dev/null || break # a trap ended the wait, not srun
    done
}

remind() {
    # The time limit was near before there were any workers: they have half of what is left.
    local end left
    end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e) || end=now
    left=$(($(date --date="$end" +%s) - $(date +%s)))
    sleep "$((left > 0 ? left / 2 : 0))"
    kill -USR1 $$
}

stop() {
    # To the tasks themselves: srun would answer a signal by killing them.
    local steps=$SLURM_JOB_ID
    if [[ ${MUSTER_STEP-} ]]; then
        steps=$(own_steps)
        [[ $steps ]] || return 0
    fi
    # shellcheck disable=SC2086 # a word for each
    scancel --signal="$1" --quiet $steps || true
}

own_steps() {
    # Where one is just being started, it has its number in a moment.
    local found='' number name
    for _ in {1..50}; do
        while read -r number name; do
            [[ $name == "$MUSTER_STEP" ]] && found+=" $number"
        done < <(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i %j')
        if [[ $found ]] || ! kill -0 "${step-}" 2>/dev/null; then
            break
        fi
        sleep 0.2
    done
    echo "$found"
}

finish() {
    exit "$code"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    run_dir=$1
    "$python" "$module" launch.slurm.batch prepare "$run_dir"
    run "${@:2}"
    finish
fi
