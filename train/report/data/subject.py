"""What a report is about: runs, and of a study also the cells that have none.

What each setting changes of a run, and so which runs are alike, its field in configs/settings says.
"""

from collections import Counter
from collections.abc import Set
from dataclasses import Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from configs.settings.fields import Affects
from configs.settings.launch import LaunchConfig
from configs.settings.remote import SlurmConfig, SshConfig
from configs.settings.train import BenchConfig, TrainConfig
from muster import run_files
from muster.errors import UsageError
from muster.printable import printable
from train.report.data.reader import Row, Run, numbers, read_mapping, read_run

# For settings whose field does not say it.
CLASSES: dict[type, Affects] = {
    LaunchConfig: "nothing",
    SshConfig: "nothing",
    SlurmConfig: "nothing",
    BenchConfig: "losses",
    TrainConfig: "losses",
}
# Settings of a study's testbed: the rate of its links, and how many nodes are busy.
OF_TESTBED = frozenset({"rate", "busy"})
WIDTH = frozenset({"workers", "nodes"})
OF_TOPK = frozenset({"compress_share"})  # in runs of versions that had this compressor
IN_ORDER = ("single", "gather_scatter", "all_reduce", "ddp", "accelerate", "zero1", "fsdp")


@dataclass
class Entry:
    """One run, and what the study set for it."""

    run: Run
    settings: Row
    title: str = ""  # given by the study
    # The title, or the settings in which it differs from the others: the same for repeats.
    label: str = ""
    name: str = ""  # the label, with a number if there are repeats
    repeat: int = 0

    @property
    def sync(self) -> str:
        return str(self.settings.get("sync") or "?")

    @property
    def workers(self) -> int:
        return int(self.settings["workers"])


@dataclass
class Subject:
    """What one report shows."""

    title: str
    about: str = ""
    texts: dict[str, str] = field(default_factory=dict)  # of the study, by their headings
    sources: dict[str, str] = field(default_factory=dict)  # files of those from before the runs
    entries: list[Entry] = field(default_factory=list)
    cells: list[Row] = field(default_factory=list)  # of study.json
    command: str = ""
    notes: list[str] = field(default_factory=list)
    varying: list[str] = field(default_factory=list)


def read_subject(folders: list[Path]) -> Subject:
    """A run, a study, a sweep, or several of them as one.

    Raises:
        UsageError: a folder is none of these; the message names it.
    """
    subject = Subject(printable(folders[0].resolve().name))
    for folder in folders:
        _add(subject, folder)
    if len(folders) > 1:
        subject.title = f"{len(folders)} runs compared"
    _label(subject)
    return subject


def run_folder(text: str) -> Path:
    """The folder of a run or study, by its path or by its name below logs/.

    Raises:
        UsageError: there is none.
    """
    for path in (Path(text), Path("logs") / text):
        if path.is_dir():
            return path
    raise UsageError(f"{text} is no folder; name one of a run or study, such as logs/<run>")


def _add(subject: Subject, folder: Path) -> None:
    records = [folder / name for name in (run_files.STUDY, run_files.SWEEP)]
    if (record := next(filter(Path.is_file, records), None)) is not None:
        _add_study(subject, record)
    elif _is_run(folder):
        subject.entries.append(_entry(read_run(folder), {}))
    else:
        raise UsageError(
            f"{folder} holds no run (config.yaml, metrics/), no study (study.json) and no sweep "
            "(sweep.json); name a folder that does, such as logs/<run>"
        )


def _is_run(folder: Path) -> bool:
    kinds = (run_files.CONFIG, run_files.METRICS, run_files.LAUNCH, run_files.SUMMARY)
    return any((folder / kind.top).exists() for kind in kinds)


def _add_study(subject: Subject, record: Path) -> None:
    folder, study = record.parent, read_mapping(record, subject.notes)
    subject.title = str(study.get("title") or study.get("name") or printable(folder.name))
    subject.about = str(study.get("about") or "")
    texts = study.get("texts")
    texts = texts if isinstance(texts, dict) else {}
    before, source = study.get("texts_before"), study.get("source")
    subject.texts |= texts
    if isinstance(before, dict) and source:
        same = (name for name, text in texts.items() if before.get(name) == text)
        subject.sources |= dict.fromkeys(same, str(source))
    subject.command = str(study.get("command") or "")
    cells = [one for one in study.get("cells") or [] if isinstance(one, dict)]
    subject.cells += cells
    for cell in cells:
        path = folder / str(cell.get("run_dir") or "")
        if not cell.get("run_dir") or not _is_run(path):
            if cell.get("state") == "done":
                subject.notes.append(
                    f"cell {cell.get('id')}: its folder {printable(path.name)} is gone"
                )
            continue
        settings = {str(k).replace("-", "_"): v for k, v in (cell.get("settings") or {}).items()}
        if isinstance(cell.get("nodes"), int):
            settings["nodes"] = cell["nodes"]
        entry = _entry(read_run(path), settings)
        entry.title = str(cell.get("name") or "")
        entry.repeat = cell["repeat"] if isinstance(cell.get("repeat"), int) else 0
        subject.entries.append(entry)
    if not cells:
        subject.notes.append(f"{record.name} lists no cells: nothing was run yet")


