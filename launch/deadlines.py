"""All time limits of launch/ in one table, in seconds: who waits for whom, how long, and why.

The time limits that a user sets (`join_s`, `stop_grace_s`, `hang_after_s`) are in configs/. Code
that must work on its own has its own limits: `launch/nodes/node_facts.py` and `node_data.py` are
sent as text, `launch/ssh/connect.py` runs without our folders, and `muster/` may not import this.

Each name tells who does what within that time. The limits of the two sides of a conversation must
fit each other: see `tests/launch/test_deadlines.py`.
"""

from typing import Final

# -- leader and agents: is the other side alive? -------------------------------------------------
MAIN_LOOP_TICK_S: Final = 0.05  # how often leader and agent look at everything
BEAT_EVERY_S: Final = 1.0  # a sign of life, from a thread of its own
# A broken link reports nothing, so silence has a limit. A lost agent holds up the others, so its
# limit is short. A lost leader holds up nobody, since its agents only clean up, and it may only be
# stopped for a while, as by a laptop's lid. So its limit is long.
AGENT_LOST_WHEN_SILENT_S: Final = 15.0
LEADER_LOST_WHEN_SILENT_S: Final = 75.0
# After this time without a new round of a main loop, a beat tells what the loop is waiting for.
MAIN_LOOP_STANDS_AFTER_S: Final = 3.0
AGENT_STANDS_NAMED_AFTER_S: Final = 20.0  # then the leader prints what the agent is waiting for
# Between two checks by the heartbeat's thread. A longer gap means that this process was stopped.
ITSELF_STOPPED_AFTER_S: Final = 4.0
STOP_COUNTS_AS_S: Final = 1.0  # how much of such a gap counts: the time between two beats

# -- start: leader and agents meet ---------------------------------------------------------------
MEETING_TICK_S: Final = 0.02  # short: several messages go back and forth before workers start
MISSING_NODES_NAMED_AFTER_S: Final = 10.0
NODE_0_REACHED_S: Final = 3.0  # one attempt of another node to connect to it
NODE_0_TRIED_AGAIN_S: Final = 0.2
NODE_0_CLOSES_UNKNOWN_AFTER_S: Final = 1.0  # the oldest, if too many belong to no known node
BOTH_ENDS_REPORT_BREAK_S: Final = 2.0  # of a connection: then the leader knows which end is lost
# Between two of the kernel's keepalive probes, in whole seconds. If none of them is answered, the
# connection is dead after `AGENT_LOST_WHEN_SILENT_S`.
KEEPALIVE_EVERY_S: Final = 1
AGENT_REACHES_LEADER_S: Final = 30.0  # for an agent that is a task of srun
LEADER_PROVES_ITSELF_S: Final = 75.0  # to that agent; the leader may be waiting for a disk
AGENT_PROVES_ITSELF_S: Final = 75.0  # to the leader, which may read the proof late
LEADER_CLOSES_UNPROVEN_AFTER_S: Final = 1.0  # the oldest, if too many have no proof
AGENT_STARTER_ENDS_S: Final = 2.0  # after the agent has closed its output: ssh, or the agent itself
AGENT_SEES_LEADER_FILE_S: Final = 60.0  # which a network file system may show late
SHARED_DISK_TICK_S: Final = 0.1
RESTART_ASKS_NODES_AGAIN_S: Final = 2.0  # while too few of them answer
RESTART_WAITS_FOR_DISK_S: Final = 60.0  # after an attempt whose disk was full

