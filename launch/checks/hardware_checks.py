"""Rows on what the doctor has measured on each node: GPUs, disks, limits.

None of them stands against a run: each is a warning, with the number that it was judged by.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from launch.checks.findings import Findings, Row, groups, listed, shortened

GB, MB = 1_000_000_000, 1_000_000
# A checkpoint of BERT-base with AdamW's two moments: 3 x 4 bytes of 110 million parameters.
CHECKPOINT_BYTES = 1.32 * GB
# Two are kept while a third is written (--keep-last 2).
DISK_FREE_BYTES = 3 * CHECKPOINT_BYTES
# Slower, and a checkpoint takes longer than workers that are stopped have for it (60 s,
# --stop-grace-s); read at that speed, a run takes a minute to go on from it.
DISK_BYTES_S = CHECKPOINT_BYTES / 60
# The usual limit. Each rank has sockets to all others, and a file descriptor for each tensor that
# a data loader's worker has made and nobody has taken.
OPEN_FILES = 1024
# Two batches ahead of each of four loader's workers, each 64 images of 3 x 224 x 224 floats.
# A container's default is 64 MB: the first batches fill it, and the worker dies of SIGBUS.
SHM_BYTES = 2 * 4 * 64 * 3 * 224 * 224 * 4
MEMORY_BYTES = 11.5 * GB  # what the courses' exercises ask of a machine
HOT_C = 87  # where NVIDIA's data center GPUs begin to slow down
POWER_SHARE = 0.9  # of the default limit; with less a GPU is slower than others of its name
HELD_BYTES = 0.5 * GB  # of a GPU's memory, by others: more than a driver and a display hold
LIBRARY = "nvidia-ml-py"


def gpu_health(findings: Findings) -> Row:
    """No GPU is damaged, slowed down, or in use by others."""
    asked = {one.name: one.hardware["gpus"] for one in findings.nodes if one.hardware}
    asked = {name: answer for name, answer in asked.items() if answer is not None}
    if not asked:
        return Row("GPU health", "ok", ("no GPUs to look at",))
    unseen = {name: _unseen(answer) for name, answer in asked.items() if "gpus" not in answer}
    odd = [
        f"{name}: GPU {gpu['index']}: {trouble}"
        for name, answer in asked.items()
        for gpu in answer.get("gpus", ())
        for trouble in _troubles(gpu)
    ]
    if odd or unseen:
        fixes = [_fix(odd)] if odd else []
        if any(LIBRARY in why for why in unseen.values()):
            fixes.append(f"for a look at GPUs, into the nodes' environment: pip install {LIBRARY}")
        found = [f"{listed(_having(unseen, why))}: {why}" for why in dict.fromkeys(unseen.values())]
        return Row("GPU health", "warn", shortened([*odd, *found]), "\n".join(fixes))
    return Row("GPU health", "ok", groups({one: _well(asked[one]["gpus"]) for one in asked}))


def disks(findings: Findings) -> Row:
    """Run folder and data are on disks with room, which are fast enough."""
    lines: list[str] = []
    well: dict[str, str] = {}
    for node in findings.nodes:
        if node.hardware is None:
            lines.append(f"{node.name}: gave no answer when it was to measure")
            continue
        measured = node.hardware["disks"]
        for what, disk in measured.items():
            lines += [f"{node.name}: {what}: {trouble}" for trouble in _disk_troubles(what, disk)]
        well[node.name] = "; ".join(f"{what} {_speed(disk)}" for what, disk in measured.items())
    if lines:
        fix = "another --logs-dir or --data-dir, on a local or a faster disk; or make room"
        return Row("disks", "warn", shortened(lines), fix)
    slowest = min(well, key=lambda name: _least_speed(findings, name))
    return Row("disks", "ok", (f"slowest {slowest}: {well[slowest]}",))


def limits(findings: Findings) -> Row:
    """A worker may open enough files, and have enough memory, also such as it shares."""
    lines: list[str] = []
    well: dict[str, str] = {}
    fixes: dict[str, None] = {}
    for node in findings.nodes:
        own = node.hardware
        if own is None:
            continue
        files, shm, most = own["open_files"], own["shm_bytes"], own["memory_limit_bytes"]
        if 0 <= files < OPEN_FILES:
            lines.append(f"{node.name}: {files} open files (ulimit -n), below {OPEN_FILES}")
            fixes["there: ulimit -n 65536, or nofile in /etc/security/limits.conf"] = None
        if shm is None or shm < SHM_BYTES:
            has = "no /dev/shm" if shm is None else f"/dev/shm of {shm / MB:.0f} MB"
            lines.append(f"{node.name}: {has}, below {SHM_BYTES / MB:.0f} MB: data loaders need it")
            fixes["of a container: --shm-size 8g, or --ipc host; else --num-workers 0"] = None
        if most is not None and most < MEMORY_BYTES:
            lines.append(f"{node.name}: memory limited to {most / GB:.1f} GB (cgroup or ulimit -v)")
            fixes["ask for more: with Slurm --mem, of a container --memory"] = None
        limited = "" if most is None else f", memory limited to {most / GB:.0f} GB"
        count = "any number of" if files < 0 else str(files)
        well[node.name] = f"{count} open files, /dev/shm {(shm or 0) / GB:.1f} GB{limited}"
    if lines:
        return Row("limits", "warn", shortened(lines), "\n".join(fixes))
    return Row("limits", "ok", groups(well))


def _unseen(answer: Mapping[str, Any]) -> str:
    if missing := answer.get("missing"):
        return f"not looked at: its Python has no {missing}"
    return f"not looked at: {answer.get('failed', 'no answer')}"


def _having(values: Mapping[str, str], wanted: str) -> list[str]:
    return [name for name, value in values.items() if value == wanted]


def _troubles(gpu: Mapping[str, Any]) -> Iterator[str]:
    if gpu["remap_failed"]:
        yield "its memory has rows that cannot be replaced any more"
    if gpu["ecc_errors"]:
        yield f"{gpu['ecc_errors']} uncorrected memory errors since the driver was loaded"
    if gpu["remap_pending"] or gpu["retirement_pending"]:
        yield "damaged memory is taken out of use at its next reset"
    if gpu["ecc"] is False:
        yield "ECC is off: errors of its memory go unseen"
    if gpu["slowed"]:
        clock = f" ({gpu['clock_mhz']} of {gpu['max_clock_mhz']} MHz)" if gpu["clock_mhz"] else ""
        yield f"slowed down: {', '.join(gpu['slowed'])}{clock}"
    if gpu["celsius"] is not None and gpu["celsius"] >= HOT_C:
        yield f"{gpu['celsius']} degrees Celsius"
    limit, usual = gpu["power_limit_mw"], gpu["default_power_mw"]
    if limit and usual and limit < POWER_SHARE * usual:
        yield f"limited to {limit / 1000:.0f} W of {usual / 1000:.0f} W"
    if gpu["processes"]:
        names = [f"{one['name'] or 'unknown'} (pid {one['pid']})" for one in gpu["processes"]]
        yield f"in use by {listed(names)}"
    elif gpu["used_bytes"] and gpu["used_bytes"] > HELD_BYTES:
        yield f"{gpu['used_bytes'] / GB:.1f} GB of its memory are in use, by processes not seen"


def _fix(troubles: Sequence[str]) -> str:
    text = " ".join(troubles)
    if "cannot be replaced" in text:
        return "leave that node out, and have the GPU replaced"
    if "memory errors" in text or "next reset" in text:
        return "results may be wrong: leave that node out until nvidia-smi --gpu-reset"
    if "in use" in text:
        return "wait, or leave that node out: nvidia-smi there says more"
    return "the slowest GPU sets the pace: nvidia-smi -q there says more"


def _well(gpus: Sequence[Mapping[str, Any]]) -> str:
    drivers = ", ".join(sorted({str(gpu["driver"]) for gpu in gpus}))
    retired = sum((gpu["retired_pages"] or 0) + (gpu["remapped_rows"] or 0) for gpu in gpus)
    replaced = f", {retired} memory pages or rows replaced" if retired else ""
    ecc = "ECC on" if all(gpu["ecc"] for gpu in gpus) else "no ECC"
    return f"{len(gpus)} idle, driver {drivers}, {ecc}{replaced}"


def _disk_troubles(what: str, disk: Mapping[str, Any]) -> Iterator[str]:
    if what == "data" and not disk["exists"]:
        yield f"{disk['folder']} is not there"
        return
    if disk["free_bytes"] is not None and disk["free_bytes"] < DISK_FREE_BYTES and what != "data":
        yield (
            f"{disk['free_bytes'] / GB:.1f} GB free, below {DISK_FREE_BYTES / GB:.1f} GB: three "
            "checkpoints of BERT-base"
        )
    if "failed" in disk and what != "data":  # data may be there to be read only
        yield f"cannot be written: {disk['failed']}"
    for verb, key in (("writes", "write_bytes_s"), ("reads", "read_bytes_s")):
        speed = disk.get(key)
        if speed is not None and speed < DISK_BYTES_S and (what != "data" or verb == "reads"):
            yield (
                f"{verb} {speed / MB:.1f} MB/s, below {DISK_BYTES_S / MB:.0f}: a checkpoint of "
                "BERT-base takes over a minute"
            )


def _speed(disk: Mapping[str, Any]) -> str:
    free = disk["free_bytes"]
    room = f"{free / GB:.0f} GB free" if free is not None else "free space not known"
    if "failed" in disk:
        return f"{room}, {disk['failed']}"
    write, read = disk["write_bytes_s"] / MB, disk["read_bytes_s"] / MB
    return f"{room}, writes {write:.0f} MB/s, reads {read:.0f} MB/s"


def _least_speed(findings: Findings, name: str) -> float:
    (node,) = (one for one in findings.nodes if one.name == name)
    measured = node.hardware["disks"].values() if node.hardware else ()
    return min((disk.get("write_bytes_s", 0.0) for disk in measured), default=0.0)


ROWS: Sequence[Callable[[Findings], Row]] = (gpu_health, disks, limits)
