"""Run each line of standard input as at Python's prompt, but show only the last line of an error.

The answer to each line ends with a line `END`.
"""

import sys

END = "\0"


def main() -> None:
    names: dict[str, object] = {}
    sys.path.insert(0, "")  # for modules of the current folder
    for line in sys.stdin:
        try:
            exec(compile(line, "<console>", "single"), names)
        except Exception as error:  # noqa: BLE001
            print(f"{type(error).__name__}: {error}")
        sys.stderr.flush()
        print(END, flush=True)


if __name__ == "__main__":
    main()
