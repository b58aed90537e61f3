"""Steps of a wide network whose phases are timed by the device's events, beside `muster.record`.

Prints a line of JSON for each step with the events' seconds; Muster's own are in the run's records.
"""

import itertools
import json
import time
from typing import Any

import torch
from torch import nn

import muster
from tests.gpu.programs import arguments

STEPS = 12


def main() -> None:
    args = arguments.parser(__doc__).parse_args()
    with muster.init(device=args.device, backend=args.backend) as run:
        width = 4096 if run.device.type == "cuda" else 512
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(width, width) for _ in range(6)]
        model = muster.sync(nn.Sequential(*layers).to(run.device))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        inputs = torch.randn(width, width, device=run.device)
        moments = []
        for step in range(1, STEPS + 1):
            marks = [marked(run.device)]
            loss = model(inputs).square().mean()
            marks.append(marked(run.device))
            loss.backward()
            marks.append(marked(run.device))
            optimizer.step()
            optimizer.zero_grad()
            marks.append(marked(run.device))
            muster.record(step, loss=loss, model=model)
            moments.append(marks)
        if run.is_main:
            for step, marks in enumerate(moments, start=1):
                forward, backward, optimize = (between(*pair) for pair in itertools.pairwise(marks))
                names = {"forward_s": forward, "backward_s": backward, "optimizer_s": optimize}
                print(json.dumps({"step": step, **names}), flush=True)


def marked(device: torch.device) -> Any:
    """A moment of the device's work."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(begin: Any, end: Any) -> float:
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


if __name__ == "__main__":
    main()
