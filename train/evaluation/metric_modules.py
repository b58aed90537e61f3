"""Load and run modules of `evaluate` in a private folder, in memory, without a file lock.

A module comes from the first of these places that has it:

1. a file, such as `./my_metric.py`, or a folder with a file of its own name; 2. the cache of
`evaluate` (`HF_MODULES_CACHE`), which is only read; 3. the Hub, if it can be reached;
`evaluate.load` stores its downloads in the cache, this does not.

`evaluate` itself asks the Hub first, and holds locks in its cache while it copies and computes.
"""

import logging
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from muster.errors import UsageError, text_of
from muster.writing import scratch_folder

MODULES = "evaluate_modules"  # the package in which `evaluate` stores modules
METRICS = "metrics"  # the package inside it
KINDS = ("metric", "comparison", "measurement")  # kinds of the Hub's names without an owner
REACH_S = 5.0  # for an answer of the Hub


class ModuleFolder:
    """Modules of `evaluate`, and the private temporary folder from which they are loaded."""

    def __init__(self) -> None:
        _hush()
        self._scratch = ExitStack()
        try:
            self.path = self._scratch.enter_context(scratch_folder("muster-metrics-"))
        except OSError:
            raise UsageError(
                "metrics need a folder for temporary files; name one with TMPDIR"
            ) from None
        self._package = f"muster_metrics_{uuid.uuid4().hex}"

    def close(self) -> None:
        """Remove the folder; its modules can no longer be used."""
        self._scratch.close()
        with suppress(ValueError):
            sys.path.remove(str(self.path))
        for name in [name for name in sys.modules if name.partition(".")[0] == self._package]:
            del sys.modules[name]

    def load(self, name: str, config_name: str | None = None) -> Any:
        """The module `name`.

        Raises:
            UsageError: there is none, or it cannot be loaded; the message names the places.
        """
        from evaluate import EvaluationModule
        from evaluate.loading import import_main_class

        try:
            description = self._find(name)
            kind = import_main_class(description.module_path)
            if kind is None:
                raise ImportError("it has no class that is an evaluate.Metric")
            how = {
                "keep_in_memory": True,
                "num_process": 1,
                "process_id": 0,
                "hash": description.hash,
            }
            how |= {"cache_dir": str(self.path / "work"), "experiment_id": uuid.uuid4().hex}
            module = kind(config_name=config_name, **how)
            if kind._download_and_prepare is not EvaluationModule._download_and_prepare:
                module.download_and_prepare()  # for example weights, where `evaluate` stores them
        except UsageError:
            raise
        except Exception as error:  # a module is a program: any error may happen
            line = text_of(error).strip().partition("\n")[0]
            raise UsageError(f"metric {name}: {type(error).__name__}: {line}") from error
        return module

    def _find(self, name: str) -> Any:
        """`evaluate`'s description of an importable module."""
        from evaluate.loading import evaluation_module_factory, init_dynamic_modules

        private = init_dynamic_modules(self._package, self.path)
        path = Path(name).expanduser()
        script = path if path.suffix == ".py" else path / f"{path.name}.py"
        if script.is_file():
            return evaluation_module_factory(str(script), dynamic_modules_path=private)
        if path.suffix == ".py" or name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise UsageError(f"metric {name}: there is no file {script.absolute()}")
        return _cached(name, Path(private)) or self._from_hub(name, script, private)

    def _from_hub(self, name: str, script: Path, private: str) -> Any:
        import requests
        from datasets import DownloadConfig
        from evaluate import config
        from evaluate.loading import evaluation_module_factory
        from huggingface_hub import constants

        downloads = DownloadConfig(cache_dir=str(self.path / "downloads"))
        how = {"dynamic_modules_path": private, "download_config": downloads}
        reason = "the environment says that the Hub is not to be asked (offline mode)"
        try:
            if not (config.HF_EVALUATE_OFFLINE or constants.HF_HUB_OFFLINE):
                requests.head(config.HF_ENDPOINT, timeout=REACH_S)
                return evaluation_module_factory(name, **how)
        except requests.RequestException:
            reason = f"{config.HF_ENDPOINT} cannot be reached"
        except (FileNotFoundError, ConnectionError):
            reason = f"{config.HF_ENDPOINT} has no such metric"
        load = f"python -c 'import evaluate; evaluate.load(\"{name}\")'"
        raise UsageError(
            f"metric {name}: there is no file {script.absolute()}, it is not in "
            f"{config.HF_MODULES_CACHE}, and {reason}; give a file such as ./my_metric.py, or load "
            f"it once where there is internet: {load}"
        )


@contextmanager
def in_memory(module: Any) -> Iterator[Any]:
    """A loaded module, set to compute for one process and without files.

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
        yield module
    finally:
        module.keep_in_memory, module.num_process, module.process_id = before


def _cached(name: str, private: Path) -> Any | None:
    """The newest copy in `evaluate`'s own cache, copied to `private`; None if there is none."""
    from evaluate import config
    from evaluate.loading import CachedEvaluationModuleFactory

    of_kinds = [f"evaluate-{kind}--{name}" for kind in KINDS] if "/" not in name else []
    for folder_name in of_kinds or [name.replace("/", "--")]:
        with suppress(FileNotFoundError):
            copies = Path(config.HF_MODULES_CACHE, MODULES, METRICS, folder_name)
            shutil.copytree(copies, private / METRICS / folder_name)
            for folder in (private / METRICS, private / METRICS / folder_name):
                (folder / "__init__.py").touch()
            return CachedEvaluationModuleFactory(folder_name, METRICS, str(private)).get_module()
    return None


def _hush() -> None:
    """Silence the libraries' messages about their search: our errors explain failures."""
    for name in ("evaluate", "datasets", "filelock", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
