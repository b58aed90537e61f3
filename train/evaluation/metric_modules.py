"""Load modules of `evaluate`, and have them compute in memory, for one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.errors import UsageError, text_of

REACH_S = 5.0  # for an answer from the Hub


def load(name: str, config_name: str | None = None) -> Any:
    """Load the module `name` as `evaluate.load` finds it: in a file, on the Hub, or in its cache.

    Raises:
        UsageError: there is no such module, or it cannot be loaded.
    """
    import requests
    from evaluate import config
    from evaluate import load as load_module

    path = Path(name).expanduser()
    script = path if path.suffix == ".py" else path / f"{path.name}.py"
    if not script.is_file():
        if path.suffix == ".py" or name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise UsageError(f"metric {name}: {script.absolute()}: no such file")
        try:
            if not config.HF_EVALUATE_OFFLINE:
                requests.head(config.HF_ENDPOINT, timeout=REACH_S)
        except requests.RequestException:
            config.HF_EVALUATE_OFFLINE = True  # else it tries for minutes before it uses its cache
    try:
        return load_module(str(path), config_name, keep_in_memory=True)
    except Exception as error:  # a module is a program: any error may happen
        if isinstance(error, FileNotFoundError) and not script.is_file():
            download = f"python -c 'import evaluate; evaluate.load(\"{name}\")'"
            raise UsageError(
                f"metric {name}: not found: there is no file {script.absolute()}, it is not in "
                f"{config.HF_MODULES_CACHE}, and {config.HF_ENDPOINT} does not have it, cannot "
                "be reached, or is disabled (HF_EVALUATE_OFFLINE)"
                "\ntip: give a file such as ./my_metric.py, or load it once with internet "
                f"access: {download}"
            ) from None
        line = text_of(error).strip().partition("\n")[0]
        if isinstance(error, TypeError):  # there is no class, so None is called
            line += "; does it define a class derived from evaluate.Metric?"
        if isinstance(error, OSError) and error.filename is not None:
            line += "; set HF_HOME to choose another folder for evaluate's cache"
        raise UsageError(f"metric {name}: {type(error).__name__}: {line}") from error


@contextmanager
def in_memory(module: Any) -> Iterator[None]:
    """Have a loaded module compute for one process and without files.

    Raises:
        UsageError: it already contains samples.
    """
    if len(module):
        raise UsageError(
            f"metric {module.name}: it has {len(module)} samples from add() or add_batch()"
            "\ntip: pass them as predictions= and references= instead"
        )
    before = module.keep_in_memory, module.num_process, module.process_id
    module.keep_in_memory, module.num_process, module.process_id = True, 1, 0
    try:
        yield
    finally:
        module.keep_in_memory, module.num_process, module.process_id = before
