"""What a submitted job runs first."""

import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from muster.orderly_stop import NOTICE_SIGNALS


def become(argv: Sequence[str]) -> NoReturn:
    """submitit runs this on the job's first node: this process becomes the run's leader.

    submitit itself would handle the time limit's notice, and turn every failure into exit code 1.
    """
    for number in NOTICE_SIGNALS:  # until the leader handles them
        signal.signal(number, signal.SIG_IGN)
    os.execvp(argv[0], list(argv))
