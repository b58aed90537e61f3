"""`import muster` finds the package of this checkout, by whatever Python a worker runs.

The folder of this file is put last on a worker's path, which multiprocessing hands on to what it
spawns; the checkout itself is not, since its other names are those of users' own files.

It needs the standard library alone, of Python 3.8 or newer.
"""

import importlib.util
import sys
from pathlib import Path

_face = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location(
    "muster", str(_face / "__init__.py"), submodule_search_locations=[str(_face)]
)
assert _spec is not None and _spec.loader is not None
_package = importlib.util.module_from_spec(_spec)
sys.modules["muster"] = _package  # which `import muster` then returns
_spec.loader.exec_module(_package)
