"""Which of our files the processes of a run enter: `sitecustomize.py` has them write it down."""

from pathlib import Path


def traced(folder: Path) -> dict[str, str]:
    """The environment in which a launcher, a leader and agents write down what they enter."""
    (folder / "notes").mkdir()
    tracer = str(Path(__file__).resolve().parent)
    return {"PYTHONPATH": tracer, "MUSTER_TEST_WALK": str(folder / "notes")}
