"""Make `import muster` find the package of this checkout, whichever Python a worker runs.

This file's folder is last on a worker's path, which multiprocessing passes to spawned processes.
The checkout itself is not on the path, since users' files may have the same names as ours.

It needs only the standard library of Python 3.8 or newer.
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
sys.modules["muster"] = _package  # `import muster` then returns it
_spec.loader.exec_module(_package)