def _entry(run: Run, settings: Row) -> Entry:
    of_run = {k: v for k, v in run.config.items() if k not in affecting("nothing")}
    of_run |= {k: v for k, v in settings.items() if k in of_run and of_run[k] is None}
    of_run |= {k: settings[k] for k in OF_TESTBED if k in settings}
    if of_run.get("compress") != "topk":  # older versions recorded its settings of every run
        of_run = {k: v for k, v in of_run.items() if k not in OF_TOPK}
    for name in ("sync", "task", "batch_size", "precision"):
        of_run.setdefault(name, settings.get(name, run.summary.get(name)))
    of_run["nodes"] = len(run.launch.get("nodes") or []) or settings.get("nodes") or 1
    per_node = run.config.get("nproc_per_node")
    planned = of_run["nodes"] * (per_node if isinstance(per_node, int) else 1)
    of_run["workers"] = run.workers or planned
    if isinstance(local := of_run.get("local_batch_size"), int):
        of_run["batch_size"] = local * of_run["workers"]
    return Entry(run, of_run)


def _label(subject: Subject) -> None:
    """Name each entry by the settings in which it differs from the others."""
    entries = subject.entries
    subject.varying = varying_of(entries)
    for entry in entries:
        plain = entry.run.name if entry.run.is_foreign else entry.sync
        entry.label = differing(entry, entries, subject.varying) or plain
    seen: Counter[str] = Counter()
    for entry in entries:
        entry.repeat = max(entry.repeat, seen[entry.label])
        seen[entry.label] += 1
    for entry in entries:
        alike = seen[entry.label] > 1
        entry.name = f"{entry.label} #{entry.repeat + 1}" if alike else entry.label
    if all(entry.title for entry in entries):  # a study that names its runs: use its order
        labels = list(dict.fromkeys(entry.label for entry in entries))
        entries.sort(key=lambda entry: (labels.index(entry.label), entry.repeat))
    else:
        entries.sort(key=lambda entry: (_order(entry, subject.varying), entry.repeat))


def differing(
    entry: Entry, entries: list[Entry], varying: list[str], but: Set[str] = frozenset()
) -> str:
    """The settings in which it differs from others; after a title, from those with that title."""
    alike = [one for one in entries if one.title == entry.title]
    keys = varying_of(alike) if entry.title else varying
    parts = [label_part(key, entry) for key in keys if key not in but]
    return ", ".join(filter(None, [entry.title, *parts]))


def varying_of(entries: list[Entry]) -> list[str]:
    """Settings in which they differ, in the order of labels."""
    keys = list(dict.fromkeys(key for entry in entries for key in entry.settings))
    found = [
        key
        for key in keys
        if key != "seed" and len({repr(entry.settings.get(key)) for entry in entries}) > 1
    ]
    if "workers" in found and "nodes" in found:
        found.remove("nodes")
    if "batch_size" in found and all(one.settings.get("local_batch_size") for one in entries):
        found.remove("batch_size")  # it follows from the workers
    order = ["task", "sync", "batch_size", "local_batch_size", "precision", "", "workers", "nodes"]
    return sorted(found, key=lambda key: order.index(key if key in order else ""))


def label_part(key: str, entry: Entry) -> str:
    """A setting as a part of a label; empty for a default, or if the mode ignores it."""
    value, plain = entry.settings.get(key), key.replace("_size", "").replace("_", " ")
    if value is None or (key in OF_TESTBED and not value):
        return ""
    if key in affecting("sending", "gradients") and entry.sync == "single":  # it sends nothing
        return ""
    if isinstance(value, bool):
        usual = defaults().get(key, False)
        return "" if value is usual else plain if value else f"no {plain}"
    if key in ("sync", "precision", "task", "split"):
        return str(value)
    if key == "local_batch_size":
        return f"batch {value} a worker"
    if key in ("workers", "nodes"):
        return f"{value} {key[:-1] if value == 1 else key}"
    return f"{plain} {value:g}" if isinstance(value, float) else f"{plain} {value}"


def _order(entry: Entry, varying: list[str]) -> list[tuple[int, float, str]]:
    known: list[Any] = [entry.settings.get(key) for key in varying]
    values = [IN_ORDER.index(one) if one in IN_ORDER else one for one in known]
    return [(0, float(one), "") if numbers([one]) else (1, 0.0, str(one)) for one in values]


@cache
def _known() -> dict[str, tuple[Field[Any], Affects]]:
    return {
        one.name: (one, one.metadata.get("affects") or usual)
        for settings, usual in CLASSES.items()
        for one in fields(settings)
    }


def affecting(*what: Affects) -> frozenset[str]:
    """The settings that change one of these."""
    return frozenset(name for name, (_, affects) in _known().items() if affects in what)


def defaults() -> dict[str, Any]:
    """The default of every setting, as config.yaml writes it."""
    return {name: one.default for name, (one, _) in _known().items()}
