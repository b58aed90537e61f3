"""Train on four nodes; where memory runs out, train again with half the batch."""

import json
import subprocess
import sys


def muster(*words):
    """What a command of Muster printed, as objects."""
    asked = subprocess.run(["muster", *words], stdout=subprocess.PIPE, text=True, check=False)
    return [json.loads(line) for line in asked.stdout.splitlines()]


batch_size = 64
while True:
    program = ["train.py", "--batch-size", str(batch_size)]
    first = muster("run", "--nodes", "4", "--detach", "--json", "--", *program)[-1]
    if first["kind"] == "error":  # nothing was started
        sys.exit(first["message"])
    last = muster("jobs", "wait", first["run_id"], "--for", "2h", "--json")[-1]
    if last["kind"] == "time_over":
        muster("jobs", "cancel", first["run_id"], "--json")
        sys.exit("not done within two hours")
    if last.get("exit_code") == 0:
        print(f"done with batches of {batch_size}: {last['run_dir']}")
        break
    if last["cause"] != "out_of_memory" or batch_size == 1:
        sys.exit(last["message"])
    batch_size //= 2
