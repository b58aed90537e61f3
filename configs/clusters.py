"""Named settings: `--on NAME` stands for the table `[clusters.NAME]` in `muster.toml`.

The project's file overrides the user's. The search for it goes from the current folder up to the
top of git's working tree; without git, as long as the folders belong to this user. Settings may run
commands, so a file that others own or may write to is refused.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any, get_args

from configs.raw import SWITCH, RawSetting, settings_in, text_of
from muster.errors import UsageError, refuse
from muster.ownership import distrusted
from muster.run_files import project_of
from muster.terminal import TIP

FILE = "muster.toml"
REMEDY = "let nobody else write to it (chown, chmod go-w), or use ~/.config/muster/muster.toml"
CLUSTERS_VARIABLE = "MUSTER_CLUSTERS"  # a laptop uses it to pass its settings to a login node
Clusters = dict[str, list[RawSetting]]
KnownSettings = Mapping[str, Field[Any]]  # the settings of a cluster, by name


def settings_of(name: str, known: KnownSettings) -> list[RawSetting]:
    """The settings of a cluster, in increasing priority.

    Raises:
        UsageError: there is no such cluster, or a file is wrong; it lists every problem.
    """
    sent = json.loads(os.environ.get(CLUSTERS_VARIABLE, "{}"))
    if name in sent:
        return [RawSetting(*values) for values in sent[name]]
    paths = files(Path.cwd(), os.environ)
    refuse(
        f"{path} is not read, because its settings can run commands as you, and {why}{TIP}{REMEDY}"
        for path in paths
        if (why := distrusted(path))
    )
    merged: Clusters = {}
    for path in paths:
        for cluster, settings in read(path, known).items():
            merged.setdefault(cluster, []).extend(settings)
    if name in merged:
        return merged[name]
    if not paths:
        raise UsageError(
            f"--on {name}: no {FILE} found in this folder, in the project's folders above it, or "
            "in ~/.config/muster"
        )
    hint = f"{TIP}choose from {', '.join(sorted(merged))}" if merged else ""
    raise UsageError(f"--on {name}: no such cluster in {' and '.join(map(str, paths))}{hint}")


def files(cwd: Path, env: Mapping[str, str]) -> list[Path]:
    """The files that exist, in increasing priority."""
    user = Path(env.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "muster", FILE)  # noqa: PTH111 (Path raises without a home)
    project = next((path for path in _project_files(cwd) if path.is_file()), None)
    return [path for path in (user, project) if path is not None and path.is_file()]


def _project_files(cwd: Path) -> Iterator[Path]:
    """The places where the project's file may be, innermost first."""
    top = project_of(cwd)
    for folder in (cwd, *cwd.parents):
        if not folder.is_relative_to(top) and folder.stat().st_uid != os.geteuid():
            return
        yield folder / FILE
        if (folder / ".git").exists():
            return


def read(path: Path, known: KnownSettings) -> Clusters:
    """Read the clusters in one file; a path in it is relative to the file's folder.

    Raises:
        UsageError: the file cannot be read, or is wrong; it lists every problem.
    """
    import tomllib  # imported here: a worker's Python may be 3.10, and it reads no such file

    try:
        text = text_of(path)
        raw = tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        number, why = _error_line(text, str(error))
        line = text.split("\n")[number - 1]
        try:
            tomllib.loads(line)
            hint = "; the key is given twice" if "overwrite" in why else ""
        except tomllib.TOMLDecodeError:  # the line on its own is wrong, too
            hint = _as_toml(line)
        raise UsageError(f"{path}:{number}: not TOML: {why}{hint}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    problems = [
        f"{path}: unknown key {key!r}{TIP}use [clusters.NAME]" for key in raw if key != "clusters"
    ]
    clusters: Clusters = {}
    tables = raw.get("clusters", {})
    if not isinstance(tables, dict):
        problems.append(f"{path}: clusters: expected tables, such as [clusters.hpc]")
        tables = {}
    for cluster, table in tables.items():
        if not isinstance(table, dict):
            problems.append(f"{path}: clusters.{cluster}: expected a table: [clusters.{cluster}]")
            continue
        entries = (
            (key, f"{path}:{_line(text, cluster, key)} ", _text_of(key, value, known, path.parent))
            for key, value in table.items()
        )
        clusters[cluster] = settings_in(entries, known, problems, "cluster")
    refuse(problems)
    return clusters


def _text_of(key: str, value: object, known: KnownSettings, folder: Path) -> str | None:
    """A value as text, with `folder` before a relative path; None: there are several values."""
    name = key.replace("-", "_")
    between = known[name].metadata.get("between") if name in known else None
    if between and isinstance(value, list) and {*map(type, value)} <= {str}:
        return str(between).join(value)
    if not isinstance(value, str | int | float):
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return str(folder / text) if name in known and _is_path(known[name], text, folder) else text


def _is_path(item: Field[Any], text: str, folder: Path) -> bool:
    """Whether a setting's value is a path without `~`; `folder`: where it may be a file."""
    rule = item.metadata.get("path")
    is_path = rule(text, folder) if callable(rule) else Path in (item.type, *get_args(item.type))
    return is_path and not text.startswith("~")


def _error_line(text: str, error: str) -> tuple[int, str]:
    """The number of the line in an error of tomllib, and the rest of its text."""
    why, _, place = error.rpartition(" (at ")
    line = re.match(r"line (\d+)", place)
    return int(line[1]) if line else text.rstrip("\n").count("\n") + 1, why or error


def _as_toml(line: str) -> str:
    """A hint for a line with an unquoted text: how to write it in TOML."""
    word = re.fullmatch(r"\s*([\w-]+)\s*=\s*([^\s\"'\[{#][^\"'#]*?)\s*(#.*)?", line)
    if word is None:
        return ""
    if word[2].lower() in SWITCH:
        return f"{TIP}write true or false: {word[1]} = {str(SWITCH[word[2].lower()]).lower()}"
    return f'{TIP}put text in quotes: {word[1]} = "{word[2]}"'


def _line(text: str, cluster: str, key: str) -> str:
    """The line number of a key below its table's name, such as `12:`; or empty."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.fullmatch(r"\s*\[\s*clusters\s*\.\s*[\"']?(.+?)[\"']?\s*\]\s*(#.*)?", line):
            table = header[1]
        elif table == cluster and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return f"{number}:"
    return ""
