"""The task `paced` of a package: `synthetic`, whose steps take 50 ms and more.

A run that trains until a test ends it would else take the cores of those beside it.
"""

import time
from collections.abc import Sequence
from typing import Any

from train.tasks.base import Batch
from train.tasks.synthetic import Synthetic


class Paced(Synthetic):
    def collate(self, samples: Sequence[Any]) -> Batch:
        time.sleep(0.05)
        return super().collate(samples)
