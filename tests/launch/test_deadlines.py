"""Each deadline is longer than the time that the awaited side needs."""

import pytest

from launch import deadlines as d
from launch.nodes import node_data
from launch.spec import LaunchSpec
from launch.ssh import connect, openssh
from muster import login_job, remote_job
from muster.worker import inspection, node_workers
from train.distributed import lost_peers

HELD_S = 60.0  # a program, a disk or a process may hang this long without ending a healthy run
SSH_SILENT_S = int(openssh.COMMON_OPTIONS["ServerAliveInterval"]) * int(
    openssh.COMMON_OPTIONS["ServerAliveCountMax"]
)
# An agent's time from a request to stop, or from the news of a failure, to its record.
AGENT_STOPS_S = d.WORKER_ANSWERS_LAST_LOOK_S + d.WORKER_DUMPS_STACK_S
AGENT_STOPS_S += d.WORKERS_END_AFTER_SIGTERM_S
AGENT_FAILS_S = d.WORKERS_RECORD_LOST_PEER_S + AGENT_STOPS_S
LEADER_ENDS_S = d.AGENTS_RECORD_LOST_PEER_S + d.AGENTS_END_AFTER_STOP_S
AGENT_INSPECTS_S = d.WORKER_ANSWERS_S + d.WORKER_DUMPS_STACK_S

# the time of the awaited side, and the deadline of the waiting side
ORDER = {
    "late beats lose no agent": (5 * d.BEAT_EVERY_S, d.AGENT_LOST_WHEN_SILENT_S),
    "nor does a busy machine": (
        d.ITSELF_STOPPED_AFTER_S + 3 * d.BEAT_EVERY_S,
        d.AGENT_LOST_WHEN_SILENT_S,
    ),
    "a lost node is noticed in 20 s, as docs promise": (
        d.AGENT_LOST_WHEN_SILENT_S + d.KEEPALIVE_EVERY_S + d.BOTH_ENDS_REPORT_BREAK_S,
        20.0,
    ),
    "ssh and the leader notice a dead link alike": (SSH_SILENT_S, d.AGENT_LOST_WHEN_SILENT_S + 1),
    "the leader gives an agent up, not the other way": (
        d.AGENT_LOST_WHEN_SILENT_S,
        d.LEADER_LOST_WHEN_SILENT_S,
    ),
    "a leader that was stopped loses no agent": (HELD_S, d.LEADER_LOST_WHEN_SILENT_S),
    "a slow disk is reported before its agent is given up": (
        d.MAIN_LOOP_STANDS_AFTER_S + d.BEAT_EVERY_S,
        d.AGENTS_END_AFTER_STOP_S,
    ),
    "a leader's disk delays its proof": (HELD_S, d.LEADER_PROVES_ITSELF_S),
    "and an agent's": (HELD_S, d.AGENT_PROVES_ITSELF_S),
    "a login may take long": (HELD_S, LaunchSpec.join_s),
    "and is tried again": (1.5 * sum(connect.WAITS_S), LaunchSpec.join_s),
    "missing nodes are named before all end": (d.MISSING_NODES_NAMED_AFTER_S, LaunchSpec.join_s),
    "a survey's answer names a firewall": (d.NODE_CONNECTS_S, d.NODE_ANSWERS_SURVEY_S),
    # a failure: worker < agent < leader
    "ranks of train report a lost peer": (lost_peers.TELL_S, d.WORKERS_RECORD_LOST_PEER_S),
    "a starter waits for its workers": (node_workers.LOST_PEER_S, d.AGENTS_RECORD_LOST_PEER_S),
    "workers record what they lost": (d.WORKERS_RECORD_LOST_PEER_S, d.AGENTS_RECORD_LOST_PEER_S),
    "agents record what they lost": (AGENT_FAILS_S, LEADER_ENDS_S),
    "agents stop": (AGENT_STOPS_S, d.AGENTS_END_AFTER_STOP_S),
    "the agent kills workers, not torchrun": (
        d.WORKERS_END_AFTER_SIGTERM_S,
        d.STARTER_OUTWAITS_GRACE_S,
    ),
    "all has ended before the job has": (
        d.AGENTS_END_AFTER_STOP_S + d.SRUN_ENDS_AFTER_TASKS_S,
        d.JOB_TIME_TO_SPARE_S,
    ),
    "`jobs cancel` waits for the end": (
        LEADER_ENDS_S + d.KILLED_PROCESS_IS_GONE_S + d.SRUN_ENDS_AFTER_TASKS_S,
        d.JOB_ENDS_AFTER_GRACE_S,
    ),
    "files come in parts": (d.AGENT_SENDS_FILES_EVERY_S, d.AGENTS_PAUSE_BETWEEN_FILES_S),
    "an agent's disk stands": (HELD_S, d.AGENTS_SEND_FILES_S + d.AGENTS_END_AFTER_STOP_S),
    # an inspection: worker < agent < leader < whoever asked; a worker that gave up waits for all
    "an agent asks its workers": (
        AGENT_INSPECTS_S + 4 * d.MAIN_LOOP_TICK_S,
        d.AGENTS_ANSWER_INSPECTION_S,
    ),
    "the leader asks its agents": (
        d.REQUESTS_READ_EVERY_S + d.AGENTS_ANSWER_INSPECTION_S + 4 * d.MAIN_LOOP_TICK_S,
        d.LEADER_ANSWERS_INSPECTION_S,
    ),
    "a collective that timed out is looked at": (
        d.PROGRESS_READ_EVERY_S + d.AGENTS_ANSWER_INSPECTION_S + 6 * d.MAIN_LOOP_TICK_S,
        inspection.GIVE_UP_S,
    ),
    "a worker that ends answers": (d.WORKER_ANSWERS_S, inspection.END_S),
    "the leader sees who waits": (d.REQUESTS_READ_EVERY_S, remote_job.SEEN_S),
    # Slurm, a login node, data
    "Slurm is asked more than once": (d.SLURM_ANSWERS_S, d.SLURM_IS_SILENT_S),
    "its programs may take long": (HELD_S, d.SLURM_IS_SILENT_S),
    "also for whoever waits for a job": (HELD_S, d.SLURM_ANSWERS_WHO_WAITS_S),
    "a busy controller is no lost node": (d.SLURM_NODES_ANSWER_S, d.SLURM_REACHES_NODES_S),
    "workers have their grace before the limit": (
        LaunchSpec.stop_grace_s + d.JOB_TIME_TO_SPARE_S,
        d.SLURM_WARNS_BEFORE_LIMIT_S,
    ),
    "a short job's warning comes": (d.SLURM_WARNS_BEFORE_LIMIT_S, d.SHORT_JOB_S),
    "a waiting command keeps its connection": (login_job.SLICE_S, d.LOGIN_CONNECTION_STAYS_S),
    "a claim that is kept late is kept": (
        3 * d.CLAIM_RENEWED_EVERY_S + d.NODE_ANSWERS_SURVEY_S,
        node_data.SILENT_S,
    ),
    "ssh notices a broken link before the claim ends": (SSH_SILENT_S, node_data.SILENT_S),
}


@pytest.mark.parametrize("reason", ORDER)
def test_waiting_side_has_the_longer_deadline(reason):
    awaited_s, waiting_s = ORDER[reason]
    assert awaited_s < waiting_s
