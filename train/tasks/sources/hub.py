"""Get files for Hub names: from the local cache if it has them, otherwise by a download."""

import logging
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError, safe_open

from muster.errors import UsageError
from train.tasks.sources import files

# What the readers of weights and tokenizers raise about a file that they cannot read.
FAILURES = (OSError, ValueError, KeyError, EOFError, UnpicklingError, SafetensorError)
MODEL = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.bin")
TOKENIZER = ("*.json", "*.txt", "*.model")


def fetch(flag: str, name: str, load: Callable[..., Any], **options: Any) -> Any:
    """Call `load(name, **options)`, from the disk if possible: one rank's download serves all.

    Raises:
        UsageError: it is neither on the disk nor on the Hub; one line says what to do.
    """
    _hush()
    path = Path(name).expanduser()
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1 or path.exists()
    if is_path and not path.exists():
        raise UsageError(f"{flag} {name}: no such file or folder")
    # A Hub name may be on the disk already, or not yet.
    for more in ({},) if is_path else ({"local_files_only": True}, {}):
        try:
            return load(str(path) if is_path else name, **options, **more)
        except FAILURES as error:
            failure = error
    if is_path:
        for damaged in _files_of(path, flag):
            refuse_damage(damaged, flag)
    file = "vocab.txt" if flag == "--tokenizer" else "config.json"
    reason = first_line(failure) if is_path else _reason(failure, f"a folder or {file}")
    raise UsageError(f"{flag} {name}: {reason}") from None


def _files_of(path: Path, flag: str) -> list[Path]:
    """The files that are read for `flag`, if `path` is the model's or tokenizer's folder."""
    if not path.is_dir():
        return [path]
    patterns = TOKENIZER if flag == "--tokenizer" else MODEL
    return sorted({file for pattern in patterns for file in path.glob(pattern) if file.is_file()})


def refuse_damage(file: Path, flag: str = "") -> None:
    """Refuse a file that is not what its name says, or a weights file that is cut off.

    Raises:
        UsageError: the file is refused; the message names it.
    """
    files.refuse_stand_in(file, flag)
    if file.suffix == ".safetensors":
        try:
            with safe_open(file, "numpy"):
                pass
        except SafetensorError as error:
            problem = f"{flag}{' ' * bool(flag)}{file} is damaged or cut off ({first_line(error)})"
            raise UsageError(f"{problem}\ntip: download or copy it again") from None


def rows(*name: str, **options: Any) -> Any:
    """The rows of a data set on the Hub, from the library `datasets`.

    Raises:
        UsageError: the Hub cannot be reached and the set is not in the local cache.
    """
    _hush()
    import datasets

    try:
        return datasets.load_dataset(*name, **options)
    except (OSError, ValueError) as error:
        reason = _reason(error, "its files with --data-dir")
        raise UsageError(f"{' '.join(name)}: {reason}") from None


def _reason(error: Exception, instead: str) -> str:
    text = str(error)
    if "not a valid model identifier" in text or "404" in text:
        return f"not found on the Hub\ntip: check the name, or give {instead}"
    if "onnect" in text or "reach" in text or "ffline" in text:
        return (
            "not on this disk, and the Hub cannot be reached"
            f"\ntip: give {instead}, or run it once with internet access"
        )
    return first_line(error)


def first_line(error: Exception) -> str:
    """The first line of an error's message; its type, if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _hush() -> None:
    """Silence the libraries' retries and progress bars: our errors explain failures."""
    for name in ("huggingface_hub", "transformers", "datasets", "filelock"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