# -- workers: an agent watches and ends them -----------------------------------------------------
STARTER_LOG_READ_EVERY_S: Final = 0.2
STARTER_ENDS_OTHER_WORKERS_S: Final = 1.5  # after a worker failed; later, one of them resists
WARM_STARTER_IS_IDLE_S: Final = 5.0  # after its last worker: it reports that, or is replaced
STARTER_OUTWAITS_GRACE_S: Final = 5  # whole seconds by which torchrun waits longer than the grace
WORKERS_RECORD_LOST_PEER_S: Final = 1.5  # a peer is gone: workers notice that, and record it
WORKERS_END_AFTER_SIGTERM_S: Final = 2.0  # then SIGKILL
KILLED_PROCESS_IS_GONE_S: Final = 5.0  # otherwise it is waiting for a disk, perhaps forever
PROCESS_TREE_TICK_S: Final = 0.1
STARTED_PROCESS_TICK_S: Final = 0.05
JOB_TIME_TO_SPARE_S: Final = 10.0  # between the end of workers' grace and the end of a job's time

# -- the end: an agent reports to its leader -----------------------------------------------------
AGENT_SENDS_FILES_EVERY_S: Final = 0.2
FILES_TICK_S: Final = 0.001  # a pipe holds 64 kB: a longer tick would limit the speed
LEADER_RELEASES_AGENT_S: Final = 5.0  # after the agent's last record: other agents are slower

# -- the end: the leader waits for its agents ----------------------------------------------------
AGENTS_RECORD_LOST_PEER_S: Final = 3.0  # after a failure: the others notice it by themselves
AGENTS_END_AFTER_STOP_S: Final = 5.0  # all were told to stop: they end workers, record and send
AGENTS_SEND_FILES_S: Final = 60.0  # longer, while they still send files over a slow link
AGENTS_PAUSE_BETWEEN_FILES_S: Final = 2.0  # after a longer pause, no more files are expected
SRUN_ENDS_AFTER_TASKS_S: Final = 2.0

# -- inspection: worker < agent < leader < requester ---------------------------------------------
WORKER_ANSWERS_S: Final = 1.0
WORKER_ANSWERS_LAST_LOOK_S: Final = 0.4  # it is about to be ended
WORKER_DUMPS_STACK_S: Final = 0.4  # by faulthandler, if it does not answer
WORKER_DUMPS_STACK_TICK_S: Final = 0.03
WORKER_EXAMINES_ITSELF_S: Final = 3.0  # it looks at its main thread many times
PROGRESS_READ_EVERY_S: Final = 0.2
AGENTS_ANSWER_INSPECTION_S: Final = 3.5  # an agent that takes longer is disconnected or blocked
LEADER_ANSWERS_INSPECTION_S: Final = 6.0  # to `jobs stacks`
INSPECTION_TICK_S: Final = 0.1
REQUESTS_READ_EVERY_S: Final = 0.5
RECOVERY_LOOKED_FOR_EVERY_S: Final = 1.0
HANG_AT_LEAST_S: Final = 60.0  # without progress; also many times the longest pause before
BRIEF_WAIT_S: Final = 2.0  # a rank that has waited, or been in one place, for less does not hang
CLOCKS_DIFFER_S: Final = 0.002  # a smaller mean difference between two nodes' times means nothing

# -- the survey: a launcher asks machines before a run -------------------------------------------
NODE_ANSWERS_SURVEY_S: Final = 90.0  # srun may wait for nodes, ssh for names; a node may be busy
NODE_LEAVES_SURVEY_S: Final = 3.0  # then SIGTERM, then SIGKILL
NODE_CONNECTS_S: Final = 4.0  # to another node, to see whether it can
NODE_LISTS_FILES_S: Final = 600.0  # leftovers or data, perhaps many on a slow disk
CLAIM_RENEWED_EVERY_S: Final = 5.0  # a node gives up a claim that was not renewed for 300 s
DATA_LOOKED_AT_EVERY_S: Final = 0.5  # whether nodes have copied it, or another run has sent it
CLOCK_SKEW_REPORTED_S: Final = 1.0  # with more, times do not show which worker failed first
SSH_TRANSFER_S: Final = 600.0  # of the code
SSH_SETUP_S: Final = 1800.0  # an environment is made, with torch
SSH_TRANSFER_TICK_S: Final = 0.05

