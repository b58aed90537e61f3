"""The arguments that all programs of the GPU check have."""

import argparse


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser of `--device` and `--backend`, which says the first line of `doc`."""
    flags = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    flags.add_argument("--device", default="cuda")
    flags.add_argument("--backend", default="auto")
    return flags
