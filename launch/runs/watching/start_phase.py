"""What workers do before their first step: which module they import, or that they download."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Parts of the paths of libraries that wait for a network.
DOWNLOADS = (
    "/huggingface_hub/",
    "/datasets/download/",
    "/torch/hub.py",
    "/urllib/request.py",
    "/urllib3/",
    "/requests/",
    "/httpx/",
    "/aiohttp/",
    "/fsspec/",
)
IMPORTS = "<frozen importlib"
MODULE = "<module>"


def lines(reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each thing that ranks do; nothing of ranks that do neither.

    `reports` are the ranks' answers to "stacks": {"rank", "threads": [{"main", "frames"}]}.
    """
    ranks: dict[str, list[int]] = {}
    for report in reports:
        main = next((one for one in report.get("threads", ()) if one["main"]), {"frames": ()})
        if what := _doing(main["frames"]):
            ranks.setdefault(what, []).append(int(report["rank"]))
    for what, who in ranks.items():
        names = ", ".join(map(str, sorted(who)))
        yield f"{'rank' if len(who) == 1 else 'ranks'} {names}: {what}"


def _doing(frames: Sequence[Mapping[str, Any]]) -> str:
    """`frames`: outermost first; what comes last is nearer to what is going on."""
    for frame in reversed(frames):
        file = str(frame["file"])
        if any(part in file for part in DOWNLOADS):
            own = _own_line(frames)
            return f"downloading, or looking for files to download{own}"
        if file.startswith(IMPORTS):
            modules = [one for one in frames if one["function"] == MODULE]
            name = _name(str(modules[-1]["file"])) if modules else "a module"
            return f"importing {name}{_own_line(frames)}"
    return ""


def _name(file: str) -> str:
    """The module of a file: `transformers.modeling_utils`."""
    path = Path(file)
    parts = [*path.parts[:-1], path.stem] if path.stem != "__init__" else list(path.parts[:-1])
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            return ".".join(parts[parts.index(folder) + 1 :])
    return parts[-1]


def _own_line(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost line of the user's own."""
    own = [
        one
        for one in frames
        if "/muster/worker/" not in one["file"]
        and not one["file"].startswith("<")
        and "/site-packages/" not in one["file"]
        and "/dist-packages/" not in one["file"]
        and "/lib/python3" not in one["file"]
    ]
    return f" ({Path(own[-1]['file']).name}:{own[-1]['line']})" if own else ""
