"""If NCCL aborts a rank because of a late collective, the rank that is late is named.

NCCL is simulated: its recorder, and the message with which it aborts a process.
"""

import re

import pytest

from tests.commands import cause_in
from tests.fork_server import interpreter
from tests.launch.submit import submit

pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, sys, time
import torch.distributed
from torch._C import _distributed_c10d

LIMIT_S = 12
BEGUN = time.time()

def recorded(includeCollectives=None, onlyActive=None):
    entry = {"process_group": ["0", "default_pg"], "collective_seq_id": 4, "is_p2p": False}
    entry.update(profiling_name="nccl:all_reduce", input_sizes=[[3]], input_dtypes=["Float"])
    entry.update(time_created_ns=int(BEGUN * 1e9), timeout_ms=LIMIT_S * 1000, retired=False)
    status = {"last_enqueued_collective": "4", "last_completed_collective": "3"}
    return json.dumps({"entries": [entry], "pg_status": {"0": status}}).encode()

if os.environ["RANK"] == "0":
    _distributed_c10d._dump_nccl_trace_json = recorded
    time.sleep(LIMIT_S)
    while not os.path.exists(os.environ["MUSTER_RUN_DIR"] + "/stacks/timeout.json"):
        time.sleep(0.1)  # on a busy machine the ranks are looked at later
    print("terminate called after throwing an instance of 'c10::DistBackendError'\\n  what():  "
          "[Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog "
          "caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=3, "
          "NumelOut=3, Timeout(ms)=12000) ran for 12011 milliseconds before timing out.",
          file=sys.stderr, flush=True)
    os.abort()

def load_data():
    time.sleep(600)

load_data()
"""


def test_rank_that_others_waited_for_is_named_where_nccl_aborts_them(tmp_path):
    (tmp_path / "late.py").write_text(PROGRAM)
    flags = ["--launcher", "local", "--nodes", 2]
    words = [*map(str, flags), "--no-snapshot", "--run-id", "late", "--", "late.py"]
    code, _, err = submit(*words, cwd=tmp_path, python=interpreter())
    assert code == 1, err
    cause = cause_in(err)
    name = "rank 1 on node1"
    assert re.search(f"{name} .* all_reduce 4 of the default group: .* load_data", cause), err
    assert "rank 0 timed out after 12 s" in cause, err