# -- Slurm: its controller may be slow, or restart -----------------------------------------------
SLURM_ANSWERS_S: Final = 30.0
SLURM_ANSWERS_WHO_WAITS_S: Final = 75.0  # to a process that waits for a job and has time
SLURM_IS_SILENT_S: Final = 120.0  # if a run cannot do without its answer
SLURM_ASKED_AGAIN_S: Final = 5.0
SLURM_CLUSTER_ANSWERS_S: Final = 2.0  # is this a login node?
SLURM_NODES_ANSWER_S: Final = 10.0  # after others have; a healthy step takes far less
SLURM_NODES_ANSWER_TICK_S: Final = 0.05
SLURM_REACHES_NODES_S: Final = 60.0  # while no node has answered: the controller is the cause
SLURM_STEP_TRIED_AGAIN_S: Final = 2.0
SLURM_GIVES_DOCTOR_NODES_S: Final = 60  # whole seconds for which srun waits for busy nodes
SLURM_NUMBERS_JOB_S: Final = 90.0
SLURM_NUMBERS_JOB_TICK_S: Final = 0.2
SLURM_WARNS_BEFORE_LIMIT_S: Final = 90  # whole seconds, at most a quarter of the limit
SHORT_JOB_S: Final = 180.0  # such a job is too short for the usual warning: it is warned halfway
SLURM_CLOCK_DIFFERS_S: Final = 60.0  # at most, from the clock of a node
JOB_WATCHED_EVERY_S: Final = 1.0
JOB_ASKED_EVERY_S: Final = 5.0  # sites limit how often users may ask
JOB_ASKED_AFTER_CHANGE_S: Final = 1.0  # of the job's files
JOB_ASKED_AFTER_SILENCE_S: Final = 10.0

# -- a laptop and its login node -----------------------------------------------------------------
LOGIN_CONNECTION_STAYS_S: Final = 600  # whole seconds after the last command
LOGIN_TRIED_AGAIN_S: Final = 5.0  # first
LOGIN_TRIED_AGAIN_MOST_S: Final = 60.0

# -- a user who looks at runs, and their files ---------------------------------------------------
JOB_ENDS_AFTER_GRACE_S: Final = 30.0  # of a run that is cancelled, after the workers' own grace
JOB_ENDS_TICK_S: Final = 0.2
FOLLOWED_JOB_TICK_S: Final = 0.5
RUN_DOCUMENT_EVERY_S: Final = 1.0
RUN_SEEMS_SILENT_S: Final = 30.0  # without a record; also several usual steps
NEW_LOGS_LISTED_EVERY_S: Final = 1.0
BAR_PRINTED_EVERY_S: Final = 5.0  # each progress bar, if there is no terminal
NODE_FAILURES_COUNT_FOR_S: Final = 7 * 86_400
LEFT_FILES_NEEDED_S: Final = 24 * 3600.0  # a laptop may still ask for them
OLD_LEFT_FILES_S: Final = 30 * 24 * 3600.0

# -- studies and sweeps --------------------------------------------------------------------------
CELL_RUN_TICK_S: Final = 0.1
CELL_TRIED_AGAIN_S: Final = 1.0
ARRAY_JOB_TICK_S: Final = 1.0
STUDY_TESTBED_STARTS_S: Final = 180.0

# -- the testbed ---------------------------------------------------------------------------------
TESTBED_COMMAND_S: Final = 60.0
DAEMON_STARTS_S: Final = 40.0  # on a busy machine with two cores
DAEMON_ENDS_S: Final = 3.0  # then SIGKILL
DAEMON_KILLED_S: Final = 10.0
DAEMON_REAPED_S: Final = 5.0  # by the machine's first process, if it reaps at all
DAEMON_TICK_S: Final = 0.05
TESTBED_SLURM_ANSWERS_S: Final = 10.0
TESTBED_SSHD_ANSWERS_S: Final = 1.0
LINK_BURST_S: Final = 0.01  # of data above a link's rate
