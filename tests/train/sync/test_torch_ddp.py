"""torch's own DDP tests pass with `muster.sync` instead, except where it differs by design."""

import json
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests.commands import call
from tests.fork_server import interpreter

pytestmark = pytest.mark.slow  # four minutes

# torch's tests that pass with DDP but not with `muster.sync`, and why that is intended.
SECOND_HOOK = "register_comm_hook or register_builtin_comm_hook can only be called once"
BY_DESIGN = {
    "test_accumulate_gradients_no_sync_allreduce_hook": SECOND_HOOK,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": SECOND_HOOK,
    "test_ddp_hook_parity_allreduce": SECOND_HOOK,
    "test_ddp_hook_parity_allreduce_process_group": SECOND_HOOK,
    "test_ddp_hook_parity_post_localSGD": SECOND_HOOK,
    "test_ddp_hook_parity_powerSGD": SECOND_HOOK,
    "test_ddp_comm_hook_logging": "BucketHook.average is not None",  # the hook's name in the log
    "test_ddp_logging_data_cpu": "Scalars are not equal",  # the size of buckets in the log
}
# DDP's mixed_precision= uses its own hook, so it is refused.
NATIVE = "test_ddp_native_mixed_precision_"
REFUSED = "mixed_precision= needs "


@pytest.mark.timeout(3100)
def test_torchs_own_tests_pass_but_where_it_differs_by_design(tmp_path: Path):
    program = Path(__file__).with_name("torch_ddp_worker.py")
    env = {"PYTHONPATH": str(CHECKOUT)}
    done = call(interpreter(), program, tmp_path, env=env, timeout_s=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    passed_with_ddp = [name for name, ended in outcomes.items() if not ended.get("ddp")]
    assert len(passed_with_ddp) > 50
    wrong = {}
    for name in passed_with_ddp:
        by_design = REFUSED if name.startswith(NATIVE) else BY_DESIGN.get(name, "")
        error = outcomes[name]["muster"]
        if bool(error) != bool(by_design) or by_design not in error:
            wrong[name] = error
    assert not wrong
