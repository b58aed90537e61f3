"""Runs each line of standard input as Python does at its prompt; an error is its last line alone.

The answer to each line ends with a line that is `END`.
"""

import sys

END = "\0"


def main() -> None:
    names: dict[str, object] = {}
    sys.path.insert(0, "")  # modules of the folder in which it is started
    for line in sys.stdin:
        try:
            exec(compile(line, "<console>", "single"), names)
        except Exception as error:  # noqa: BLE001
            print(f"{type(error).__name__}: {error}")
        sys.stderr.flush()
        print(END, flush=True)


if __name__ == "__main__":
    main()
