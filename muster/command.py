"""`muster run|jobs|sweep|study|...`: the commands of the checkout, from any folder."""

import os
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# The script that each word starts, and its first arguments.
COMMANDS = {
    "run": ["launch/submit.py"],
    "jobs": ["launch/jobs.py"],
    "doctor": ["launch/doctor.py"],
    "config": ["muster/run_module.py", "launch.programs.shown_settings"],
    "testbed": ["launch/testbed.py"],
    "study": ["launch/study.py"],
    "sweep": ["launch/sweep.py"],
    "report": ["muster/run_module.py", "train.report"],
}
USAGE = """usage: muster COMMAND [argument ...]

  muster run [flags] -- train.py --lr 1e-3    start a program, here or on a cluster
  muster jobs list|status|logs|cancel|...     look after runs
  muster doctor [flags]                       what is wrong with the nodes
  muster config [flags]                       which settings a run would have, and from where
  muster testbed up|down|...                  a cluster on this machine, to try things on
  muster sweep --over lr=1e-4,3e-4 -- train.py  a program with every combination of values
  muster study FILE                           the same run in several modes, and a report
  muster report RUN ...                       tables and figures of runs

Each says more with --help.
"""


def main() -> None:
    """Become the command that the first word names."""
    word, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if word not in COMMANDS:
        is_help = word in ("--help", "-h", "help")
        problem = "" if is_help else f"error: unknown command {word!r}\n"
        (sys.stdout if is_help else sys.stderr).write(problem + USAGE)
        sys.exit(0 if is_help else 2)
    first, *more = COMMANDS[word]
    os.execv(sys.executable, [sys.executable, str(CHECKOUT / first), *more, *rest])


if __name__ == "__main__":
    main()
