"""Which of its addresses a node sends from, on its way to others, as its own kernel decides.

Its text is sent to `python3` there, before anything of ours is; so it needs the standard library
of Python 3.6 alone. It prints one line of JSON.
"""

import json
import socket
import sys

MARK = "muster:"


def describe(request):  # type: ignore[no-untyped-def]
    """The own address by which each address in `to` is left for, where there is a way at all."""
    found = {}
    for address in request["to"]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            try:
                asked.connect((address, 9))  # looks up the route, and sends nothing
            except OSError:
                continue
            found[address] = asked.getsockname()[0]
    return found


if __name__ == "__main__":
    print(MARK + json.dumps(describe(json.loads(sys.argv[1]))))
