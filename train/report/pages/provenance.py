"""What was run, and on which machines, from the run folders."""

from collections.abc import Callable
from pathlib import Path

from train.report.data.columns import Entry, defaults
from train.report.data.reader import Row, Run, numbers
from train.report.data.subject import Subject

# Settings for where a run is and writes, and for what it prints: they change no number. Hosts have
# a table of their own.
PLACE_SETTINGS = frozenset(
    "hosts logs_dir checkpoint_dir run_id overwrite quiet ssh_config".split()
)


def is_simulated(entry: Entry) -> bool:
    """Whether one machine simulated the run's nodes: with the local launcher, or on a testbed."""
    return entry.run.job.get("launcher") == "local" or "rate" in entry.settings


def hosts(subject: Subject) -> list[Row]:
    """Each host once, with its hardware; nodes simulated by one machine count as that machine."""
    found: dict[str, Row] = {}
    for entry in subject.entries:
        for name, env in entry.run.environments.items():
            gpus, memory = env.get("gpus"), numbers([env.get("memory_bytes")])
            host = {"host": env.get("host", name), "processor": env.get("cpu")}
            host["cores"] = env.get("cores")
            host["memory"] = f"{memory[0] / 2**30:.1f} GiB" if memory else None
            names = ", ".join(map(str, gpus)) if isinstance(gpus, list) else None
            host["GPUs"] = "no GPU" if names == "" else names
            host |= {"interface": _interface(env), "system": env.get("platform")}
            if is_simulated(entry):  # its links have the rate of the testbed, or none
                name, host["host"], host["interface"] = "", "one machine", None
            found[name] = host
        if not entry.run.environments:  # a user's program records no host, but its agents do
            for agent in entry.run.agents:
                name = "" if is_simulated(entry) else str(agent.get("host"))
                found.setdefault(name, {"host": name or "one machine"})
    return list(found.values())


def versions(subject: Subject) -> list[Row]:
    """Names and versions; several if runs or hosts differ."""
    found: dict[str, dict[str, None]] = {}
    for entry in subject.entries:
        for env in entry.run.environments.values():
            commit = str(env.get("commit") or "?")[:12] + (" (changed)" if env.get("dirty") else "")
            found.setdefault("commit", {})[commit] = None
            found.setdefault("python", {})[str(env.get("python"))] = None
            packages = env.get("packages")
            for name, version in packages.items() if isinstance(packages, dict) else ():
                found.setdefault(name, {})[str(version)] = None
    return [{"name": name, "version": ", ".join(every)} for name, every in found.items()]


def settings(subject: Subject) -> tuple[list[Row], list[Row]]:
    """Settings that all runs share: those that the user or the task has set, and the defaults.

    Settings that differ are in the table of runs.
    """
    configs = [entry.run.config for entry in subject.entries] or [{}]
    usual = defaults()
    found: tuple[list[Row], list[Row]] = ([], [])
    for name, value in configs[0].items():
        if (
            value not in (None, "", {}, [])
            and name not in PLACE_SETTINGS
            and all(config.get(name) == value for config in configs)
        ):
            is_usual = name in usual and usual[name] == value
            found[is_usual].append({"setting": name, "value": _without_folders(value)})
    return found


def _without_folders(value: object) -> object:
    """Shorten an absolute path to its last part, because a report is read on other machines."""
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def notes(subject: Subject) -> list[str]:
    """Reasons to trust the report less, each with its run."""
    return list(dict.fromkeys([*subject.notes, *_run_notes(subject, _missing)]))


def remarks(subject: Subject) -> list[str]:
    """Explanations of what is missing from the report although nothing is wrong."""
    return _run_notes(subject, lambda run: run.remarks)


def _missing(run: Run) -> list[str]:
    """Missing or broken parts of a run."""
    own = [note for part in (run, *run.attempts) for note in part.notes]
    is_to_train = run.config.get("epochs") != 0 and not run.is_foreign
    return own + (["no steps were recorded"] if is_to_train and run.lead("step") is None else [])


def _run_notes(subject: Subject, notes_of: Callable[[Run], list[str]]) -> list[str]:
    """The notes of all runs; a note that several runs or ranks share is given once."""
    found: dict[str, list[tuple[str, str]]] = {}
    for entry in subject.entries:
        run, name = entry.run, entry.name if entry.title or subject.cells else entry.run.name
        for note in notes_of(run):
            _file, of_rank, text = note.partition(".jsonl: ")
            found.setdefault(text if of_rank else note, []).append((name, f"{name}: {note}"))
    return [_joined(text, every, len(subject.entries)) for text, every in found.items()]


def _joined(text: str, every: list[tuple[str, str]], runs: int) -> str:
    if len(every) == 1:
        return every[0][1]
    names = list(dict.fromkeys(name for name, _ in every))
    if len(names) == 1:
        return f"{names[0]}, {len(every)} times: {text}"
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"{len(names)} of {runs} runs ({shown}): {text}"


def _interface(env: Row) -> str | None:
    name = env.get("gloo_interface")
    every = env.get("interfaces")
    one = every.get(name) if isinstance(every, dict) else None
    if not isinstance(one, dict):
        return name
    speed = one.get("speed_mbit")
    return f"{name}, MTU {one.get('mtu_bytes')}" + (f", {speed} Mbit/s" if speed else "")
