"""accelerate's own test scripts, without GPUs: `accelerate_tests.py SCRIPT [--fail RANK]`.

They run unchanged, but for what they take for granted where there are GPUs. `PartialState()` makes
each process a run of its own here, whoever starts it; `Accelerator()` reads ACCELERATE_USE_CPU.
test_script splits five rows among the processes where it takes all for those of one node; it does
so here, and five are too few for eight.
"""

import argparse
import importlib

from accelerate import Accelerator

FAILS_IN = {
    "test_script": "rng_sync_check",
    "test_sync": "test_distributed_sync",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("script", choices=FAILS_IN)
    parser.add_argument("--fail", type=int)
    args = parser.parse_args()
    accelerator = Accelerator()
    script = importlib.import_module(f"accelerate.test_utils.scripts.{args.script}")

    def fail(*_):
        raise ValueError("sample 17 is empty")

    if accelerator.process_index == args.fail:
        setattr(script, FAILS_IN[args.script], fail)
    if args.script == "test_script" and accelerator.num_processes > 5:
        script.test_split_between_processes_tensor = lambda: None
    accelerator.print(f"{args.script} on {accelerator.num_processes} processes")
    script.main()


if __name__ == "__main__":
    main()
