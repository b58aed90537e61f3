"""All seconds of launch/ stand in one table, and who waits waits longer than who is waited for."""

import ast
import re
from collections.abc import Iterator

import pytest

from launch import deadlines
from launch.nodes import node_data
from launch.spec import LaunchSpec
from launch.ssh import connect, openssh
from muster import login_job, remote_job
from muster.checkout import CHECKOUT
from muster.worker import inspection as worker
from muster.worker import node_workers

# They must stand alone: one is sent as text, the other runs without our folders.
ALONE = ("launch/nodes/node_data.py", "launch/nodes/node_facts.py", "launch/ssh/connect.py")
# Of train/, which this must not import.
(TELL_S,) = map(
    float,
    re.findall(
        r"^TELL_S = (\S+)", (CHECKOUT / "train/distributed/lost_peers.py").read_text(), re.M
    ),
)
HELD_S = 60.0  # another program, a disk or a process may stand so long, and no healthy run ends
LOGIN_TRIES_S = 1.5 * sum(connect.WAITS_S)
SSH_SILENT_S = int(openssh.COMMON_OPTIONS["ServerAliveInterval"]) * int(
    openssh.COMMON_OPTIONS["ServerAliveCountMax"]
)
LAST_LOOK_S = deadlines.WORKER_ANSWERS_LAST_LOOK_S + deadlines.WORKER_DUMPS_STACK_S
# What an agent does from the news of a failure, or a request to stop, to its record.
AGENT_STOPS_S = LAST_LOOK_S + deadlines.WORKERS_END_AFTER_SIGTERM_S
AGENT_FAILS_S = deadlines.WORKERS_RECORD_LOST_PEER_S + AGENT_STOPS_S
LEADER_ENDS_S = deadlines.AGENTS_RECORD_LOST_PEER_S + deadlines.AGENTS_END_AFTER_STOP_S

