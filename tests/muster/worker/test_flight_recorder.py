"""The collectives in gloo's and NCCL's recorders are read once each; a test double has NCCL's."""

import json
import sys
import time
from unittest.mock import Mock

import pytest
import torch.distributed as dist

from muster.worker import flight_recorder


def entry(backend, number, group="0", description="default_pg", **more):
    return {
        "process_group": [group, description], "collective_seq_id": number, "is_p2p": False,
        "profiling_name": f"{backend}:all_reduce", "input_sizes": [[3]], "input_dtypes": ["Float"],
        "time_created_ns": time.time_ns(), "timeout_ms": 60_000, "retired": False, **more,
    }  # fmt: skip


def trace(entries, **status):
    of = {
        name: {"last_enqueued_collective": str(begun), "last_completed_collective": str(ended)}
        for name, (begun, ended) in status.items()
    }
    return json.dumps({"entries": entries, "pg_status": of}).encode()


NCCL = trace([entry("nccl", 1, retired=True), entry("nccl", 2)], **{"0": (2, 1)})


@pytest.fixture
def recorders(monkeypatch):
    """Return a function that sets the contents of torch's two recorders."""
    module = Mock(spec=["_dump_fr_trace_json", "_dump_nccl_trace_json"])
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)

    def recorders(first, nccl):
        module._dump_fr_trace_json.return_value = first
        module._dump_nccl_trace_json.return_value = nccl

    return recorders


def seen_collectives():
    return [
        (one["group"], one["number"], one["operation"], one["waits"])
        for one in flight_recorder.collectives()
    ]


def test_collectives_of_nccl_are_seen(recorders):
    recorders(trace([]), NCCL)
    assert dist.is_available()
    assert seen_collectives() == [("0", 1, "all_reduce", False), ("0", 2, "all_reduce", True)]
    assert flight_recorder.groups()["0"]["begun"] == 2


def test_collectives_that_both_recorders_have_are_seen_once(recorders):
    recorders(NCCL, NCCL)
    assert seen_collectives() == [("0", 1, "all_reduce", False), ("0", 2, "all_reduce", True)]


def test_gloo_beside_nccl_is_another_group(recorders):
    recorders(trace([entry("gloo", 7, "1", "undefined")], **{"1": (7, 6)}), NCCL)
    assert ("1", 7, "all_reduce", True) in seen_collectives() and (
        "0",
        2,
        "all_reduce",
        True,
    ) in seen_collectives()


def test_group_for_cpus_and_gpus_has_two_counts(recorders):
    recorders(trace([entry("gloo", 7, retired=True)], **{"0": (7, 7)}), NCCL)
    assert ("0", 7, "all_reduce", False) in seen_collectives()
    assert ("0 on nccl", 2, "all_reduce", True) in seen_collectives()
    groups = flight_recorder.groups()
    assert (groups["0"]["begun"], groups["0 on nccl"]["begun"]) == (7, 2)
