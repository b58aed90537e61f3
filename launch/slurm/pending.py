"""Why a job waits, in words, with what would change it: Slurm's own reasons, of `scontrol` and
`squeue`, which are not quite alike, and of all versions.

Names: https://slurm.schedmd.com/job_reason_codes.html
"""

import re
import time
from datetime import datetime

from launch.runs.watching.durations import duration

# Of each reason: what is true, and what would change it.
REASONS = {
    "None": ("Slurm has not looked at it yet", "it does so within a minute"),
    "Resources": (
        "it is next, and too few nodes are free",
        "fewer --nodes or a shorter --time may fit in earlier; sinfo shows what is free",
    ),
    "Priority": (
        "jobs of a higher priority wait for the same nodes",
        "a shorter --time may fit into a gap before them; sprio shows the priorities",
    ),
    "BeginTime": (
        "it is not to start before a time, or was requeued just now",
        "scontrol update JobId={job} StartTime=now",
    ),
    "JobHeldUser": ("it is held by its user", "scontrol release {job}"),
    "JobHeldAdmin": ("it is held by an administrator", "only they can release it: ask them"),
    "ReqNodeNotAvail": (
        "nodes that it needs are down, drained or reserved",
        "leave --nodelist out, or wait for them; sinfo -R says what is wrong with nodes",
    ),
    "Nodes required for job are DOWN": (
        "too few nodes are left: others are down, drained, or reserved",
        "fewer --nodes; sinfo -R says what is wrong with nodes",
    ),
}
LIMIT = re.compile(r"(QOS|Assoc|Association)(\w*?)(Limit|$)")
OF_JOB = re.compile(r"PerJob|PerNode|MaxWall|TimeLimit|MinCpu|MinGRES|MinMemory|UsageThreshold")


def explained(reason: str, job_id: str) -> str:
    """Slurm's reason, what it means, and what would change it; on its own where nobody knows it."""
    plain = reason.replace("_", " ").strip("() ")
    name = plain.partition(",")[0]
    known = REASONS.get(name) or (_limit(name) if LIMIT.match(name) else None)
    if known is None:
        return f"{plain}; scontrol show job {job_id} says more"
    what, change = known
    nodes = re.search(r"UnavailableNodes:(\S+)", plain)
    what += f" ({nodes[1]})" if nodes else ""
    shown = name if name != "Nodes required for job are DOWN" else "nodes are down"
    return f"{shown}: {what}; to change that: {change.format(job=job_id)}"


def _limit(name: str) -> tuple[str, str]:
    """Of a limit, such as QOSMaxNodePerUserLimit or AssocGrpCPURunMinutesLimit."""
    whose = "quality of service" if name.startswith("QOS") else "account"
    flag = "--qos" if name.startswith("QOS") else "--account"
    if OF_JOB.search(name):
        return (
            f"it asks for more than its {whose} allows a job: it will not start",
            f"cancel it, and submit it with fewer --nodes, less --time, or another {flag}",
        )
    return (
        f"the jobs of its {whose} have as much as they may at once",
        f"it starts when others of them end; sooner with fewer --nodes or another {flag}",
    )


def expected_start(text: str, now_s: float | None = None) -> str | None:
    """What Slurm's StartTime says of a job that waits; None where it does not know."""
    try:
        start = datetime.fromisoformat(text)
    except ValueError:  # Unknown, N/A
        return None
    left_s = start.timestamp() - (time.time() if now_s is None else now_s)
    when = "now" if left_s < 1 else f"in {duration(left_s)}"
    return f"expected start: {start:%Y-%m-%d %H:%M:%S} ({when}), as far as Slurm knows"
