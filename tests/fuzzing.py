"""Test input that others may write: with few examples in the suite, with many in `make soak`.

The suite uses the same examples each time, so that a failure is due to the last change. A soak
draws new examples.
"""

import os
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

# How many examples each fuzzer tries in a soak; empty in the suite.
SOAK_EXAMPLES = os.environ.get("SOAK_EXAMPLES", "")


def fuzzed(*given: Any, examples: int = 50, **given_by_name: Any) -> Callable[[Any], Any]:
    """Apply `hypothesis.given`: `examples` times in the suite, `SOAK_EXAMPLES` times in a soak."""

    def decorate(test: Any) -> Any:
        settings = hypothesis.settings(
            max_examples=int(SOAK_EXAMPLES or examples),
            derandomize=not SOAK_EXAMPLES,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            # to explain a failure, hypothesis traces every line: ten times slower
            phases=set(hypothesis.Phase) - {hypothesis.Phase.explain},
        )
        return pytest.mark.fuzz(settings(hypothesis.given(*given, **given_by_name)(test)))

    return decorate
