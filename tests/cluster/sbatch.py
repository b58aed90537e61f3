"""Run `sbatch ARGS`, wait until the job is over, and end with its exit code.

sbatch's own --wait polls at longer and longer intervals.
"""

import re
import subprocess
import sys
import time

# In any other state, a job continues. For example, it is SIGNALING while Slurm sends it a signal.
ENDED_STATES = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
}


def main() -> int:
    asked = subprocess.run(
        ["sbatch", "--parsable", *sys.argv[1:]], stdout=subprocess.PIPE, text=True
    )
    if asked.returncode:
        return asked.returncode
    job = asked.stdout.strip()
    while True:
        shown = subprocess.run(
            ["scontrol", "show", "job", "--oneliner", job], capture_output=True, text=True
        ).stdout
        states = re.findall(r"\bJobState=(\S+)", shown)  # one for each task of an array
        if states and ENDED_STATES.issuperset(states):
            codes = [int(code) for code in re.findall(r"\bExitCode=(\d+):", shown)]
            return max(codes) or int(any(state != "COMPLETED" for state in states))
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
