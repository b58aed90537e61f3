"""A node's side of a survey: it calls each function that it is sent, and answers with the result.

The text of this file is the first thing that the node's `python3` is sent, so it needs the standard
library of Python 3.8 alone. Then each line of stdin is a question: a function's name, its module
(whose text comes with its first question) and its arguments. The probe ends with its stdin, that
is with the survey, however that ends.

srun gives the same stdin to all tasks, so all nodes are asked the same; a function finds its own
node's arguments under `asked["node"]`. srun also mixes the tasks' output and cuts it, so an answer
names its node and comes in parts that are short enough to stay whole.
"""

import json
import os
import sys

MARK = "muster:"
PART = 400  # characters; srun passes on 1024 bytes at a time


def main():  # type: ignore[no-untyped-def]
    node = os.environ.get(sys.argv[1], sys.argv[1])  # a number, or the variable that holds it
    modules = {}  # type: ignore[var-annotated]
    for line in iter(sys.stdin.buffer.readline, b""):
        text = line.decode()
        if text.startswith(MARK):
            asked = json.loads(text[len(MARK) :])
            send(node, {**reply(modules, dict(asked, node=node)), "to": asked["number"]})


def reply(modules, asked):  # type: ignore[no-untyped-def]
    try:
        if "source" in asked:
            # kept, with the sockets and files that its functions leave open
            module = modules.setdefault(asked["module"], {"__name__": asked["module"]})
            exec(compile(asked["source"], asked["module"], "exec"), module)
        return {"value": modules[asked["module"]][asked["function"]](asked)}
    except Exception as error:  # noqa: BLE001  # whatever it is, the survey shall name it
        return {"failed": str(error) or type(error).__name__}


def send(node, answer):  # type: ignore[no-untyped-def]
    text = json.dumps(answer)
    for at in range(0, len(text), PART):
        part = {"node": node, "part": text[at : at + PART], "more": at + PART < len(text)}
        sys.stdout.write(MARK + json.dumps(part) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
