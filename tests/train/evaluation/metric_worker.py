"""One rank's part of the metrics of test_evaluate_metrics.py; FOLDER has cases and answers."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from muster.errors import MusterError
from train.distributed import agreement
from train.evaluation.evaluate_metrics import evaluate

MODULES = Path(__file__).with_name("modules")


def part(values, rank, ranks, cut):
    """Return this rank's part: of three or more ranks the second has none, the last the most."""
    if cut == "strided":  # like torch's DistributedSampler, which repeats the first samples
        padded = [*values, *values[: -len(values) % ranks]]
        return padded[rank::ranks]
    size = len(values)
    edges = [0, *((end // 2) * size // (2 * ranks) for end in range(2, ranks + 1)), size]
    return values[edges[rank] : edges[rank + 1]]


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for case in json.loads((folder / "cases.json").read_text()):
        for cut in ("blocks", "strided"):
            local = {name: part(case[name], rank, ranks, cut) for name in case["columns"]}
            if case["tensors"] and local["predictions"]:
                local = {name: np.array(values) for name, values in local.items()}
                local["predictions"] = torch.from_numpy(local["predictions"])
            if cut == "strided":
                places = list(range(len(case["predictions"])))
                local["positions"] = part(places, rank, ranks, cut)
            metric = case["metric"] if rank == 0 else "not looked at"
            result = evaluate(metric, **local, **case["arguments"])
            assert repr(result) == case["answer"], f"{cut}, rank {rank}: {result}"
    samples_go_to_rank_0_alone(rank, ranks)
    refusal_on(rank, ranks)
    dist.destroy_process_group()


def samples_go_to_rank_0_alone(rank, ranks):
    """Check that what a rank decodes from other ranks is small, except on rank 0."""
    received, decoded = [], agreement.decoded

    def counted(data):
        received.append(len(data))
        return decoded(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "decoded", counted)
        samples = [0, 1] * 5000
        scores = str(MODULES / "class_scores.py")
        assert evaluate(scores, predictions=samples, references=samples)["f1"] == 1
    assert (max(received, default=0) > 2 * len(samples)) == (rank == 0 and ranks > 1)


def refusal_on(rank, ranks):
    """Check that wrong input on one rank is refused on all ranks, and that the next call works."""
    scores = str(MODULES / "class_scores.py")
    last = rank == ranks - 1
    refuse_partial_columns(scores, last, ranks)
    for metric, predictions, references, words in (
        (scores, [1, 2] if last else [1], [1], f"rank {ranks - 1} has 2 predictions, 1 references"),
        (scores, [0, 1], None, "metric class_scores: no rank passed references"),
        (scores, [1], ["x"], "metric class_scores: ValueError: "),
        ("no_such_metric", [1], [1], "metric no_such_metric: "),
        ("./gone.py", [1], [1], "metric ./gone.py: .*/gone.py"),
    ):
        with pytest.raises(MusterError, match=words):
            evaluate(metric, predictions=predictions, references=references)
    assert evaluate(scores, predictions=[rank], references=[rank])["samples"] == ranks


def refuse_partial_columns(scores, last, ranks):
    """Check that a column on only some ranks is refused, unless the others have no samples."""
    others = ", ".join(map(str, range(ranks - 1)))
    for name in ("positions", "references") if ranks > 1 else ():
        given = {"predictions": [1, 0], "references": [1, 0], "positions": [2, 0]}
        given = given if last else {key: value for key, value in given.items() if key != name}
        words = f"rank {ranks - 1} passed {name}, but rank {others} did not"
        with pytest.raises(MusterError, match=words):
            evaluate(scores, **given)
    only_last = {"predictions": [1, 0], "references": [1, 1], "positions": [7, 3]} if last else {}
    assert evaluate(scores, **only_last, average="micro")["samples"] == 2


if __name__ == "__main__":
    main(Path(sys.argv[1]))