# (what must be shorter, what must be longer, why)
ORDER = [
    # signs of life
    (5 * deadlines.BEAT_EVERY_S, deadlines.AGENT_LOST_WHEN_SILENT_S, "some beats may be late"),
    (
        deadlines.ITSELF_STOPPED_AFTER_S + 3 * deadlines.BEAT_EVERY_S,
        deadlines.AGENT_LOST_WHEN_SILENT_S,
        "a busy machine gives an agent no time for as long as counts as a time in which it ran",
    ),
    (
        2 * deadlines.BEAT_EVERY_S,
        deadlines.ITSELF_STOPPED_AFTER_S,
        "the heartbeat looks at the clock between",
    ),
    (
        deadlines.STOP_COUNTS_AS_S,
        2 * deadlines.BEAT_EVERY_S,
        "the beat before a stop is at most one old",
    ),
    (deadlines.AGENT_LOST_WHEN_SILENT_S, 20.0, "docs promise that a lost node is noticed by then"),
    (
        SSH_SILENT_S,
        deadlines.AGENT_LOST_WHEN_SILENT_S + 1,
        "ssh and the leader notice a dead link alike",
    ),
    (
        HELD_S,
        deadlines.LEADER_LOST_WHEN_SILENT_S,
        "a leader that was stopped so long loses no agent",
    ),
    (
        deadlines.AGENT_LOST_WHEN_SILENT_S,
        deadlines.LEADER_LOST_WHEN_SILENT_S,
        "the leader decides whether a link is dead; agents only clean up after it",
    ),
    (
        20 * deadlines.MAIN_LOOP_TICK_S,
        deadlines.MAIN_LOOP_STANDS_AFTER_S,
        "a busy machine is no slow disk",
    ),
    (
        deadlines.MAIN_LOOP_STANDS_AFTER_S + deadlines.BEAT_EVERY_S,
        deadlines.AGENTS_END_AFTER_STOP_S,
        "a leader knows that an agent's disk is slow before it gives that agent up",
    ),
    (
        deadlines.MAIN_LOOP_STANDS_AFTER_S,
        deadlines.AGENT_STANDS_NAMED_AFTER_S,
        "and names it later than that",
    ),
    (deadlines.AGENT_STANDS_NAMED_AFTER_S, HELD_S, "while it stands"),
    (
        deadlines.AGENT_LOST_WHEN_SILENT_S
        + deadlines.KEEPALIVE_EVERY_S
        + deadlines.BOTH_ENDS_REPORT_BREAK_S,
        20.0,
        "and one that is cut off from the network of the gradients alone",
    ),
    (
        deadlines.AGENT_LOST_WHEN_SILENT_S / deadlines.KEEPALIVE_EVERY_S,
        127,
        "the most unanswered questions that Linux can be told to count",
    ),
    (
        3 * deadlines.KEEPALIVE_EVERY_S,
        deadlines.AGENT_LOST_WHEN_SILENT_S,
        "some of the kernel's questions may be lost",
    ),
    (
        deadlines.BEAT_EVERY_S + 4 * deadlines.MAIN_LOOP_TICK_S,
        deadlines.BOTH_ENDS_REPORT_BREAK_S,
        "both ends report it",
    ),
    # start
    (
        HELD_S,
        deadlines.LEADER_PROVES_ITSELF_S,
        "a leader may wait for its disk while an agent connects",
    ),
    (HELD_S, deadlines.AGENT_PROVES_ITSELF_S, "and the proof that came meanwhile counts"),
    (
        deadlines.NODE_0_REACHED_S,
        deadlines.MISSING_NODES_NAMED_AFTER_S,
        "a node is not named at the first failed try",
    ),
    (HELD_S, LaunchSpec.join_s, "a login, or srun, may stand so long"),
    (LOGIN_TRIES_S, LaunchSpec.join_s, "a busy sshd drops logins, which are tried again"),
    (
        deadlines.MISSING_NODES_NAMED_AFTER_S,
        LaunchSpec.join_s,
        "who is missing is named before all end",
    ),
    (
        deadlines.NODE_CONNECTS_S,
        deadlines.NODE_ANSWERS_SURVEY_S,
        "a node tells of a firewall as its answer",
    ),
    # a failure: worker < agent < leader
    (TELL_S, deadlines.WORKERS_RECORD_LOST_PEER_S, "train's ranks report a lost peer"),
    (
        node_workers.LOST_PEER_S,
        deadlines.AGENTS_RECORD_LOST_PEER_S,
        "a starter waits for its other workers",
    ),
    (
        deadlines.WORKERS_RECORD_LOST_PEER_S,
        deadlines.AGENTS_RECORD_LOST_PEER_S,
        "an agent's workers record what they lost before the leader has all stop",
    ),
    (AGENT_FAILS_S, LEADER_ENDS_S, "the leader has the record of an agent that lost a peer"),
    # a stop
    (AGENT_STOPS_S, deadlines.AGENTS_END_AFTER_STOP_S, "and of one that it told to stop"),
    (
        deadlines.WORKERS_END_AFTER_SIGTERM_S,
        deadlines.STARTER_OUTWAITS_GRACE_S,
        "the agent decides when workers are killed, not torchrun",
    ),
    (
        deadlines.AGENTS_END_AFTER_STOP_S + deadlines.SRUN_ENDS_AFTER_TASKS_S,
        deadlines.JOB_TIME_TO_SPARE_S,
        "all has ended before a scheduler's job has",
    ),
    (
        LEADER_ENDS_S + deadlines.KILLED_PROCESS_IS_GONE_S + deadlines.SRUN_ENDS_AFTER_TASKS_S,
        deadlines.JOB_ENDS_AFTER_GRACE_S,
        "`jobs cancel` waits for the end",
    ),
    (
        deadlines.BEAT_EVERY_S,
        deadlines.AGENTS_PAUSE_BETWEEN_FILES_S,
        "a beat says that the next part is late",
    ),
    (
        deadlines.AGENT_SENDS_FILES_EVERY_S,
        deadlines.AGENTS_PAUSE_BETWEEN_FILES_S,
        "else its files seem complete",
    ),
    (
        HELD_S,
        deadlines.AGENTS_SEND_FILES_S + deadlines.AGENTS_END_AFTER_STOP_S,
        "an agent's disk may stand so long",
    ),
    # an inspection: worker < agent < leader < who asked; a worker that gave up waits for all
    (
        deadlines.WORKER_ANSWERS_S
        + deadlines.WORKER_DUMPS_STACK_S
        + 4 * deadlines.MAIN_LOOP_TICK_S,
        deadlines.AGENTS_ANSWER_INSPECTION_S,
        "an agent asks its workers, and reads the stacks of those that do not answer",
    ),
    (
        deadlines.REQUESTS_READ_EVERY_S
        + deadlines.AGENTS_ANSWER_INSPECTION_S
        + 4 * deadlines.MAIN_LOOP_TICK_S,
        deadlines.LEADER_ANSWERS_INSPECTION_S,
        "the leader asks all agents",
    ),
    (
        deadlines.PROGRESS_READ_EVERY_S
        + deadlines.AGENTS_ANSWER_INSPECTION_S
        + 6 * deadlines.MAIN_LOOP_TICK_S,
        worker.GIVE_UP_S,
        "a worker whose collective timed out is seen by its agent, and let go by the leader",
    ),
    (deadlines.WORKER_ANSWERS_S, worker.END_S, "a worker that ends gives its last answer"),
    (
        deadlines.WORKER_DUMPS_STACK_TICK_S,
        deadlines.WORKER_DUMPS_STACK_S,
        "its file is looked at while it is written",
    ),
    (
        deadlines.REQUESTS_READ_EVERY_S,
        remote_job.SEEN_S,
        "the leader has seen a file of whoever waits",
    ),
    # Slurm, and a login node
    (deadlines.SLURM_ANSWERS_S, deadlines.SLURM_IS_SILENT_S, "it is asked more than once"),
    (HELD_S, deadlines.SLURM_IS_SILENT_S, "its programs may take so long"),
    (HELD_S, deadlines.SLURM_ANSWERS_WHO_WAITS_S, "and whoever waits for a job sees its end"),
    (
        deadlines.SLURM_CLUSTER_ANSWERS_S,
        deadlines.SLURM_ANSWERS_S,
        "nobody waits long to learn that there is none",
    ),
    (
        deadlines.SLURM_NODES_ANSWER_S,
        deadlines.SLURM_REACHES_NODES_S,
        "a busy controller is no lost node",
    ),
    (HELD_S - 1, deadlines.SLURM_REACHES_NODES_S, "it may be busy so long"),
    (
        deadlines.SLURM_WARNS_BEFORE_LIMIT_S,
        deadlines.SHORT_JOB_S,
        "a job with less time may miss its warning",
    ),
    (
        LaunchSpec.stop_grace_s + deadlines.JOB_TIME_TO_SPARE_S,
        deadlines.SLURM_WARNS_BEFORE_LIMIT_S,
        "workers have their grace between the warning and the limit",
    ),
    (deadlines.JOB_ASKED_AFTER_CHANGE_S, deadlines.JOB_ASKED_EVERY_S, "a change is seen sooner"),
    (
        login_job.SLICE_S,
        deadlines.LOGIN_CONNECTION_STAYS_S,
        "a command that waits keeps its connection",
    ),
    (deadlines.LOGIN_TRIED_AGAIN_S, deadlines.LOGIN_TRIED_AGAIN_MOST_S, "tries become rarer"),
    (
        3 * deadlines.DATA_PLACE_KEPT_EVERY_S + deadlines.NODE_ANSWERS_SURVEY_S,
        node_data.SILENT_S,
        "a node gives up no claim that is kept late",
    ),
    (SSH_SILENT_S, node_data.SILENT_S, "ssh notices first that a link is broken"),
    # files, the testbed
    (
        deadlines.LEFT_FILES_NEEDED_S,
        deadlines.OLD_LEFT_FILES_S,
        "what somebody may need is not old",
    ),
    (deadlines.DAEMON_ENDS_S, deadlines.DAEMON_KILLED_S, "SIGKILL comes after SIGTERM"),
]


@pytest.mark.parametrize(("shorter_s", "longer_s", "why"), ORDER, ids=[why for *_, why in ORDER])
def test_waiting_side_has_the_longer_deadline(shorter_s, longer_s, why):
    assert shorter_s < longer_s, why


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted((CHECKOUT / "launch").rglob("*.py")):
        name = path.relative_to(CHECKOUT).as_posix()
        if name not in ALONE:
            yield name, path.read_text()


def seconds_of(tree: ast.Module) -> Iterator[str]:
    """Constants that are seconds, and numbers that `time.sleep` gets."""
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets += [statement.target] if isinstance(statement, ast.AnnAssign) else []
        names = [node.id for each in targets for node in ast.walk(each) if type(node) is ast.Name]
        yield from (name for name in names if name.endswith("_S") and not name.endswith("PER_S"))
    for node in ast.walk(tree):
        is_sleep = isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
        if is_sleep and isinstance(node.args[0], ast.Constant) and node.args[0].value:
            yield ast.unparse(node)


def test_no_other_file_has_seconds_of_its_own():
    found = [f"{name}: {each}" for name, text in sources() for each in seconds_of(ast.parse(text))]
    assert [one for one in found if not one.startswith("launch/deadlines.py")] == []
