"""Load modules of `evaluate`, and have them compute in memory, for one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.errors import UsageError, text_of

REACH_S = 5.0  # for an answer of the Hub


def load(name: str, config_name: str | None = None) -> Any:
    """The module `name`, as `evaluate.load` finds it: a file, on the Hub, or in its cache.

    Raises:
        UsageError: there is none, or it cannot be loaded.
    """
    import requests
    from evaluate import config
    from evaluate import load as load_module

    path = Path(name).expanduser()
    script = path if path.suffix == ".py" else path / f"{path.name}.py"
    if not script.is_file():
        if path.suffix == ".py" or name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise UsageError(f"metric {name}: there is no file {script.absolute()}")
        try:
            if not config.HF_EVALUATE_OFFLINE:
                requests.head(config.HF_ENDPOINT, timeout=REACH_S)
        except requests.RequestException:
            config.HF_EVALUATE_OFFLINE = True  # else it tries for minutes before its cache
    try:
        return load_module(str(path), config_name, keep_in_memory=True)
    except Exception as error:  # a module is a program: any error may happen
        if isinstance(error, FileNotFoundError) and not script.is_file():
            download = f"python -c 'import evaluate; evaluate.load(\"{name}\")'"
            raise UsageError(
                f"metric {name}: there is no file {script.absolute()}, {config.HF_ENDPOINT} has "
                "no such metric, cannot be reached or is not to be asked (HF_EVALUATE_OFFLINE), "
                f"and it is not in {config.HF_MODULES_CACHE}"
                "\ntip: give a file such as ./my_metric.py, or load it once where there is "
                f"internet: {download}"
            ) from None
        line = text_of(error).strip().partition("\n")[0]
        if isinstance(error, TypeError):  # there is no class, so None is called
            line += "; has it a class that is an evaluate.Metric?"
        if isinstance(error, OSError) and error.filename is not None:
            line += "; HF_HOME names another folder for the cache of evaluate"
        raise UsageError(f"metric {name}: {type(error).__name__}: {line}") from error


@contextmanager
def in_memory(module: Any) -> Iterator[None]:
    """Have a loaded module compute for one process and without files.

    Raises:
        UsageError: it holds samples already.
    """
    if len(module):
        raise UsageError(
            f"metric {module.name}: it holds {len(module)} samples of add() or add_batch(); "
            "hand them in as predictions= and references="
        )
    before = module.keep_in_memory, module.num_process, module.process_id
    module.keep_in_memory, module.num_process, module.process_id = True, 1, 0
    try:
        yield
    finally:
        module.keep_in_memory, module.num_process, module.process_id = before
