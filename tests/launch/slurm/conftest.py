"""Slurm's commands as scripts, for a cluster whose controller can be silenced."""

from pathlib import Path

import pytest

from tests.written import executable

SILENCE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
HEAD = """#!/bin/sh
cd '{folder}'
echo "$(basename "$0") $*" >> calls
if [ -e silent ]; then cat silent >&2; exit 1; fi
[ ! -e banner ] || cat banner
"""
SCRIPTS = {
    "scontrol": """
case "$2" in
config) echo "ClusterName             = $(cat cluster)"; echo "MaxArraySize            = 3" ;;
partition) cat "partition-$3" ;;
job) if [ -e job ]; then cat job; else echo 'error: Invalid job id specified' >&2; exit 1; fi ;;
hostnames) echo "$3" | tr , '\\n' ;;
esac
""",
    "squeue": "[ ! -e queue ] || exec cat queue; echo 'Invalid job id specified' >&2; exit 1",
    "scancel": 'echo "12|12|CANCELLED|N/A|N/A|None|0|$(cat output)" > queue',
    "sinfo": "[ ! -e nodes ] || cat nodes",
    "srun": "exit 1",
    "sbatch": """
case "$*" in
*--test-only*)
    [ -e refused ] || exit 0
    case "$(cat)" in *"$(cat refused)"*) cat why >&2; exit 1 ;; *) exit 0 ;; esac ;;
esac
if [ -e refusal ]; then cat refusal >&2; exit 1; fi
env > submitted
echo >> submissions
number=$((11 + $(wc -l < submissions)))
case "$*" in *--parsable*) echo $number ;; *) echo "Submitted batch job $number" ;; esac
""",
}


class FakeSlurm:
    """Scripts in a folder, and methods that set their answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name, text in SCRIPTS.items():
            executable(folder / "bin" / name, HEAD.format(folder=folder) + text)
        self.is_cluster("here")
        self.prints_to(folder.parent / "run" / "submitit" / "%j_0_log.out")

    def is_cluster(self, name: str) -> None:
        (self._folder / "cluster").write_text(name)

    def job_is(
        self, state: str, *, reason: str = "None", more: str = "", start: str = "N/A"
    ) -> None:
        (self._folder / "job").write_text(f"JobId=12 JobName=x JobState={state} {more}\n")
        self.queue_is(f"12|12|{state}|{start}|N/A|{reason}")

    def prints_to(self, output: Path | str, restarts: int = 0) -> None:
        """Set where the batch scripts of all jobs print, and how often Slurm has restarted them."""
        (self._folder / "output").write_text(f"{output}")
        self._more = f"{restarts}|{output}"

    def queue_is(self, *lines: str) -> None:
        """Set what squeue prints, whichever jobs it is asked for."""
        (self._folder / "new").write_text("".join(f"{line}|{self._more}\n" for line in lines))
        (self._folder / "new").rename(self._folder / "queue")

    def has_gpus(self, *nodes: str, **partitions: str) -> None:
        """Set what sinfo prints on nodes (partition, cores, GPUs), and scontrol on partitions."""
        words = (node.split() for node in nodes)
        self.has_nodes(
            *(f"{name}|infinite|{cores}|64000|idle|{gres}" for name, cores, gres in words)
        )
        for name, text in partitions.items():
            (self._folder / f"partition-{name}").write_text(f"{text}\n")

    def has_nodes(self, *lines: str) -> None:
        """Set what sinfo prints: per node partition, time limit, cores, memory, state and GPUs."""
        (self._folder / "nodes").write_text("".join(f"{line}\n" for line in lines))

    def forget(self) -> None:
        (self._folder / "queue").unlink()

    def greets(self, banner: str) -> None:
        """Make each command print `banner` first, like a site's own wrapper."""
        (self._folder / "banner").write_text(f"{banner}\n")

    def refuses(self, message: str) -> None:
        """Make sbatch refuse every job with this message."""
        (self._folder / "refusal").write_text(f"{message}\n")

    def would_refuse(self, option: str, message: str) -> None:
        """Make sbatch's --test-only refuse jobs with this option, with this message."""
        (self._folder / "refused").write_text(option)
        (self._folder / "why").write_text(f"{message}\n")

    def silence(self, message: str = SILENCE) -> None:
        (self._folder / "silent").write_text(f"{message}\n")

    def answer_again(self) -> None:
        (self._folder / "silent").unlink()

    def calls(self, command: str) -> list[str]:
        """Return the calls of the command so far."""
        path = self._folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(f"{command} ")]

    @property
    def submitted(self) -> dict[str, str]:
        """The environment that sbatch saw."""
        lines = (self._folder / "submitted").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> FakeSlurm:
    """Slurm's commands on the path; job 12 is running."""
    (tmp_path / "slurm" / "bin").mkdir(parents=True)
    fake = FakeSlurm(tmp_path / "slurm")
    fake.job_is("RUNNING")
    monkeypatch.setenv("PATH", str(tmp_path / "slurm" / "bin"), prepend=":")
    return fake
