"""Which of our functions the processes of a run call: `sitecustomize.py` has them write it down."""

from pathlib import Path


def traced(folder: Path) -> dict[str, str]:
    """The environment in which every process of a run writes down what it calls."""
    (folder / "notes").mkdir()
    tracer = str(Path(__file__).resolve().parent)
    return {"PYTHONPATH": tracer, "MUSTER_TEST_WALK": str(folder / "notes")}
